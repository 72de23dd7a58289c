"""Intervals in closed form, with records as the sampling unit.

A ratio θ = ΣN_r / ΣD_r over G records has the linearised cluster variance
V = G/(G−1) · Σ(N_r − θ·D_r)² / (ΣD)² (Cochran, Sampling Techniques, 3rd ed., section 6.3). For
shares V gives an effective sample size (Korn and Graubard, Survey Methodology 24, 1998), and an
exact interval for independent draws is taken at that size.

V cannot be estimated from a handful of events, and one record of many events that the sample
happens to lack is missing from it. The bound on the side where more events lie therefore counts in
lumps: s = (ΣF³ + w³)/(ΣF² + w²) events each, for F_r events of record r and, beside them, one
record that is wholly an event, of the size w = ΣD³/ΣD². Lumps carry the variance V, the rest of
the events counts as known (`lump_bound`). As among weighted sums of Poisson counts (Fay and Feuer,
Statistics in Medicine 16, 1997), the largest possible weight stands for the event not yet seen.
Where the sizes have a long tail the longest records are bounded by themselves too (`worst_kind`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import special, stats

from clefq.errors import InputError
from clefq.parity.statistics.arrays import FloatArray

MIN_RECORDS = 10
# a largest record of more than this many times the typical size w: a long tail (`worst_kind`)
UNEVEN = 2.25
# relative to its terms, a sum of squares below this is rounding, not variance
VARIANCE_FLOOR = 1e-20

Interval = tuple[float | None, float | None]
NO_INTERVAL: Interval = (None, None)


@dataclass(frozen=True, slots=True)
class Ratio:
    """A ratio metric reduced to its records.

    Attributes:
        numerator: N_r, float64 [G].
        denominator: D_r > 0, float64 [G].
        estimate: θ = ΣN / ΣD.
        total: n = ΣD.
        variance: V, the linearised cluster variance of θ; 0 where every record has the same
            ratio, and for a single record.
    """

    numerator: FloatArray
    denominator: FloatArray
    estimate: float
    total: float
    variance: float

    @property
    def n_records(self) -> int:
        """Records G in the domain."""
        return len(self.denominator)

    @property
    def records_in_effect(self) -> float:
        """Kish's effective number (ΣD)²/ΣD²: G where all weigh alike, near 1 where one has all."""
        return self.total**2 / float((self.denominator * self.denominator).sum())


def ratio(numerator: FloatArray, denominator: FloatArray) -> Ratio:
    """Builds a ratio from all records; those with D_r = 0 are outside the domain.

    Raises:
        InputError: No record has D_r > 0.
    """
    inside = denominator > 0
    n, d = numerator[inside], denominator[inside]
    if not len(d):
        raise InputError("a ratio needs at least one record with a positive denominator.")
    total = float(d.sum())
    estimate = float(n.sum()) / total
    records = len(d)
    residual = n - estimate * d
    squares = float((residual * residual).sum())
    size = float((n * n).sum()) + estimate * estimate * float((d * d).sum())
    if records < 2 or squares <= VARIANCE_FLOOR * size:
        variance = 0.0
    else:
        variance = records / (records - 1) * squares / total**2
    return Ratio(n, d, estimate, total, variance)


def normal_quantile(confidence: float) -> float:
    """Normal quantile z of a two-sided interval: 1.96 for 0.95."""
    return float(special.ndtri(0.5 + confidence / 2))


def t_quantile(confidence: float, records: int) -> float:
    """Student quantile t, G − 1 degrees of freedom, of a two-sided interval."""
    return float(special.stdtrit(records - 1, 0.5 + confidence / 2))


def t_shrink(confidence: float, records: int) -> float:
    """(z/t)²: what the degrees of freedom of a variance over G records cost an effective size."""
    return (normal_quantile(confidence) / t_quantile(confidence, records)) ** 2


