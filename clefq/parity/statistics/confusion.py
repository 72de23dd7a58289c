"""Which answers moved where: changed answers by question, from one option to another."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from clefq.parity.statistics.divergences import QuestionValues
from clefq.parity.statistics.pairs import PairedSet

MOST_MOVES = 100


def moved_answers(pairs: PairedSet, values: QuestionValues) -> dict[str, Any]:
    """The confusion table of baseline and candidate without its diagonal, commonest first.

    Args:
        pairs: The joined predictions.
        values: Their values.

    Returns:
        `moves`: at most 100 of question, baseline's option, candidate's option, count, and how
        many of them gained or lost the right answer; `left_out`: changed answers in further moves.
    """
    rows = np.flatnonzero(values.valid & ~values.agree)
    names = pairs.option_names[pairs.option_code]
    keys = list(
        zip(
            pairs.question_ids[rows],
            names[values.baseline.top[rows]],
            names[values.candidate.top[rows]],
            strict=True,
        )
    )
    gold = values.has_gold[rows]
    gained = Counter(_where(keys, gold & values.candidate.correct[rows]))
    lost = Counter(_where(keys, gold & values.baseline.correct[rows]))
    ranked = sorted(Counter(keys).items(), key=lambda item: (-item[1], item[0]))
    moves = [
        {
            "question": str(key[0]),
            "baseline": str(key[1]),
            "candidate": str(key[2]),
            "count": count,
            "gained": gained[key],
            "lost": lost[key],
        }
        for key, count in ranked[:MOST_MOVES]
    ]
    return {"moves": moves, "left_out": sum(count for _, count in ranked[MOST_MOVES:])}


def _where(keys: list[tuple[Any, Any, Any]], chosen: Any) -> list[tuple[Any, Any, Any]]:
    return [key for key, take in zip(keys, chosen, strict=True) if take]
