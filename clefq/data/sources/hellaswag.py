"""HellaSwag: choose the ending of a short text (MIT).

Reads `hellaswag_{train,val}.jsonl` (or the sample `hellaswag_val_1000.jsonl`): ind,
activity_label, ctx, endings[4], label. Activity and text are the state; the four endings are the
options' descriptions. The labels of the test split were never published.
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

INSTRUCTIONS = "Which ending continues the text most plausibly?"


def read(spec: ReadSpec) -> Iterator[Row]:
    """Rows as the original has them."""
    for file in spec.files:
        yield from jsonl_rows(spec.folder, file)


def from_hub(row: Mapping[str, Any]) -> dict[str, Any]:
    """Hub row, whose label is text → the original's layout."""
    value = dict(row)
    label = value["label"]
    value["label"] = int(label) if isinstance(label, str) and label.strip() else label
    return value


def build(value: dict[str, Any], record_id: str, options: NoOptions) -> Iterable[Example]:
    """One record: activity and text, one choice question."""
    endings, label = value.get("endings"), value.get("label")
    if not isinstance(endings, list) or len(endings) != 4:
        count = len(endings) if isinstance(endings, list) else 0
        raise RowError(f"{count} endings instead of 4")
    if isinstance(label, bool) or not isinstance(label, int):
        raise RowError(f"label is {label!r}, not a number from 0 to 3")
    state = {"activity": text_field(value, "activity_label"), "text": text_field(value, "ctx")}
    quiz = Quiz("hellaswag", state, INSTRUCTIONS, endings, label)
    yield quiz_example(record_id, quiz)


SOURCE = Source(
    name="hellaswag",
    title="HellaSwag",
    licence="MIT",
    attribution="HellaSwag, Zellers et al. 2019, Can a Machine Really Finish Your Sentence?",
    revision="45e617d6ca9e5a158a280f0da0f7a44f7c8dbb8c",
    splits={
        "train": (("hellaswag_train.jsonl",),),
        "val": (("hellaswag_val.jsonl",), ("hellaswag_val_1000.jsonl",)),
    },
    hub=HubRef(
        path="Rowan/hellaswag",
        revision="218ec52e09a7e7462a5400043bb9a69a41d06b76",
        config=None,
        splits={"train": "train", "val": "validation"},
    ),
    read=read,
    from_hub=from_hub,
    build=build,
    held_out=("val",),
)
