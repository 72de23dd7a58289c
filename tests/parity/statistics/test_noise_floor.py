"""The baseline against itself, and what a candidate adds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from clefq.errors import InputError
from clefq.parity.statistics.noise_floor import noise_floor
from clefq.parity.statistics.pair_statistics import StatisticsSpec, compare
from clefq.parity.statistics.pairs import join
from tests.parity.factory import Design, log_softmax, make_pair

SPEC = StatisticsSpec(resamples=400)


def replicate(baseline, noise, seed):
    rng = np.random.default_rng(seed)
    moved = [
        log_softmax(row + noise * rng.normal(size=len(row))) for row in baseline.frame.logprobs
    ]
    return replace(baseline, frame=baseline.frame.assign(logprobs=moved))


@pytest.fixture(scope="module")
def case():
    base, cand = make_pair(Design(records=120, noise=0.4, seed=3))
    return base, cand, compare(join(base, cand), SPEC)


def test_floor_is_the_comparison_with_the_replicate(case):
    base, _, statistics = case
    twin = replicate(base, 0.05, 1)
    floor = noise_floor(statistics, base, [twin])
    alone = compare(join(base, twin), SPEC).metrics
    for name, metric in floor.metrics.items():
        assert metric == alone[name], name
    assert set(floor.metrics) >= {"agreement", "kl", "tv", "threshold_flips@0.5"}
    assert "accuracy_delta" not in floor.metrics


def test_excess_is_paired_and_exact_for_a_perfect_replicate(case):
    base, _, statistics = case
    floor = noise_floor(statistics, base, [base])
    tv = floor.excess("tv")
    assert tv.estimate == pytest.approx(statistics.metrics["tv"].estimate, rel=1e-12)
    agreement = floor.excess("agreement")
    assert agreement.estimate == pytest.approx(statistics.metrics["agreement"].estimate - 1)
    assert agreement.method == "tango"
    # the candidate itself as the replicate leaves nothing over
    same = noise_floor(statistics, base, [case[1]])
    assert same.excess("tv").estimate == 0.0
    assert same.excess("agreement").estimate == 0.0


def test_several_replicates_count_by_their_mean(case):
    base, _, statistics = case
    twins = [replicate(base, noise, seed) for seed, noise in ((1, 0.05), (2, 0.2))]
    floor = noise_floor(statistics, base, twins)
    each = [noise_floor(statistics, base, [twin]) for twin in twins]
    mean = np.mean([one.metrics["tv"].estimate for one in each])
    assert floor.metrics["tv"].estimate == pytest.approx(mean)
    assert floor.metrics["tv"].n_records == 120
    excess = np.mean([one.excess("tv").estimate for one in each])
    assert floor.excess("tv").estimate == pytest.approx(excess)
    assert floor.excess("agreement").method == "studentized_cluster_bootstrap"
    low, high = floor.excess("tv", confidence=0.9).lower, floor.excess("tv", confidence=0.9).upper
    assert low < excess < high


def test_slices_and_wrong_names(case):
    base, _, statistics = case
    floor = noise_floor(statistics, base, [replicate(base, 0.1, 5)])
    part = floor.excess("tv", "cohort=alpha")
    assert 0 < part.n_questions < floor.excess("tv").n_questions
    assert floor.excess("tv", "cohort=nowhere") is None
    with pytest.raises(InputError, match="accuracy_delta has no noise floor"):
        floor.excess("accuracy_delta")
    with pytest.raises(InputError, match="needs a replicate"):
        noise_floor(statistics, base, [])


def test_questions_that_a_replicate_lacks_leave_the_excess_only(case):
    base, _, statistics = case
    short = replace(base, frame=base.frame.iloc[10:].reset_index(drop=True))
    floor = noise_floor(statistics, base, [short])
    assert floor.metrics["coverage"].estimate == pytest.approx(1 - 10 / len(base.frame))
    assert floor.excess("tv").n_questions == len(base.frame) - 10


def test_a_failed_replicate_does_not_excuse_the_candidate(case):
    base, _, statistics = case
    frame = base.frame.copy()
    broken = frame.index[: len(frame) // 2]
    frame.loc[broken, "error"] = "non-finite logits"
    frame["logprobs"] = [None if index in broken else row for index, row in frame.logprobs.items()]
    floor = noise_floor(statistics, base, [replace(base, frame=frame)])
    for name in ("agreement", "threshold_flips@0.5"):
        excess = floor.excess(name)
        assert 0 < excess.n_questions <= len(frame) - len(broken), name
        assert (excess.estimate <= 0) == (name == "agreement"), name


def test_a_second_replicate_does_not_turn_no_change_into_certainty(case):
    base = case[0]
    same = compare(join(base, base), SPEC)
    one = noise_floor(same, base, [base]).excess("agreement")
    two = noise_floor(same, base, [base, base]).excess("agreement")
    assert one.estimate == two.estimate == 0.0
    assert one.lower < 0 < one.upper
    assert two.lower < 0 < two.upper
    assert two.lower == -two.upper
