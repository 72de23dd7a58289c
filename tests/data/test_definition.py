"""Definitions: strict, every fault at once; and every shipped one is sound."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from clefq.data.definition import (
    FOLDERS,
    Definition,
    definition_path,
    load_definition,
    source_options,
)
from clefq.data.sources import SOURCES
from clefq.errors import DefinitionError
from clefq.parity.statistics.metric_facts import load_facts
from clefq.store.data_files import data_folder

SHIPPED = [
    (role, path.stem) for role, name in FOLDERS.items() for path in data_folder(name).glob("*.yaml")
]


@pytest.mark.parametrize(("role", "name"), sorted(SHIPPED))
def test_shipped_definitions_are_sound(role: str, name: str) -> None:
    path = definition_path(role, name)  # type: ignore[arg-type]
    definition = load_definition(path, role)  # type: ignore[arg-type]
    assert definition.name.startswith(name)
    assert definition.description
    for use in definition.sources:
        source_options(use)
    if role == "eval":
        assert set(definition.metrics) <= set(load_facts())
        assert definition.metrics
    else:
        held_out = [
            (use.source, use.split)
            for use in definition.sources
            if use.split in SOURCES[use.source].held_out
        ]
        assert held_out == []


def test_names_do_not_clash() -> None:
    names = [
        load_definition(definition_path(role, name), role).name  # type: ignore[arg-type]
        for role, name in SHIPPED
    ]
    assert len(set(names)) == len(names)


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "made.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_every_fault_is_reported(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        """
        name: made
        role: eval
        colour: red
        seed: 7
        sources:
          - {source: banking77, split: train, count: many}
          - {split: test, keys: roman}
        """,
    )
    with pytest.raises(DefinitionError) as caught:
        load_definition(path, "eval")
    text = "\n".join([caught.value.message, *caught.value.faults])
    assert "colour is unknown" in text
    assert "seed must be text, found 7" in text
    assert "sources.0.count must be a whole number" in text
    assert "sources.1.source is missing" in text
    assert "sources.1.keys is 'roman', expected one of natural, letters, opaque" in text


def test_faults_beyond_types(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        """
        schema_version: 2
        name: a/b
        role: calibration
        metrics: [kl, speed]
        max_tokens: 0
        decontaminate: {threshold: 1.5, ngram: 0}
        sources:
          - {source: nowhere}
          - {source: banking77, split: dev, options: {schema: huge, extra: 1}}
          - {source: boolq, split: dev, order: shuffled, stratify: [label, label], count: 0}
        """,
    )
    with pytest.raises(DefinitionError) as caught:
        load_definition(path, "eval")
    text = "\n".join([caught.value.message, *caught.value.faults])
    for part in (
        "schema_version must be 1, found 2",
        "name cannot be a folder's name, found 'a/b'",
        "threshold must be above 0",
        "ngram must be at least 1",
        "metrics belong to eval sets only",
        "metrics names speed, which metrics/cards.yaml does not know",
        "max_tokens must be at least 1",
        "sources.0.source 'nowhere' is unknown; known: access_log",
        "sources.1.split 'dev' is unknown; banking77 has train, test",
        "sources.1.options.schema is 'huge', expected one of full, ten",
        "sources.1.options.extra is unknown; known here: schema",
        "sources.2.order: shuffled needs keys: letters or opaque",
        "sources.2.stratify names a dimension twice",
        "sources.2.count must be at least 1",
    ):
        assert part in text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [", "is not valid YAML"),
        ("- 1\n- 2", "must be a mapping, found a list"),
        ("", "must be a mapping, found nothing"),
        ("name: x\nrole: eval\nsources: []", "sources is empty"),
        ("1: x", "1 is unknown"),
    ],
)
def test_broken_files(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(DefinitionError) as caught:
        load_definition(write(tmp_path, text), "eval")
    assert message in str(caught.value)


def test_unknown_names_list_the_shipped_ones() -> None:
    with pytest.raises(DefinitionError, match="banking77"):
        definition_path("eval", "bankking77")
    with pytest.raises(DefinitionError, match="no definition"):
        definition_path("eval", "not-there.yaml")


def test_defaults_are_what_the_docs_say() -> None:
    definition = Definition(name="x", role="eval", sources=())
    assert definition.max_tokens == 16384
    assert definition.decontaminate.threshold == 0.8
    assert definition.decontaminate.ngram == 5
    assert definition.seed == "clefq-1"


def test_merge_keys_of_yaml_work(tmp_path: Path) -> None:
    value = yaml.safe_load("a: &x {b: 1}\nc: {<<: *x, d: 2}")
    assert value["c"] == {"b": 1, "d": 2}


def test_a_column_that_yaml_reads_as_false_is_told_to_be_quoted(tmp_path: Path) -> None:
    path = tmp_path / "d.yaml"
    path.write_text("name: no\nrole: eval\nsources: []\n", encoding="utf-8")
    with pytest.raises(DefinitionError) as caught:
        load_definition(path, "eval")
    assert "quote them" in str(caught.value.fix)
