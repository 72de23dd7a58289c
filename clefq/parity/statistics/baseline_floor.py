"""Is the baseline itself worth keeping? Its accuracy against chance and the commonest answer.

A candidate that agrees with a useless baseline has shown nothing. Chance is one over the number of
options; the commonest answer is that of each question id within its cohort, as the gold has it
(which flatters it: it is chosen with the answers known).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from clefq.parity.statistics.arrays import BoolArray, FloatArray
from clefq.parity.statistics.divergences import QuestionValues
from clefq.parity.statistics.figures import record_ratio
from clefq.parity.statistics.intervals import MIN_RECORDS, Ratio, t_quantile
from clefq.parity.statistics.metric import OVERALL
from clefq.parity.statistics.pairs import PairedSet

CHANCE, MAJORITY = "chance", "majority"
MIN_QUESTIONS = 20


@dataclass(frozen=True, slots=True)
class BaselineFloor:
    """One scope's baseline against the answers that need no model.

    Attributes:
        accuracy: The baseline's.
        chance: Expected accuracy of a uniform guess.
        majority: Accuracy of always giving the commonest answer; None where no question id is
            asked often enough to have one.
        above_chance: Lower bound of accuracy − chance; None where no interval can be given.
        above_majority: Lower bound of accuracy − majority.
        n_questions: Questions with gold.
    """

    accuracy: float
    chance: float
    majority: float | None
    above_chance: float | None
    above_majority: float | None
    n_questions: int

    def shown(self, floor: str) -> bool:
        """Whether the baseline is shown to be above a floor."""
        bound = self.above_chance if floor == CHANCE else self.above_majority
        return bound is not None and bound > 0


def baseline_floors(
    pairs: PairedSet, values: QuestionValues, confidence: float
) -> Mapping[str, BaselineFloor]:
    """The floors overall and by cohort, of scopes with at least 20 questions with gold.

    Args:
        pairs: The joined predictions.
        values: Their values.
        confidence: Two-sided confidence of the intervals.
    """
    right = values.baseline.correct.astype(np.float64)
    chance = 1.0 / pairs.option_counts
    majority, common = _majority(pairs, values.has_gold)
    scopes = {OVERALL: values.has_gold}
    for cohort in sorted(set(pairs.cohort)):
        scopes[f"cohort={cohort}"] = values.has_gold & (pairs.cohort == cohort)
    found = {}
    for name, mask in scopes.items():
        if int(mask.sum()) < MIN_QUESTIONS:
            continue
        often = bool(common[mask].all())

        def above(other: FloatArray, mask: BoolArray = mask) -> float | None:
            gained = record_ratio((right - other)[mask], pairs.record_index[mask])
            return _lower(gained, confidence)

        found[name] = BaselineFloor(
            float(right[mask].mean()),
            float(chance[mask].mean()),
            float(majority[mask].mean()) if often else None,
            above(chance),
            above(majority) if often else None,
            int(mask.sum()),
        )
    return found


def _lower(gained: Ratio, confidence: float) -> float | None:
    """Lower end of a mean difference, linearised over records, Student's t; None for too few."""
    if gained.records_in_effect < MIN_RECORDS:
        return None
    half = t_quantile(confidence, gained.n_records) * float(np.sqrt(gained.variance))
    return gained.estimate - half


def _majority(pairs: PairedSet, has_gold: BoolArray) -> tuple[FloatArray, BoolArray]:
    """Whether the commonest gold of a question's id and cohort is its own, float64 [n].

    And whether that id is asked often enough there for one to be commonest, bool [n].
    """
    found = np.zeros(pairs.n_questions)
    common = np.zeros(pairs.n_questions, dtype=np.bool_)
    idx = np.flatnonzero(has_gold)
    if not len(idx):
        return found, common
    gold = pairs.option_code[pairs.gold[idx]]
    cohort, _ = pd.factorize(pairs.cohort[idx])
    question, ids = pd.factorize(pairs.question_ids[idx])
    key, keys = pd.factorize(cohort * len(ids) + question)
    width = len(pairs.option_names)
    pair, counts = np.unique(key * width + gold, return_counts=True)
    # of each key the commonest code, the lowest of several: the first after sorting by count
    order = np.lexsort((pair, -counts, pair // width))
    first = order[np.diff(pair[order] // width, prepend=-1) != 0]
    found[idx] = pair[first][key] % width == gold
    common[idx] = np.bincount(key, minlength=len(keys))[key] >= MIN_QUESTIONS
    return found, common
