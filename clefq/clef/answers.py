"""SystemOne answers: probabilities of a question's options in the shape that clients expect."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from clefq.clef.records import Question

DIGITS = 4


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Natural-log probabilities in float64; their exponentials sum to one within 1e-12.

    Args:
        logits: Finite or −inf (probability zero), [options].

    Raises:
        ValueError: Empty, NaN, +inf, or −inf throughout.
    """
    values = np.asarray(logits, dtype=np.float64)
    top = values.max() if values.size else np.nan
    if not np.isfinite(top):
        raise ValueError("logits are not finite")
    shifted = values - top
    return np.asarray(shifted - np.log(np.exp(shifted).sum()))


def answer(
    question: Question, probabilities: Mapping[str, float], digits: int | None = DIGITS
) -> dict[str, Any]:
    """The SystemOne answer to one question.

    Args:
        question: The question; a choice's options keep the order of its criteria.
        probabilities: Option id to probability, one entry per option.
        digits: Decimals that numbers are rounded to; None keeps full precision.

    Returns:
        noul: `noul` is p(true). choice: `choice`, `confidence` (its probability) and
        `probabilities`. score: `score` is the expected level, `confidence` the largest
        probability, `legend` the levels.
    """

    def number(value: float) -> float:
        return float(value) if digits is None else round(float(value), digits)

    if question.type == "noul":
        return {"type": "noul", "noul": number(probabilities["true"])}
    if question.type == "choice":
        options = list(question.criteria)
        # max keeps the first of equals, in the request's order
        choice = max(options, key=probabilities.__getitem__)
        return {
            "type": "choice",
            "choice": choice,
            "confidence": number(probabilities[choice]),
            "probabilities": {option: number(probabilities[option]) for option in options},
        }
    levels = question.option_ids
    expected = sum(level * probabilities[name] for level, name in enumerate(levels))
    return {
        "type": "score",
        "score": number(expected),
        "confidence": number(max(probabilities[name] for name in levels)),
        "legend": dict(zip(levels, question.criteria, strict=True)),
        "probabilities": {name: number(probabilities[name]) for name in levels},
    }
