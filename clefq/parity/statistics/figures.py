"""From a ratio metric and a scope to a figure: estimate, gating interval, percentile interval."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from clefq.parity.statistics.arrays import BoolArray, FloatArray, IntArray
from clefq.parity.statistics.bootstrap import (
    needs_more,
    percentile_job,
    quantiles,
    studentized_interval,
    studentized_job,
)
from clefq.parity.statistics.intervals import (
    MIN_RECORDS,
    NO_INTERVAL,
    Interval,
    Ratio,
    bounded_mean,
    korn_graubard,
    paired_tango,
    ratio,
)
from clefq.parity.statistics.measures import MEAN, PAIRED, Measure
from clefq.parity.statistics.metric import Bootstrap, Metric
from clefq.parity.statistics.resampling import ResampleJob, run_jobs

MAX_DOUBLINGS = 4

KORN_GRAUBARD, TANGO = "korn_graubard", "tango"
STUDENTIZED, BOUNDED = "studentized_cluster_bootstrap", "bounded_mean"
PERCENTILE, NONE = "percentile_cluster_bootstrap", "none"


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to resample.

    Attributes:
        key: See `clefq.parity.statistics.resampling.resampling_key`.
        resamples: Number of resamples.
        threads: Threads; never changes a number.
    """

    key: int
    resamples: int = 10_000
    threads: int = 2


@dataclass(frozen=True, slots=True)
class Pending:
    """A figure whose resampled part is still to come.

    Attributes:
        metric: The figure without it.
        job: What to resample, or None where there is nothing.
        finish: Resampled values → the whole figure and the Monte Carlo standard errors of its
            gating bounds (zero where they are in closed form).
    """

    metric: Metric
    job: ResampleJob | None
    finish: Callable[[FloatArray], tuple[Metric, tuple[float, float]]] | None


def pending_figure(
    measure: Measure, idx: IntArray, record_index: IntArray, confidence: float
) -> Pending:
    """Prepares one metric in one scope.

    Args:
        measure: The metric.
        idx: Questions of the scope that lie in the metric's domain, ascending, int64.
        record_index: Record of each question of the set, int64 [n].
        confidence: Two-sided confidence.
    """
    values = measure.value[idx]
    records = count_records(record_index[idx])
    infinite = int((~np.isfinite(values)).sum())
    bare = Metric(
        estimate=None,
        lower=None,
        upper=None,
        confidence=confidence,
        method=NONE,
        bootstrap=None,
        n_questions=len(idx),
        n_records=records,
        n_infinite=infinite,
        unit=measure.unit,
    )
    if not len(idx) or infinite:
        return Pending(bare, None, None)
    value = record_ratio(values, record_index[idx])
    bare = replace(bare, estimate=value.estimate)
    if value.records_in_effect < MIN_RECORDS:
        return Pending(bare, None, None)
    bounded = measure.rare or (measure.kind == MEAN and bool(np.isfinite(measure.limits).all()))
    if bounded and not bool(values.any()):
        # Resamples of zeros would claim certainty.
        share = korn_graubard(value, confidence)[1] or 0.0
        low, high = measure.limits
        metric = replace(bare, lower=share * low, upper=share * high, method=KORN_GRAUBARD)
        return Pending(metric, percentile_job([value]), _percentile_finish(metric))
    if measure.kind == MEAN:
        return Pending(bare, studentized_job(value), _studentized_finish(measure, bare, value))
    method, bounds = _closed_form(measure.kind, value, values, record_index[idx], confidence)
    lower, upper = _clip(bounds, measure.limits)
    metric = replace(bare, lower=lower, upper=upper, method=method)
    return Pending(metric, percentile_job([value]), _percentile_finish(metric))


def resolve(waiting: list[Pending], sampling: Sampling) -> list[Metric]:
    """Resamples all that wait, together, and completes the figures."""
    jobs = [item.job for item in waiting if item.job is not None]
    results = iter(run_jobs(jobs, sampling.key, sampling.resamples, sampling.threads))
    return [
        item.metric if item.finish is None else item.finish(next(results))[0] for item in waiting
    ]


def resolve_at(item: Pending, sampling: Sampling, margin: float | None) -> Metric:
    """Completes one figure; doubles the resamples while a bound is too close to a margin.

    Too close is within 3 Monte Carlo standard errors. After four doublings (160,000 resamples
    from 10,000) the bound is taken as it is.
    """
    if item.job is None or item.finish is None:
        return item.metric
    resamples = sampling.resamples
    for doubling in range(MAX_DOUBLINGS + 1):
        values = run_jobs([item.job], sampling.key, resamples, sampling.threads)[0]
        metric, errors = item.finish(values)
        bounds = (metric.lower, metric.upper)
        close = margin is not None and any(
            error > 0 and needs_more(bound, error, margin)
            for bound, error in zip(bounds, errors, strict=True)
        )
        if not close or doubling == MAX_DOUBLINGS:
            break
        resamples *= 2
    return metric