def design_effect(value: Ratio, spread: float) -> float:
    """Deff = max(1, V·(n − 1)/spread): variance over that of independent questions.

    A question of a simple random sample has the unbiased variance spread·n/(n − 1), so one
    question per record has deff 1 exactly. 1 where nothing varies.

    Args:
        value: The ratio.
        spread: Variance of one independent question: p(1 − p), or ψ − δ² for a paired difference.
    """
    if value.variance <= 0 or spread <= 0:
        return 1.0
    return max(1.0, value.variance * (value.total - 1) / spread)


def effective_size(value: Ratio, spread: float, confidence: float) -> float:
    """Korn and Graubard's effective number of questions, degrees of freedom allowed for.

    n_eff = n/deff · (z/t)². Where nothing varies the records are what there is: n_eff = G·(z/t)²,
    never n.

    Args:
        value: The ratio.
        spread: As in `design_effect`.
        confidence: Two-sided confidence.
    """
    shrink = t_shrink(confidence, value.n_records)
    if value.variance <= 0 or spread <= 0:
        return value.n_records * shrink
    return value.total / design_effect(value, spread) * shrink


def lump_size(events: FloatArray, denominator: FloatArray) -> float:
    """How many events a lump has: s = (ΣF³ + w³)/(ΣF² + w²) with w = ΣD³/ΣD².

    The mean size of the records that carry the variance, with one record more that is wholly an
    event. 1 exactly where every record has one question; w where there is no event.

    Args:
        events: F_r ≥ 0 of every record, float64 [G].
        denominator: D_r, float64 [G].
    """
    squares = denominator * denominator
    whole = float((squares * denominator).sum() / squares.sum())
    seen = events * events
    return float((seen * events).sum() + whole**3) / (float(seen.sum()) + whole**2)


def korn_graubard(value: Ratio, confidence: float = 0.95) -> Interval:
    """Bounds of a share; none below 10 records in effect.

    The rarer outcome is the event. Towards more of it, the bound of `lump_bound`; towards none of
    it, where no record can surprise, Clopper–Pearson at Korn and Graubard's effective size. With
    one question per record both are Clopper–Pearson at n·(z/t)².
    """
    if value.records_in_effect < MIN_RECORDS:
        return NO_INTERVAL
    share = value.estimate
    size = effective_size(value, share * (1 - share), confidence)
    lower, upper = clopper_pearson(share * size, size, confidence)
    rare = share <= 0.5
    events = value.numerator if rare else value.denominator - value.numerator
    if lump_size(events, value.denominator) == 1:
        return lower, upper
    far = worst_kind(
        (events,),
        value.denominator,
        lambda part: lump_bound(
            part[0], design_effect(part[0], _spread(part[0])), value.n_records, confidence
        ),
    )
    return (lower, far) if rare else (1 - far, upper)


def worst_kind(
    events: tuple[FloatArray, ...],
    denominator: FloatArray,
    bound: Callable[[tuple[Ratio, ...]], float],
) -> float:
    """An upper bound that holds where long records fare worse and are few.

    Where the sizes have a long tail (`UNEVEN`), the bound of all records is followed by those of
    the records with at least half, a quarter, an eighth, … of the questions of the largest: their
    events at their bound, all others as they were seen. The largest counts.

    Args:
        events: Columns N_r of every record, float64 [G]; the first counts, others are taken off.
        denominator: D_r, float64 [G].
        bound: Upper bound of a part, given one ratio for each column.
    """
    whole = tuple(ratio(column, denominator) for column in events)
    found = bound(whole)
    least = float(denominator.max()) / 2
    if unevenness(denominator) <= UNEVEN:
        return found
    while least > float(denominator.min()):
        long = denominator >= least
        part = tuple(ratio(column[long], denominator[long]) for column in events)
        first, *others = (float(column[~long].sum()) for column in events)
        known = first - sum(others)
        found = max(found, (known + part[0].total * bound(part)) / whole[0].total)
        least /= 2
    return found


