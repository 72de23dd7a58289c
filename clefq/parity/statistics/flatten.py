"""Predictions frames as flat arrays: list columns become values plus offsets, without row loops."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
import pyarrow as pa

from clefq.parity.statistics.arrays import BoolArray, FloatArray, IntArray, ObjectArray
from clefq.store.list_columns import list_column
from clefq.store.predictions import Predictions


@dataclass(frozen=True, slots=True)
class FlatRows:
    """The rows of one predictions file, in file order.

    Attributes:
        record_id: object [m].
        question_id: object [m].
        cohort: object [m].
        question_type: object [m].
        gold: object [m]: str or None.
        error: object [m]: str or None; set for every row without a valid answer.
        input_tokens: int64 [m].
        truncated_tokens: int64 [m].
        option_start: First option of each row in the flat arrays, int64 [m + 1].
        option_ids: Option ids in prompt order, object [total options].
        logprobs: float64 [total options]; NaN where the row failed.
    """

    record_id: ObjectArray
    question_id: ObjectArray
    cohort: ObjectArray
    question_type: ObjectArray
    gold: ObjectArray
    error: ObjectArray
    input_tokens: IntArray
    truncated_tokens: IntArray
    option_start: IntArray
    option_ids: ObjectArray
    logprobs: FloatArray


def flatten(predictions: Predictions) -> FlatRows:
    """Flattens a predictions frame; rows whose answer is unusable get an error, never dropped.

    Unusable: an error of its own, no log-probabilities, another number of them than of options,
    NaN or +inf, or a sum off one by more than max(1e-3, K·d/2) for K options and quantum d.
    """
    frame = predictions.frame
    options = list_column(frame["option_ids"], pa.string())
    raw = list_column(frame["logprobs"], pa.float64())
    option_start = options.start
    counts = np.diff(option_start)
    same_length = raw.counts == counts
    logprobs = np.full(int(option_start[-1]), np.nan)
    source = segments(raw.start[:-1], np.where(same_length, counts, 0))
    logprobs[segments(option_start[:-1], np.where(same_length, counts, 0))] = raw.values[source]
    error = _strings(frame["error"])
    quantum = predictions.meta.probability_quantum
    for reason, rows in _unusable(logprobs, option_start, same_length, quantum):
        error[rows & ~known(error)] = reason
    failed = known(error)
    logprobs[np.repeat(failed, counts)] = np.nan
    return FlatRows(
        record_id=_strings(frame["record_id"]),
        question_id=_strings(frame["question_id"]),
        cohort=_strings(frame["cohort"]),
        question_type=_strings(frame["question_type"]),
        gold=_strings(frame["gold"]),
        error=error,
        input_tokens=frame["input_tokens"].to_numpy(dtype=np.int64),
        truncated_tokens=frame["truncated_tokens"].to_numpy(dtype=np.int64),
        option_start=option_start,
        option_ids=np.asarray(options.values, dtype=object),
        logprobs=logprobs,
    )


def known(values: ObjectArray) -> BoolArray:
    """Which entries hold something rather than None or NaN, bool [m]."""
    return np.asarray(pd.notna(values), dtype=np.bool_)


def segments(starts: IntArray, counts: IntArray) -> IntArray:
    """Flat indices of the concatenated ranges [start, start + count), int64 [Σ counts]."""
    before = np.cumsum(counts) - counts
    return np.repeat(starts - before, counts) + np.arange(int(counts.sum()))


def segment_sum(values: FloatArray, start: IntArray) -> FloatArray:
    """Sums of contiguous, non-empty segments, float64 [len(start) − 1]."""
    if len(start) == 1:
        return np.zeros(0)
    return np.asarray(np.add.reduceat(values, start[:-1]), dtype=np.float64)


def _unusable(
    logprobs: FloatArray, start: IntArray, same_length: BoolArray, quantum: float | None
) -> list[tuple[str, BoolArray]]:
    bad = np.isnan(logprobs) | np.isposinf(logprobs)
    not_finite = segment_sum(bad.astype(np.float64), start) > 0
    with np.errstate(over="ignore", invalid="ignore"):
        total = segment_sum(np.exp(logprobs), start)
    counts = np.diff(start)
    slack = np.maximum(1e-3, counts * (quantum or 0.0) / 2 + 1e-12)
    off = ~not_finite & (np.abs(total - 1.0) > slack)
    return [
        ("no logprobs, or not one per option", ~same_length),
        ("logprobs hold NaN or +inf", not_finite),
        ("probabilities do not sum to one", off),
    ]


def _strings(column: pd.Series) -> ObjectArray:
    values = column.to_numpy(dtype=object).copy()
    values[pd.isna(values)] = None
    return values
