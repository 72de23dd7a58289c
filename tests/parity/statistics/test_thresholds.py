"""Thresholds carried over: by hand, against brute force, and on candidates whose shift is known."""

from __future__ import annotations

import numpy as np
import pytest

from clefq.errors import InputError
from clefq.parity.statistics.figures import Sampling
from clefq.parity.statistics.pairs import PairedSet, join
from clefq.parity.statistics.thresholds import (
    KEEPS,
    ThresholdRule,
    achieved,
    choosing_part,
    decided,
    threshold_for,
    threshold_result,
)
from tests.parity.factory import single

SAMPLING = Sampling(key=1, resamples=100)


def joined(before: np.ndarray, after: np.ndarray, gold: list[str | None]) -> PairedSet:
    def side(values: np.ndarray):
        rows = [[np.log(p), np.log1p(-p)] for p in values]
        return single(
            rows,
            record_id=[f"r{i}" for i in range(len(gold))],
            question_id="refund",
            question_type="noul",
            option_ids=[["true", "false"]] * len(gold),
            gold=gold,
        )

    return join(side(before), side(after))


def tempered(records: int, power: float, seed: int = 0) -> PairedSet:
    """A candidate whose logits are the baseline's times `power`."""
    rng = np.random.default_rng(seed)
    logit = rng.normal(0.5, 2, records)
    gold = ["true" if rng.random() < 1 / (1 + np.exp(-x)) else "false" for x in logit]
    before, after = (1 / (1 + np.exp(-scale * logit)) for scale in (1.0, power))
    return joined(before, after, gold)


@pytest.mark.parametrize("keep", KEEPS)
@pytest.mark.parametrize("power", [0.6, 1.7])
def test_a_change_of_temperature_is_undone(keep: str, power: float) -> None:
    """Same order of answers: the right threshold acts on the very questions of the baseline."""
    pairs = tempered(4_000, power)
    rule = ThresholdRule("refund", "true", 0.9, keep)  # type: ignore[arg-type]
    got = threshold_result(pairs, rule, 0.5, SAMPLING, 0.95)
    right = 1 / (1 + np.exp(-power * np.log(9)))
    assert got.chosen == pytest.approx(right, abs=0.01)
    assert got.same.acted != got.before.acted
    assert got.after is not None
    assert abs(got.after.acted - got.before.acted) <= 0.01 * got.judging
    difference = got.differences["action_rate"]
    assert difference.lower is not None and difference.upper is not None
    assert difference.lower <= 0 <= difference.upper
    assert got.choosing + got.judging == 4_000
    assert got.before.acted + got.before.held == got.judging


