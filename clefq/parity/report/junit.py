"""JUnit form of a report: one test case per gate, for CI systems that show tests."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from typing import Any

from clefq.parity.gates.formatting import figure
from clefq.parity.gates.rows import gate_row

# What XML 1.0 cannot hold.
_FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")


def junit_xml(documents: Sequence[Mapping[str, Any]], *, inconclusive_fails: bool = True) -> str:
    """The XML text of reports, one test suite per candidate and set.

    A failed gate is a failure, an inconclusive one too unless told otherwise, an invalid
    comparison an error; not gated and advisory gates that do not pass are skipped.

    Args:
        documents: `parity.json` values.
        inconclusive_fails: Whether inconclusive required gates count as failures.
    """
    root = ET.Element("testsuites")
    for document in documents:
        root.append(_suite(document, inconclusive_fails))
    ET.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ET.tostring(root, "unicode") + "\n"


def _suite(document: Mapping[str, Any], inconclusive_fails: bool) -> ET.Element:
    name = f"clefq parity {document['candidate']['variant']} on {document['eval_set']['name']}"
    suite = ET.Element("testsuite", name=_clean(name))
    cases = [_coverage_case(document, suite)]
    cases += [_gate_case(gate, suite, inconclusive_fails) for gate in document["gates"]]
    cases.append(_verdict_case(document["verdict"], suite, inconclusive_fails))
    for attribute, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(attribute, str(cases.count(tag)))
    suite.set("tests", str(len(cases)))
    suite.set("time", "0")
    return suite


def _case(suite: ET.Element, name: str, outcome: str, message: str) -> str:
    case = ET.SubElement(
        suite, "testcase", classname=_clean(suite.get("name", "")), name=_clean(name), time="0"
    )
    if outcome in ("failure", "error", "skipped"):
        ET.SubElement(case, outcome, message=_clean(message))
    elif message:
        ET.SubElement(case, "system-out").text = _clean(message)
    return outcome


def _coverage_case(document: Mapping[str, Any], suite: ET.Element) -> str:
    coverage = document["coverage"]
    sound = coverage["status"] == "pass"
    text = f"{coverage['valid']} of {coverage['expected']} questions, at least "
    text += f"{figure(coverage['minimum'])} of them are needed"
    return _case(suite, "coverage", "passed" if sound else "error", text)


def _gate_case(gate: Mapping[str, Any], suite: ET.Element, inconclusive_fails: bool) -> str:
    text = gate_row(gate).line
    outcome = {
        "pass": "passed",
        "fail": "failure",
        "inconclusive": "failure" if inconclusive_fails else "skipped",
        "not_gated": "skipped",
    }[gate["status"]]
    if not gate["required"] and outcome == "failure":
        outcome, text = "skipped", f"advisory: {text}"
    return _case(suite, gate["name"], outcome, text)


def _verdict_case(verdict: Mapping[str, Any], suite: ET.Element, inconclusive_fails: bool) -> str:
    outcome = {
        "pass": "passed",
        "fail": "failure",
        "inconclusive": "failure" if inconclusive_fails else "skipped",
        "invalid": "error",
    }[verdict["word"]]
    text = " ".join([*verdict["banners"], verdict["sentence"], *verdict["reasons"]])
    return _case(suite, "verdict", outcome, text)


def _clean(text: str) -> str:
    """Text without the characters that XML 1.0 cannot hold."""
    return _FORBIDDEN.sub("", text)
