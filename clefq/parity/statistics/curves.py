"""Figures that are no ratio of sums: macro-F1, calibration error, area under risk–coverage.

Each is a function of a few sums per record, so that a resample costs one matrix product. Their
intervals are percentiles of the cluster bootstrap: for display, never for gates, but macro-F1's.

A percentile bootstrap of a few changed answers knows nothing of what it has not seen; without any
change it would claim certainty. Macro-F1's interval therefore reaches at least as far as the most
that unseen changes can move it: their share is bounded as that of an event that never happened,
and all of them fall where they cost most.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from clefq.parity.statistics.arrays import BoolArray, FloatArray, IntArray
from clefq.parity.statistics.bootstrap import quantiles
from clefq.parity.statistics.divergences import QuestionValues, SideValues
from clefq.parity.statistics.figures import (
    NONE,
    PERCENTILE,
    Pending,
    count_records,
    record_ratio,
)
from clefq.parity.statistics.intervals import MIN_RECORDS, korn_graubard
from clefq.parity.statistics.metric import Bootstrap, Metric
from clefq.parity.statistics.pairs import PairedSet
from clefq.parity.statistics.resampling import MAX_UNITS, ResampleJob

ECE_BINS = 15
AURC_GROUPS = 16
MAX_CLASSES = 1000
WIDENED = "widened_percentile_cluster_bootstrap"

Reduce = Callable[[FloatArray], FloatArray]


@dataclass(frozen=True, slots=True)
class Curve:
    """A figure as a function of sums over records.

    Attributes:
        columns: Sums per resampling unit, float64 [units, M].
        reduce: Sums [b, M] → figures [b, 1].
        estimate: The figure; where `reduce` works on groups it is the ungrouped one, and
            intervals are moved by the difference.
        reach: Least distance of its bounds from the estimate.
    """

    columns: FloatArray
    reduce: Reduce
    estimate: float
    reach: float = 0.0


def curve_figures(
    pairs: PairedSet,
    values: QuestionValues,
    mask: BoolArray | None,
    confidence: float,
) -> dict[str, Pending]:
    """`ece_delta` and `aurc_delta` in one scope: questions with gold, measured on both sides."""
    domain = values.measured & values.has_gold
    idx = np.flatnonzero(domain if mask is None else domain & mask)
    records = pairs.record_index[idx]
    return {
        name: _pending(partial(make, values, idx, units_of(records)), records, confidence)
        for name, make in (("ece_delta", ece_curve), ("aurc_delta", aurc_curve))
    }


def macro_f1_figure(
    pairs: PairedSet, values: QuestionValues, mask: BoolArray | None, confidence: float
) -> Pending:
    """`macro_f1_delta` in one scope: the mean over cohorts of the difference within each."""
    domain = values.has_gold if mask is None else values.has_gold & mask
    idx = np.flatnonzero(domain)
    records = pairs.record_index[idx]
    unseen = (
        korn_graubard(record_ratio(np.zeros(len(idx)), records), confidence)[1] if len(idx) else 0
    )
    make = partial(macro_f1_curve, pairs, values, idx, units_of(records), unseen or 0.0)
    return _pending(make, records, confidence)


def pessimistic(values: QuestionValues) -> QuestionValues:
    """The values with every tie as gates read it: for the baseline, against the candidate."""
    before = replace(values.baseline, correct=values.right_possibly)
    surely = values.candidate.correct & ~values.candidate.tied
    return replace(values, baseline=before, candidate=replace(values.candidate, correct=surely))


def units_of(records: IntArray) -> IntArray:
    """The resampling unit of each question: its record, or one of 8,192 runs of records.

    Args:
        records: Record of each question, ascending, int64 [m].
    """
    compressed = np.cumsum(np.diff(records, prepend=-1) != 0) - 1
    count = int(compressed[-1]) + 1 if len(compressed) else 0
    if count <= MAX_UNITS:
        return compressed
    edges = np.arange(MAX_UNITS, dtype=np.int64) * count // MAX_UNITS
    return np.searchsorted(edges, compressed, side="right") - 1


def ece_curve(values: QuestionValues, idx: IntArray, units: IntArray) -> Curve:
    """Difference of expected calibration errors, Σ_bin |Σ(confidence − correct)| / n.

    Bins hold equal shares of the baseline's confidences; both models use the same edges.
    """
    before = values.baseline.confidence[idx]
    levels = np.arange(1, ECE_BINS) / ECE_BINS
    edges = np.unique(np.quantile(before, levels, method="inverted_cdf"))
    bins = len(edges) + 1
    parts = []
    for side in (values.baseline, values.candidate):
        gap = side.confidence[idx] - side.correct[idx]
        at = np.searchsorted(edges, side.confidence[idx], side="right")
        parts.append(_table(units, at, bins, gap))
    parts.append(_table(units, np.zeros(len(idx), dtype=np.int64), 1, None))

    def reduce(sums: FloatArray) -> FloatArray:
        first = np.abs(sums[:, :bins]).sum(axis=1)
        second = np.abs(sums[:, bins : 2 * bins]).sum(axis=1)
        return np.asarray((second - first) / sums[:, -1])[:, None]

    columns = np.hstack(parts)
    return Curve(columns, reduce, float(reduce(columns.sum(axis=0)[None])[0, 0]))


def aurc_curve(values: QuestionValues, idx: IntArray, units: IntArray) -> Curve:
    """Difference of areas under the risk–coverage curve.

    The area is the mean, over questions, of the error rate among those at least as confident:
    equal confidences share one value, so no order decides. Resamples use 16 groups of confidence.
    """
    parts = []
    for side in (values.baseline, values.candidate):
        confidence, wrong = side.confidence[idx], (~side.correct[idx]).astype(np.float64)
        levels = np.arange(1, AURC_GROUPS) / AURC_GROUPS
        edges = np.unique(np.quantile(confidence, levels, method="inverted_cdf"))
        at = len(edges) - np.searchsorted(edges, confidence, side="right")
        padded = AURC_GROUPS  # groups that stay empty add nothing
        parts += [_table(units, at, padded, None), _table(units, at, padded, wrong)]

    def area(count: FloatArray, wrong: FloatArray) -> FloatArray:
        seen, errors = np.cumsum(count, axis=1), np.cumsum(wrong, axis=1)
        risk = errors / np.maximum(seen, 1.0)
        return np.asarray((count * risk).sum(axis=1) / seen[:, -1])

    def reduce(sums: FloatArray) -> FloatArray:
        quarter = np.split(sums, 4, axis=1)
        return (area(quarter[2], quarter[3]) - area(quarter[0], quarter[1]))[:, None]

    exact = aurc(values.candidate, idx) - aurc(values.baseline, idx)
    return Curve(np.hstack(parts), reduce, exact)


def aurc(side: SideValues, idx: IntArray) -> float:
    """Area under one model's risk–coverage curve, in [0, 1]; lower is better."""
    order = np.argsort(-side.confidence[idx], kind="stable")
    confidence = side.confidence[idx][order]
    errors = np.cumsum(~side.correct[idx][order])
    last = np.flatnonzero(np.diff(confidence, append=-np.inf) != 0)
    count = np.diff(last, prepend=-1)
    return float((count * errors[last] / (last + 1)).sum() / len(idx))


