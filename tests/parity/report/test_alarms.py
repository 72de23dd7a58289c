"""Slice alarms are Holm's procedure."""

from dataclasses import replace
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from statsmodels.stats.multitest import multipletests

from clefq.parity.statistics.alarms import slice_alarms
from clefq.parity.statistics.metric import Metric


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.floats(-0.2, 0.1), st.floats(0.005, 0.05)), min_size=1, max_size=12),
    st.sampled_from([0.9, 0.95, 0.99]),
)
def test_alarms_are_holms(values: list[tuple[float, float]], confidence: float) -> None:
    normal = NormalDist()
    names = [f"cohort=c{k}" for k in range(len(values))]

    def made(estimate: float, upper: float) -> Metric:
        return Metric(estimate, -1, upper, 0.95, "t", None, 500, 100, 0, "difference")

    def at(metric: str, name: str, level: float) -> Metric:
        estimate, error = values[names.index(name)]
        return made(estimate, estimate + normal.inv_cdf((1 + level) / 2) * error)

    slices = {name: {"accuracy_delta": at("accuracy_delta", name, 0.95)} for name in names}
    raised = {alarm.slice for alarm in slice_alarms(slices, at, confidence)}
    p = np.array([normal.cdf(estimate / error) for estimate, error in values])
    if np.any(np.abs(p[:, None] * np.arange(1, len(p) + 1) - (1 - confidence)) < 1e-9):
        return  # on the very edge rounding may go either way
    expected = multipletests(p, alpha=1 - confidence, method="holm")[0]
    assert raised == {name for name, hit in zip(names, expected, strict=True) if hit}


def test_alarms_skip_margin_bands_and_small_slices() -> None:
    bad = Metric(-0.5, -0.6, -0.4, 0.95, "t", None, 500, 100, 0, "difference")
    slices = {
        "margin=<0.2": {"accuracy_delta": bad},
        "cohort=a": {"accuracy_delta": replace(bad, n_records=9)},
        "cohort=b": {"accuracy_delta": bad},
        "type=noul": {},
    }
    found = slice_alarms(slices, lambda metric, name, level: bad, 0.95)
    assert [alarm.slice for alarm in found] == ["cohort=b"]


def test_the_whole_set_and_twins_of_a_slice_are_no_hypotheses() -> None:
    bad = Metric(-0.02, -0.6, -0.001, 0.95, "t", None, 500, 100, 0, "difference")
    names = ("cohort=a", "type=noul", "options=2", "length=<2K")
    slices = {name: {"accuracy_delta": bad} for name in names}
    levels = []

    def at(metric: str, name: str, level: float) -> Metric:
        levels.append(level)
        return bad

    found = slice_alarms(slices, at, 0.95, whole={"accuracy_delta": replace(bad, n_questions=500)})
    assert found == () and levels == []
    half = np.arange(1000) < 500
    masks = {name: half for name in names}
    whole = {"accuracy_delta": replace(bad, n_questions=1000)}
    found = slice_alarms(slices, at, 0.95, whole=whole, masks=masks)
    assert [alarm.slice for alarm in found] == ["cohort=a"]
    assert levels == [pytest.approx(0.9)]


def test_without_right_answers_agreement_is_held_against_the_gates_floor() -> None:
    some = Metric(0.9, 0.8, 0.95, 0.95, "t", None, 500, 100, 0, "share")
    gold = replace(some, estimate=0.0, upper=0.1, n_questions=400, unit="difference")
    slices = {
        "cohort=none": {
            "agreement": some,
            "accuracy_delta": replace(gold, n_questions=0, n_records=0),
        },
        "cohort=few": {"agreement": some, "accuracy_delta": replace(gold, n_questions=20)},
        "cohort=gold": {"agreement": some, "accuracy_delta": gold},
    }
    asked = []

    def at(metric: str, name: str, level: float) -> Metric:
        asked.append((metric, name, round(1 - level, 12)))
        return slices[name][metric]

    found = slice_alarms(slices, at, 0.95, floors={"agreement": 0.97})
    assert [(a.slice, a.metric, a.limit) for a in found] == [
        ("cohort=few", "agreement", 0.97),
        ("cohort=none", "agreement", 0.97),
    ]
    # one family of four: two accuracies, two agreements
    assert {level for *_, level in asked[:4]} == {round(2 * 0.05 / 4, 12)} and len(asked) == 6
    assert slice_alarms(slices, at, 0.95, floors={"agreement": 0.94}) == ()
    assert slice_alarms(slices, at, 0.95) == ()
