"""Intervals from cluster resamples: plain percentiles, and studentized ones that gate.

The studentized interval (Efron and Tibshirani, An Introduction to the Bootstrap, chapter 12)
resamples t* = (θ* − θ)/√V* and gives θ − t*_{1−α/2}·√V ≤ θ ≤ θ − t*_{α/2}·√V. With few records
it covers where percentiles do not.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from clefq.parity.statistics.arrays import FloatArray
from clefq.parity.statistics.intervals import Interval, Ratio
from clefq.parity.statistics.resampling import ResampleJob, bucket_sums

# relative to its terms, a resampled sum of squares below this is rounding: columns are rounded to
# 2^-52 of their largest possible sum (see `clefq.parity.statistics.resampling`)
_ZERO_SQUARES = 1e-9


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Two quantiles of resampled values.

    Attributes:
        lower: The lower one.
        upper: The upper one.
        lower_error: Monte Carlo standard error of the lower one (inf where it is unbounded).
        upper_error: The same for the upper one.
    """

    lower: float
    upper: float
    lower_error: float
    upper_error: float


@dataclass(frozen=True, slots=True)
class StudentizedInterval:
    """A studentized interval with the Monte Carlo standard error of its bounds.

    Attributes:
        bounds: Lower and upper bound; an end without one is None.
        errors: Monte Carlo standard errors of the two bounds.
    """

    bounds: Interval
    errors: tuple[float, float]


def quantiles(values: FloatArray, confidence: float) -> Quantiles:
    """The two ends of the central part of resampled values.

    Ends are order statistics taken symmetrically, ranks k = ceil(α/2·(B + 1)) from either side,
    so that negating every value mirrors the result exactly. Their Monte Carlo error is half the
    distance between the order statistics one binomial standard deviation, √(B·α/2·(1 − α/2)), to
    either side.

    Args:
        values: Resampled values, ±inf allowed, no NaN, float64 [B].
        confidence: Two-sided confidence.
    """
    ordered = np.sort(values)
    count = len(ordered)
    tail = (1 - confidence) / 2
    rank = max(1, math.ceil(tail * (count + 1) - 1e-9))
    step = math.ceil(math.sqrt(count * tail * (1 - tail)))

    def spread(at: int) -> float:
        ends = ordered[max(0, at - step)], ordered[min(count - 1, at + step)]
        return float(ends[1] - ends[0]) / 2 if np.isfinite(ends).all() else math.inf

    low, high = rank - 1, count - rank
    return Quantiles(float(ordered[low]), float(ordered[high]), spread(low), spread(high))


def percentile_job(values: list[Ratio]) -> ResampleJob:
    """A job that gives θ* of several ratios over the same records, float64 [B, len(values)]."""
    columns = np.column_stack([column for v in values for column in (v.numerator, v.denominator)])
    columns = bucket_sums(columns)  # at once: a job must not keep a million records alive
    return ResampleJob(columns, lambda sums: sums[:, 0::2] / sums[:, 1::2])


def studentized_job(value: Ratio) -> ResampleJob:
    """A job that gives θ* and t* of one ratio, float64 [B, 2].

    A resample whose standard error is zero has t* = ±inf (0 where θ* = θ too).
    """
    d = value.denominator
    e = value.numerator - value.estimate * d
    columns = bucket_sums(np.column_stack([e, d, e * e, e * d, d * d]))
    records, estimate = len(d), value.estimate

    def reduce(sums: FloatArray) -> FloatArray:
        shift = sums[:, 0] / sums[:, 1]
        size = sums[:, 2] + shift**2 * sums[:, 4]
        squares = size - 2 * shift * sums[:, 3]
        none = squares <= _ZERO_SQUARES * size
        squares = np.where(none, 0.0, squares) * (records / max(1, records - 1))
        error = np.sqrt(squares) / sums[:, 1]
        with np.errstate(divide="ignore", invalid="ignore"):
            t = np.where(none, np.sign(shift) * np.inf, shift / error)
        t = np.where(shift == 0, 0.0, t)
        return np.column_stack([estimate + shift, t])

    return ResampleJob(columns, reduce)


def studentized_interval(value: Ratio, t: FloatArray, confidence: float) -> StudentizedInterval:
    """The interval of a ratio from its resampled t*.

    Args:
        value: The ratio.
        t: Resampled t*, float64 [B].
        confidence: Two-sided confidence.
    """
    error = math.sqrt(value.variance)
    if error == 0:
        return StudentizedInterval((value.estimate, value.estimate), (0.0, 0.0))
    ends = quantiles(t, confidence)
    lower, upper = value.estimate - ends.upper * error, value.estimate - ends.lower * error
    return StudentizedInterval(
        (lower if math.isfinite(lower) else None, upper if math.isfinite(upper) else None),
        (ends.upper_error * error, ends.lower_error * error),
    )


def needs_more(bound: float | None, error: float, margin: float) -> bool:
    """Whether a bound lies within 3 Monte Carlo standard errors of a margin."""
    if bound is None:
        return False
    return abs(bound - margin) <= 3 * error
