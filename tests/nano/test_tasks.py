"""The generator: the same records everywhere, splits that never meet, golds that are options."""

from __future__ import annotations

import hashlib
import zlib

import pytest

from clefq.clef.records import Record, parse_record, record_to_json
from clefq.errors import DefinitionError
from clefq.nano import SETS
from clefq.nano.draw import SPLITS
from clefq.nano.tasks import TASKS, RecordKey, generate, images_of, record_of
from clefq.plain_files import compact_json
from clefq.store.sets import open_set

DIGEST = "894ee318658e56967dcc46d2ed6dbb3eb47d8d7507203b266429ec069abb6ba1"
TENTHS = {"train": range(8), "calibration": (8,), "eval": (9,)}


def invented(key: RecordKey) -> set[str]:
    """Lower-case invented words that the making of a record has used up."""
    draw = key.draw()
    TASKS[key.task](draw)
    return {word.lower() for word in draw._used}


def test_records_are_the_same_on_every_machine() -> None:
    """One hash over every task and split; a change here changes the shipped sets."""
    digest = hashlib.sha256()
    for task in TASKS:
        for split in SPLITS:
            for record in generate(task, split, 5, 3):
                digest.update(compact_json(record_to_json(record)).encode())
    assert digest.hexdigest() == DIGEST


def test_a_record_does_not_depend_on_how_many_are_made() -> None:
    many = list(generate("routing", "eval", 12, 4))
    assert list(generate("routing", "eval", 3, 4)) == many[:3]
    assert record_of(RecordKey("routing", "eval", 4, 11)) == many[11]
    assert record_of(RecordKey.of(many[7].id)) == many[7]


@pytest.mark.parametrize("task", TASKS)
def test_splits_and_seeds_differ(task: str) -> None:
    states = [
        compact_json(record_to_json(record)["state"])
        for split in SPLITS
        for seed in (1, 2)
        for record in generate(task, split, 20, seed)
    ]
    assert len(set(states)) == len(states)


@pytest.mark.parametrize("task", TASKS)
def test_invented_words_belong_to_one_split(task: str) -> None:
    for split in SPLITS:
        for index in range(40):
            key = RecordKey(task, split, 5, index)
            words = invented(key)
            text = compact_json(record_to_json(record_of(key))).lower()
            assert any(word in text for word in words)  # each record holds some
            assert all(zlib.crc32(word.encode()) % 10 in TENTHS[split] for word in words)


@pytest.mark.parametrize("name", ["nano-calibration", "nano-eval"])
def test_every_shipped_record_holds_a_word_of_its_own_split(name: str) -> None:
    for record in open_set(SETS / name).records():
        key = RecordKey.of(record.id)
        assert key.split == name.removeprefix("nano-")
        text = compact_json(record_to_json(record)).lower()
        assert any(word in text for word in invented(key))


@pytest.mark.parametrize("level", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("task", TASKS)
def test_records_are_valid(task: str, level: float) -> None:
    for index in range(40):
        record: Record = record_of(RecordKey(task, "train", 6, index), level)
        assert parse_record(record_to_json(record), "here") == record
        assert set(record.gold) == {question.id for question in record.questions}
        for question in record.questions:
            assert record.gold[question.id] in question.option_ids
            assert len(question.options) >= 2


@pytest.mark.parametrize("task", TASKS)
def test_gold_is_not_given_away_by_its_place(task: str) -> None:
    """Always taking the first option is right no more often than the options' number allows."""
    questions = [
        (question, record.gold[question.id])
        for record in generate(task, "train", 300, 7)
        for question in record.questions
    ]
    for place in (0, -1):
        hits = sum(gold == question.option_ids[place] for question, gold in questions)
        assert hits / len(questions) < 0.65


def test_images_follow_from_the_record_alone() -> None:
    record = record_of(RecordKey("scenes", "eval", 1, 0))
    (path,) = record.images
    assert images_of(record) == images_of(record)
    assert images_of(record)[path] == (SETS / "nano-eval" / path).read_bytes()
    assert images_of(record_of(RecordKey("form", "eval", 1, 0))) == {}


@pytest.mark.parametrize(
    ("key", "fault"),
    [
        (RecordKey("poems", "eval", 1, 0), "'poems'"),
        (RecordKey("form", "test", 1, 0), "'test'"),
    ],
)
def test_unknown_task_or_split_is_an_error(key: RecordKey, fault: str) -> None:
    with pytest.raises(DefinitionError, match=fault) as raised:
        record_of(key)
    assert "calibration" in (raised.value.fix or "")


@pytest.mark.parametrize("name", ["form", "form-eval-1", "form-eval-x-00001", "a-b-c-d-e"])
def test_other_ids_are_no_keys(name: str) -> None:
    with pytest.raises(DefinitionError, match="not the id"):
        RecordKey.of(name)
