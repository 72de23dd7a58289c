"""Slices of a paired set: by cohorts, question, right answer, type, options, length and margin."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from clefq.parity.statistics.arrays import BoolArray, FloatArray, ObjectArray
from clefq.parity.statistics.divergences import EDGE, QuestionValues
from clefq.parity.statistics.intervals import MIN_RECORDS
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
QUESTION, GOLD = "question", "gold"
FURTHER = "cohort."  # before the name of a further cohort
SLICE_KEYS = ("cohort", QUESTION, GOLD, "type", "options", "length", "margin")
# Of keys that data name, the largest slices are reported: logs have questions of their own ids.
MOST_SLICES = 200


def is_slice_key(key: str) -> bool:
    """Whether slices can have this key: one of `SLICE_KEYS`, or `cohort.NAME`."""
    return key in SLICE_KEYS or (key.startswith(FURTHER) and len(key) > len(FURTHER))


def slice_masks(pairs: PairedSet, values: QuestionValues) -> dict[str, BoolArray]:
    """Every slice that is reported: name → bool [n].

    Names are `cohort=NAME`, `cohort.COLUMN=VALUE`, `question=ID`, `gold=ID/OPTION` (where that
    option is the right answer: accuracy there is the option's recall) and `type=NAME` in
    alphabetical order, then `options=` (2, 3-9, 10-25, 26-99, >=100), `length=` (input tokens,
    K = 1,024) and `margin=` (the baseline's top-1 minus top-2 probability; questions that the
    baseline failed have none), in the bands' order. Of keys that data name, the largest
    `MOST_SLICES` (`left_out` counts the others).
    """
    masks: dict[str, BoolArray] = {}
    for key, labels in _labels(pairs).items():
        masks |= {f"{key}={label}": _mask(labels, label) for label in _largest(labels)}
    options = pairs.option_counts.astype(np.float64)
    lengths = pairs.input_tokens.astype(np.float64)
    masks |= _bands("options", options, OPTION_BANDS)
    masks |= _bands("length", lengths, LENGTH_BANDS)
    masks |= _bands("margin", values.baseline.margin + EDGE, MARGIN_BANDS)
    return {name: mask for name, mask in masks.items() if bool(mask.any())}


def named_mask(pairs: PairedSet, name: str) -> BoolArray | None:
    """The questions of a slice that data name, reported or not, bool [n]; None where it has none.

    Args:
        pairs: The joined predictions.
        name: For example `question=queue`.
    """
    key, _, label = name.partition("=")
    labels = _labels(pairs).get(key)
    mask = None if labels is None else _mask(labels, label)
    return mask if mask is not None and bool(mask.any()) else None


def left_out(pairs: PairedSet) -> dict[str, int]:
    """Key → number of its slices that are not reported, where there are any."""
    counts = {key: len(_sizes(labels)) - MOST_SLICES for key, labels in _labels(pairs).items()}
    return {key: count for key, count in counts.items() if count > 0}


def gateable_slices(pairs: PairedSet, key: str) -> list[str]:
    """Slices of a key that data name and that are large enough to be judged, sorted by name."""
    labels = _labels(pairs).get(key)
    if labels is None:
        return []
    sizes, reported = _sizes(labels), set(_largest(labels))
    return [
        f"{key}={label}"
        for label in sorted(sizes)
        if label in reported or sizes[label] >= MIN_RECORDS
    ]


def _labels(pairs: PairedSet) -> dict[str, ObjectArray]:
    """Key → label of each question, object [n]: str, or None where it is in no slice."""
    return {
        "cohort": pairs.cohort,
        **{f"{FURTHER}{name}": column for name, column in pairs.cohorts.items()},
        QUESTION: pairs.question_ids,
        GOLD: gold_classes(pairs),
        "type": pairs.question_type,
    }


def _sizes(labels: ObjectArray) -> Counter[str]:
    return Counter(label for label in labels.tolist() if label is not None)


def _largest(labels: ObjectArray) -> list[str]:
    """The labels of the largest slices, of equal ones the first by name; sorted by name."""
    sizes = _sizes(labels)
    return sorted(sorted(sizes, key=lambda label: (-sizes[label], label))[:MOST_SLICES])


def _mask(labels: ObjectArray, label: str) -> BoolArray:
    return np.asarray(labels == label, dtype=np.bool_)


def gold_classes(pairs: PairedSet) -> ObjectArray:
    """`QUESTION/OPTION` of each question's right answer, object [n]; None without gold."""
    found = np.full(pairs.n_questions, None, dtype=object)
    rows = np.flatnonzero(pairs.gold >= 0)
    options = pairs.option_names[pairs.option_code[pairs.gold[rows]]]
    names = zip(pairs.question_ids[rows], options, strict=True)
    found[rows] = [f"{question}/{option}" for question, option in names]
    return found


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
