"""What a CI system shows of a job: the step summary, JUnit, and outputs for later steps.

GitHub names two files in the environment, `GITHUB_STEP_SUMMARY` and `GITHUB_OUTPUT`; elsewhere
the same texts lie in the job's folder.
"""

from __future__ import annotations

import os
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from clefq.ci.spec import GateJob, JobResult, Step
from clefq.errors import ClefqError
from clefq.parity.gates.formatting import MARKS, markdown_cell, markdown_prose
from clefq.parity.report.junit import junit_xml
from clefq.parity.report.keeping import REPORT_FILE
from clefq.parity.report.markdown import report_markdown
from clefq.plain_files import read_json
from clefq.store.atomic import disk_error, write_json, write_text

STEP_SUMMARY = "GITHUB_STEP_SUMMARY"
OUTPUT = "GITHUB_OUTPUT"
# GitHub refuses a step summary above 1 MiB.
MAX_SUMMARY = 900_000
MAX_BREACHES = 20
SUMMARY_FILE, JUNIT_FILE, RESULT_FILE = "summary.md", "junit.xml", "ci.json"


def append_summary(path: Path | None, texts: Iterable[str]) -> None:
    """Appends Markdown to a step summary; what does not fit is left out, and said.

    Args:
        path: The file; None: the one that GitHub names, if any.
        texts: Markdown, each either whole or left out.

    Raises:
        InputError: The file cannot be written to.
    """
    named = os.environ.get(STEP_SUMMARY)
    target = path or (Path(named) if named else None)
    if target is None:
        return
    size = target.stat().st_size if target.is_file() else 0
    try:
        with target.open("a", encoding="utf-8") as file:
            for text in texts:
                size += len(text.encode("utf-8")) + 1
                if size > MAX_SUMMARY:
                    file.write("Further reports did not fit into this summary.\n")
                    return
                file.write(text + "\n")
    except OSError as error:
        raise disk_error(error, target) from error


def append_outputs(values: Mapping[str, object]) -> None:
    """Hands values to later steps where GitHub asks for them.

    Raises:
        InputError: The file cannot be written to.
    """
    named = os.environ.get(OUTPUT)
    if not named:
        return
    path = Path(named)
    try:
        with path.open("a", encoding="utf-8") as file:
            file.writelines(f"{name}={value}\n" for name, value in values.items())
    except OSError as error:
        raise disk_error(error, path) from error


def write_results(job: GateJob, result: JobResult, summary: Path | None) -> None:
    """Writes `ci.json`, `junit.xml` and `summary.md` into the job's folder, and tells GitHub.

    Args:
        job: What was asked.
        result: What came of it.
        summary: Another file to append the summary to, or None.
    """
    documents = [read_json(path) for path in _parity_files(result)]
    texts = [_overview(result), *(report_markdown(document) for document in documents)]
    fails = job.inconclusive_fails
    suites = junit_xml(documents, inconclusive_fails=fails)
    write_text(job.out / JUNIT_FILE, _with_audit(suites, result.steps))
    write_text(job.out / SUMMARY_FILE, "\n".join(texts))
    write_json(job.out / RESULT_FILE, result.to_json(inconclusive_fails=fails))
    append_summary(summary, texts)
    code = int(result.exit_code(inconclusive_fails=fails))
    append_outputs({"verdict": result.verdict, "exit-code": code})


def forget_results(out: Path) -> None:
    """Removes the results of an earlier job: one that stops must not leave another's verdict.

    Raises:
        InputError: A file cannot be removed.
    """
    for name in (RESULT_FILE, JUNIT_FILE, SUMMARY_FILE):
        try:
            (out / name).unlink(missing_ok=True)
        except OSError as error:
            raise disk_error(error, out / name) from error


def report_error(error: ClefqError, summary: Path | None) -> None:
    """Says in the step summary why nothing was judged."""
    lines = ["## ! clefq could not judge", "", markdown_prose(error.message), ""]
    lines += [f"- {markdown_prose(fault)}" for fault in error.faults]
    if error.fix is not None:
        lines.append(f"**Fix:** {markdown_prose(error.fix)}")
    append_summary(summary, ["\n".join(lines) + "\n"])
    append_outputs({"verdict": "error", "exit-code": int(error.exit_code)})


def _with_audit(suites: str, steps: Sequence[Step]) -> str:
    """JUnit XML with the audit as a test of its own, in front."""
    root = ET.fromstring(suites.encode())
    for step in (step for step in steps if step.name == "audit"):
        failures = str(int(bool(step.breaches)))
        counts = {"tests": "1", "failures": failures, "errors": "0", "skipped": "0"}
        about = {"name": "clefq audit", **counts, "time": f"{step.seconds:.1f}"}
        suite = ET.Element("testsuite", about)
        case = ET.SubElement(suite, "testcase", classname="clefq audit", name="audit")
        if step.breaches:
            failure = ET.SubElement(case, "failure", message=step.text)
            failure.text = "\n".join(step.breaches[:MAX_BREACHES])
        root.insert(0, suite)
    ET.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ET.tostring(root, "unicode") + "\n"


def _parity_files(result: JobResult) -> Iterator[Path]:
    for folder, body in result.reports:
        for row in body["candidates"]:
            yield folder / row["variant"] / REPORT_FILE


def _overview(result: JobResult) -> str:
    word = result.verdict
    lines = [f"# {MARKS[word]} clefq gate: {word.upper()}", "", "| step | result | seconds |"]
    lines.append("|---|---|---:|")
    lines += [f"| {s.name} | {markdown_cell(s.text)} | {s.seconds:.1f} |" for s in result.steps]
    for step in result.steps:
        lines += _breaches(step)
    return "\n".join(lines) + "\n"


def _breaches(step: Step) -> Iterator[str]:
    if not step.breaches:
        return
    yield ""
    yield f"The {step.name} found:"
    yield ""
    for breach in step.breaches[:MAX_BREACHES]:
        yield f"- {markdown_prose(breach)}"
    more = len(step.breaches) - MAX_BREACHES
    if more > 0:
        yield f"- and {more:,} more (`clefq audit` lists all)"