@pytest.mark.parametrize("keep", KEEPS)
@pytest.mark.parametrize("seed", range(5))
def test_no_other_threshold_would_do_better(keep: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    # coarse probabilities, so that many are equal
    before, after = (np.round(rng.uniform(0.02, 0.98, 60), 1).clip(0.05, 0.95) for _ in range(2))
    gold = [["true", "false", None][i] for i in rng.choice(3, 60, p=[0.5, 0.4, 0.1])]
    pairs = joined(before, after, gold)
    rule = ThresholdRule("*", "true", 0.5, keep)  # type: ignore[arg-type]
    questions = decided(pairs, rule)
    part = questions.domain
    goal = achieved(questions, questions.baseline, part, rule.keep, 0.5)
    got = threshold_for(questions, questions.candidate, part, rule.keep, goal)
    candidates = np.unique(questions.candidate)

    def reaches(threshold: float) -> bool:
        figure = achieved(questions, questions.candidate, part, rule.keep, threshold)
        return figure >= goal - 1e-9

    good = [
        value
        for value in candidates
        if (questions.has_gold & (questions.candidate >= value)).any() and reaches(value)
    ]
    if not good:
        assert got is None
        return
    assert got is not None and reaches(got)
    best = min(good) if keep == "precision" else max(good)
    acted = (questions.candidate >= got - 1e-9).sum()
    assert acted == (questions.candidate >= best - 1e-9).sum()


def test_counts_and_rates_by_hand() -> None:
    n = 400
    pairs = joined(
        np.tile([0.95, 0.95, 0.3, 0.8], n // 4),
        np.tile([0.85, 0.85, 0.2, 0.7], n // 4),
        ["true", "false", "true", None] * (n // 4),
    )
    rule = ThresholdRule("refund", "true", 0.9, "action-rate")
    got = threshold_result(pairs, rule, 0.5, SAMPLING, 0.95)
    part = ~choosing_part(pairs, 0.5)
    truth = {record: i % 4 for i, record in enumerate(f"r{i}" for i in range(n))}
    kinds = np.array([truth[str(name)] for name in pairs.record_ids])[part[pairs.record_start[:-1]]]
    assert got.before.acted == int((kinds <= 1).sum())
    assert got.before.wrong == int((kinds == 1).sum())
    assert got.before.recall.estimate == pytest.approx(
        (kinds == 0).sum() / ((kinds == 0) | (kinds == 2)).sum()
    )
    assert got.before.precision.estimate == pytest.approx(
        1 - got.before.wrong / got.before.precision.n_questions
    )
    assert got.same.acted == 0 and got.same.held == got.judging
    assert got.chosen is not None and 0.7 < got.chosen <= 0.85
    assert got.after is not None and got.after.acted == got.before.acted
    assert got.differences["action_rate"].estimate == 0


def test_a_target_precision_moves_both() -> None:
    pairs = tempered(4_000, 1.5, seed=3)
    rule = ThresholdRule("refund", "true", 0.5, "precision", target=0.97)
    got = threshold_result(pairs, rule, 0.5, SAMPLING, 0.95)
    assert got.baseline_threshold > 0.8 and got.chosen is not None
    assert got.kept[0] >= 0.97 and got.kept[1] is not None and got.kept[1] >= 0.97
    for acting in (got.before, got.after):
        assert acting is not None and acting.precision.upper is not None
        assert acting.precision.upper >= 0.97  # on records that had no say


def test_a_candidate_that_cannot_keep_it_has_no_threshold() -> None:
    rng = np.random.default_rng(2)
    gold = ["true" if i % 2 else "false" for i in range(400)]
    before = np.where(np.arange(400) % 2 == 1, 0.95, 0.1)
    after = np.where(rng.random(400) < 0.5, 0.9, 0.8)
    rule = ThresholdRule("refund", "true", 0.9, "precision")
    got = threshold_result(joined(before, after, gold), rule, 0.5, SAMPLING, 0.95)
    assert got.chosen is None and got.after is None


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (ThresholdRule("refnd", "true", 0.5, "recall"), "no question id matches"),
        (ThresholdRule("refund", "yes", 0.5, "recall"), "has an option 'yes'"),
        (ThresholdRule("refund", "true", 0.999, "precision"), "acts on nothing"),
    ],
)
def test_what_cannot_be_decided_is_said(rule: ThresholdRule, message: str) -> None:
    with pytest.raises(InputError, match=message):
        threshold_result(tempered(60, 1.0), rule, 0.5, SAMPLING, 0.95)


def test_without_gold_only_the_action_rate_can_be_kept() -> None:
    pairs = joined(np.full(40, 0.9), np.full(40, 0.8), [None] * 40)
    with pytest.raises(InputError, match="needs gold"):
        threshold_result(pairs, ThresholdRule("*", "true", 0.5, "recall"), 0.5, SAMPLING, 0.95)
    rule = ThresholdRule("*", "true", 0.85, "action-rate")
    got = threshold_result(pairs, rule, 0.5, SAMPLING, 0.95)
    assert got.chosen is not None and got.after is not None
    assert got.after.acted == got.judging and got.after.precision.estimate is None
