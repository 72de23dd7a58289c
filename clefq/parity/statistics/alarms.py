"""Slice alarms: where accuracy is worse than the baseline's, corrected for looking everywhere.

One family: every slice with enough records, by whatever key, once for each set of questions.

Holm's step-down over all slices with enough records, without p-values: a hypothesis is rejected
at level a when the upper bound of the one-sided interval at confidence 1 − a lies below zero.
Alarms never decide a verdict; they say where to look.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from clefq.parity.statistics.arrays import BoolArray
from clefq.parity.statistics.metric import Metric
from clefq.store.reading import Count, Stored

MIN_RECORDS = 10
# Slices of all other keys are searched; margin bands are defined by the baseline's own answers.
NOT_SEARCHED = "margin"

Figure = Callable[[str, float], Metric | None]


@dataclass(frozen=True, slots=True)
class Alarm(Stored):
    """One slice in which the candidate is worse.

    Attributes:
        slice: Slice name.
        metric: `accuracy_delta`.
        estimate: The figure in that slice.
        upper: Upper bound at the level at which the alarm was raised; below zero.
        level: One-sided level of that step.
        n_questions: Questions in the slice.
    """

    slice: str
    metric: str
    estimate: float
    upper: float
    level: float
    n_questions: Count

    def to_json(self) -> dict[str, Any]:
        """The JSON object of `parity.json`."""
        return asdict(self)


def slice_alarms(
    slices: Mapping[str, Mapping[str, Metric]],
    figure: Figure,
    confidence: float,
    whole: Metric | None = None,
    masks: Mapping[str, BoolArray] | None = None,
) -> tuple[Alarm, ...]:
    """Alarms by Holm's procedure, worst first.

    Args:
        slices: All slices' metrics, to find those with enough records.
        figure: (slice name, two-sided confidence) → the accuracy difference there.
        confidence: One-sided family-wise confidence.
        whole: The figure over all questions: a slice that holds them all is no part of them.
        masks: The questions of each slice: of several that hold the same the first stands for all.
    """
    remaining = list(_eligible(slices, whole, masks))
    raised: list[Alarm] = []
    while remaining:
        level = (1 - confidence) / len(remaining)
        found = [alarm for name in remaining if (alarm := _test(name, figure, level)) is not None]
        if not found:
            break
        raised += found
        names = {alarm.slice for alarm in found}
        remaining = [name for name in remaining if name not in names]
    return tuple(sorted(raised, key=lambda alarm: (alarm.estimate, alarm.slice)))


def _eligible(
    slices: Mapping[str, Mapping[str, Metric]],
    whole: Metric | None,
    masks: Mapping[str, BoolArray] | None,
) -> Sequence[str]:
    found: dict[object, str] = {}
    for name, metrics in slices.items():
        metric = metrics.get("accuracy_delta")
        if name.split("=", 1)[0] == NOT_SEARCHED or metric is None:
            continue
        if metric.n_records < MIN_RECORDS:
            continue
        if whole is not None and metric.n_questions == whole.n_questions:
            continue
        found.setdefault(name if masks is None else masks[name].tobytes(), name)
    return list(found.values())


def _test(name: str, figure: Figure, level: float) -> Alarm | None:
    metric = figure(name, 1 - 2 * level)
    if metric is None or metric.upper is None or metric.estimate is None or metric.upper >= 0:
        return None
    return Alarm(name, "accuracy_delta", metric.estimate, metric.upper, level, metric.n_questions)
