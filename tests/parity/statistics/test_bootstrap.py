"""Bootstrap intervals against direct resampling and scipy."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy import stats

from clefq.parity.statistics.bootstrap import (
    needs_more,
    percentile_job,
    quantiles,
    studentized_interval,
    studentized_job,
)
from clefq.parity.statistics.intervals import ratio
from clefq.parity.statistics.resampling import chunk_rows, resample_counts, run_jobs


def clustered(records: int, seed: int = 0):
    rng = np.random.default_rng(seed)
    d = rng.integers(1, 6, records).astype(float)
    n = rng.gamma(0.5, 0.1, records) * d + rng.normal(size=records) * 0.01
    return ratio(n, d)


def test_studentized_values_match_resampling_by_hand():
    value = clustered(23)
    rows = chunk_rows(23)
    got = run_jobs([studentized_job(value)], 7, rows)[0]
    for row, counts in zip(got[:50], resample_counts(7, 23, 0, 50), strict=True):
        index = np.repeat(np.arange(23), counts)
        again = ratio(value.numerator[index], value.denominator[index])
        t = (again.estimate - value.estimate) / np.sqrt(again.variance)
        assert row == pytest.approx([again.estimate, t], rel=1e-8)


def test_percentile_interval_agrees_with_scipy():
    value = clustered(200, seed=1)
    samples = run_jobs([percentile_job([value])], 3, 10_000)[0][:, 0]
    ends = quantiles(samples, 0.95)
    reference = stats.bootstrap(
        (value.numerator, value.denominator),
        lambda n, d, axis: n.sum(axis=axis) / d.sum(axis=axis),
        paired=True,
        method="percentile",
        n_resamples=10_000,
        rng=np.random.default_rng(0),
    ).confidence_interval
    width = reference.high - reference.low
    assert (ends.lower, ends.upper) == pytest.approx(tuple(reference), abs=0.04 * width)


def t_interval(value):
    half = stats.t.ppf(0.975, value.n_records - 1) * np.sqrt(value.variance)
    return value.estimate - half, value.estimate + half


def test_studentized_interval_nears_the_t_interval_for_many_well_behaved_records():
    rng = np.random.default_rng(5)
    value = ratio(rng.normal(1.0, 0.3, 1000), np.ones(1000))
    samples = run_jobs([studentized_job(value)], 3, 10_000)[0]
    got = studentized_interval(value, samples[:, 1], 0.95)
    expected = t_interval(value)
    assert got.bounds == pytest.approx(expected, abs=0.05 * (expected[1] - expected[0]))


def test_skew_pushes_the_upper_bound_out():
    """Where a few records carry the mean, the upper bound goes beyond the symmetric one."""
    value = ratio(np.random.default_rng(2).lognormal(0, 1.5, 60), np.ones(60))
    samples = run_jobs([studentized_job(value)], 3, 10_000)[0]
    low, high = studentized_interval(value, samples[:, 1], 0.95).bounds
    symmetric = t_interval(value)
    assert high > symmetric[1]
    assert low > symmetric[0]


def test_resamples_without_spread_count_as_infinite():
    # one record differs: about e^-1 of the resamples miss it and have no spread
    values = np.zeros(20)
    values[0] = 1.0
    value = ratio(values, np.ones(20))
    samples = run_jobs([studentized_job(value)], 3, 4000)[0]
    infinite = np.isneginf(samples[:, 1])
    assert infinite.mean() == pytest.approx((1 - 1 / 20) ** 20, abs=0.03)
    assert not np.isnan(samples).any()
    bounds = studentized_interval(value, samples[:, 1], 0.95).bounds
    assert bounds[1] is None
    assert bounds[0] is not None


def test_no_variance_gives_a_point():
    value = ratio(np.full(20, 0.25) * 4, np.full(20, 4.0))
    samples = run_jobs([studentized_job(value)], 3, 100)[0]
    found = studentized_interval(value, samples[:, 1], 0.95)
    assert found.bounds == (0.25, 0.25)
    assert (samples[:, 1] == 0).all()


def test_quantiles_mirror_and_their_error_is_of_the_right_size():
    values = np.random.default_rng(0).normal(size=10_000)
    ends, mirrored = quantiles(values, 0.95), quantiles(-values, 0.95)
    assert (ends.lower, ends.upper) == (-mirrored.upper, -mirrored.lower)
    # the asymptotic error of a quantile: √(α(1 − α)/B) / density
    expected = np.sqrt(0.025 * 0.975 / 10_000) / stats.norm.pdf(stats.norm.ppf(0.025))
    assert ends.lower_error == pytest.approx(expected, rel=0.4)


def test_a_bound_near_a_margin_asks_for_more():
    assert needs_more(0.0501, 0.0001, 0.05)
    assert not needs_more(0.0504, 0.0001, 0.05)
    assert not needs_more(None, 0.1, 0.05)


def test_resampled_distribution_by_enumerating_every_resample():
    """All 5^5 resamples of five records against 20,000 drawn ones."""
    value = ratio(np.array([0.0, 1.0, 2.0, 1.0, 4.0]), np.array([1.0, 1.0, 3.0, 2.0, 4.0]))
    index = np.array(list(itertools.product(range(5), repeat=5)))
    exact = value.numerator[index].sum(axis=1) / value.denominator[index].sum(axis=1)
    drawn = run_jobs([percentile_job([value])], 11, 20_000)[0][:, 0]
    distance = stats.ks_2samp(drawn, exact, method="asymp").statistic
    assert distance < 1.63 / np.sqrt(20_000)  # 1% level against a known distribution
    assert drawn.mean() == pytest.approx(exact.mean(), abs=4 * exact.std() / np.sqrt(20_000))


def test_studentized_distribution_by_enumeration():
    value = ratio(np.array([0.1, 0.9, 0.4, 0.2, 1.0]), np.ones(5))
    expected = []
    for index in itertools.product(range(5), repeat=5):
        again = ratio(value.numerator[list(index)], np.ones(5))
        shift = again.estimate - value.estimate
        spread = np.sqrt(again.variance)
        expected.append(shift / spread if spread > 0 else np.sign(shift) * np.inf)
    drawn = run_jobs([studentized_job(value)], 11, 20_000)[0][:, 1]
    for level in (0.05, 0.25, 0.5, 0.75, 0.95):
        exact = np.quantile(expected, level, method="inverted_cdf")
        assert np.mean(drawn <= exact + 1e-9) >= level - 0.01
        assert np.mean(drawn < exact - 1e-9) <= level + 0.01
