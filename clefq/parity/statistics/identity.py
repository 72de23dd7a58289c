"""Answers that are the same to the last bit, which two models and two records hardly ever give.

Between the models: a copy of the baseline's answers, or a server that answers with another model
than it was asked for. Between records: one record under several ids, which counts as evidence
once.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from clefq.parity.statistics.arrays import BoolArray, IntArray
from clefq.parity.statistics.pairs import PairedSet, PairedSide


def identical_questions(pairs: PairedSet) -> int:
    """Questions that both answered with the same log-probabilities, bit for bit.

    Labels coincide honestly: of them it is none.
    """
    if pairs.by_label:
        return 0
    same = pairs.baseline.logprobs == pairs.candidate.logprobs  # a failed answer is NaN
    return int(_every(same, pairs.option_start).sum())


def copied_records(pairs: PairedSet) -> int:
    """Records all of whose answers are, in both models, another record's to the last bit.

    Rounded probabilities coincide honestly, and so do answers of probability one: records that
    have no other answers are left out.
    """
    sides = (pairs.baseline, pairs.candidate)
    if any(side.meta.probability_quantum is not None for side in sides):
        return 0
    telling = ~(sides[0].failed | sides[1].failed)
    for side in sides:
        telling &= ~_some(side.logprobs == 0.0, pairs.option_start)
    starts = pairs.record_start[:-1]
    usable = np.logical_or.reduceat(telling, starts)
    if not bool(usable.any()):
        return 0
    keys = np.add.reduceat(_answer_keys(pairs, sides), starts)[usable]
    return len(keys) - len(np.unique(keys))


def is_rounded_copy(pairs: PairedSet) -> bool:
    """Whether rounding the baseline's answers to the candidate's step gives the candidate's."""
    quantum = pairs.candidate.meta.probability_quantum
    both = ~(pairs.baseline.failed | pairs.candidate.failed)
    if quantum is None or pairs.by_label or not bool(both.any()):
        return False
    options = np.repeat(both, pairs.option_counts)
    apart = np.abs(
        np.exp(pairs.baseline.logprobs[options]) - np.exp(pairs.candidate.logprobs[options])
    )
    return bool(apart.max() <= quantum / 2 + 1e-9)


def _answer_keys(pairs: PairedSet, sides: tuple[PairedSide, PairedSide]) -> IntArray:
    """A hash per question over its id, its options and both models' answers, uint64 [n]."""
    mixed = pd.util.hash_array(pairs.option_code.astype(np.uint64))
    for turn, side in enumerate(sides):
        bits = np.ascontiguousarray(side.logprobs).view(np.uint64)
        mixed = pd.util.hash_array(mixed ^ (bits + np.uint64(turn + 1)))
    starts = pairs.option_start[:-1]
    question = pd.util.hash_array(pairs.question_ids)
    both = np.add.reduceat(mixed, starts) ^ question
    return np.asarray(pd.util.hash_array(both))


def _every(flags: BoolArray, start: IntArray) -> BoolArray:
    return np.asarray(np.logical_and.reduceat(flags, start[:-1]), dtype=np.bool_)


def _some(flags: BoolArray, start: IntArray) -> BoolArray:
    return np.asarray(np.logical_or.reduceat(flags, start[:-1]), dtype=np.bool_)