def record_ratio(values: FloatArray, records: IntArray) -> Ratio:
    """A ratio from the questions of a domain.

    Args:
        values: Numerators, finite, float64 [m].
        records: Record of each, ascending, int64 [m].
    """
    start = np.flatnonzero(np.diff(records, prepend=-1))
    sums = np.add.reduceat(values, start)
    counts = np.diff(start, append=len(records)).astype(np.float64)
    return ratio(sums, counts)


def count_records(records: IntArray) -> int:
    """Distinct values of an ascending array."""
    return int((np.diff(records, prepend=-1) != 0).sum())


def indices(mask: BoolArray | None, domain: BoolArray) -> IntArray:
    """Questions of a scope (None: all) within a domain."""
    return np.flatnonzero(domain if mask is None else domain & mask)


def scope_indices(mask: BoolArray | None, measure: Measure, gold: GoldPlaces) -> IntArray:
    """Where a measure has values in a scope (None: all), ascending.

    Args:
        mask: Questions of the scope, bool [n].
        measure: The measure.
        gold: Which questions have gold, and their records.
    """
    if mask is not None and measure.whole_records:
        outside = gold.record_index[gold.has_gold & ~mask]
        cut = np.zeros(gold.n_records, dtype=np.bool_)
        cut[outside] = True
        mask = np.asarray(~cut[gold.record_index], dtype=np.bool_)
    return indices(mask, measure.domain)


@dataclass(frozen=True, slots=True)
class GoldPlaces:
    """Where gold lies.

    Attributes:
        has_gold: bool [n].
        record_index: Record of each question, int64 [n].
        n_records: Number of records.
    """

    has_gold: BoolArray
    record_index: IntArray
    n_records: int


def _closed_form(
    kind: str, value: Ratio, values: FloatArray, records: IntArray, confidence: float
) -> tuple[str, Interval]:
    if kind == PAIRED:
        gained = record_ratio((values > 0).astype(np.float64), records)
        lost = record_ratio((values < 0).astype(np.float64), records)
        return TANGO, paired_tango(gained, lost, confidence)
    return KORN_GRAUBARD, korn_graubard(value, confidence)


def _percentile_finish(
    metric: Metric,
) -> Callable[[FloatArray], tuple[Metric, tuple[float, float]]]:
    def finish(samples: FloatArray) -> tuple[Metric, tuple[float, float]]:
        plain = _bootstrap(samples[:, 0], metric.confidence)
        return replace(metric, bootstrap=plain), (0.0, 0.0)

    return finish


def _studentized_finish(
    measure: Measure, bare: Metric, value: Ratio
) -> Callable[[FloatArray], tuple[Metric, tuple[float, float]]]:
    low, high = measure.limits
    bounded = low == 0 and bool(np.isfinite(high))
    highest = bounded_mean(value, high, bare.confidence) if bounded else None
    # what waits for its resamples must not keep the records alive
    value = replace(value, numerator=np.empty(0), denominator=np.empty(0))

    def finish(samples: FloatArray) -> tuple[Metric, tuple[float, float]]:
        found = studentized_interval(value, samples[:, 1], bare.confidence)
        lower, upper = _clip(found.bounds, measure.limits)
        plain = _bootstrap(samples[:, 0], bare.confidence)
        metric = replace(bare, lower=lower, upper=upper, method=STUDENTIZED, bootstrap=plain)
        if not bounded:
            return metric, found.errors
        return replace(metric, upper=highest, method=BOUNDED), (found.errors[0], 0.0)

    return finish


def _bootstrap(values: FloatArray, confidence: float) -> Bootstrap:
    ends = quantiles(values, confidence)
    return Bootstrap(ends.lower, ends.upper, len(values))


def _clip(bounds: Interval, limits: tuple[float, float]) -> Interval:
    """Bounds within the range that values cannot leave; an open end becomes that range's end."""
    if bounds == NO_INTERVAL:
        return bounds
    low, high = limits
    lower = low if bounds[0] is None else max(bounds[0], low)
    upper = high if bounds[1] is None else min(bounds[1], high)
    return lower if np.isfinite(lower) else None, upper if np.isfinite(upper) else None