def unevenness(denominator: FloatArray) -> float:
    """Questions of the largest record over the typical w = ΣD³/ΣD² of `lump_size`: 1 if equal."""
    return float(denominator.max()) / lump_size(np.zeros_like(denominator), denominator)


def lump_bound(events: Ratio, deff: float, records: int, confidence: float = 0.95) -> float:
    """The upper bound of a share of events that come in lumps.

    n_s = n/s·(z/t)² lumps (s: `lump_size`) hold a share x of events whose binomial variance is
    that of the share, x(1 − x) = p(1 − p)·deff/s; the other p − x counts as known. The bound is
    p − x + CP(x·n_s, n_s), CP being Clopper–Pearson's upper bound. Without an event it is that of
    n_s records without one.

    Args:
        events: The share p of events, F_r in [0, D_r] of every record.
        deff: V·(n − 1)/(p(1 − p)); may be below 1 for a mean of values in [0, 1].
        records: Records of the whole sample, for t.
        confidence: Two-sided confidence.
    """
    lump = lump_size(events.numerator, events.denominator)
    size = events.total / lump * t_shrink(confidence, records)
    variance = _spread(events) * deff / lump
    in_lumps = 2 * variance / (1 + math.sqrt(max(0.0, 1 - 4 * variance)))
    upper = clopper_pearson(min(in_lumps, 1.0) * size, size, confidence)[1]
    return min(1.0, events.estimate - in_lumps + upper)


def _spread(share: Ratio) -> float:
    return share.estimate * (1 - share.estimate)


def bounded_mean(value: Ratio, limit: float, confidence: float = 0.95) -> float | None:
    """The upper bound of a mean of values in [0, limit]; none below 10 records in effect.

    Values are events of fractional size: `lump_bound` with their own variance. Unlike a
    resampled bound it allows for a record that the sample lacks, all of whose values are `limit`.
    """
    if value.records_in_effect < MIN_RECORDS:
        return None

    def bound(part: tuple[Ratio, ...]) -> float:
        share, spread = part[0], _spread(part[0])
        deff = share.variance * (share.total - 1) / spread if spread > 0 else 1.0
        return lump_bound(share, deff, value.n_records, confidence)

    return limit * worst_kind((value.numerator / limit,), value.denominator, bound)


def clopper_pearson(successes: float, size: float, confidence: float = 0.95) -> tuple[float, float]:
    """The exact binomial interval, for real-valued counts (beta quantiles)."""
    tail = (1 - confidence) / 2
    failures = size - successes
    # a share of 1 times a real size may miss the size by a rounding error
    none, all_ = successes <= 1e-12 * size, failures <= 1e-12 * size
    lower = 0.0 if none else float(special.betaincinv(successes, failures + 1, tail))
    upper = 1.0 if all_ else float(special.betaincinv(successes + 1, failures, 1 - tail))
    return lower, upper


def wilson(successes: float, size: float, confidence: float = 0.95) -> tuple[float, float]:
    """Wilson's score interval (JASA 22, 1927): shown, to compare with published cards."""
    if size <= 0:
        raise InputError("a Wilson interval needs at least one question.")
    z2 = normal_quantile(confidence) ** 2
    share = successes / size
    middle = (share + z2 / (2 * size)) / (1 + z2 / size)
    spread = share * (1 - share) / size + z2 / (4 * size**2)
    half = math.sqrt(z2 * spread) / (1 + z2 / size)
    # the closed form ends at 0 and 1 exactly, floating point only nearly
    lower = 0.0 if successes == 0 else max(0.0, middle - half)
    upper = 1.0 if successes == size else min(1.0, middle + half)
    return lower, upper


def tango(gained: float, lost: float, size: float, confidence: float = 0.95) -> tuple[float, float]:
    """Tango's score interval for a paired difference (Statistics in Medicine 17, 1998).

    Args:
        gained: Questions that only the candidate has right (real-valued: may be scaled).
        lost: Questions that only the baseline has right.
        size: All questions.
        confidence: Two-sided confidence.

    Returns:
        Bounds on (gained − lost) / size, within [−1, 1].
    """
    if size <= 0:
        raise InputError("a Tango interval needs at least one question.")
    z = normal_quantile(confidence)
    # the interval of the swapped pair is the mirror image, bit by bit
    return -_tango_upper(lost, gained, size, z), _tango_upper(gained, lost, size, z)


