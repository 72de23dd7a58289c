"""LongBench v2: 503 questions about very long texts, four options (Apache-2.0).

Reads `data.json`: a list of rows with _id, domain, sub_domain, difficulty, length, question,
choice_A to choice_D, answer, context. The context, up to millions of characters, is the state.
Each domain is a cohort. For evaluation only: there is one split, and it is held out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from clefq.data.readers import Row, RowError, json_file, text_field
from clefq.data.sources.base import (
    Example,
    HubRef,
    NoOptions,
    Quiz,
    ReadSpec,
    Source,
    quiz_example,
)
from clefq.errors import DefinitionError


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
    """Hub row → the same."""
    return dict(row)


def build(value: dict[str, Any], record_id: str, options: NoOptions) -> Iterable[Example]:
    """One record: the context, one choice question."""
    answer = text_field(value, "answer")
    if len(answer) != 1 or answer not in "ABCD":
        raise RowError(f"answer {answer!r} is none of A, B, C, D")
    quiz = Quiz(
        cohort=f"longbench_v2/{text_field(value, 'domain')}",
        state=text_field(value, "context"),
        instructions=text_field(value, "question"),
        texts=[text_field(value, f"choice_{letter}") for letter in "ABCD"],
        gold="ABCD".index(answer),
    )
    yield quiz_example(f"longbench_v2-{text_field(value, '_id')}", quiz)


SOURCE = Source(
    name="longbench_v2",
    title="LongBench v2",
    licence="Apache-2.0",
    attribution="LongBench v2, Bai et al. 2024, THUDM, Apache-2.0.",
    revision=None,
    splits={"test": (("data.json",),)},
    hub=HubRef(
        path="zai-org/LongBench-v2",
        revision="2b48e494f2c7a2f0af81aae178e05c7e1dde0fe9",
        config=None,
        splits={"test": "train"},
    ),
    read=read,
    from_hub=from_hub,
    build=build,
    held_out=("test",),
)
