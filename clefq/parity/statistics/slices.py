"""Slices of a paired set: by cohort, question type, option count, length and baseline margin."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from clefq.parity.statistics.arrays import BoolArray, FloatArray
from clefq.parity.statistics.divergences import EDGE, QuestionValues
from clefq.parity.statistics.pairs import PairedSet

K = 1024
LENGTH_BANDS = (
    ("<2K", 1, 2 * K),  # 0: not counted, as in imported answers
    ("2-8K", 2 * K, 8 * K),
    ("8-32K", 8 * K, 32 * K),
    ("32-128K", 32 * K, 128 * K),
    (">=128K", 128 * K, np.inf),
)
MARGIN_BANDS = (("<0.2", -np.inf, 0.2), ("0.2-0.5", 0.2, 0.5), (">=0.5", 0.5, np.inf))
OPTION_BANDS = (
    ("2", 2, 3),
    ("3-9", 3, 10),
    ("10-25", 10, 26),
    ("26-99", 26, 100),
    (">=100", 100, np.inf),
)


def slice_masks(pairs: PairedSet, values: QuestionValues) -> dict[str, BoolArray]:
    """Every slice that holds a question: name → bool [n].

    Names are `cohort=NAME` and `type=NAME` in alphabetical order, then `options=` (2, 3-9, 10-25,
    26-99, >=100), `length=` (input tokens, K = 1,024) and `margin=` (the baseline's top-1 minus
    top-2 probability; questions that the baseline failed have none), in the bands' order.
    """
    masks: dict[str, BoolArray] = {}
    for key, labels in (("cohort", pairs.cohort), ("type", pairs.question_type)):
        for label in sorted(set(labels)):
            masks[f"{key}={label}"] = np.asarray(labels == label, dtype=np.bool_)
    options = pairs.option_counts.astype(np.float64)
    lengths = pairs.input_tokens.astype(np.float64)
    masks |= _bands("options", options, OPTION_BANDS)
    masks |= _bands("length", lengths, LENGTH_BANDS)
    masks |= _bands("margin", values.baseline.margin + EDGE, MARGIN_BANDS)
    return {name: mask for name, mask in masks.items() if bool(mask.any())}


def _bands(
    key: str, values: FloatArray, bands: Sequence[tuple[str, float, float]]
) -> dict[str, BoolArray]:
    return {f"{key}={label}": (values >= low) & (values < high) for label, low, high in bands}


def slice_order(name: str) -> tuple[str, int, str]:
    """Sort key of a slice name: by key, then the bands' order, then the name."""
    key, _, value = name.partition("=")
    bands = {"length": LENGTH_BANDS, "margin": MARGIN_BANDS, "options": OPTION_BANDS}.get(key, ())
    labels = [label for label, _, _ in bands]
    return key, labels.index(value) if value in labels else len(labels), value
