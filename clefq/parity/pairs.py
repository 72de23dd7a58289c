"""Joins a baseline's and a candidate's predictions by record, question and option id.

Rows of a `PairedSet` lie in one canonical order, whatever the order of the files: records by a
hash of their id, then questions by id, then options by id. Every later sum runs in this order, so
that no number depends on how a file was written. The prompt order of the options is kept apart
(`position`): it breaks ties and counts levels.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from clefq.errors import ExitCode, PredictionsError
from clefq.store.predictions import Predictions, PredictionsMeta

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
ObjectArray = npt.NDArray[np.object_]


class PairingError(PredictionsError):
    """Two predictions files that cannot be compared: the comparison is invalid (exit 4)."""

    exit_code = ExitCode.INVALID


@dataclass(frozen=True, slots=True)
class Side:
    """One model's answers, aligned with the questions of a `PairedSet`.

    Attributes:
        logprobs: Natural logs, flat, float64 [total options]; NaN where the question failed.
        failed: Whether the question has no valid answer, bool [n].
        truncated_tokens: int64 [n].
        error: Why it failed, object [n]: str or None.
        meta: Provenance.
    """

    logprobs: FloatArray
    failed: BoolArray
    truncated_tokens: IntArray
    error: ObjectArray
    meta: PredictionsMeta


@dataclass(frozen=True, slots=True)
class PairedSet:
    """Joined predictions: n questions of G records, in canonical order.

    Attributes:
        record_ids: Record ids, object [G], in hash order.
        record_start: First question of each record, int64 [G + 1].
        record_index: Record of each question, int64 [n].
        question_ids: object [n].
        cohort: object [n].
        question_type: object [n]: `noul`, `choice` or `score`.
        option_start: First option of each question in the flat arrays, int64 [n + 1].
        option_ids: object [total options], sorted by id within each question.
        position: Prompt position of each option within its question, int64 [total options].
        gold: Flat index of the gold option, int64 [n]; −1 where there is none.
        input_tokens: int64 [n], the baseline's where it has the question.
        baseline: The baseline's answers.
        candidate: The candidate's answers.
    """

    record_ids: ObjectArray
    record_start: IntArray
    record_index: IntArray
    question_ids: ObjectArray
    cohort: ObjectArray
    question_type: ObjectArray
    option_start: IntArray
    option_ids: ObjectArray
    position: IntArray
    gold: IntArray
    input_tokens: IntArray
    baseline: Side
    candidate: Side

    @property
    def n_questions(self) -> int:
        """Number of questions n, failed ones included."""
        return len(self.question_ids)

    @property
    def n_records(self) -> int:
        """Number of records G."""
        return len(self.record_ids)

    @property
    def option_counts(self) -> IntArray:
        """Options of each question, int64 [n]."""
        return np.diff(self.option_start)


def join(baseline: Predictions, candidate: Predictions) -> PairedSet:
    """Joins two predictions files by record, question and option id.

    A question that one side lacks is kept and counts as failed there.

    Raises:
        PredictionsError: The files were made on different sets (exit 2).
        PairingError: Their option ids, gold, cohorts or question types differ (exit 4).
    """
    raise NotImplementedError
