"""Decision policies by hand."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from clefq.parity.statistics.pair_statistics import StatisticsSpec, compare
from clefq.parity.statistics.pairs import join
from clefq.parity.statistics.policies import decide
from tests.parity.factory import single


@dataclass(frozen=True)
class Rule:
    name: str = "refund"
    questions: str = "refund_*"
    option: str = "true"
    threshold: float = 0.8
    cost_act_to_hold: float = 2.0
    cost_hold_to_act: float = 30.0
    candidate_threshold: float | None = None


def pair(before, after, gold):
    rows = [[[np.log(p), np.log(1 - p)] for p in side] for side in (before, after)]
    columns = {
        "question_id": ["refund_ok" if i % 5 else "other" for i in range(len(gold))],
        "question_type": "noul",
        "option_ids": [["true", "false"]] * len(gold),
        "gold": gold,
    }
    return tuple(single(side, **columns) for side in rows)


BEFORE = [0.9, 0.9, 0.5, 0.5, 0.9, 0.5] * 4
AFTER = [0.1, 0.5, 0.9, 0.85, 0.9, 0.5] * 4
GOLD = ["true", "true", "true", "false", "true", None] * 4


def test_changes_by_direction_errors_and_cost():
    base, cand = pair(BEFORE, AFTER, GOLD)
    rule = Rule()
    got = compare(join(base, cand), StatisticsSpec(resamples=200, policies=(rule,)))
    figures = got.policies["refund"]
    kept = [i for i in range(24) if i % 5]
    stopped = sum(BEFORE[i] >= 0.8 > AFTER[i] for i in kept)
    started = sum(AFTER[i] >= 0.8 > BEFORE[i] for i in kept)
    wrong = sum(AFTER[i] >= 0.8 > BEFORE[i] and GOLD[i] == "false" for i in kept)
    n = len(kept)
    assert figures["policy_changes@refund"].n_questions == n
    assert figures["policy_changes@refund"].estimate == pytest.approx((stopped + started) / n)
    assert figures["policy_act_to_hold@refund"].estimate == pytest.approx(stopped / n)
    assert figures["policy_hold_to_act@refund"].estimate == pytest.approx(started / n)
    with_gold = sum(GOLD[i] is not None for i in kept)
    assert figures["policy_new_errors@refund"].n_questions == with_gold
    assert figures["policy_new_errors@refund"].estimate == pytest.approx(wrong / with_gold)
    cost = 10_000 * (2 * stopped + 30 * started) / n
    assert figures["policy_cost@refund"].estimate == pytest.approx(cost)
    assert figures["policy_cost@refund"].lower < cost < figures["policy_cost@refund"].upper


def test_policy_metrics_can_be_gated_by_slice():
    base, cand = pair(BEFORE, AFTER, GOLD)
    got = compare(join(base, cand), StatisticsSpec(resamples=200, policies=(Rule(),)))
    assert got.for_gate("policy_cost@refund", margin=1.0).estimate > 0
    assert got.for_gate("policy_changes@refund", "cohort=c").lower > 0


def test_the_candidate_may_have_a_threshold_of_its_own():
    base, _ = pair(BEFORE, AFTER, GOLD)
    same = decide(join(base, base), Rule(candidate_threshold=0.8))
    other = decide(join(base, base), Rule(candidate_threshold=0.45))
    assert (same.before == same.after).all()
    assert (other.before == same.before).all()
    assert other.after.sum() == other.domain.sum() > same.after.sum()


def test_identical_answers_cost_nothing():
    base, _ = pair(BEFORE, AFTER, GOLD)
    got = compare(join(base, base), StatisticsSpec(resamples=200, policies=(Rule(),)))
    for metric in got.policies["refund"].values():
        assert metric.estimate == 0.0


def test_threshold_is_reached_by_equality_and_failures_hold():
    base = single([[np.log(0.8), np.log(0.2)]], question_id="refund_1", option_ids=[["true", "no"]])
    failed = replace(base, frame=base.frame.assign(logprobs=None, error="x"))
    found = decide(join(base, failed), Rule())
    assert list(found.before) == [True]
    assert list(found.after) == [False]


def test_a_policy_that_matches_nothing_is_empty_not_zero():
    base, cand = pair(BEFORE, AFTER, GOLD)
    rule = Rule(questions="nothing*")
    got = compare(join(base, cand), StatisticsSpec(resamples=50, policies=(rule,)))
    for metric in got.policies["refund"].values():
        assert metric.estimate is None
        assert metric.n_questions == 0


def test_no_changed_decision_does_not_prove_that_there_will_be_none():
    """A bootstrap of zeros would put the cost at [0, 0], whatever the size of the set."""
    base, cand = pair(BEFORE, BEFORE, GOLD)
    got = compare(join(base, cand), StatisticsSpec(resamples=200, policies=(Rule(),)))
    cost = got.policies["refund"]["policy_cost@refund"]
    changes = got.policies["refund"]["policy_changes@refund"]
    assert (cost.estimate, cost.lower) == (0.0, 0.0)
    # the most that a share of changes may be, each at the dearer of the two costs
    assert cost.upper == pytest.approx(10_000 * 30 * changes.upper)
    assert changes.upper > 0.1
    at_gate = got.for_gate("policy_cost@refund", confidence=0.95)
    assert at_gate is not None and at_gate.upper == cost.upper


def test_one_costly_event_in_many_records_is_no_normal_sum():
    """A cluster t would end at about three events; five or six are compatible with one."""
    before = [0.9] * 1600
    base, cand = pair(before, [0.1, 0.1, *before[2:]], ["true"] * 1600)
    got = compare(join(base, cand), StatisticsSpec(resamples=300, slices=False, policies=(Rule(),)))
    cost = got.policies["refund"]["policy_cost@refund"]
    assert cost.n_records > 1400 * 0.8 and cost.estimate > 0
    assert cost.upper > 5 * cost.estimate
