"""One gate, one row: every view renders the same sign, unit, rounding and limit."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest

from clefq.parity.gates.judging import GateResult
from clefq.parity.gates.rows import figure_row, gate_row
from clefq.parity.report.junit import junit_xml
from clefq.parity.report.markdown import report_markdown
from tests.parity.gates.test_verdict import result

LOSS = replace(
    result("fail"), metric="accuracy_delta", margin=0.02, bound=None, estimate=-0.05,
    lower=-0.0712, upper=-0.03,
)  # fmt: skip


@pytest.mark.parametrize(
    ("gate", "figure", "needs"),
    [
        (LOSS, "−5.00 pt", "≥ −2.00 pt"),
        (result("pass"), "95.00%", "≥ 90.00%"),
        (replace(result("pass"), metric="kl", direction="at_most", bound=0.01, estimate=0.002),
         "0.0020", "≤ 0.0100"),
        # the excess over a replicate is a difference, whatever the metric
        (replace(result("pass"), metric="tv", direction="at_most", bound=None, margin=0.01,
                 estimate=0.002, reference="replicate"), "+0.20 pt", "≤ +1.00 pt"),
    ],
)  # fmt: skip
def test_a_row_decides_sign_unit_and_rounding(gate: GateResult, figure: str, needs: str) -> None:
    row = gate_row(gate)
    assert (row.figure, row.needs) == (figure, needs)
    assert gate_row(gate.to_json()) == row
    assert figure in row.line and needs in row.line


def test_views_show_the_same_row(document: dict) -> None:
    """Markdown and JUnit print the figures of the row, none of their own."""
    xml = ET.fromstring(junit_xml([document]))
    cases = {case.get("name"): ET.tostring(case, "unicode") for case in xml.iter("testcase")}
    markdown = report_markdown(document)
    for gate in document["gates"]:
        row = gate_row(gate)
        case = cases[gate["name"]].replace("&#8805;", "≥").replace("&#8804;", "≤")
        assert row.needs in case
        assert row.figure in markdown and row.needs in markdown
        if row.bounded:
            assert row.figure in case and row.interval in case


def test_a_figure_that_is_infinite_says_where() -> None:
    metric = {
        "estimate": None, "lower": None, "upper": None, "confidence": 0.95, "method": "none",
        "bootstrap": None, "n_questions": 9, "n_records": 9, "n_infinite": 2, "unit": "nats",
    }  # fmt: skip
    row = figure_row("kl", metric)
    assert row.figure == "infinite on 2" and row.unit == "nats"
