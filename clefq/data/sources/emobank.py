"""EmoBank: 10,062 sentences with ratings of valence, arousal and dominance (CC-BY-SA-4.0).

Reads `emobank.csv`: id, split, V, A, D, text, ratings from 1 to 5. Each dimension becomes a score
question of five levels; the gold is the rounded mean rating.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from clefq.data.readers import Row, RowError, csv_rows, text_field
from clefq.data.sources.base import Example, NoOptions, ReadSpec, Source, many, score

QUESTIONS = {
    "V": score(
        "valence",
        "How pleasant is the feeling that the text expresses?",
        ["very unpleasant", "unpleasant", "neither", "pleasant", "very pleasant"],
    ),
    "A": score(
        "arousal",
        "How excited is the feeling that the text expresses?",
        ["very calm", "calm", "neither", "excited", "very excited"],
    ),
    "D": score(
        "dominance",
        "How much does the writer feel in control?",
        ["helpless", "rather helpless", "neither", "rather in control", "fully in control"],
    ),
}


def read(spec: ReadSpec) -> Iterator[Row]:
    """Rows of the split, as the original has them; a row of no known split is a fault."""
    for file in spec.files:
        for row in csv_rows(spec.folder, file):
            part = None if row.fault is not None else row.value.get("split")
            if row.fault is not None or part == spec.split:
                yield row
            elif part not in SOURCE.splits and spec.split == "train":
                yield Row(row.file, row.number, None, f"unknown split {part!r}")


def from_hub(row: Mapping[str, Any]) -> dict[str, Any]:
    """The hub holds the original files, no table."""
    raise RowError("not a table on the hub")


def build(value: dict[str, Any], record_id: str, options: NoOptions) -> Iterable[Example]:
    """One record: the sentence, three score questions."""
    text = text_field(value, "text")
    gold = {question.id: _level(value, name) for name, question in QUESTIONS.items()}
    label = gold["valence"]
    yield many(record_id, "emobank", text, list(QUESTIONS.values()), gold, label)


def _level(value: dict[str, Any], name: str) -> str:
    raw = text_field(value, name)
    try:
        rating = float(raw)
    except ValueError as error:
        raise RowError(f"{name} is {raw!r}, not a number") from error
    if not 1 <= rating <= 5:
        raise RowError(f"{name} is {raw}, not between 1 and 5")
    return str(math.floor(rating + 0.5) - 1)


SOURCE = Source(
    name="emobank",
    title="EmoBank",
    licence="CC-BY-SA-4.0",
    attribution="EmoBank, Buechel and Hahn 2017, JULIE Lab, CC-BY-SA-4.0.",
    revision="248ce2a43e165a66d31aeaed83cff9641d6654e0",
    splits={part: (("emobank.csv",),) for part in ("train", "dev", "test")},
    hub=None,
    read=read,
    from_hub=from_hub,
    build=build,
    held_out=("dev", "test"),
)
