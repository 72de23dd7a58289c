"""What an interval rests on: records in effect, design effect, and the records that move it."""

from __future__ import annotations

import numpy as np
import pytest

from clefq.parity.statistics.clustering import clustering, record_banners
from clefq.parity.statistics.pair_statistics import StatisticsSpec, compare
from clefq.parity.statistics.pairs import join
from tests.parity.factory import Design, make_pair

FAST = StatisticsSpec(resamples=100, slices=False)


@pytest.fixture(scope="module")
def statistics():
    base, cand = make_pair(Design(records=60, questions=(1, 9), seed=4))
    return compare(join(base, cand), FAST)


def test_leaving_a_record_out_changes_the_figure_as_said(statistics):
    found = clustering(statistics)
    pairs, agree = statistics.pairs, statistics.values.agree
    for one in found["agreement"]["influence"]:
        (record,) = np.flatnonzero(pairs.record_ids == one["record_id"])
        kept = pairs.record_index != record
        assert one["questions"] == (~kept).sum()
        assert one["without"] == pytest.approx(agree[kept].mean())
        assert one["change"] == pytest.approx(agree[kept].mean() - agree.mean())
    changes = [abs(one["change"]) for one in found["agreement"]["influence"]]
    assert changes == sorted(changes, reverse=True) and len(changes) == 5


def test_records_in_effect_and_design_effect(statistics):
    got = clustering(statistics)["agreement"]
    sizes = np.bincount(statistics.pairs.record_index).astype(float)
    agree = statistics.values.agree.astype(float)
    assert got["records_in_effect"] == pytest.approx(sizes.sum() ** 2 / (sizes**2).sum())
    assert got["questions_per_record"] == sizes.max()
    residual = np.bincount(statistics.pairs.record_index, agree) - agree.mean() * sizes
    g, n, p = len(sizes), sizes.sum(), agree.mean()
    variance = g / (g - 1) * (residual**2).sum() / n**2
    assert got["design_effect"] == pytest.approx(max(1, variance * (n - 1) / (p * (1 - p))))
    assert got["carriers"] == pytest.approx((residual**2).sum() ** 2 / (residual**4).sum())


def test_one_question_per_record_has_no_design_effect_and_no_warning():
    base, cand = make_pair(Design(records=40, questions=(1, 1), seed=2))
    found = clustering(compare(join(base, cand), FAST))
    assert found["agreement"]["design_effect"] == 1
    assert record_banners(found, {"agreement", "accuracy_delta", "tv"}) == ()


def test_few_records_that_carry_a_gated_figure_are_named():
    item = {"records_in_effect": 26.0, "carriers": 1.0, "questions_per_record": 40}
    found = {"agreement": item, "accuracy_delta": {**item, "carriers": 12.0}, "tv": item}
    (text,) = record_banners(found, {"agreement", "accuracy_delta"})
    assert text.startswith("few records decide: 1 of 26 records in effect")
    assert record_banners({"agreement": {**item, "carriers": 0.0}}, {"agreement"}) == ()


def test_long_records_are_named_once():
    item = {"records_in_effect": 500.0, "carriers": 20.0, "questions_per_record": 75}
    found = {name: {**item, "unevenness": 3.14} for name in ("agreement", "tv")}
    (text,) = record_banners(found, {"agreement", "tv"})
    assert text.startswith(
        "long records: the largest holds 75 questions, 3.1 times what is typical"
    )
    assert record_banners(found, {"accuracy_delta"}) == ()
    assert record_banners({"agreement": {**item, "unevenness": 2.0}}, {"agreement"}) == ()
