"""`clefq check`: each fault of a set is found, and a sound set has none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from clefq.clef.records import Record, parse_record
from clefq.cli.main import app
from clefq.data.check import check_set
from clefq.data.tokens import PromptCounter
from clefq.data.variants import make_variants
from clefq.nano import SETS, WEIGHTS
from clefq.store.sets import SetDraft, SetFolder, open_set, write_set
from clefq.store.variant_links import TRANSFORMS

WORDS = ("kettle", "ladder", "wagon", "saddle", "anchor", "umbrella", "whistle", "thimble")


def record(number: int, state: Any = None, gold: str | None = "a", **options: Any) -> Record:
    criteria = options or {"a": None, "b": None}
    text = f"The {WORDS[number % 8]} of house {number * 7919} is lost" if state is None else state
    value = {
        "id": f"r{number}", "cohort": "c", "state": text,
        "questions": {"q": {"type": "choice", "criteria": criteria}},
        **({"gold": {"q": gold}} if gold else {}),
    }  # fmt: skip
    return parse_record(value, "r")


def made(folder: Path, records: list[Record]) -> SetFolder:
    draft = SetDraft(role="eval", name="made", definition={}, sources=())
    return write_set(folder / "made", records, {}, draft)


def sound() -> list[Record]:
    return [record(i, gold="ab"[i % 2]) for i in range(40)]


def test_a_sound_set_has_nothing(tmp_path: Path) -> None:
    assert check_set(made(tmp_path, sound())) == []


@pytest.mark.parametrize(
    ("more", "kind", "said"),
    [
        ([record(90, "Same words"), record(91, "same  WORDS", gold="b")], "conflict",
         "2 records have the content of another and another right answer: r90 (r91), r91 (r90)"),
        ([record(90, "Same words"), record(91, "Same words")], "duplicate", "r91 (r90)"),
        ([record(90, " \u00a0"), record(91, {"a": "", "b": None})], "empty", "2 records have an"),
        ([record(90, "Stra\ufffde")], "text", "U+FFFD"),
        ([record(90, gold="a", **{"a": None, "A": None})], "label", "'A', 'a' look like one"),
        ([record(90, gold="a", **{"a": None, "N/A": None})], "label", "'N/A' looks like no answer"),
        ([record(90, gold="a", **{"a": None, "a;b": None})], "label", "looks like several labels"),
        ([record(90, "word " * 400)], "length", "1 records are longer than 200 tokens: r90"),
    ],
)  # fmt: skip
def test_problems(tmp_path: Path, more: list[Record], kind: str, said: str) -> None:
    counter = PromptCounter(WEIGHTS) if kind == "length" else None
    found = check_set(made(tmp_path, [*sound(), *more]), counter, 200)
    problems = [finding for finding in found if finding.problem]
    assert {finding.kind for finding in problems} >= {kind}
    assert any(said in finding.text for finding in problems)


def test_notes(tmp_path: Path) -> None:
    records = [record(i, gold="a") for i in range(30)]
    records += [record(50, gold=None), record(51, gold="a", **dict.fromkeys("abc"))]
    found = check_set(made(tmp_path, records))
    assert not any(finding.problem for finding in found)
    text = "\n".join(finding.text for finding in found)
    for part in ("1 of 32 have no right answer", "options are never right: b, c", "right in 100%"):
        assert part in text


def test_variants_repeat_their_original_by_design(tmp_path: Path) -> None:
    """But two originals that are one are found among them, and a variant that is too long."""
    originals = sound()
    other = record(95, "same  WORDS", gold="b")
    twins = [*originals, record(94, "Same words", gold="b"), other]
    for records, kinds in ((originals, set()), (twins, {"duplicate"})):
        forms = [v for r in records for v in make_variants(r, records[0], tuple(TRANSFORMS))]
        folder = made(tmp_path / str(len(records)), [*records, *forms])
        assert {finding.kind for finding in check_set(folder)} == kinds
        longest = check_set(folder, PromptCounter(WEIGHTS), 80)
        assert [f.count > len(records) for f in longest if f.kind == "length"] == [True]


def test_the_command(tmp_path: Path) -> None:
    clean = CliRunner().invoke(app, ["check", str(SETS / "nano-eval"), str(WEIGHTS), "--json"])
    assert clean.exit_code in (0, 1)
    assert json.loads(clean.stdout)["sha256"] == open_set(SETS / "nano-eval").manifest.sha256
    made(tmp_path, [*sound(), record(90, "Same"), record(91, "Same", gold="b")])
    done = CliRunner().invoke(app, ["check", str(tmp_path / "made")])
    assert done.exit_code == 1
    assert "another right answer" in " ".join(done.stdout.split())
