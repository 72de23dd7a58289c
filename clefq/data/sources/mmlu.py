"""MMLU: multiple-choice questions of 57 subjects (MIT).

Reads `{dev,val,test}/<subject>_<split>.csv` without header: question, A, B, C, D, answer letter.
The question is the state; the four texts are the options' descriptions. Each subject is a cohort.
The files hold exact duplicates, which decontamination removes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any

from clefq.data.readers import Row, RowError, csv_rows, text_field
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
COLUMNS = ("question", "A", "B", "C", "D", "answer")


def read(spec: ReadSpec) -> Iterator[Row]:
    """Rows as {subject, question, texts, answer}."""
    for file in spec.files:
        subject = PurePosixPath(file).stem.rsplit("_", 1)[0]
        for row in csv_rows(spec.folder, file, COLUMNS):
            if row.fault is not None:
                yield row
                continue
            cells = row.value
            texts = [cells[letter] for letter in "ABCD"]
            value = {"subject": subject, "texts": texts, **cells}
            yield Row(row.file, row.number, value)


def from_hub(row: Mapping[str, Any]) -> dict[str, Any]:
    """Hub row {question, subject, choices, answer} → the normal form."""
    return {
        "subject": row["subject"],
        "question": row["question"],
        "texts": list(row["choices"]),
        "answer": row["answer"],
    }


def build(value: dict[str, Any], record_id: str, options: NoOptions) -> Iterable[Example]:
    """One record: the question, one choice question."""
    answer = text_field(value, "answer").strip()
    if answer not in "ABCD" or len(answer) != 1:
        raise RowError(f"answer {answer!r} is none of A, B, C, D")
    if len(value["texts"]) != 4:
        raise RowError(f"{len(value['texts'])} options instead of 4")
    quiz = Quiz(
        cohort=f"mmlu/{value['subject']}",
        state=text_field(value, "question"),
        instructions=INSTRUCTIONS,
        texts=value["texts"],
        gold="ABCD".index(answer),
    )
    yield quiz_example(record_id, quiz)


SOURCE = Source(
    name="mmlu",
    title="MMLU",
    licence="MIT",
    attribution="MMLU, Hendrycks et al. 2021, Measuring Massive Multitask Language Understanding.",
    revision="785eba57b455b9f9be12a0d3c1106d67274fea0e",
    splits={
        "dev": (("dev/*_dev.csv",),),
        "val": (("val/*_val.csv",),),
        "test": (("test/*_test.csv",),),
    },
    hub=HubRef(
        path="cais/mmlu",
        revision="c30699e8356da336a370243923dbaf21066bb9fe",
        config="all",
        splits={"dev": "dev", "val": "validation", "test": "test"},
    ),
    read=read,
    from_hub=from_hub,
    build=build,
    held_out=("test",),
)