def _tango_upper(gained: float, lost: float, size: float, z: float) -> float:
    """The δ above the estimate at which the score statistic reaches −z, by bisection."""
    if gained == 0 and lost == 0:
        return z * z / (size + z * z)
    low, high = (gained - lost) / size, 1.0
    for _ in range(200):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        if _tango_score(gained, lost, size, middle) > -z:
            low = middle
        else:
            high = middle
    return high


def _tango_score(gained: float, lost: float, size: float, delta: float) -> float:
    """The score statistic at a difference δ, with the nuisance share at its restricted MLE."""
    b = (2 * size - gained + lost) * delta - (gained + lost)
    # the MLE of the lost share solves 2n·x² + b·x − lost·δ·(1 − δ) = 0
    root = math.sqrt(max(0.0, b * b + 8 * size * lost * delta * (1 - delta)))
    share = (root - b) / (4 * size)
    variance = size * (2 * share + delta * (1 - delta))
    distance = gained - lost - size * delta
    if variance <= 0:
        return math.copysign(math.inf, distance) if distance else 0.0
    return distance / math.sqrt(variance)


def paired_tango(gained: Ratio, lost: Ratio, confidence: float = 0.95) -> Interval:
    """Tango's interval for clustered questions, each bound at its own lump size.

    For the lower bound the events of a record are its net losses, for the upper one its net gains.
    Both counts are scaled to n_s = n/s·(z/t)² lumps and by deff/s, so that they carry the variance
    of the difference δ; the rest of δ counts as known. With one question per record this is
    Tango's interval at n·(z/t)².

    Args:
        gained: Shares of questions that only the candidate has right, by record.
        lost: The same for the baseline; same records and denominators.
        confidence: Two-sided confidence.
    """
    if gained.records_in_effect < MIN_RECORDS:
        return NO_INTERVAL
    difference = ratio(gained.numerator - lost.numerator, gained.denominator)
    discordance = gained.estimate + lost.estimate
    spread = discordance - difference.estimate**2
    if lump_size(np.zeros_like(gained.denominator), gained.denominator) == 1:
        size = effective_size(difference, spread, confidence)
        return tango(gained.estimate * size, lost.estimate * size, size, confidence)

    def upper(part: tuple[Ratio, ...]) -> float:
        return _paired_upper(part[0], part[1], gained.n_records, confidence)

    lower = -worst_kind((lost.numerator, gained.numerator), gained.denominator, upper)
    return lower, worst_kind((gained.numerator, lost.numerator), gained.denominator, upper)


def _paired_upper(events: Ratio, others: Ratio, records: int, confidence: float) -> float:
    """Upper bound on the difference of two shares of the same records, events − others."""
    difference = ratio(events.numerator - others.numerator, events.denominator)
    discordance = events.estimate + others.estimate
    deff = design_effect(difference, discordance - difference.estimate**2)
    net = np.maximum(difference.numerator, 0.0)
    lump = lump_size(net, events.denominator)
    size = events.total / lump * t_shrink(confidence, records)
    part = deff / lump if discordance == 0 else min(deff / lump, 1 / discordance)
    scaled = events.estimate * part * size, others.estimate * part * size
    known = (1 - part) * (events.estimate - others.estimate)
    return min(1.0, known + _tango_upper(*scaled, size, normal_quantile(confidence)))


def mcnemar_exact(gained: int, lost: int) -> float:
    """Two-sided p-value of the exact McNemar test: shown, never gated on."""
    discordant = gained + lost
    if discordant == 0:
        return 1.0
    return float(stats.binomtest(gained, discordant, 0.5).pvalue)
