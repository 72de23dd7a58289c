"""Macro-F1, calibration error and risk–coverage against straightforward definitions."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from clefq.parity.statistics import curves
from clefq.parity.statistics.curves import (
    WIDENED,
    aurc,
    aurc_curve,
    ece_curve,
    macro_f1_curve,
    units_of,
)
from clefq.parity.statistics.divergences import question_values
from clefq.parity.statistics.pair_statistics import StatisticsSpec, compare
from clefq.parity.statistics.pairs import join
from clefq.parity.statistics.resampling import MAX_UNITS
from tests.parity.factory import Design, make_pair, single

SPEC = StatisticsSpec(resamples=300)


@pytest.fixture(scope="module")
def case():
    pairs = join(*make_pair(Design(records=150, noise=0.6, seed=1)))
    values = question_values(pairs)
    idx = np.flatnonzero(values.valid & values.has_gold)
    return pairs, values, idx


def macro_f1(gold, predicted):
    """Mean over the gold classes of 2·TP/(predicted + gold)."""
    scores = []
    for name in sorted(set(gold)):
        tp = sum(g == p == name for g, p in zip(gold, predicted, strict=True))
        scores.append(2 * tp / (gold.count(name) + predicted.count(name)))
    return float(np.mean(scores))


def names(pairs, flat):
    return [pairs.option_names[pairs.option_code[i]] if i >= 0 else None for i in flat]


def test_macro_f1_by_definition(case):
    pairs, values, idx = case
    by_cohort = []
    for cohort in ("alpha", "beta"):
        rows = idx[pairs.cohort[idx] == cohort]
        gold = names(pairs, pairs.gold[rows])
        before, after = (names(pairs, s.top[rows]) for s in (values.baseline, values.candidate))
        by_cohort.append(macro_f1(gold, after) - macro_f1(gold, before))
    got = compare(pairs, SPEC)
    assert got.metrics["macro_f1_delta"].estimate == pytest.approx(np.mean(by_cohort))
    slices = [got.slices[f"cohort={c}"]["macro_f1_delta"].estimate for c in ("alpha", "beta")]
    assert slices == pytest.approx(by_cohort)
    assert got.metrics["macro_f1_delta"].method == WIDENED


def test_resampled_macro_f1_equals_recomputing_on_the_resample(case):
    pairs, values, idx = case
    curve = macro_f1_curve(pairs, values, idx, units_of(pairs.record_index[idx]))
    counts = np.random.default_rng(0).multinomial(pairs.n_records, [1 / pairs.n_records] * 150)
    got = curve.reduce((counts @ curve.columns)[None])[0, 0]
    rows = np.repeat(idx, counts[pairs.record_index[idx]])
    expected = []
    for cohort in ("alpha", "beta"):
        part = rows[pairs.cohort[rows] == cohort]
        gold = names(pairs, pairs.gold[part])
        scores = [
            macro_f1(gold, names(pairs, side.top[part]))
            for side in (values.candidate, values.baseline)
        ]
        expected.append(scores[0] - scores[1])
    assert got == pytest.approx(np.mean(expected))


def test_too_many_classes_give_the_figure_alone(case, monkeypatch):
    pairs, values, idx = case
    units = units_of(pairs.record_index[idx])
    whole = macro_f1_curve(pairs, values, idx, units).estimate
    monkeypatch.setattr(curves, "MAX_CLASSES", 3)
    assert macro_f1_curve(pairs, values, idx, units) == pytest.approx(whole)


def test_failed_answers_predict_nothing():
    half = [np.log(0.4), np.log(0.6)]
    base = single([half] * 20, gold=["b"] * 10 + ["a"] * 10)
    cand = single([None, *[half] * 19], gold=["b"] * 10 + ["a"] * 10)
    got = compare(join(base, cand), SPEC).metrics["macro_f1_delta"].estimate
    expected = (2 * 9 / (19 + 10) - 2 * 10 / (20 + 10)) / 2
    assert got == pytest.approx(expected)


def test_ece_by_definition(case):
    pairs, values, idx = case
    before = values.baseline.confidence[idx]
    edges = np.quantile(before, np.arange(1, 15) / 15, method="inverted_cdf")
    found = []
    for side in (values.baseline, values.candidate):
        frame = pd.DataFrame({"c": side.confidence[idx], "y": side.correct[idx] * 1.0})
        frame["bin"] = [sum(edge <= c for edge in edges) for c in frame.c]
        parts = frame.groupby("bin")
        gaps = (parts.c.mean() - parts.y.mean()).abs() * parts.size() / len(frame)
        found.append(gaps.sum())
    curve = ece_curve(values, idx, units_of(pairs.record_index[idx]))
    assert curve.estimate == pytest.approx(found[1] - found[0])


def test_aurc_by_definition_and_without_regard_to_order(case):
    pairs, values, idx = case
    side = values.baseline
    confidence, wrong = side.confidence[idx], ~side.correct[idx]
    expected = np.mean([wrong[confidence >= c].mean() for c in confidence])
    assert aurc(side, idx) == pytest.approx(expected)
    tied = replace(side, confidence=np.round(side.confidence, 1))
    shuffled = np.random.default_rng(0).permutation(idx)
    assert aurc(tied, idx) == pytest.approx(aurc(tied, shuffled), rel=1e-12)
    perfect = replace(side, correct=np.ones_like(side.correct))
    assert aurc(perfect, idx) == 0.0
    curve = aurc_curve(values, idx, units_of(pairs.record_index[idx]))
    grouped = curve.reduce(curve.columns.sum(axis=0)[None])[0, 0]
    assert grouped == pytest.approx(curve.estimate, abs=0.01)


def test_intervals_hold_the_estimates_and_flip_when_swapped(case):
    pairs, _, _ = case
    base, cand = make_pair(Design(records=150, noise=0.6, seed=1))
    got, swapped = compare(pairs, SPEC).metrics, compare(join(cand, base), SPEC).metrics
    for name in ("ece_delta", "aurc_delta", "macro_f1_delta"):
        assert got[name].lower < got[name].estimate < got[name].upper
        assert got[name].bootstrap.resamples == 300
    for name in ("aurc_delta", "macro_f1_delta"):
        assert got[name].estimate == pytest.approx(-swapped[name].estimate, abs=1e-15)


def test_units_of_many_records_are_runs():
    records = np.repeat(np.arange(20_000) * 3, 2)
    units = units_of(records)
    assert units[0] == 0
    assert units[-1] == MAX_UNITS - 1
    assert (np.diff(units) >= 0).all()
    sizes = np.bincount(units)
    assert sizes.max() - sizes.min() <= 2
