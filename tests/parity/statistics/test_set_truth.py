"""The set as read for judging is the set as `clefq predict` reads it."""

import json
import shutil
from pathlib import Path

import pytest

from clefq.errors import RecordError
from clefq.nano import SETS
from clefq.parity.statistics.set_truth import SetTruth, read_truth
from clefq.plain_files import compact_json
from clefq.store.sets import open_set, set_sha256

ROWS = tuple[object, ...]


def strictly(folder: Path) -> list[ROWS]:
    return [
        (
            record.id,
            question.id,
            record.cohort,
            question.type,
            question.option_ids,
            record.gold.get(question.id),
            compact_json(dict(record.cohorts)) if record.cohorts else None,
        )
        for record in open_set(folder).records()
        for question in record.questions
    ]


def rows(truth: SetTruth) -> list[ROWS]:
    return list(zip(*truth.columns, strict=True))


def test_the_same_rows_as_read_strictly() -> None:
    truth = read_truth(SETS / "nano-eval")
    assert rows(truth) == strictly(SETS / "nano-eval")
    assert truth.n_questions == 1005
    assert truth.find(("no such", "question")) is None
    record, question, *row = rows(truth)[-1]
    assert truth.find((str(record), str(question))) == tuple(row)


def changed(tmp_path: Path, lines: list[str]) -> Path:
    """A set with these records, its hash renewed as an attacker would."""
    folder = tmp_path / "set"
    shutil.copytree(SETS / "nano-eval", folder)
    (folder / "records.jsonl").write_text("".join(f"{line}\n" for line in lines))
    value = json.loads((folder / "manifest.json").read_text())
    value["sha256"] = set_sha256(folder)
    (folder / "manifest.json").write_text(json.dumps(value))
    return folder


LINE = {
    "id": "a",
    "cohort": "c",
    "state": {"b": 1, "a": "é"},
    "questions": {"q": {"type": "noul"}, "s": {"type": "score", "criteria": ["low", "high"]}},
}


@pytest.mark.parametrize(
    "change",
    [
        {"gold": {"q": "true", "s": "1"}, "cohorts": {"language": "de"}},
        {"gold": {}, "images": []},
        {"state": "text", "gold": {"q": "false"}},
    ],
)
def test_odd_but_sound_records(tmp_path: Path, change: dict[str, object]) -> None:
    first = json.dumps({**LINE, **change})
    second = json.dumps({**LINE, **change, "id": "b", "cohort": "d"})
    truth = read_truth(changed(tmp_path, [first, second]))
    assert rows(truth) == strictly(tmp_path / "set")
    assert truth.copies == 1  # the same question under another id


@pytest.mark.parametrize(
    "line",
    [
        json.dumps({**LINE, "gold": {"q": "maybe"}}),
        json.dumps({**LINE, "gold": {"z": "true"}}),
        json.dumps({**LINE, "cohort": ""}),
        json.dumps({**LINE, "more": 1}),
        json.dumps({**LINE, "questions": {}}),
        json.dumps({**LINE, "state": float("nan")}),
        json.dumps({**LINE, "id": "first"}),
        json.dumps({k: v for k, v in LINE.items() if k != "state"}),
        "[]",
        "{",
    ],
)
def test_faults_are_named_by_their_line(tmp_path: Path, line: str) -> None:
    folder = changed(tmp_path, [json.dumps({**LINE, "id": "first"}), line])
    with pytest.raises(RecordError, match=r"records\.jsonl:2"):
        read_truth(folder)
