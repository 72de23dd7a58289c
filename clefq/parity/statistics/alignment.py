"""Which row answers which question: the index work behind `clefq.parity.statistics.pairs.join`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from clefq.parity.statistics.arrays import FloatArray, IntArray, ObjectArray
from clefq.parity.statistics.flatten import FlatRows, segments
from clefq.parity.statistics.ordering import hash_ranks


@dataclass(frozen=True, slots=True)
class Alignment:
    """The union of both files' questions, in canonical order.

    Attributes:
        record_ids: object [G], in hash order.
        record_index: Record of each question, int64 [n].
        question_ids: object [n].
        rows: For each side the row of each question, int64 [n]; −1 where that side lacks it.
        doubled: For each side the row of a question that appears more than once, or None.
    """

    record_ids: ObjectArray
    record_index: IntArray
    question_ids: ObjectArray
    rows: tuple[IntArray, IntArray]
    doubled: tuple[int | None, int | None]


@dataclass(frozen=True, slots=True)
class SortedOptions:
    """The options of one side's rows, sorted within each row by their code.

    Attributes:
        start: int64 [m + 1].
        code: Index into the vocabulary of option ids, int64 [total].
        position: Prompt position, int64 [total].
        logprobs: float64 [total].
    """

    start: IntArray
    code: IntArray
    position: IntArray
    logprobs: FloatArray


def align(sides: tuple[FlatRows, FlatRows]) -> Alignment:
    """Finds the row of every question of either side."""
    records, record_ids = _codes([side.record_id for side in sides])
    questions, question_ids = _codes([side.question_id for side in sides])
    keys = [r * len(question_ids) + q for r, q in zip(records, questions, strict=True)]
    union = np.sort(np.concatenate(keys))
    union = union[np.diff(union, prepend=-1) != 0]
    first, second = (_rows_of(key, union) for key in keys)
    return Alignment(
        record_ids=record_ids,
        record_index=union // len(question_ids),
        question_ids=question_ids[union % len(question_ids)],
        rows=(first[0], second[0]),
        doubled=(first[1], second[1]),
    )


def sort_options(
    sides: tuple[FlatRows, FlatRows],
) -> tuple[SortedOptions, SortedOptions, ObjectArray]:
    """Sorts each row's options into one order that no file decides.

    Returns:
        Both sides' options and the vocabulary of option ids, object [V].
    """
    codes, vocabulary = _codes([side.option_ids for side in sides])
    first, second = (
        _sort_rows(side, code, len(vocabulary)) for side, code in zip(sides, codes, strict=True)
    )
    return first, second, vocabulary


def _sort_rows(side: FlatRows, code: IntArray, vocabulary: int) -> SortedOptions:
    counts = np.diff(side.option_start)
    row = np.repeat(np.arange(len(counts)), counts)
    order = np.argsort(row * vocabulary + code, kind="stable")
    position = np.arange(len(code)) - np.repeat(side.option_start[:-1], counts)
    return SortedOptions(
        start=side.option_start,
        code=code[order],
        position=position[order],
        logprobs=side.logprobs[order],
    )


def gather(start: IntArray, rows: IntArray, counts: IntArray) -> tuple[IntArray, IntArray]:
    """Where the options of the present rows come from and go to.

    Args:
        start: Offsets of the source rows, int64 [m + 1].
        rows: Source row of each question, −1 where absent, int64 [n].
        counts: Options of each question, int64 [n].

    Returns:
        Flat source and flat destination indices, of equal length.
    """
    present = rows >= 0
    taken = np.where(present, counts, 0)
    destination = np.cumsum(counts) - counts
    return segments(start[np.where(present, rows, 0)], taken), segments(destination, taken)


def _codes(columns: list[pa.Array]) -> tuple[list[IntArray], ObjectArray]:
    """Codes of all texts, in the order of their hashes, and the text of each code."""
    coded = pa.concat_arrays(columns).dictionary_encode()
    ranks = hash_ranks(coded.dictionary)
    ordered = np.empty(len(ranks), dtype=object)
    ordered[ranks] = coded.dictionary.to_numpy(zero_copy_only=False)
    split = np.cumsum([len(column) for column in columns])[:-1]
    codes = np.split(coded.indices.to_numpy(zero_copy_only=False), split)
    return [ranks[part] for part in codes], ordered


def _rows_of(keys: IntArray, union: npt.NDArray[np.int64]) -> tuple[IntArray, int | None]:
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    again = np.flatnonzero(ordered[1:] == ordered[:-1])
    doubled = int(order[again[0]]) if len(again) else None
    if not len(ordered):
        return np.full(len(union), -1, dtype=np.int64), doubled
    at = np.minimum(np.searchsorted(ordered, union), len(ordered) - 1)
    return np.where(ordered[at] == union, order[at], -1), doubled
