"""Closed-form intervals against statsmodels, scipy, exact enumeration and published figures."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import optimize, stats
from statsmodels.stats.proportion import proportion_confint

from clefq.errors import InputError
from clefq.parity.statistics.intervals import (
    bounded_mean,
    clopper_pearson,
    effective_size,
    korn_graubard,
    mcnemar_exact,
    paired_tango,
    ratio,
    tango,
    wilson,
)


def flags(successes: int, n: int):
    values = np.zeros(n)
    values[:successes] = 1
    return ratio(values, np.ones(n))


@given(st.integers(1, 400), st.data(), st.sampled_from([0.8, 0.95, 0.99]))
def test_clopper_pearson_and_wilson_match_statsmodels(n, data, confidence):
    k = data.draw(st.integers(0, n))
    alpha = 1 - confidence
    assert clopper_pearson(k, n, confidence) == pytest.approx(
        proportion_confint(k, n, alpha, "beta"), abs=1e-12
    )
    assert wilson(k, n, confidence) == pytest.approx(
        proportion_confint(k, n, alpha, "wilson"), abs=1e-12
    )


def test_clopper_pearson_holds_its_level_by_enumeration():
    n = 30
    ends = [clopper_pearson(k, n) for k in range(n + 1)]
    for share in np.linspace(0.001, 0.999, 997):
        pmf = stats.binom.pmf(np.arange(n + 1), n, share)
        covered = sum(p for p, (low, high) in zip(pmf, ends, strict=True) if low <= share <= high)
        assert covered >= 0.95


def _tango_by_search(gained: int, lost: int, n: int) -> tuple[float, float]:
    """The score interval from its definition: the restricted likelihood is maximised by search."""
    z2 = stats.norm.ppf(0.975) ** 2

    def score2(delta: float) -> float:
        # free parameter: the lost share x; the gained one is x + delta
        low, high = max(0.0, -delta), (1 - delta) / 2

        def loss(x: float) -> float:
            cells = ((x + delta, gained), (x, lost), (1 - 2 * x - delta, n - gained - lost))
            return -sum(c * math.log(max(p, 1e-300)) for p, c in cells if c)

        best = optimize.minimize_scalar(
            loss, bounds=(low, high), method="bounded", options={"xatol": 1e-12}
        )
        variance = n * (2 * best.x + delta - delta**2)
        return (gained - lost - n * delta) ** 2 / variance - z2

    middle = (gained - lost) / n
    return (
        optimize.brentq(score2, -1 + 1e-9, middle - 1e-9, xtol=1e-10),
        optimize.brentq(score2, middle + 1e-9, 1 - 1e-9, xtol=1e-10),
    )


@pytest.mark.parametrize(
    ("gained", "lost", "n"), [(20, 27, 1400), (3, 1, 26), (0, 5, 64), (9, 0, 40), (12, 12, 100)]
)
def test_tango_solves_the_restricted_likelihood(gained, lost, n):
    assert tango(gained, lost, n) == pytest.approx(_tango_by_search(gained, lost, n), abs=1e-6)


def test_tango_without_discordance_is_the_limit():
    low, high = tango(0, 0, 100)
    z2 = stats.norm.ppf(0.975) ** 2
    assert high == pytest.approx(z2 / (100 + z2), abs=1e-12)
    assert low == -high
    assert tango(1e-9, 1e-9, 100) == pytest.approx((low, high), abs=1e-6)


def test_tango_coverage_by_enumeration():
    """Exact coverage over all outcomes: a score interval lies near its level, never far below."""
    n = 30
    ends = {(b, c): tango(b, c, n) for b in range(n + 1) for c in range(n + 1 - b)}
    for gained, lost in [(0.02, 0.04), (0.05, 0.05), (0.1, 0.02), (0.15, 0.2)]:
        delta = gained - lost
        covered = 0.0
        for (b, c), (low, high) in ends.items():
            if low <= delta <= high:
                covered += stats.multinomial.pmf(
                    [b, c, n - b - c], n, [gained, lost, 1 - gained - lost]
                )
        assert covered > 0.93


@given(st.integers(0, 60), st.integers(0, 60), st.integers(120, 2000))
def test_tango_mirrors_when_sides_swap(gained, lost, n):
    low, high = tango(gained, lost, n)
    assert tango(lost, gained, n) == (-high, -low)
    assert -1 <= low <= (gained - lost) / n <= high <= 1


def test_check_values():
    assert wilson(237, 256) == pytest.approx((0.8870, 0.9520), abs=5e-5)
    assert tango(20, 27, 1400) == pytest.approx((-0.0151, 0.0048), abs=5e-5)
    values = np.zeros(1400)
    values[:20], values[20:47] = 1, -1
    ones = np.ones(1400)
    gained, lost = ratio((values > 0) * 1.0, ones), ratio((values < 0) * 1.0, ones)
    assert paired_tango(gained, lost) == pytest.approx((-0.0151, 0.0048), abs=5e-5)
    low, high = korn_graubard(flags(156, 156))
    assert low == pytest.approx(0.9763, abs=5e-5)
    assert high == 1.0


@pytest.mark.parametrize(("gained", "lost"), [(0, 0), (1, 0), (3, 5), (40, 22)])
def test_mcnemar_by_enumeration(gained, lost):
    n = gained + lost
    probabilities = [math.comb(n, k) / 2**n for k in range(n + 1)]
    expected = min(1.0, sum(p for p in probabilities if p <= probabilities[gained] * (1 + 1e-9)))
    assert mcnemar_exact(gained, lost) == pytest.approx(expected)


def test_cluster_variance_matches_the_linearised_formula_and_statsmodels():
    import statsmodels.api as sm

    rng = np.random.default_rng(3)
    records = np.repeat(np.arange(40), rng.integers(1, 6, 40))
    values = rng.normal(size=len(records)) + rng.normal(size=40)[records]
    n = np.bincount(records, values)
    d = np.bincount(records).astype(float)
    got = ratio(n, d)
    # OLS on a constant with cluster-robust errors: the same sandwich, times (N − 1)/N
    fit = sm.OLS(values, np.ones(len(values))).fit(cov_type="cluster", cov_kwds={"groups": records})
    total = len(values)
    assert got.estimate == pytest.approx(fit.params[0])
    assert got.variance == pytest.approx(fit.bse[0] ** 2 * (total - 1) / (total - 1), rel=1e-9)


def test_effective_size_of_one_question_per_record_is_n_by_z_over_t():
    value = flags(90, 100)
    shrink = (stats.norm.ppf(0.975) / stats.t.ppf(0.975, 99)) ** 2
    assert effective_size(value, 0.9 * 0.1, 0.95) == pytest.approx(100 * shrink, rel=1e-12)


def test_whole_clusters_count_as_one_question_each():
    """Ten equal answers per record say no more than one."""
    one = flags(45, 50)
    ten = ratio(one.numerator * 10, one.denominator * 10)
    assert korn_graubard(ten)[0] == pytest.approx(korn_graubard(one)[0], abs=0.002)


def test_no_variance_counts_records_not_questions():
    value = ratio(np.full(20, 10.0), np.full(20, 10.0))
    shrink = (stats.norm.ppf(0.975) / stats.t.ppf(0.975, 19)) ** 2
    assert korn_graubard(value)[0] == pytest.approx(0.025 ** (1 / (20 * shrink)), rel=1e-9)


def test_below_ten_records_there_is_no_interval():
    value = flags(9, 9)
    assert korn_graubard(value) == (None, None)
    assert bounded_mean(value, 1.0) is None
    assert paired_tango(value, flags(0, 9)) == (None, None)
    assert korn_graubard(flags(10, 10))[0] is not None


def test_records_outside_the_domain_do_not_count():
    inside = ratio(np.array([1.0, 0.0, 1.0]), np.array([1.0, 1.0, 2.0]))
    padded = ratio(np.array([1.0, 0.0, 0.0, 1.0]), np.array([1.0, 0.0, 1.0, 2.0]))
    assert (inside.estimate, inside.variance, inside.n_records) == (
        padded.estimate,
        padded.variance,
        padded.n_records,
    )


def test_empty_domains_raise():
    with pytest.raises(InputError):
        ratio(np.zeros(3), np.zeros(3))
    with pytest.raises(InputError):
        wilson(0, 0)
    with pytest.raises(InputError):
        tango(0, 0, 0)


def test_bounds_widen_with_confidence():
    value = flags(95, 100)
    lows = [korn_graubard(value, c)[0] for c in (0.8, 0.9, 0.95, 0.99)]
    assert all(a > b for a, b in itertools.pairwise(lows))