def macro_f1_curve(
    pairs: PairedSet,
    values: QuestionValues,
    idx: IntArray,
    units: IntArray,
    unseen: float = 0.0,
) -> Curve | float:
    """Difference of macro-F1: mean over the cohort's gold options of 2·TP/(predicted + gold).

    `unseen` is the share of questions whose answers may change without a change having been seen.

    A class is an option id within a cohort; with several cohorts their differences are averaged.
    A failed answer predicts nothing. More than 1,000 classes give the figure alone.
    """
    cohorts, cohort = np.unique(pairs.cohort[idx].astype(str), return_inverse=True)
    vocabulary = len(pairs.option_names)

    def label(flat: IntArray) -> IntArray:
        return np.where(flat >= 0, cohort * vocabulary + pairs.option_code[np.maximum(flat, 0)], -1)

    gold = label(pairs.gold[idx])
    classes, gold_class = np.unique(gold, return_inverse=True)
    width = len(classes)
    boundaries = np.searchsorted(classes, np.arange(len(cohorts)) * vocabulary)
    wide = width > MAX_CLASSES
    rows = np.zeros_like(units) if wide else units
    parts = [_table(rows, gold_class, width, None)]
    for side in (values.baseline, values.candidate):
        predicted = label(side.top[idx])
        place = np.minimum(np.searchsorted(classes, predicted), width - 1)
        known = classes[place] == predicted
        right = side.correct[idx]
        parts.append(_table(rows, np.where(known, place, width), width, None))
        parts.append(_table(rows, np.where(right, gold_class, width), width, None))

    def reduce(sums: FloatArray) -> FloatArray:
        gold, *rest = np.split(sums, 5, axis=1)
        present = gold > 0
        counted = np.add.reduceat(present, boundaries, axis=1, dtype=np.float64)
        macro = []
        for predicted, right in (rest[:2], rest[2:]):
            f1 = np.where(present, 2 * right / np.maximum(predicted + gold, 1.0), 0.0)
            macro.append(np.add.reduceat(f1, boundaries, axis=1) / np.maximum(counted, 1.0))
        seen = (counted > 0).sum(axis=1)
        return np.asarray((macro[1] - macro[0]).sum(axis=1) / seen)[:, None]

    columns = np.hstack(parts)
    totals = columns.sum(axis=0)
    estimate = float(reduce(totals[None])[0, 0])
    if wide:
        return estimate
    sizes = np.diff(boundaries, append=width)
    weight = np.repeat(1 / (len(cohorts) * sizes), sizes)
    reach = _reach(totals, weight, unseen * len(idx))
    return Curve(columns, reduce, estimate, reach)


