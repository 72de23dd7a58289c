"""The shipped sets: what their definitions build, and as large and as varied as they promise."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from clefq.clef.encoding import encode_record
from clefq.clef.tokenizer import PromptTokenizer
from clefq.console import Console
from clefq.data.build import BuildSpec, build_set
from clefq.data.definition import definition_path, load_definition
from clefq.errors import InputError
from clefq.nano import SETS, WEIGHTS
from clefq.nano.tasks import TASKS, RecordKey, scene_of
from clefq.store.sets import Role, SetFolder, open_set

ROLES: dict[str, Role] = {"nano-calibration": "calibration", "nano-eval": "eval"}


def build_again(name: str, out: Path) -> SetFolder:
    path = definition_path(ROLES[name], name)
    against = (SETS / "nano-calibration",) if name == "nano-eval" else ()
    definition = load_definition(path, ROLES[name])
    spec = BuildSpec(definition, path.parent, out, against=against, tokenizer=WEIGHTS)
    return build_set(spec, Console(quiet=True)).folder


def files(folder: Path) -> dict[str, bytes]:
    found = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in found}


@pytest.mark.parametrize("name", ROLES)
def test_building_again_gives_the_same_bytes(name: str, tmp_path: Path) -> None:
    built = build_again(name, tmp_path / name)
    ours, theirs = files(built.path), files(SETS / name)
    assert ours.keys() == theirs.keys()
    assert [p for p in ours if ours[p] != theirs[p] and p != "manifest.json"] == []
    shipped = open_set(SETS / name).manifest
    assert replace(built.manifest, clefq_version=shipped.clefq_version) == shipped
    # compared with the calibration set and with itself
    assert built.manifest.decontamination is not None
    assert built.manifest.decontamination.removed == {}


def test_a_calibration_record_is_kept_out_of_the_eval_set(tmp_path: Path) -> None:
    """The comparison above can fail: held against itself, every record is a duplicate."""
    path = definition_path("calibration", "nano-calibration")
    definition = load_definition(path, "calibration")
    spec = BuildSpec(
        definition, path.parent, tmp_path / "set", against=(SETS / "nano-calibration",)
    )
    with pytest.raises(InputError, match="no record"):
        build_set(spec, Console(quiet=True))


def test_eval_set_is_what_the_documentation_says(eval_set: SetFolder) -> None:
    records = list(eval_set.records())
    questions = [question for record in records for question in record.questions]
    lengths = eval_set.manifest.token_lengths
    assert lengths is not None
    assert len(records) >= 300
    assert len(questions) >= 1000
    assert lengths.total <= 150_000
    assert {record.cohort for record in records} == set(TASKS)
    assert {question.type for question in questions} == {"noul", "choice", "score"}
    options = [len(question.options) for question in questions]
    assert (min(options), max(options)) == (2, 77)
    assert max(len(record.questions) for record in records) >= 6
    assert lengths.longest >= 3500
    assert sum(bool(record.images) for record in records) >= 30


@pytest.mark.parametrize("name", ROLES)
def test_every_record_fits_and_its_gold_is_an_option(name: str, tokenizer: PromptTokenizer) -> None:
    total = 0
    shipped = open_set(SETS / name)
    for record in shipped.records():
        scene = scene_of(RecordKey.of(record.id)) if record.images else None
        counts = [scene.rows * scene.columns] if scene else []
        encoded = encode_record(tokenizer, record, media_token_counts=counts)
        assert encoded.truncated_tokens == 0
        assert set(record.gold) == {question.id for question in record.questions}
        for question in record.questions:
            assert record.gold[question.id] in question.option_ids
        total += len(encoded.token_ids)
    assert shipped.manifest.token_lengths is not None
    assert total == shipped.manifest.token_lengths.total
