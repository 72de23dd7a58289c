"""WinoGrande: which of two names fits the blank (CC-BY).

Reads `train_{xs,s,m,l,xl}.jsonl` and `dev.jsonl`: qID, sentence, option1, option2, answer. The
sentence is the state and the two names are the options themselves. Most sentences come as twins
that differ in a word or two: definitions that keep both switch near duplicates off.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from clefq.data.readers import Row, RowError, jsonl_rows, text_field
from clefq.data.sources.base import Example, HubRef, NoOptions, ReadSpec, Source, choice, single

INSTRUCTIONS = "Which option fits the blank, written as _, in the sentence?"


def read(spec: ReadSpec) -> Iterator[Row]:
    """Rows as the original has them."""
    for file in spec.files:
        yield from jsonl_rows(spec.folder, file)


def from_hub(row: Mapping[str, Any]) -> dict[str, Any]:
    """Hub row → the same; it has no qID."""
    return {key: row[key] for key in ("sentence", "option1", "option2", "answer")}


def build(value: dict[str, Any], record_id: str, options: NoOptions) -> Iterable[Example]:
    """One record: the sentence, one choice question with two options."""
    sentence = text_field(value, "sentence")
    names = {"1": text_field(value, "option1"), "2": text_field(value, "option2")}
    answer = text_field(value, "answer")
    if answer not in names:
        raise RowError(f"answer {answer!r} is neither 1 nor 2")
    if names["1"] == names["2"]:
        raise RowError("both options are the same")
    if "_" not in sentence:
        raise RowError("the sentence has no blank")
    question = choice("blank", INSTRUCTIONS, dict.fromkeys(names.values()))
    key = f"winogrande-{value['qID']}" if value.get("qID") else record_id
    example = single(key, "winogrande", sentence, question, names[answer])
    # names are all different: the position of the answer is the only label to stratify by
    yield Example(example.record, label=answer)


SOURCE = Source(
    name="winogrande",
    title="WinoGrande",
    licence="CC-BY",
    attribution="WinoGrande, Sakaguchi et al. 2020, Allen Institute for AI, CC-BY.",
    revision="winogrande_1.1",
    splits={
        "train_xs": (("train_xs.jsonl",),),
        "train_s": (("train_s.jsonl",),),
        "train_m": (("train_m.jsonl",),),
        "train_l": (("train_l.jsonl",),),
        "train_xl": (("train_xl.jsonl",),),
        "dev": (("dev.jsonl",),),
    },
    hub=HubRef(
        path="allenai/winogrande",
        revision="01e74176c63542e6b0bcb004dcdea22d94fb67b5",
        config="winogrande_xl",
        splits={"train_xl": "train", "dev": "validation"},
    ),
    read=read,
    from_hub=from_hub,
    build=build,
    held_out=("dev",),
)
