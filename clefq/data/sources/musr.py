"""MuSR: murder mysteries, object placements and team allocations (MIT).

Reads the authors' `murder_mysteries.json`, `object_placements.json` and `team_allocation.json`
(lists of {context, questions: [{question, choices, answer}]}). The story is the state. Short
choices (suspects, places) are options under their own names, long ones get letters.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from clefq.data.readers import Row, RowError, json_file, text_field
from clefq.data.sources.base import (
    Example,
    HubRef,
    NoOptions,
    ReadSpec,
    Source,
    choice,
    letters,
    single,
)
from clefq.errors import DefinitionError

SHORT = 40
SPLITS = ("murder_mysteries", "object_placements", "team_allocation")


def read(spec: ReadSpec) -> Iterator[Row]:
    """Rows as {task, narrative, question, choices, answer_index}, one per question."""
    for file in spec.files:
        stories = json_file(spec.folder, file)
        if not isinstance(stories, list):
            raise DefinitionError(f"{spec.folder / file} is not a list of stories.")
        number = 0
        for story in stories:
            asked = story.get("questions") if isinstance(story, dict) else None
            if not isinstance(asked, list):
                number += 1
                yield Row(file, number, None, "a story without questions")
                continue
            for question in asked:
                number += 1
                yield Row(file, number, _normal(spec.split, story, question))


def _normal(task: str, story: dict[str, Any], question: dict[str, Any]) -> dict[str, Any]:
    return {
        "task": task,
        "narrative": story.get("context"),
        "question": question.get("question"),
        "choices": question.get("choices"),
        "answer_index": question.get("answer"),
    }


def from_hub(row: Mapping[str, Any]) -> dict[str, Any]:
    """Hub row, whose choices are the text of a Python list → the same."""
    choices = row["choices"]
    return {
        "narrative": row["narrative"],
        "question": row["question"],
        "choices": ast.literal_eval(choices) if isinstance(choices, str) else list(choices),
        "answer_index": row["answer_index"],
    }


def build(value: dict[str, Any], record_id: str, options: NoOptions) -> Iterable[Example]:
    """One record: the story, one choice question."""
    choices, index = value["choices"], value["answer_index"]
    if not isinstance(choices, list) or not all(isinstance(c, str) and c for c in choices):
        raise RowError("choices is not a list of texts")
    if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < len(choices):
        raise RowError(f"answer {index!r} of {len(choices)} choices")
    if len(set(choices)) != len(choices):
        raise RowError("two choices are the same")
    short = max(map(len, choices)) <= SHORT
    keys = tuple(choices) if short else letters(len(choices))
    criteria = dict.fromkeys(keys) if short else dict(zip(keys, choices, strict=True))
    question = choice("answer", text_field(value, "question"), criteria)
    task = record_id.split("-")[1]
    state = text_field(value, "narrative")
    example = single(record_id, f"musr/{task}", state, question, keys[index])
    yield Example(example.record, label=str(index))


SOURCE = Source(
    name="musr",
    title="MuSR",
    licence="MIT",
    attribution="MuSR, Sprague et al. 2024, MIT.",
    revision="0c97d09cba4189a3bca6a04c31303379cf110f45",
    splits={name: ((f"{name}.json",),) for name in SPLITS},
    hub=HubRef(
        path="TAUR-Lab/MuSR",
        revision="7c365b439a222150f317764d4f16ae6c96d7d94a",
        config=None,
        splits={name: name for name in SPLITS},
    ),
    read=read,
    from_hub=from_hub,
    build=build,
    held_out=SPLITS,
)
