"""Two models' answers in a spreadsheet."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import pytest

from clefq.clef.records import parse_record
from clefq.data.side_by_side import COLUMNS, LONGEST_CELL, write_side_by_side
from clefq.errors import PredictionsError
from clefq.importing.answers import Answer, import_answers
from clefq.store.predictions import Predictions
from clefq.store.sets import SetDraft, SetFolder, SourceInfo, write_set
from tests.parity.factory import META

SOURCE = SourceInfo("t", "", "generated", None, {}, "Apache-2.0", None)
STATES = ["=1+1", {"text": "-2"}, "é\nline", "x" * 40_000]


def setup(folder: Path, flip: int) -> tuple[tuple[Predictions, Predictions], SetFolder]:
    records = [
        parse_record(
            {
                "id": f"r{i}",
                "cohort": "@mail",
                "state": state,
                "questions": {"q": {"type": "noul", "instructions": "+sure?"}},
                "gold": {"q": "true"},
            },
            "t",
        )
        for i, state in enumerate(STATES)
    ]
    opened = write_set(folder / "set", records, {}, SetDraft("eval", "set", {}, (SOURCE,)))
    meta = replace(META, eval_set_sha256=opened.manifest.sha256)

    def side(p_of: dict[int, float]) -> Predictions:
        given = {
            (f"r{i}", "q"): Answer("t", {"true": p_of.get(i, 0.75), "false": 1 - p_of.get(i, 0.75)})
            for i in range(3)
        }
        return Predictions(meta, import_answers(records, given, None)[0])

    return (side({}), side({flip: 0.25})), opened


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        return list(csv.DictReader(file))


def test_rows_hold_both_answers_and_no_formula(tmp_path: Path) -> None:
    sides, folder = setup(tmp_path, flip=1)
    assert write_side_by_side(tmp_path / "a.csv", sides, folder) == 4
    rows = rows_of(tmp_path / "a.csv")
    assert tuple(rows[0]) == COLUMNS
    assert [row["state"] for row in rows[:3]] == ["'=1+1", '{"text":"-2"}', "é\nline"]
    assert len(rows[3]["state"]) == LONGEST_CELL
    assert (rows[0]["cohort"], rows[0]["instructions"]) == ("'@mail", "'+sure?")
    flipped = rows[1]
    assert (flipped["baseline_choice"], flipped["candidate_choice"]) == ("true", "false")
    assert (flipped["baseline_right"], flipped["candidate_right"]) == ("1", "0")
    assert float(flipped["total_variation"]) == pytest.approx(0.5)
    assert float(flipped["candidate_probability"]) == pytest.approx(0.75)
    assert rows[0]["changed"] == "0"
    assert "no answer" in rows[3]["baseline_error"]
    assert rows[3]["total_variation"] == ""
    assert (tmp_path / "a.csv").read_bytes().startswith(b"\xef\xbb\xbf")


def test_changed_questions_alone(tmp_path: Path) -> None:
    sides, folder = setup(tmp_path, flip=0)
    assert write_side_by_side(tmp_path / "a.csv", sides, folder, changed_only=True) == 2
    assert [row["record_id"] for row in rows_of(tmp_path / "a.csv")] == ["r0", "r3"]


def test_another_set_is_refused(tmp_path: Path) -> None:
    sides, folder = setup(tmp_path, flip=0)
    other = replace(sides[1], meta=replace(META, eval_set_sha256="cd" * 32))
    with pytest.raises(PredictionsError, match="another set"):
        write_side_by_side(tmp_path / "a.csv", (sides[0], other), folder)


def test_labels_have_no_probability(tmp_path: Path) -> None:
    sides, folder = setup(tmp_path, flip=1)
    labelled = replace(sides[1], meta=replace(sides[1].meta, answers="labels"))
    write_side_by_side(tmp_path / "a.csv", (sides[0], labelled), folder)
    row = rows_of(tmp_path / "a.csv")[1]
    assert (row["candidate_choice"], row["candidate_probability"]) == ("false", "")
    assert float(row["baseline_probability"]) == pytest.approx(0.75)
