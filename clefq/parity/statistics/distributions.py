"""Percentiles of a distance over the questions, with percentile cluster-bootstrap intervals.

A resample's percentile needs only how many questions lie at or below a few values around it, so
it is a matrix product too. For display, never for gates.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from clefq.parity.statistics.arrays import FloatArray, IntArray
from clefq.parity.statistics.bootstrap import quantiles
from clefq.parity.statistics.curves import units_of
from clefq.parity.statistics.figures import Sampling, count_records
from clefq.parity.statistics.intervals import MIN_RECORDS
from clefq.parity.statistics.resampling import ResampleJob, run_jobs

LEVELS = (50.0, 90.0, 95.0, 99.0, 99.9)
_STEPS = 32  # values to either side of a percentile that a resample can land on


@dataclass(frozen=True, slots=True)
class Percentile:
    """One percentile: the smallest value with at least that share of questions at or below it.

    Attributes:
        level: In percent.
        estimate: The value; inf where it is infinite.
        lower: Lower bound, or None below 10 records.
        upper: Upper bound, or None.
    """

    level: float
    estimate: float
    lower: float | None
    upper: float | None


@dataclass(frozen=True, slots=True)
class Distribution:
    """Percentiles of one distance.

    Attributes:
        percentiles: At 50, 90, 95, 99 and 99.9 percent.
        maximum: The largest value.
        confidence: Two-sided confidence of the bounds.
        resamples: Resamples behind them.
        n_questions: Questions.
        n_records: Records.
    """

    percentiles: tuple[Percentile, ...]
    maximum: float
    confidence: float
    resamples: int
    n_questions: int
    n_records: int


def distributions(
    values: Mapping[str, FloatArray],
    records: IntArray,
    sampling: Sampling,
    confidence: float = 0.95,
) -> dict[str, Distribution]:
    """Percentiles of several distances over the same questions; none where there is no question.

    Args:
        values: Name → values, no NaN, inf allowed, float64 [m].
        records: Record of each question, ascending, int64 [m].
        sampling: How to resample.
        confidence: Two-sided confidence.
    """
    if not len(records):
        return {}
    units = units_of(records)
    n_records = count_records(records)
    enough = n_records >= MIN_RECORDS
    grids = {name: _grids(np.sort(v)) for name, v in values.items()}
    jobs = [_job(values[name], grid, units) for name, grid in grids.items()]
    drawn = run_jobs(jobs, sampling.key, sampling.resamples, sampling.threads) if enough else []
    found = {}
    for index, name in enumerate(grids):
        ordered = np.sort(values[name])
        found[name] = Distribution(
            percentiles=tuple(
                _percentile(level, ordered, column, confidence)
                for level, column in zip(
                    LEVELS,
                    drawn[index].T if enough else [None] * len(LEVELS),
                    strict=True,
                )
            ),
            maximum=float(ordered[-1]),
            confidence=confidence,
            resamples=sampling.resamples if enough else 0,
            n_questions=len(records),
            n_records=n_records,
        )
    return found


def _rank(level: float, n: int) -> int:
    return min(n - 1, max(0, int(np.ceil(level / 100 * n - 1e-9)) - 1))


def _grids(ordered: FloatArray) -> dict[float, FloatArray]:
    """For each level the values that a resample's percentile is read from, ascending.

    They span the ranks within six binomial standard deviations (doubled, for clustering); a wider
    span than 65 ranks is thinned evenly.
    """
    n = len(ordered)
    grids = {}
    for level in LEVELS:
        share = level / 100
        reach = max(_STEPS, int(np.ceil(12 * np.sqrt(n * share * (1 - share)))))
        centre = _rank(level, n)
        low, high = max(0, centre - reach), min(n - 1, centre + reach)
        ranks = np.unique(np.linspace(low, high, 2 * _STEPS + 1).astype(np.int64))
        grids[level] = np.unique(ordered[np.union1d(ranks, [centre])])
    return grids


def _job(values: FloatArray, grids: Mapping[float, FloatArray], units: IntArray) -> ResampleJob:
    """A job that gives a resample's percentiles.

    Columns count the questions at or below every grid value; a percentile is the first value that
    enough questions of the resample do not exceed.
    """
    rows = int(units[-1]) + 1
    parts, widths = [], []
    for grid in grids.values():
        # the first grid value that is not below the question; beyond the grid it counts nowhere
        at = np.searchsorted(grid, values, side="left")
        width = len(grid) + 1
        table = np.bincount(units * width + at, minlength=rows * width).reshape(rows, width)
        parts.append(np.cumsum(table, axis=1)[:, :-1])
        widths.append(len(grid))
    total = np.bincount(units, minlength=rows)[:, None]
    columns = np.hstack([*parts, total]).astype(np.float64)
    cuts = np.cumsum(widths)

    def reduce(sums: FloatArray) -> FloatArray:
        n = sums[:, -1]
        found = []
        for (level, grid), part in zip(
            grids.items(), np.split(sums[:, :-1], cuts[:-1], axis=1), strict=True
        ):
            enough = part >= np.ceil(level / 100 * n - 1e-9)[:, None]
            first = np.where(enough.any(axis=1), enough.argmax(axis=1), len(grid) - 1)
            found.append(grid[first])
        return np.column_stack(found)

    return ResampleJob(columns, reduce)


def _percentile(
    level: float,
    ordered: FloatArray,
    drawn: FloatArray | None,
    confidence: float,
) -> Percentile:
    estimate = float(ordered[_rank(level, len(ordered))])
    if drawn is None:
        return Percentile(level, estimate, None, None)
    ends = quantiles(drawn, confidence)
    return Percentile(level, estimate, ends.lower, ends.upper)
