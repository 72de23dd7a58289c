"""`clefq build eval SET --variants`: what the set holds, byte for byte, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from clefq.clef.records import Question, Record
from clefq.cli.main import app
from clefq.errors import ClefqError
from clefq.store.sets import SetDraft, open_set, write_set

RECORDS = [
    Record(
        f"r{i}",
        "c",
        {"text": f"It's case {i}."},
        (
            Question("intent", "choice", "Which?", {"pay": None, "ask": "Ask them."}),
            Question("late", "noul", None, {"true": "late"}),
        ),
        gold={"intent": "pay", "late": "false"},
    )
    for i in range(3)
]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_set(tmp_path / "sets" / "mine", RECORDS, {}, SetDraft("eval", "mine", {}, ())).path


def build(*arguments: str) -> tuple[int, str]:
    found = CliRunner().invoke(app, ["build", *arguments, "--tokenizer", "none"])
    if isinstance(found.exception, ClefqError):
        return int(found.exception.exit_code), found.exception.message
    return found.exit_code, found.output


def by_id(folder: Path) -> dict[str, Record]:
    return {record.id: record for record in open_set(folder).records()}


def test_originals_stay_and_variants_stand_beside_them(source: Path) -> None:
    code, output = build("eval", str(source), "--variants", "all")
    assert code == 0, output
    folder = source.with_name("mine-variants")
    found = by_id(folder)
    assert [found[f"r{i}"] for i in range(3)] == RECORDS
    assert all(not record.gold for name, record in found.items() if "::" in name)
    negated = {q.id: q for q in found["r1::variant=negated"].questions}["late"]
    assert negated.instructions == "Is it wrong, or is the answer no: late"
    assert negated.criteria == {"false": "late"}
    assert found["r1::variant=empty"].state == ""
    assert found["r1::variant=json"].state == '{\n  "text": "It\'s case 1."\n}'
    assert found["r1::variant=unicode"].state == {"text": "It\u2019s\u00a0case 1."}
    assert [q.id for q in found["r2::variant=crowded"].questions] == [
        "intent", "late", "~intent", "~late",
    ]  # fmt: skip
    assert [q.id for q in found["r0::variant=alone/late"].questions] == ["late"]
    manifest = json.loads((folder / "manifest.json").read_text())
    said = manifest["definition"]["variants"]
    assert said["seed"] == "clefq-variants-1"
    assert said["of"] == {"name": "mine", "sha256": open_set(source).manifest.sha256}
    assert said["made"]["alone"] == 6
    assert manifest["classes"]["intent"]["pay"] == 3
    code, _ = build("eval", str(source), "--variants", "all", "--out", str(folder) + "-2")
    assert (folder / "records.jsonl").read_bytes() == Path(
        str(folder) + "-2", "records.jsonl"
    ).read_bytes()


def test_a_seed_deals_anew_and_stands_in_the_ids(source: Path) -> None:
    code, output = build("eval", str(source), "--variants", "order", "--seed", "two")
    assert code == 0, output
    found = by_id(source.with_name("mine-variants"))
    assert set(found) == {f"r{i}{end}" for i in range(3) for end in (
        "", "::variant=opaque", "::variant=order/two"
    )}  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("--variants", "all,odd"), "does not know odd"),
        (("--variants", ""), "does not know an empty list"),
        (("--variants", "order", "--seed", "a b"), "becomes part of ids"),
        (("--variants", "order", "--limit", "3"), "--limit does not go with --variants"),
    ],
)
def test_wrong_use(source: Path, arguments: tuple[str, ...], part: str) -> None:
    code, output = build("eval", str(source), *arguments)
    assert code == 2
    assert part in " ".join(output.split())


def test_variants_of_variants_and_of_calibration_sets_are_refused(source: Path) -> None:
    assert build("eval", str(source), "--variants", "case")[0] == 0
    again = source.with_name("mine-variants")
    code, output = build("eval", str(again), "--variants", "case")
    assert code == 2
    assert "a variant already" in " ".join(output.split())
    write_set(source.with_name("cal"), RECORDS, {}, SetDraft("calibration", "cal", {}, ()))
    assert build("eval", str(source.with_name("cal")), "--variants", "case")[0] == 2
    assert build("calibration", str(source), "--variants", "case")[0] == 2
