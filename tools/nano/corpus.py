"""What the miniature is trained on: the generator's train split and two public train splits.

Of BANKING77 and CLINC150 only the train splits are read, worded as the sources of `clefq build`
word them, so that their test splits can be asked in the same words.
"""

from __future__ import annotations

import csv
import json
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from clefq.clef.encoding import encode_record
from clefq.clef.json_values import render
from clefq.clef.records import Question, Record
from clefq.clef.tokenizer import PromptTokenizer, SpecialIds
from clefq.data.sources import banking77, clinc150
from clefq.nano.tasks import TASKS, generate

_SPECIAL = re.compile(r"<\|[a-z_]+\|>|</?think>")


@dataclass(frozen=True, slots=True)
class Utterance:
    """One labelled row of a public train split.

    Attributes:
        source: `banking77` or `clinc150`.
        text: What the user wrote.
        label: The intent's option id.
    """

    source: str
    text: str
    label: str


def read_utterances(data_dir: Path, split: str = "train") -> list[Utterance]:
    """The rows of BANKING77's and CLINC150's split (`train` or `test`).

    Args:
        data_dir: Folder that holds `banking77/` and `clinc150/` in their original layouts.
        split: Their split.
    """
    with (data_dir / "banking77" / f"{split}.csv").open(encoding="utf-8", newline="") as file:
        rows = [Utterance("banking77", r["text"], r["category"]) for r in csv.DictReader(file)]
    lists = json.loads((data_dir / "clinc150" / "data_full.json").read_text(encoding="utf-8"))
    for text, intent in [*lists[split], *lists[f"oos_{split}"]]:
        label = clinc150.OUT_OF_SCOPE if intent == "oos" else intent
        rows.append(Utterance("clinc150", text, label))
    return rows


def intent_record(row: Utterance, options: Sequence[str], record_id: str) -> Record:
    """A record that asks for the intent of a row among `options` (its label included)."""
    source = banking77 if row.source == "banking77" else clinc150
    question = Question(
        source.QUESTION_ID, "choice", source.INSTRUCTIONS, dict.fromkeys(sorted(options))
    )
    return Record(
        id=record_id,
        cohort=row.source,
        state=row.text,
        questions=(question,),
        gold={question.id: row.label},
    )


def intent_options(row: Utterance, chance: random.Random, level: float) -> list[str]:
    """Which intents to offer in training: mostly few, sometimes all that the test offers."""
    if row.source == "banking77":
        pool: list[str] = list(banking77.LABELS)
    elif row.label == clinc150.OUT_OF_SCOPE or chance.random() < 0.1:
        domain = chance.choice(list(clinc150.DOMAINS))
        pool = [*clinc150.DOMAINS[domain], clinc150.OUT_OF_SCOPE]
        if row.label not in pool:
            pool = [*clinc150.DOMAIN_OF, clinc150.OUT_OF_SCOPE]
    else:
        pool = [*clinc150.DOMAINS[clinc150.DOMAIN_OF[row.label]], clinc150.OUT_OF_SCOPE]
    whole = 0.15 if row.source == "banking77" else 0.5
    if len(pool) <= 77 and chance.random() < whole * level:
        return pool
    others = [name for name in pool if name != row.label]
    count = chance.randint(3, 3 + round(13 * level))
    return [row.label, *chance.sample(others, min(len(others), count))]


class _Listener(PromptTokenizer):
    """Hears every piece of the prompts it is asked to encode, special tokens taken out.

    Answers with one token per piece: a piece of none would be refused.
    """

    def __init__(self) -> None:
        super().__init__(None, SpecialIds(*range(len(fields(SpecialIds)))))
        self.heard: list[str] = []

    def encode(self, text: str) -> list[int]:
        # Long logs would crowd out everything else.
        self.heard += _SPECIAL.sub("\n", text)[:600].splitlines(keepends=True)
        return [0]

    def piece(self, text: str) -> tuple[int, ...]:
        return tuple(self.encode(text))


def tokenizer_texts(data_dir: Path, per_task: int = 250) -> Iterator[str]:
    """The texts that the tokenizer is learned from, in a fixed order: train splits only."""
    listener = _Listener()
    for task in TASKS:
        for record in generate(task, "train", per_task, 0):
            encode_record(listener, record, media_token_counts=[1] * len(record.images))
    yield from listener.heard
    for row in read_utterances(data_dir):
        yield row.text
    for label in [*banking77.LABELS, *clinc150.DOMAIN_OF]:
        yield from [render({"option_id": label})] * 20
