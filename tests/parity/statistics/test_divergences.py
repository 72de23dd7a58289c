"""Per-question values against scipy and arithmetic by hand."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import jensenshannon
from scipy.special import rel_entr

from clefq.parity.statistics.divergences import GRID, question_values
from clefq.parity.statistics.pairs import join
from tests.parity.factory import Design, log_softmax, make_pair, single


def log(p):
    with np.errstate(divide="ignore"):
        return list(np.log(p))


def values_of(base, cand):
    """Values in the order of the input rows."""
    pairs = join(base, cand)
    found = question_values(pairs)
    order = np.argsort([int(r[1:]) for r in pairs.record_ids[pairs.record_index]])
    return pairs, found, order


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 255), st.integers(0, 10**6))
def test_distances_match_scipy(k, seed):
    rng = np.random.default_rng(seed)
    first, second = (log_softmax(rng.normal(size=k) * 4) for _ in range(2))
    _, got, _ = values_of(single([list(first)]), single([list(second)]))
    p, q = np.exp(first), np.exp(second)
    assert got.kl[0] == pytest.approx(rel_entr(p, q).sum(), abs=2e-10)
    assert got.js[0] == pytest.approx(jensenshannon(p, q) ** 2, abs=2e-10)
    assert got.tv[0] == pytest.approx(np.abs(p - q).sum() / 2, abs=2e-10)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6))
def test_identical_answers_have_distance_zero_to_the_bit(seed):
    base, _ = make_pair(Design(records=8, seed=seed, most_options=60))
    got = question_values(join(base, base))
    for name in ("kl", "tv", "js"):
        assert (getattr(got, name) == 0).all(), name
    assert got.agree.all()
    assert got.agree_surely.all()


def test_values_lie_on_a_grid_that_hides_the_last_bit():
    base, cand = make_pair(Design(records=30, seed=4))
    got = question_values(join(base, cand))
    for values in (got.kl, got.tv, got.js, got.baseline.margin, got.candidate.brier):
        assert (values * GRID == np.rint(values * GRID)).all()


def test_zero_probabilities():
    base = single([log([0.5, 0.5]), log([1.0, 0.0]), log([0.5, 0.5]), log([1.0, 0.0])])
    cand = single([log([1.0, 0.0]), log([0.5, 0.5]), log([0.0, 1.0]), log([0.0, 1.0])])
    _, got, order = values_of(base, cand)
    assert got.kl[order][:3] == pytest.approx([np.inf, np.log(2), np.inf])
    assert np.isposinf(got.kl[order][3])
    assert got.js[order][3] == pytest.approx(np.log(2))
    assert got.tv[order] == pytest.approx([0.5, 0.5, 0.5, 1.0])
    both = single([log([1.0, 0.0])])
    assert question_values(join(both, both)).kl[0] == 0.0


def test_a_quantum_floors_at_half_a_step_and_never_renormalises():
    p, q, d = np.array([0.9957, 0.0043]), np.array([1.0, 0.0]), 1e-4
    base = single([log(p)])
    cand = single([log(q)])
    cand = replace(cand, meta=replace(cand.meta, probability_quantum=d))
    got = question_values(join(base, cand)).kl[0]
    assert got == pytest.approx(0.9957 * np.log(0.9957) + 0.0043 * np.log(0.0043 / (d / 2)))


def test_brier_nll_and_accuracy_by_hand():
    base = single([log([0.7, 0.2, 0.1]), log([0.1, 0.8, 0.1])], gold=["a", "c"])
    cand = single([log([0.3, 0.6, 0.1]), log([0.1, 0.0, 0.9])], gold=["a", "c"])
    _, got, order = values_of(base, cand)
    assert got.baseline.brier[order] == pytest.approx([0.09 + 0.04 + 0.01, 0.01 + 0.64 + 0.81])
    assert got.candidate.nll[order] == pytest.approx([-np.log(0.3), -np.log(0.9)])
    assert list(got.baseline.correct[order]) == [True, False]
    assert list(got.candidate.correct[order]) == [False, True]
    assert got.baseline.margin[order] == pytest.approx([0.5, 0.7])
    assert got.baseline.confidence[order] == pytest.approx([0.7, 0.8])


def test_expected_level_and_p_true():
    score = single([log([0.2, 0.3, 0.5])], question_type="score", option_ids=[["0", "1", "2"]])
    noul = single([log([0.7, 0.3])], question_type="noul", option_ids=[["true", "false"]])
    assert question_values(join(score, score)).baseline.expected[0] == pytest.approx(1.3)
    got = question_values(join(noul, noul)).baseline
    assert got.p_true[0] == pytest.approx(0.7)
    assert np.isnan(got.expected[0])


def test_canonical_order_breaks_ties():
    base = single([log([0.4, 0.4, 0.2])])
    swapped = replace(
        base, frame=base.frame.assign(option_ids=[["b", "a", "c"]], logprobs=[log([0.4, 0.4, 0.2])])
    )
    pairs = join(base, swapped)
    got = question_values(pairs)
    assert pairs.option_names[pairs.option_code[got.baseline.top[0]]] == "a"
    # joined by id, the candidate is judged in the baseline's order too
    assert got.agree.all()
    other = join(swapped, base)
    top = question_values(other).baseline.top[0]
    assert other.option_names[other.option_code[top]] == "b"


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_tie_brackets_by_enumerating_every_order(data):
    k = data.draw(st.integers(2, 4))
    sides = [data.draw(st.sets(st.integers(0, k - 1), min_size=1)) for _ in range(2)]
    gold = data.draw(st.integers(0, k - 1))
    names = [chr(97 + i) for i in range(k)]
    rows = []
    for best in sides:
        p = np.array([1.0 if i in best else 0.5 for i in range(k)])
        rows.append(list(np.log(p / p.sum())))
    base, cand = (single([row], gold=[names[gold]]) for row in rows)
    got = question_values(join(base, cand))
    agree, delta = [], []
    for order in itertools.permutations(range(k)):
        tops = [next(i for i in order if i in best) for best in sides]
        agree.append(tops[0] == tops[1])
        delta.append((tops[1] == gold) - (tops[0] == gold))
    assert got.agree_surely[0] == all(agree)
    worst = int(got.gained_surely[0]) - int(got.lost_possibly[0])
    assert worst == min(delta)
    assert [bool(got.baseline.tied[0]), bool(got.candidate.tied[0])] == [len(s) > 1 for s in sides]


def test_a_failed_baseline_is_no_gain_that_a_gate_may_count():
    base = single([None, log([0.9, 0.1])], gold=["a", "a"])
    cand = single([log([0.9, 0.1]), None], gold=["a", "a"])
    got = question_values(join(base, cand))
    assert got.candidate.correct.sum() == got.baseline.correct.sum() == 1
    assert not got.gained_surely.any()
    assert list(got.lost_possibly) == list(got.baseline.correct)


def test_failed_answers_have_no_values():
    base = single([log([0.5, 0.5]), log([0.9, 0.1])], gold=["a", "a"])
    cand = single([None, log([0.9, 0.1])], gold=["a", "a"])
    _, got, order = values_of(base, cand)
    assert list(got.valid[order]) == [False, True]
    assert list(got.agree[order]) == [False, True]
    assert list(got.agree_surely[order]) == [False, True]
    for name in ("kl", "tv", "js"):
        assert list(np.isnan(getattr(got, name)[order])) == [True, False]
    assert got.candidate.top[order][0] == -1
    assert not got.candidate.correct[order][0]
