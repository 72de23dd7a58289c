"""The hub gives the same records as the original files; offline it says so."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest

from clefq.clef.records import record_to_json
from clefq.data import loading
from clefq.data.loading import SplitPass
from clefq.data.readers import csv_rows, jsonl_rows
from clefq.data.sources import SOURCES, anli, banking77, ledgar
from clefq.errors import DefinitionError, MissingDependencyError
from tests.data.conftest import FIXTURES, load

datasets = pytest.importorskip("datasets")


def _banking77() -> Any:
    rows = [row.value for row in csv_rows(FIXTURES / "banking77", "train.csv")]
    numbers = {name: number for number, name in enumerate(banking77.LABELS)}
    return datasets.Dataset.from_list(
        [
            {"text": r["text"], "label": numbers[r["category"]], "label_text": r["category"]}
            for r in rows
        ]
    )


def _clinc150() -> Any:
    texts = load("clinc150", "train")
    rows = [row.value for row in texts.source.read(_spec(texts))]
    names = sorted({row["intent"] for row in rows})
    kinds = datasets.Features(
        {"text": datasets.Value("string"), "intent": datasets.ClassLabel(names=names)}
    )
    return datasets.Dataset.from_list(rows, features=kinds)


def _spec(reading: SplitPass) -> Any:
    from clefq.data.sources.base import ReadSpec

    assert reading.folder is not None
    return ReadSpec(reading.folder, reading.files(), reading.split, reading.options)


def _anli() -> Any:
    rows = [row.value for row in jsonl_rows(FIXTURES / "anli", "R1/train.jsonl")]
    kinds = datasets.Features(
        {
            "uid": datasets.Value("string"),
            "premise": datasets.Value("string"),
            "hypothesis": datasets.Value("string"),
            "label": datasets.ClassLabel(names=["entailment", "neutral", "contradiction"]),
        }
    )
    plain = [
        {
            "uid": row["uid"],
            "premise": row["context"],
            "hypothesis": row["hypothesis"],
            "label": anli.LABELS[row["label"]],
        }
        for row in rows
    ]
    return datasets.Dataset.from_list(plain, features=kinds)


def _ledgar() -> Any:
    rows = [row.value for row in jsonl_rows(FIXTURES / "ledgar", "train.jsonl")]
    kinds = datasets.Features(
        {
            "text": datasets.Value("string"),
            "label": datasets.ClassLabel(names=list(ledgar.LABELS)),
        }
    )
    return datasets.Dataset.from_list(rows, features=kinds)


def _arc() -> Any:
    rows = [
        row.value for row in jsonl_rows(FIXTURES / "arc_challenge", "ARC-Challenge-Train.jsonl")
    ]
    return datasets.Dataset.from_list(
        [
            {
                "id": row["id"],
                "question": row["question"]["stem"],
                "choices": {
                    "text": [choice["text"] for choice in row["question"]["choices"]],
                    "label": [choice["label"] for choice in row["question"]["choices"]],
                },
                "answerKey": row["answerKey"],
            }
            for row in rows
        ]
    )


def _mmlu() -> Any:
    kinds = datasets.Features(
        {
            "question": datasets.Value("string"),
            "subject": datasets.Value("string"),
            "choices": datasets.Sequence(datasets.Value("string")),
            "answer": datasets.ClassLabel(names=list("ABCD")),
        }
    )
    reading = load("mmlu", "val")
    rows = [row.value for row in reading.source.read(_spec(reading))]
    plain = [
        {
            "question": row["question"],
            "subject": row["subject"],
            "choices": row["texts"],
            "answer": row["answer"],
        }
        for row in rows
    ]
    return datasets.Dataset.from_list(plain, features=kinds)


def _hellaswag() -> Any:
    rows = [row.value for row in jsonl_rows(FIXTURES / "hellaswag", "hellaswag_train.jsonl")]
    return datasets.Dataset.from_list([{**row, "label": str(row["label"])} for row in rows])


def _boolq() -> Any:
    rows = [row.value for row in jsonl_rows(FIXTURES / "boolq", "train.jsonl")]
    keep = ("question", "answer", "passage")
    return datasets.Dataset.from_list([{key: row[key] for key in keep} for row in rows])


def _musr() -> Any:
    reading = load("musr", "object_placements")
    rows = [row.value for row in reading.source.read(_spec(reading))]
    return datasets.Dataset.from_list(
        [
            {
                "narrative": row["narrative"],
                "question": row["question"],
                "choices": repr(row["choices"]),
                "answer_index": row["answer_index"],
                "answer_choice": row["choices"][row["answer_index"]],
            }
            for row in rows
        ]
    )


def _as_it_is(source: str, split: str) -> Any:
    reading = load(source, split)
    rows = [row.value for row in reading.source.read(_spec(reading)) if row.fault is None]
    good = {e.record.id for e in load(source, split).examples()}
    return datasets.Dataset.from_list(rows[: len(good)])


HUB = {
    ("anli", "train_r1"): _anli,
    ("arc_challenge", "train"): _arc,
    ("banking77", "train"): _banking77,
    ("boolq", "train"): _boolq,
    ("clinc150", "train"): _clinc150,
    ("cruxeval", "test"): lambda: _as_it_is("cruxeval", "test"),
    ("hellaswag", "train"): _hellaswag,
    ("ledgar", "train"): _ledgar,
    ("longbench_v2", "test"): lambda: _as_it_is("longbench_v2", "test"),
    ("mmlu", "val"): _mmlu,
    ("musr", "object_placements"): _musr,
    ("phishnchips", "test"): lambda: _as_it_is("phishnchips", "test"),
    ("winogrande", "train_s"): lambda: _as_it_is("winogrande", "train_s"),
}


def test_every_hub_source_is_tested_here() -> None:
    assert {name for name, _ in HUB} == {n for n, s in SOURCES.items() if s.hub is not None}


@pytest.mark.parametrize(("source", "split"), HUB, ids=lambda value: str(value))
def test_hub_and_local_records_agree(
    source: str, split: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = HUB[source, split]()
    asked: list[tuple[Any, ...]] = []

    def load_dataset(path: str, config: str | None, **options: Any) -> Any:
        asked.append((path, config, options["revision"], options["streaming"]))
        return rows.to_iterable_dataset()

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    local = load(source, split)
    expected = {e.record.id: record_to_json(e.record) for e in local.examples()}
    kind = SOURCES[source]
    hub = kind.hub
    assert hub is not None
    if source == "winogrande":  # the local fixture is a split that the hub serves in another size
        kind = dataclasses.replace(
            kind, hub=dataclasses.replace(hub, splits={**hub.splits, split: "train"})
        )
    reading = SplitPass(kind, split, kind.options(), None)
    found = {e.record.id: record_to_json(e.record) for e in reading.examples()}
    if source == "winogrande":  # the hub has no qID, so ids differ
        strip = [{**value, "id": ""} for value in expected.values()]
        assert [{**value, "id": ""} for value in found.values()] == strip
    elif source == "cruxeval":  # wrong outputs come from all rows, so fewer rows may change them
        assert found.keys() == expected.keys()
    else:
        assert found == expected
    assert reading.malformed == []
    assert asked == [(hub.path, hub.config, hub.revision, True)]
    assert reading.info().origin == "hub"
    assert reading.info().revision == hub.revision


def test_revisions_are_commits() -> None:
    for source in SOURCES.values():
        if source.hub is not None:
            assert len(source.hub.revision) == 40
            assert set(source.hub.revision) <= set("0123456789abcdef")
            assert set(source.hub.splits) <= set(source.splits)


def test_offline_names_the_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*_: Any, **__: Any) -> Any:
        raise ConnectionError("no route\nto the hub")

    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    kind = SOURCES["banking77"]
    with pytest.raises(DefinitionError) as caught:
        list(SplitPass(kind, "train", kind.options(), None).examples())
    assert "cannot read mteb/banking77@0fd18e25 from the hub" in caught.value.message
    assert "\n" not in caught.value.message
    assert caught.value.fix is not None
    assert "--data-dir" in caught.value.fix


def test_without_datasets_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "datasets", None)
    kind = SOURCES["banking77"]
    with pytest.raises(MissingDependencyError, match=r"\.\[hub\]"):
        list(SplitPass(kind, "train", kind.options(), None).examples())


def test_unexpected_hub_layout_is_a_malformed_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def rows(_: Any, __: str) -> Iterator[dict[str, Any]]:
        yield {"utterance": "x"}

    monkeypatch.setattr(loading, "_load_hub", rows)
    kind = SOURCES["banking77"]
    reading = SplitPass(kind, "train", kind.options(), None)
    assert list(reading.examples()) == []
    assert reading.malformed[0].reason.startswith("unexpected layout")
