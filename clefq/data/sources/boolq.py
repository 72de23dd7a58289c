"""BoolQ: 12,697 labelled yes/no questions, each with a passage (CC-BY-SA-3.0).

Reads the original layout (`train.jsonl`, `dev.jsonl`: question, title, answer, passage) or
SuperGLUE's (`superglue/train.jsonl`, `superglue/val.jsonl`: question, passage, label). The
passage is the state and the question itself, with its question mark, is the instruction of a
true/false question. SuperGLUE prefixes the passage with the title; it is taken off, so that all
layouts give the same record.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from clefq.data.readers import Row, RowError, jsonl_rows, text_field
from clefq.data.sources.base import Example, HubRef, NoOptions, ReadSpec, Source, noul, single

QUESTION_ID = "answer"


def read(spec: ReadSpec) -> Iterator[Row]:
    """Rows as {question, passage, answer}."""
    for file in spec.files:
        for row in jsonl_rows(spec.folder, file):
            if row.fault is not None:
                yield row
                continue
            value = dict(row.value)
            if "label" in value:
                # some copies of SuperGLUE write the label as text
                label = value["label"]
                value["answer"] = {"true": True, "false": False}.get(str(label).lower(), label)
                passage = value.get("passage")
                if isinstance(passage, str):
                    value["passage"] = passage.split(" -- ", 1)[-1]
            yield Row(row.file, row.number, value)


def from_hub(row: Mapping[str, Any]) -> dict[str, Any]:
    """Hub row {question, passage, answer} → the same."""
    return {key: row[key] for key in ("question", "passage", "answer")}


def build(value: dict[str, Any], record_id: str, options: NoOptions) -> Iterable[Example]:
    """One record: the passage, one true/false question."""
    asked, passage = text_field(value, "question"), text_field(value, "passage")
    answer = value.get("answer")
    if answer is None:
        raise RowError("answer is missing")
    if not isinstance(answer, bool):
        raise RowError(f"answer is {answer!r}, not true or false")
    question = noul(QUESTION_ID, asked.strip().rstrip("?").rstrip() + "?")
    yield single(record_id, "boolq", passage, question, "true" if answer else "false")


SOURCE = Source(
    name="boolq",
    title="BoolQ",
    licence="CC-BY-SA-3.0",
    attribution=(
        "BoolQ, Clark et al. 2019, Exploring the Surprising Difficulty of Natural Yes/No "
        "Questions, CC-BY-SA-3.0."
    ),
    revision="5d3c8009ab8f5adab4899c34dd203cbf7afcb372",
    splits={
        "train": (("train.jsonl",), ("superglue/train.jsonl",)),
        "dev": (("dev.jsonl",), ("superglue/val.jsonl",)),
    },
    hub=HubRef(
        path="google/boolq",
        revision="35b264d03638db9f4ce671b711558bf7ff0f80d5",
        config=None,
        splits={"train": "train", "dev": "validation"},
    ),
    read=read,
    from_hub=from_hub,
    build=build,
    held_out=("dev",),
)
