"""Percentiles and the other figures that are shown beside the metrics."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from clefq.parity.statistics.details import describe
from clefq.parity.statistics.distributions import LEVELS, _grids, _job, distributions
from clefq.parity.statistics.figures import Sampling
from clefq.parity.statistics.pair_statistics import StatisticsSpec, compare
from clefq.parity.statistics.pairs import join
from clefq.parity.statistics.resampling import chunk_rows, resample_counts
from tests.parity.factory import Design, make_pair, single

SAMPLING = Sampling(key=5, resamples=500)


def inverted(values, level):
    """The smallest value with at least that share at or below it, in exact arithmetic."""
    needed = math.ceil(Fraction(str(level)) / 100 * len(values))
    return np.sort(values)[max(0, needed - 1)]


@pytest.mark.parametrize("n", [1, 7, 400, 5000])
def test_percentiles_by_definition(n):
    values = np.random.default_rng(n).gamma(0.3, 1, n)
    got = distributions({"x": values}, np.arange(n), SAMPLING)["x"]
    assert [p.estimate for p in got.percentiles] == [inverted(values, level) for level in LEVELS]
    assert got.maximum == values.max()
    for p in got.percentiles:
        assert (p.lower is None) == (n < 10)
        assert n < 10 or p.lower <= p.estimate <= p.upper


def test_resampled_percentiles_equal_percentiles_of_the_resample():
    rng = np.random.default_rng(1)
    records = np.repeat(np.arange(25), rng.integers(1, 4, 25))
    values = np.round(rng.gamma(0.3, 1, len(records)), 2)
    job = _job(values, _grids(np.sort(values)), records)
    counts = resample_counts(5, 25, 0, chunk_rows(25))[:200]
    got = job.reduce(counts @ job.columns)
    for row, count in zip(got, counts, strict=True):
        again = np.repeat(values, count[records])
        assert list(row) == [inverted(again, level) for level in LEVELS]


def test_thinned_grids_cover_like_the_exact_bootstrap():
    rng = np.random.default_rng(2)
    values = rng.gamma(0.3, 1, 20_000)
    got = distributions({"x": values}, np.arange(20_000), SAMPLING)["x"].percentiles
    order = np.sort(values)
    for p in got[:4]:
        share = p.level / 100
        half = 1.96 * np.sqrt(20_000 * share * (1 - share))
        low, high = order[int(20_000 * share - half)], order[int(20_000 * share + half)]
        assert (p.lower, p.upper) == pytest.approx((low, high), abs=0.35 * (high - low))


def test_infinite_values_are_the_top():
    values = np.array([0.1] * 95 + [np.inf] * 5)
    got = distributions({"kl": values}, np.arange(100), SAMPLING)["kl"]
    assert got.percentiles[0].estimate == 0.1
    assert got.percentiles[3].estimate == np.inf
    assert got.maximum == np.inf
    assert distributions({"kl": values[:0]}, np.arange(0), SAMPLING) == {}


@pytest.fixture(scope="module")
def case():
    base, cand = make_pair(Design(records=80, noise=0.5, seed=2))
    frame = cand.frame.copy()
    for index in (3, 50):
        frame.at[index, "logprobs"] = None
        frame.at[index, "error"] = "non-finite logits"
    cand = replace(cand, frame=frame)
    statistics = compare(join(base, cand), StatisticsSpec(resamples=200))
    both = base.frame.assign(q=frame.logprobs)
    return both, statistics, describe(statistics)


def test_spearman_is_of_p_true_alone(case):
    frame, _, got = case
    kept = frame[frame.q.notna() & (frame.question_type == "noul")]
    at = [list(ids).index("true") for ids in kept.option_ids]
    first = [p[k] for p, k in zip(kept.logprobs, at, strict=True)]
    second = [q[k] for q, k in zip(kept.q, at, strict=True)]
    assert got["spearman"] == pytest.approx(stats.spearmanr(first, second).statistic)


def test_score_measures(case):
    frame, _, got = case
    kept = frame[frame.q.notna() & (frame.question_type == "score")]
    before = np.array([np.exp(p) @ np.arange(len(p)) for p in kept.logprobs])
    after = np.array([np.exp(p) @ np.arange(len(p)) for p in kept.q])
    gold = kept.gold.astype(int).to_numpy()
    assert got["score"]["n_questions"] == len(kept)
    assert got["score"]["shift"] == pytest.approx((after - before).mean())
    assert got["score"]["mae_baseline"] == pytest.approx(np.abs(before - gold).mean())
    assert got["score"]["mae_candidate"] == pytest.approx(np.abs(after - gold).mean())
    top = [(np.argmax(a), np.argmax(b)) for a, b in zip(kept.logprobs, kept.q, strict=True)]
    assert got["score"]["within_one"] == pytest.approx(np.mean([abs(a - b) <= 1 for a, b in top]))


def test_coverage_adjusted_accuracy(case):
    frame, statistics, got = case
    n = len(frame)
    assert got["accuracy"]["baseline"]["coverage"] == 1.0
    candidate = got["accuracy"]["candidate"]
    assert candidate["coverage"] == pytest.approx(1 - 2 / n)
    assert candidate["adjusted"] == statistics.metrics["accuracy_candidate"].estimate
    assert candidate["answered"] == pytest.approx(candidate["adjusted"] * n / (n - 2))


def test_gaps_by_cohort(case):
    _, statistics, got = case
    deltas = {
        c: statistics.slices[f"cohort={c}"]["accuracy_delta"].estimate for c in ("alpha", "beta")
    }
    assert got["gaps"]["by_cohort"] == deltas
    assert got["gaps"]["mean"] == pytest.approx(np.mean(list(deltas.values())))
    assert got["gaps"]["worst"]["difference"] == min(deltas.values())


def test_confident_new_answers(case):
    frame, _, got = case
    kept = frame[frame.q.notna()]
    count = 0
    for p, q in zip(kept.logprobs, kept.q, strict=True):
        margin = np.diff(np.sort(np.exp(q))[-2:])[0]
        count += np.argmax(p) != np.argmax(q) and margin >= 0.5
    assert got["confident_new"]["count"] == count
    assert got["confident_new"]["lower"] < count / len(kept) < got["confident_new"]["upper"]


def test_reliability_bins_hold_every_question(case):
    frame, _, got = case
    kept = int(frame.q.notna().sum())
    for side in ("baseline", "candidate"):
        bins = pd.DataFrame(got["reliability"][side])
        assert bins.n.sum() == kept
        assert (bins.confidence.diff().dropna() > 0).all()


def test_wilson_reproduces_a_published_card():
    """237 of 256 agree: 0.926 [0.887, 0.952]; 156 of 156 confident ones do."""
    sure, other = [np.log(0.9), np.log(0.1)], [np.log(0.1), np.log(0.9)]
    unsure = [np.log(0.6), np.log(0.4)]
    base = single([sure] * 156 + [unsure] * 100)
    cand = single([sure] * 156 + [unsure] * 81 + [other] * 19)
    statistics = compare(join(base, cand), StatisticsSpec(resamples=200))
    got = describe(statistics)["wilson"]
    assert statistics.metrics["agreement"].estimate == pytest.approx(0.9258, abs=5e-5)
    assert (got["agreement"]["lower"], got["agreement"]["upper"]) == pytest.approx(
        (0.887, 0.952), abs=5e-4
    )
    confident = statistics.metrics["confident_agreement"]
    assert (confident.estimate, confident.n_questions) == (1.0, 156)
    # so a floor of 0.98 is not shown, and one of 0.95 on agreement not reached nor refuted
    assert confident.lower == pytest.approx(0.9763, abs=5e-5)
    assert statistics.metrics["agreement"].lower < 0.95 < statistics.metrics["agreement"].upper


def test_published_accuracy_interval_comes_from_percentiles():
    """A card gives +1.6 pt [−1.2, +4.3] on 256 questions: 8 gained and 4 lost, percentiles."""
    good, bad = [np.log(0.9), np.log(0.1)], [np.log(0.1), np.log(0.9)]
    base = single([bad] * 8 + [good] * 248, gold=["a"] * 256)
    cand = single([good] * 8 + [bad] * 4 + [good] * 244, gold=["a"] * 256)
    metric = compare(join(base, cand)).metrics["accuracy_delta"]
    assert metric.estimate == pytest.approx(0.0156, abs=5e-5)
    plain = (metric.bootstrap.lower, metric.bootstrap.upper)
    assert plain == pytest.approx((-0.012, 0.043), abs=5e-4)
    # the interval that gates is wider, and still clears a margin of 2 points
    assert (metric.lower, metric.upper) == pytest.approx((-0.0126, 0.0470), abs=5e-4)
    assert -0.02 < metric.lower < plain[0]


def test_nothing_to_describe_is_none():
    failed = single([None] * 12)
    got = describe(compare(join(failed, failed), StatisticsSpec(resamples=50)))
    for key in ("percentiles", "spearman", "score", "reliability", "gaps", "accuracy"):
        assert got[key] is None, key
    assert got["confident_new"]["n_questions"] == 0
    json.dumps(got)
