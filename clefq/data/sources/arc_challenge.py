"""ARC-Challenge: 2,590 grade-school science questions (CC-BY-SA-4.0).

Reads AI2's layout (`ARC-Challenge-{Train,Dev,Test}.jsonl`: id, question.stem, question.choices,
answerKey) or the hub's (id, question, choices.text, choices.label, answerKey). Most questions
have four options, a few three or five; some number them 1 to 5, which become letters. The
question is the state; the options' texts are their descriptions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from clefq.data.readers import Row, RowError, jsonl_rows, text_field
from clefq.data.sources.base import (
    Example,
    HubRef,
    NoOptions,
    Quiz,
    ReadSpec,
    Source,
    quiz_example,
)

INSTRUCTIONS = "Which option answers the question correctly?"


def read(spec: ReadSpec) -> Iterator[Row]:
    """Rows as {id, question, labels, texts, answerKey}."""
    for file in spec.files:
        for row in jsonl_rows(spec.folder, file):
            yield row if row.fault else _normal(row)


def _normal(row: Row) -> Row:
    try:
        return Row(row.file, row.number, from_hub(row.value))
    except (KeyError, TypeError) as error:
        return Row(row.file, row.number, None, f"unexpected layout: {error!r}")


def from_hub(row: Mapping[str, Any]) -> dict[str, Any]:
    """Either layout → the normal form."""
    question = row["question"]
    choices = row["choices"] if isinstance(question, str) else question["choices"]
    if isinstance(choices, Mapping):
        labels, texts = list(choices["label"]), list(choices["text"])
    else:
        labels = [option["label"] for option in choices]
        texts = [option["text"] for option in choices]
    stem = question if isinstance(question, str) else question["stem"]
    key = row.get("answerKey")
    return {"id": row["id"], "question": stem, "labels": labels, "texts": texts, "answerKey": key}


def build(value: dict[str, Any], record_id: str, options: NoOptions) -> Iterable[Example]:
    """One record: the question, one choice question."""
    stem, key = text_field(value, "question"), text_field(value, "answerKey")
    if key not in value["labels"]:
        raise RowError(f"answer key {key!r} is none of {', '.join(map(str, value['labels']))}")
    quiz = Quiz(
        cohort="arc_challenge",
        state=stem,
        instructions=INSTRUCTIONS,
        texts=value["texts"],
        gold=value["labels"].index(key),
    )
    yield quiz_example(f"arc_challenge-{text_field(value, 'id')}", quiz)


SOURCE = Source(
    name="arc_challenge",
    title="ARC-Challenge",
    licence="CC-BY-SA-4.0",
    attribution=(
        "AI2 Reasoning Challenge, Clark et al. 2018, Allen Institute for AI, CC-BY-SA-4.0."
    ),
    revision="ARC-V1",
    splits={
        "train": (("ARC-Challenge-Train.jsonl",), ("train_hf_1056.jsonl",)),
        "dev": (("ARC-Challenge-Dev.jsonl",),),
        "test": (("ARC-Challenge-Test.jsonl",),),
    },
    hub=HubRef(
        path="allenai/ai2_arc",
        revision="210d026faf9955653af8916fad021475a3f00453",
        config="ARC-Challenge",
        splits={"train": "train", "dev": "validation", "test": "test"},
    ),
    read=read,
    from_hub=from_hub,
    build=build,
    held_out=("dev", "test"),
)