def _reach(totals: FloatArray, weight: FloatArray, changes: float) -> float:
    """The most by which so many changed answers move a macro-F1.

    A class loses x right answers: F1 = 2(T − x)/(2T − x + E) falls convexly in x, so by at most
    x·2/(2T + E), and whole classes at a time. Where they go, F1 = 2T/(2T + E + x) falls by at most
    x·2T/(2T + E)².

    Args:
        totals: Gold, then predicted and right of either side, float64 [5·width].
        weight: Weight of each class in the figure, float64 [width].
        changes: Number of changed answers.
    """
    gold, *_, predicted, right = np.split(totals, 5)
    size = np.maximum(predicted + gold, 1.0)
    order = np.argsort(-weight / size, kind="stable")
    taken = np.clip(changes - np.cumsum(right[order]) + right[order], 0.0, right[order])
    lost = float((taken * weight[order] * 2 / size[order]).sum())
    found = changes * float((weight * 2 * right / size**2).max())
    return min(lost + found, 1.0)


def _table(units: IntArray, at: IntArray, width: int, weights: FloatArray | None) -> FloatArray:
    """Sums (or counts) by unit and column, float64 [units, width]; column `width` is left out."""
    rows = int(units[-1]) + 1
    flat = np.bincount(units * (width + 1) + at, weights, minlength=rows * (width + 1))
    return flat.reshape(rows, width + 1)[:, :width].astype(np.float64)


def _pending(make: Callable[[], Curve | float], records: IntArray, confidence: float) -> Pending:
    bare = Metric(
        estimate=None,
        lower=None,
        upper=None,
        confidence=confidence,
        method=NONE,
        bootstrap=None,
        n_questions=len(records),
        n_records=count_records(records),
        n_infinite=0,
        unit="difference",
    )
    if not len(records):
        return Pending(bare, None, None)
    curve = make()
    if not isinstance(curve, Curve):
        return Pending(replace(bare, estimate=curve), None, None)
    metric = replace(bare, estimate=curve.estimate)
    if metric.n_records < MIN_RECORDS:
        return Pending(metric, None, None)
    shift = curve.estimate - float(curve.reduce(curve.columns.sum(axis=0)[None])[0, 0])

    def finish(samples: FloatArray) -> tuple[Metric, tuple[float, float]]:
        ends = quantiles(samples[:, 0] + shift, confidence)
        plain = Bootstrap(ends.lower, ends.upper, len(samples))
        lower = min(ends.lower, max(curve.estimate - curve.reach, -1.0))
        upper = max(ends.upper, min(curve.estimate + curve.reach, 1.0))
        method = WIDENED if curve.reach else PERCENTILE
        done = replace(metric, lower=lower, upper=upper, method=method, bootstrap=plain)
        errors = (
            ends.lower_error if lower == ends.lower else 0.0,
            ends.upper_error if upper == ends.upper else 0.0,
        )
        return done, errors

    return Pending(metric, ResampleJob(curve.columns, curve.reduce), finish)
