"""`clefq plan` through the real command line."""

import json
from pathlib import Path

import pytest

from clefq.parity.gates.files import load_gates
from clefq.parity.plan_gates import PlanRow, plan_from_report, smallest_set
from tests.cli.parity.conftest import Clefq
from tests.parity.report.cases import judged
from tests.parity.synthetic import Dial, make_world, predictions


def rows(capsys: pytest.CaptureFixture[str]) -> list[dict]:
    return json.loads(capsys.readouterr().out)["rows"]


def test_specification_figures(clefq: Clefq, capsys: pytest.CaptureFixture[str]) -> None:
    assert clefq("plan", "--margin", "0.02", "--half-width", "0.02", "--json") == 0
    assert [row["needed"] for row in rows(capsys)] == [1119, 548]
    for floor, expected in (("0.95", [75, 111, 144, 174]), ("0.98", [186, 278, 360, 437])):
        assert clefq("plan", "--floor", floor, "--json") == 0
        assert [row["needed"] for row in rows(capsys)] == expected


def test_what_the_present_set_can_decide(clefq: Clefq, capsys: pytest.CaptureFixture[str]) -> None:
    args = ("plan", "--margin", "0.02", "--floor", "0.98", "--questions")
    assert clefq(*args, "400", "--json") == 0
    assert [row["decided"] for row in rows(capsys)] == [False, True]
    assert clefq(*args, "1200", "--json") == 0
    assert [row["decided"] for row in rows(capsys)] == [True, True]
    assert clefq("plan", "--floor", "0.98", "--questions", "156") == 0
    text = capsys.readouterr().out
    assert "too few even without a flip" in text
    assert "does not decide: floor" in text


def test_bundled_gates_from_assumptions_fit_80_columns(
    clefq: Clefq, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert clefq("plan") == 0
    text = capsys.readouterr().out
    assert "1,119" in text and "cannot be planned without a report" in text
    assert max(map(len, text.splitlines())) <= 80


def test_from_a_report(clefq: Clefq, small_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert clefq("parity", "--baseline", "bf16", "--quiet") == 3
    capsys.readouterr()
    assert clefq("plan", "report", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    by_name = {row["gate"]: row for row in document["rows"]}
    accuracy = by_name["accuracy"]
    assert accuracy["decided"] is False and accuracy["needed"] > accuracy["have"] > 0
    variation = by_name["total-variation"]
    # a bounded mean allows for a record that the set lacks: so few records leave it open
    assert variation["decided"] is False and variation["needed"] > variation["have"]
    assert document["assumptions"]["deff"] >= 1
    curves = {curve["gate"]: curve["curve"] for curve in document["operating"]}
    assert set(curves) == {"accuracy", "confident-agreement"}
    assert curves["accuracy"][0]["loss"] == 0 == curves["accuracy"][-1]["passes"]
    # other gates, the same figures
    assert clefq("plan", "report", "--gates", "smoke", "--json") == 0
    smoke = {row["gate"]: row for row in rows(capsys)}
    assert smoke["agreement"]["decided"] is True
    # an assumption of one's own replaces the report's
    assert clefq("plan", "report", "--margin", "0.02", "--discordance", "0.057",
                 "--difference", "0", "--deff", "1", "--json") == 0  # fmt: skip
    assert rows(capsys)[0]["needed"] == 1119


def plan_of(clefq: Clefq, capsys: pytest.CaptureFixture[str], *args: object) -> dict:
    assert clefq("plan", *args, "--json") == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("records", "dial", "word"),
    [
        (120, Dial(noise=0.02), "inconclusive"),
        (120, Dial(noise=0.3), "inconclusive"),
        (120, Dial(noise=0.5, swap=0.06), "fail"),
        (360, Dial(noise=0.15), "pass"),
    ],
)
def test_the_plan_agrees_with_the_verdict(records: int, dial: Dial, word: str) -> None:
    """Every gate of the report is planned, and the set's size is the verdict's own advice."""
    world = make_world(records)
    document = judged(predictions(world, "bf16"), predictions(world, "fp8", dial))
    assert document["verdict"]["word"] == word
    rows = list(plan_from_report(load_gates("release").gates, document, 0.8))
    assert [row.gate for row in rows] == [gate["name"] for gate in document["gates"]]
    for row, gate in zip(rows, document["gates"], strict=True):
        assert row.have == gate["n_questions"] and row.required == gate["required"]
        assert row.needed is not None
        assert row.needed <= row.have if row.decided else row.needed > row.have
    total = document["coverage"]["expected"]
    size = smallest_set(rows, total)
    more = document["verdict"]["more_questions"]
    assert size is not None and (size <= total if more is None else size == total + more)


def test_the_smallest_set_takes_all_gates_to_pass_and_one_to_fail() -> None:
    def row(needed: int | None, have: int, **more: bool) -> PlanRow:
        return PlanRow("g", "tv", 0.1, needed, have, needed is not None, "", **more)

    small, large, aside = row(100, 1000), row(400, 1000), row(9000, 10, required=False)
    assert smallest_set([small, large, aside], 2000) == 800
    assert smallest_set([row(300, 1000, failing=True), large, small], 2000) == 600
    assert smallest_set([small, row(1500, 1000)], 2000) == 3000
    assert smallest_set([row(997, 1000)], 1005) == 1005  # never more than decides now
    assert smallest_set([small, row(None, 1000)], 2000) is None
    assert smallest_set([aside], 2000) is None


def test_assumptions_leave_the_other_gates_to_the_report(
    clefq: Clefq, small_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert clefq("parity", "--baseline", "bf16", "--quiet") == 3
    capsys.readouterr()
    rows = plan_of(clefq, capsys, "report", "--questions", "5000")["rows"]
    by_name = {row["gate"]: row for row in rows}
    assert by_name["accuracy"]["have"] == 5000 and by_name["total-variation"]["needed"] > 0
    assert not any("without a report" in row["note"] for row in rows)


def test_wrong_use(clefq: Clefq, tmp_path: Path) -> None:
    assert clefq("plan", "--margin", "0") == 2
    assert clefq("plan", "--floor", "1.5") == 2
    assert clefq("plan", "--margin", "0.01", "--difference", "-0.02") == 2
    assert clefq("plan", "--power", "1") == 2
    assert clefq("plan", tmp_path) == 2
    assert clefq("plan", "--gates", "gone.yaml") == 2
