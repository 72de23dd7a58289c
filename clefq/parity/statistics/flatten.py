"""Predictions frames as flat arrays: list columns become values plus offsets, without row loops."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
import pyarrow as pa

from clefq.parity.statistics.arrays import BoolArray, FloatArray, IntArray, ObjectArray
from clefq.store.list_columns import arrow_array, list_column
from clefq.store.predictions import Predictions

TEXT = pa.large_string()


@dataclass(frozen=True, slots=True)
class FlatRows:
    """The rows of one predictions file, in file order.

    Attributes:
        record_id: Arrow text [m].
        question_id: Arrow text [m].
        cohort: object [m].
        question_type: object [m].
        gold: object [m]: str or None.
        error: object [m]: str or None; set for every row without a valid answer.
        input_tokens: int64 [m].
        truncated_tokens: int64 [m].
        option_start: First option of each row in the flat arrays, int64 [m + 1].
        option_ids: Option ids in prompt order, Arrow text [total options].
        logprobs: float64 [total options]; NaN where the row failed.
        cohorts: The further cohorts as the file has them, object [m]: JSON text or None.
    """

    record_id: pa.Array
    question_id: pa.Array
    cohort: ObjectArray
    question_type: ObjectArray
    gold: ObjectArray
    error: ObjectArray
    input_tokens: IntArray
    truncated_tokens: IntArray
    option_start: IntArray
    option_ids: pa.Array
    logprobs: FloatArray
    cohorts: ObjectArray


def flatten(predictions: Predictions) -> FlatRows:
    """Flattens a predictions frame; rows whose answer is unusable get an error, never dropped.

    Unusable: an error of its own, no log-probabilities, another number of them than of options,
    NaN or +inf, or a sum off one by more than max(1e-3, K·d/2) for K options and quantum d.
    """
    frame = predictions.frame
    options = arrow_array(frame["option_ids"], pa.large_list(TEXT))
    raw = list_column(frame["logprobs"], pa.float64())
    option_ids = options.flatten()
    counts = options.value_lengths().fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    option_start = np.concatenate([[0], np.cumsum(counts)])
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
        record_id=arrow_array(frame["record_id"], TEXT),
        question_id=arrow_array(frame["question_id"], TEXT),
        cohort=_strings(frame["cohort"]),
        question_type=_strings(frame["question_type"]),
        gold=_strings(frame["gold"]),
        error=error,
        input_tokens=frame["input_tokens"].to_numpy(dtype=np.int64),
        truncated_tokens=frame["truncated_tokens"].to_numpy(dtype=np.int64),
        option_start=option_start,
        option_ids=option_ids,
        logprobs=logprobs,
        cohorts=_strings(frame["cohorts"])
        if "cohorts" in frame
        else np.full(len(frame), None, dtype=object),
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
    """A column of texts and nulls; equal texts are one object, so that they cost a pointer."""
    coded = arrow_array(column, TEXT).dictionary_encode()
    none = np.full(1, None, dtype=object)
    names = np.concatenate([coded.dictionary.to_numpy(zero_copy_only=False), none])
    codes = coded.indices.fill_null(len(names) - 1).to_numpy(zero_copy_only=False)
    return np.asarray(names[codes], dtype=object)
