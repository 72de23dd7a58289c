"""The written resampling rule, held against a second implementation of it."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clefq.parity.statistics.resampling import (
    MAX_UNITS,
    ResampleJob,
    bucket_sums,
    chunk_rows,
    distinct_columns,
    exact_columns,
    resample_counts,
    resampling_key,
    run_jobs,
)

MASK = (1 << 64) - 1


def philox(key: int, counter: list[int], words: int) -> list[int]:
    """Philox4x64-10 in plain Python (Salmon et al. 2011); NumPy counts up before each block."""
    value = sum(word << (64 * i) for i, word in enumerate(counter))
    out: list[int] = []
    while len(out) < words:
        value = (value + 1) % (1 << 256)
        c = [(value >> (64 * i)) & MASK for i in range(4)]
        k0, k1 = key & MASK, key >> 64
        for _ in range(10):
            first, second = 0xD2E7470EE14C6C93 * c[0], 0xCA5A826395121157 * c[2]
            c = [(second >> 64) ^ c[1] ^ k0, second & MASK, (first >> 64) ^ c[3] ^ k1, first & MASK]
            k0, k1 = (k0 + 0x9E3779B97F4A7C15) & MASK, (k1 + 0xBB67AE8584CAA73B) & MASK
        out += c
    return out[:words]


def counts_by_hand(key: int, units: int, chunk: int, rows: int) -> np.ndarray:
    draws = rows * units
    raw = philox(key, [0, chunk, units, 0], (draws + 1) // 2)
    halves = [half for word in raw for half in (word & 0xFFFFFFFF, word >> 32)][:draws]
    counts = np.zeros((rows, units), dtype=int)
    for place, half in enumerate(halves):
        counts[place // units, (half * units) >> 32] += 1
    return counts


@pytest.mark.parametrize(("units", "chunk", "rows"), [(1, 0, 3), (7, 2, 5), (26, 1, 11)])
def test_counts_follow_the_written_rule(units, chunk, rows):
    key = resampling_key("0" * 64, "ab" * 32)
    got = resample_counts(key, units, chunk, rows)
    assert (got == counts_by_hand(key, units, chunk, rows)).all()


def test_key_is_the_hash_of_both_digests():
    digest = hashlib.sha256(b"0" * 64 + b"ab" * 32).digest()
    assert resampling_key("0" * 64, "ab" * 32) == int.from_bytes(digest[:16], "little")
    assert resampling_key("1" * 64, "ab" * 32) != resampling_key("0" * 64, "ab" * 32)


def test_every_resample_draws_as_many_units_as_there_are():
    counts = resample_counts(5, 1400, 0, chunk_rows(1400))
    assert (counts.sum(axis=1) == 1400).all()
    # a count is binomial(G, 1/G): variance 1 − 1/G
    assert counts.mean() == 1.0
    assert counts.var() == pytest.approx(1 - 1 / 1400, abs=0.02)


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 300), st.integers(1, 4), st.integers(0, 2**32), st.integers(1, 5))
def test_threads_and_company_never_change_a_bit(records, width, seed, threads):
    rng = np.random.default_rng(seed)
    columns = rng.normal(size=(records, width)) * 10.0 ** rng.integers(-5, 6, width)
    alone = run_jobs([ResampleJob(columns, lambda s: s)], seed, 200, 1)[0]
    other = ResampleJob(rng.normal(size=(records, 3)), lambda s: s[:, :1])
    together = run_jobs([other, ResampleJob(columns, lambda s: s)], seed, 200, threads)[1]
    assert alone.tobytes() == together.tobytes()


def test_more_resamples_extend_fewer():
    columns = np.random.default_rng(0).normal(size=(50, 2))
    jobs = [ResampleJob(columns, lambda s: s)]
    few, many = run_jobs(jobs, 1, 1000)[0], run_jobs(jobs, 1, 3000)[0]
    assert (many[:1000] == few).all()


def test_sums_are_exact():
    """The product equals integer arithmetic, whatever order the BLAS adds in."""
    columns = np.random.default_rng(1).normal(size=(101, 3))
    integers, scale = exact_columns(columns)
    counts = resample_counts(9, 101, 0, 40)
    expected = counts.astype(object) @ integers.astype(np.int64).astype(object)
    got = run_jobs([ResampleJob(columns, lambda s: s)], 9, 40, 1)[0]
    assert (got / scale == expected.astype(float)).all()
    assert np.abs(integers * scale - columns).max() <= scale.max() / 2
    assert scale.max() < 1e-12


def test_integer_columns_stay_as_they_are():
    columns = np.array([[1.0, -3.0], [0.0, 7.0]])
    integers, scale = exact_columns(columns)
    assert (integers == columns).all()
    assert (scale == 1).all()
    zeros, _ = exact_columns(np.zeros((4, 2)))
    assert (zeros == 0).all()


def test_many_records_are_bucketed_without_losing_any():
    columns = np.random.default_rng(2).integers(0, 5, size=(20_001, 2)).astype(float)
    buckets = bucket_sums(columns)
    assert buckets.shape == (MAX_UNITS, 2)
    assert (buckets.sum(axis=0) == columns.sum(axis=0)).all()
    assert bucket_sums(columns[:MAX_UNITS]) is not None
    assert len(bucket_sums(columns[:100])) == 100


def test_bucketed_bootstrap_has_the_variance_of_the_records():
    rng = np.random.default_rng(4)
    values = rng.normal(size=40_000)
    columns = np.column_stack([values, np.ones(40_000)])
    got = run_jobs([ResampleJob(columns, lambda s: s[:, :1] / s[:, 1:])], 3, 2000)[0]
    assert got.std() == pytest.approx(values.std() / 200, rel=0.06)


def test_equal_columns_are_multiplied_once_and_change_no_bit():
    rng = np.random.default_rng(3)
    shared = np.ones(40)
    parts = [np.column_stack([rng.normal(size=40), shared]) for _ in range(3)]
    columns, places = distinct_columns(parts)
    assert columns.shape == (40, 4)
    for part, place in zip(parts, places, strict=True):
        assert np.array_equal(columns[:, place], part)
    jobs = [ResampleJob(part, lambda sums: sums) for part in parts]
    together = run_jobs(jobs, 5, 100)
    for job, got in zip(jobs, together, strict=True):
        assert np.array_equal(run_jobs([job], 5, 100)[0], got)
