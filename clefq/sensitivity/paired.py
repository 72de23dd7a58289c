"""Two quantized variants held against each other, question by question, on the same set.

Each has a distance from BF16 on every question; the difference of the two distances has a
clustered interval of its own, much narrower than what the two intervals apart suggest, because
both variants meet the same questions.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from clefq.errors import PredictionsError
from clefq.parity.statistics.divergences import question_values
from clefq.parity.statistics.measures import MEAN, PAIRED, Measure
from clefq.parity.statistics.metric import Metric
from clefq.parity.statistics.pairs import join
from clefq.sensitivity.figures import figures_of
from clefq.store.predictions import Predictions


@dataclass(frozen=True)
class PairedDifference:
    """One variant minus another.

    Attributes:
        variant: The one.
        other: The other.
        kl: Difference of KL(BF16‖·), nats; negative means that `variant` is closer to BF16.
        tv: Difference of total variation; negative means closer.
        agreement: Difference of the share of BF16's answers kept; positive means more kept.
        accuracy: Difference of accuracy, where there is gold; positive means better.
        nbytes: Bytes of `variant`'s checkpoint, or None where it is not known.
        other_nbytes: Bytes of the other's.
        searched: Which of the two have a recipe that was searched on this very set.
    """

    variant: str
    other: str
    kl: Metric
    tv: Metric
    agreement: Metric
    accuracy: Metric
    nbytes: int | None = None
    other_nbytes: int | None = None
    searched: tuple[str, ...] = ()

    @property
    def fair(self) -> bool | None:
        """Whether `variant` takes no more bytes than the other; None where that is not known."""
        if self.nbytes is None or self.other_nbytes is None:
            return None
        return self.nbytes <= self.other_nbytes


def paired_difference(
    baseline: Predictions, variant: Predictions, other: Predictions
) -> PairedDifference:
    """Differences of damage against one baseline.

    Args:
        baseline: BF16's predictions.
        variant: The variant's.
        other: The variant's that it is held against.

    Raises:
        PredictionsError: The files are of different sets or questions.
    """
    pairs = join(baseline, variant)
    others = join(baseline, other)
    join(variant, other)  # options and gold that differ are an error
    for name in ("record_ids", "question_ids", "record_index"):
        if not np.array_equal(getattr(pairs, name), getattr(others, name)):
            raise PredictionsError(
                f"the baseline lacks questions of {variant.meta.variant} or {other.meta.variant}.",
                fix="predict it again on this set.",
            )
    ours, theirs = question_values(pairs), question_values(others)
    measured = ours.measured & theirs.measured
    gold = ours.has_gold
    agree = ours.agree.astype(np.float64) - theirs.agree.astype(np.float64)
    right = ours.candidate.correct.astype(np.float64) - theirs.candidate.correct.astype(np.float64)
    with np.errstate(invalid="ignore"):
        kl, tv = ours.kl - theirs.kl, ours.tv - theirs.tv
    everything = np.ones(len(measured), dtype=np.bool_)
    measures = [
        Measure("kl", MEAN, kl, measured, "nats"),
        Measure("tv", MEAN, tv, measured, "share", limits=(-1, 1)),
        Measure("agreement", PAIRED, agree, everything, "difference", limits=(-1, 1)),
        Measure("accuracy", PAIRED, right, gold, "difference", limits=(-1, 1)),
    ]
    names = (variant.meta.variant, other.meta.variant)
    kl_delta, tv_delta, kept, accuracy = figures_of(measures, pairs)
    return PairedDifference(*names, kl_delta, tv_delta, kept, accuracy)
