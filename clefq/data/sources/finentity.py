"""FinEntity: sentiment towards each entity of a piece of financial news (ODC-By-1.0).

Reads `FinEntity.json`: a list of {content, annotations: [{start, end, value, tag}]}. The text is
the state, and every annotated entity gets a question of three options.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from clefq.data.readers import Row, RowError, json_file, text_field
from clefq.data.sources.base import Example, HubFiles, NoOptions, ReadSpec, Source, choice, many
from clefq.errors import DefinitionError

TAGS = {"Positive": "positive", "Neutral": "neutral", "Negative": "negative"}
MAX_QUESTIONS = 64


def read(spec: ReadSpec) -> Iterator[Row]:
    """Rows as the original has them."""
    for file in spec.files:
        rows = json_file(spec.folder, file)
        if not isinstance(rows, list):
            raise DefinitionError(f"{spec.folder / file} is not a list of rows.")
        for number, row in enumerate(rows, start=1):
            fault = None if isinstance(row, dict) else "not a JSON object"
            yield Row(file, number, row, fault)


def from_hub(row: Mapping[str, Any]) -> dict[str, Any]:
    """The hub holds the original files, no table."""
    raise RowError("not a table on the hub")


def build(value: dict[str, Any], record_id: str, options: NoOptions) -> Iterable[Example]:
    """One record: the text, one choice question per entity."""
    tags = _tags(value)
    questions, gold = [], {}
    for number, (entity, tag) in enumerate(tags.items(), start=1):
        question = choice(
            f"entity_{number:02d}",
            f"What is the sentiment of the text towards {entity}?",
            dict.fromkeys(TAGS.values()),
        )
        questions.append(question)
        gold[question.id] = tag
    label = Counter(gold.values()).most_common(1)[0][0]
    yield many(record_id, "finentity", text_field(value, "content"), questions, gold, label)


def _tags(value: dict[str, Any]) -> dict[str, str]:
    """Entity → tag, in the order of the text; one tagged in two ways cannot be asked about."""
    annotations = value.get("annotations")
    if not isinstance(annotations, list) or not annotations:
        raise RowError("no annotation")
    tags: dict[str, str] = {}
    for annotation in annotations:
        entity = text_field(annotation, "value").strip()
        tag = annotation.get("tag", annotation.get("label"))
        if tag not in TAGS:
            raise RowError(f"unknown label {tag!r}")
        if tags.setdefault(entity, TAGS[tag]) != TAGS[tag]:
            raise RowError(f"two sentiments towards {entity!r}")
    if len(tags) > MAX_QUESTIONS:
        raise RowError(f"{len(tags)} entities, more than {MAX_QUESTIONS}")
    return tags


SOURCE = Source(
    name="finentity",
    title="FinEntity",
    licence="ODC-By-1.0",
    attribution="FinEntity, Tang et al. 2023, ODC-By-1.0.",
    revision="2aa69f41c36fbc1afcfcb096c000be1fa9c2e599",
    splits={"all": (("FinEntity.json",), ("data/FinEntity.json",))},
    hub=None,
    hub_files=HubFiles("yixuantt/FinEntity"),
    read=read,
    from_hub=from_hub,
    build=build,
)
