"""Models whose coherence is known, asked a set with variants."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import pandas as pd

from clefq.clef.json_values import render
from clefq.clef.records import Question, Record
from clefq.data.variants import NEGATION, make_variants
from clefq.parity.statistics.pair_statistics import PairStatistics, StatisticsSpec, compare
from clefq.parity.statistics.pairs import join
from clefq.plain_files import sha256_bytes
from clefq.store.predictions import Predictions
from clefq.store.variant_links import TRANSFORMS
from tests.parity.factory import META, log_softmax

RECORDS = 60
# record, question → one logit per option
Model = Callable[[Record, Question], Sequence[float]]


@cache
def records() -> tuple[Record, ...]:
    """Originals and variants: a choice, a proposition and a rating of each state."""
    found = [
        Record(
            f"r{i:02d}",
            "c",
            f'Case {i}: "paid" twice, it\'s late.',
            (
                Question("intent", "choice", "Which?", dict.fromkeys(["pay", "ask", "end", "go"])),
                Question("late", "noul", "It is late.", {"true": "late", "false": "in time"}),
                Question("mood", "score", "How?", ["bad", "fair", "good"]),
            ),
            gold={"intent": ("pay", "ask", "end", "go")[i % 4], "late": "true"},
        )
        for i in range(RECORDS)
    ]
    everything = []
    for at, record in enumerate(found):
        other = found[(at + 1) % len(found)]
        everything += [record, *make_variants(record, other, tuple(TRANSFORMS))]
    return tuple(everything)


def meaning(question: Question, option: str) -> str:
    """What an option stands for, whatever its id."""
    described = {item.id: item.description for item in question.options}[option]
    return str(option if described is None else described)


def logit(state: str, question: Question, option: str, sharp: float = 1.0) -> float:
    """A number that hangs on the state's case, the question and the option's meaning alone."""
    number = "".join(c for c in state.partition(":")[0] if c.isdigit())
    seed = hash_of(number, question.id.strip("~"), meaning(question, option))
    return sharp * 6 * (seed / 2**32 - 0.5)


def hash_of(*parts: str) -> int:
    return int(sha256_bytes("\0".join(parts).encode())[:8], 16)


def case_of(record: Record) -> str:
    """The state's own text, wherever it stands and however it is written."""
    text = render(record.state)
    at = text.lower().find("case")
    return text[at:].replace("\u00a0", " ") if at >= 0 else ""


def coherent(record: Record, question: Question, sharp: float = 1.0) -> list[float]:
    """Answers by meaning; a negated question gets the opposite."""
    return [logit(case_of(record), question, option, sharp) for option in question.option_ids]


def first_option(record: Record, question: Question) -> list[float]:
    """Prefers what stands first, a little."""
    answers = coherent(record, question)
    return [answers[0] + 2.0, *answers[1:]]


def blind(record: Record, question: Question) -> list[float]:
    """Never reads the state."""
    return [logit("", question, option) for option in question.option_ids]


def deaf_to_not(record: Record, question: Question) -> list[float]:
    """Answers a negated proposition as it would the proposition."""
    answers = coherent(record, question)
    negated = str(question.instructions).startswith(NEGATION)
    return answers[::-1] if negated else answers


def crowded_out(record: Record, question: Question) -> list[float]:
    """Less sure, the more is asked."""
    return [value / len(record.questions) for value in coherent(record, question)]


def sharper(record: Record, question: Question) -> list[float]:
    """Another temperature."""
    return coherent(record, question, 1.5)


def predictions(model: Model, variant: str = "bf16") -> Predictions:
    rows = [
        {
            "record_id": record.id,
            "cohort": record.cohort,
            "question_id": question.id,
            "question_type": question.type,
            "option_ids": list(question.option_ids),
            "logprobs": log_softmax(np.asarray(model(record, question), dtype=float)),
            "gold": record.gold.get(question.id),
            "input_tokens": 10,
            "truncated_tokens": 0,
            "error": None,
        }
        for record in records()
        for question in record.questions
    ]
    return Predictions(replace(META, variant=variant), pd.DataFrame(rows))


@cache
def figures(candidate: Model, baseline: Model = coherent) -> PairStatistics:
    pairs = join(predictions(baseline), predictions(candidate, "nvfp4"))
    return compare(pairs, StatisticsSpec(resamples=500, slices=False, threads=1))
