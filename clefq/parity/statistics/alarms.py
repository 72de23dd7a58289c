"""Slice alarms: where the candidate is worse for sure, corrected for looking everywhere.

One family: every slice with enough records, by whatever key, once for each set of questions. In
each the accuracy is held against the baseline's; where most questions have no right answer, the
agreement against the floors that the gates set over all questions.

Holm's step-down over all of these, without p-values: a hypothesis is rejected at level a when the
upper bound of the one-sided interval at confidence 1 − a lies below its limit. Alarms never decide
a verdict; they say where to look.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from clefq.parity.statistics.arrays import BoolArray
from clefq.parity.statistics.metric import Metric
from clefq.store.reading import Count, Stored

MIN_RECORDS = 10
# Slices of all other keys are searched; margin bands are defined by the baseline's own answers.
NOT_SEARCHED = "margin"

ACCURACY = "accuracy_delta"
# what a floor of which is looked for in slices without right answers
AGREEMENTS = ("agreement", "confident_agreement")

# (metric, slice name, two-sided confidence) → the figure there
Figure = Callable[[str, str, float], Metric | None]


@dataclass(frozen=True, slots=True)
class Alarm(Stored):
    """One slice in which the candidate is worse.

    Attributes:
        slice: Slice name.
        metric: `accuracy_delta`, `agreement` or `confident_agreement`.
        estimate: The figure in that slice.
        upper: Upper bound at the level at which the alarm was raised; below the limit.
        level: One-sided level of that step.
        n_questions: Questions in the slice.
        limit: What the figure is below: 0 for a difference, the gates' floor for an agreement.
    """

    slice: str
    metric: str
    estimate: float
    upper: float
    level: float
    n_questions: Count
    limit: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """The JSON object of `parity.json`."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class _Hypothesis:
    """That a slice's figure is not below a limit."""

    slice: str
    metric: str
    limit: float


def slice_alarms(
    slices: Mapping[str, Mapping[str, Metric]],
    figure: Figure,
    confidence: float,
    *,
    whole: Mapping[str, Metric] | None = None,
    masks: Mapping[str, BoolArray] | None = None,
    floors: Mapping[str, float] | None = None,
) -> tuple[Alarm, ...]:
    """Alarms by Holm's procedure, the largest difference from the limit first.

    Args:
        slices: All slices' metrics, to find those with enough records.
        figure: The figure of one slice at a confidence.
        confidence: One-sided family-wise confidence.
        whole: The figures over all questions: a slice that holds them all is no part of them.
        masks: The questions of each slice: of several that hold the same the first stands for all.
        floors: Metric of `AGREEMENTS` → its floor over all questions.
    """
    remaining = _hypotheses(slices, whole or {}, masks, floors or {})
    raised: list[Alarm] = []
    while remaining:
        level = (1 - confidence) / len(remaining)
        found = {one: _test(one, figure, level) for one in remaining}
        alarms = [alarm for alarm in found.values() if alarm is not None]
        if not alarms:
            break
        raised += alarms
        remaining = [one for one in remaining if found[one] is None]
    return tuple(sorted(raised, key=lambda alarm: (alarm.estimate - alarm.limit, alarm.slice)))


def _hypotheses(
    slices: Mapping[str, Mapping[str, Metric]],
    whole: Mapping[str, Metric],
    masks: Mapping[str, BoolArray] | None,
    floors: Mapping[str, float],
) -> list[_Hypothesis]:
    found: dict[object, _Hypothesis] = {}
    for name, metrics in slices.items():
        if name.split("=", 1)[0] == NOT_SEARCHED:
            continue
        limits = {ACCURACY: 0.0}
        accuracy, asked = metrics.get(ACCURACY), metrics.get("agreement")
        if accuracy is not None and asked and 2 * accuracy.n_questions < asked.n_questions:
            limits |= floors
        for metric, limit in limits.items():
            here, everywhere = metrics.get(metric), whole.get(metric)
            if here is None or here.n_records < MIN_RECORDS:
                continue
            if everywhere is not None and here.n_questions == everywhere.n_questions:
                continue
            place = name if masks is None else masks[name].tobytes()
            found.setdefault((metric, place), _Hypothesis(name, metric, limit))
    return list(found.values())


def _test(one: _Hypothesis, figure: Figure, level: float) -> Alarm | None:
    metric = figure(one.metric, one.slice, 1 - 2 * level)
    if metric is None or metric.upper is None or metric.estimate is None:
        return None
    if metric.upper >= one.limit:
        return None
    return Alarm(
        one.slice, one.metric, metric.estimate, metric.upper, level, metric.n_questions, one.limit
    )
