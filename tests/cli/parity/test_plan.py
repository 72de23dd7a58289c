"""`clefq plan` through the real command line."""

import json
from pathlib import Path

import pytest

from tests.cli.parity.conftest import Clefq
from tests.parity.synthetic import Dial, World, predictions, write


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


def test_from_a_report(
    clefq: Clefq, small: World, run_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = run_folder / "predictions" / "synthetic"
    write(folder / "bf16.parquet", predictions(small, "bf16"))
    write(folder / "fp8.parquet", predictions(small, "fp8", Dial(noise=0.15)))
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
    # other gates, the same figures
    assert clefq("plan", "report", "--gates", "smoke", "--json") == 0
    smoke = {row["gate"]: row for row in rows(capsys)}
    assert smoke["agreement"]["decided"] is True
    # an assumption of one's own replaces the report's
    assert clefq("plan", "report", "--margin", "0.02", "--discordance", "0.057",
                 "--difference", "0", "--deff", "1", "--json") == 0  # fmt: skip
    assert rows(capsys)[0]["needed"] == 1119


def test_wrong_use(clefq: Clefq, tmp_path: Path) -> None:
    assert clefq("plan", "--margin", "0") == 2
    assert clefq("plan", "--floor", "1.5") == 2
    assert clefq("plan", "--margin", "0.01", "--difference", "-0.02") == 2
    assert clefq("plan", "--power", "1") == 2
    assert clefq("plan", tmp_path) == 2
    assert clefq("plan", "--gates", "gone.yaml") == 2
