"""Planning against the figures it must reproduce, and against the intervals themselves."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from clefq.errors import InputError
from clefq.parity.gates.planning import (
    DifferencePlan,
    design_effect,
    detectable_difference,
    flips_allowed,
    floor_bound,
    questions_for_floor,
    questions_for_half_width,
    questions_for_power,
)
from clefq.parity.statistics.intervals import (
    clopper_pearson,
    korn_graubard,
    paired_tango,
    ratio,
)
from clefq.parity.statistics.metric import Metric


def test_half_width_and_power():
    assert questions_for_half_width(0.057, 0.02) == 548
    assert questions_for_power(DifferencePlan(0.057)) == 1119


@pytest.mark.parametrize(
    ("floor", "expected"),
    [(0.95, (75, 111, 144, 174)), (0.98, (186, 278, 360, 437)), (0.99, (370, 557, 722, 876))],
)
def test_floors(floor, expected):
    assert tuple(questions_for_floor(floor, flips) for flips in range(4)) == expected


def test_156_of_156_does_not_prove_098():
    assert floor_bound(156, 0) == pytest.approx(0.9763, abs=5e-5)
    assert flips_allowed(156, 0.98) is None
    assert flips_allowed(186, 0.98) == 0
    assert flips_allowed(436, 0.98) == 2


@settings(max_examples=30, deadline=None)
@given(st.sampled_from([0.9, 0.95, 0.98]), st.integers(0, 6))
def test_the_gate_itself_turns_at_the_planned_number(floor, flips):
    n = questions_for_floor(floor, flips)

    def bound(size):
        values = np.ones(size)
        values[:flips] = 0
        return korn_graubard(ratio(values, np.ones(size)))[0]

    assert bound(n) >= floor
    assert n == 10 or bound(n - 1) < floor


def test_power_by_simulation():
    plan = DifferencePlan(discordance=0.1, difference=-0.01, margin=0.05)
    n = questions_for_power(plan)
    rng = np.random.default_rng(0)
    passed = 0
    trials = 400
    for _ in range(trials):
        gained, lost, _ = rng.multinomial(n, [0.045, 0.055, 0.9])
        values = np.zeros(n)
        values[:gained], values[gained : gained + lost] = 1, -1
        ones = np.ones(n)
        sides = [ratio((values == sign) * 1.0, ones) for sign in (1, -1)]
        passed += paired_tango(*sides)[0] >= -0.05
    assert passed / trials == pytest.approx(0.8, abs=0.06)


def test_detectable_difference_inverts_power():
    plan = DifferencePlan(discordance=0.08, difference=0.005, margin=0.03, deff=1.4)
    n = questions_for_power(plan)
    assert detectable_difference(plan, n) == pytest.approx(0.03, abs=1e-4)


def test_design_effect_scales_everything():
    single, double = DifferencePlan(0.057), DifferencePlan(0.057, deff=2.0)
    assert questions_for_power(double) == pytest.approx(2 * questions_for_power(single), abs=2)
    assert questions_for_floor(0.98, deff=2.0) == pytest.approx(2 * 186, abs=8)
    # a flip is half an effective one then
    assert 278 < questions_for_floor(0.98, 1, deff=2.0) < 2 * 278


@pytest.mark.parametrize("deff", [1.0, 1.7, 4.0])
def test_design_effect_is_recovered_from_a_reported_interval(deff):
    n, records = 600, 150
    rng = np.random.default_rng(1)
    per = n // records
    shared = rng.random(records) < 0.5 * (deff - 1) / 3
    values = np.where(shared, (rng.random(records) < 0.8) * per, rng.binomial(per, 0.9, records))
    value = ratio(values.astype(float), np.full(records, float(per)))
    lower, upper = korn_graubard(value)
    metric = Metric(
        value.estimate, lower, upper, 0.95, "korn_graubard", None, n, records, 0, "share"
    )
    found = design_effect(metric)
    assert found >= max(1.0, deff / 2)
    # a plan with that deff has the reported bound at the reported size, records for questions
    t2 = (stats.norm.ppf(0.975) / stats.t.ppf(0.975, records - 1)) ** 2
    size = n / found * t2
    assert clopper_pearson(value.estimate * size, size)[0] == pytest.approx(lower, rel=1e-9)
    assert design_effect(replace(metric, lower=None)) is None


@pytest.mark.parametrize(
    "call",
    [
        lambda: questions_for_half_width(0, 0.02),
        lambda: questions_for_half_width(0.05, -0.02),
        lambda: questions_for_power(DifferencePlan(0.057, difference=-0.02)),
        lambda: questions_for_power(DifferencePlan(0.01, difference=0.02)),
        lambda: questions_for_power(DifferencePlan(0.057, deff=0.5)),
        lambda: questions_for_floor(1.0),
        lambda: questions_for_floor(0.9, -1),
        lambda: questions_for_floor(0.999999999),
        lambda: questions_for_half_width(0.5, 1e-6),
        lambda: detectable_difference(DifferencePlan(0.05), 0),
    ],
)
def test_impossible_assumptions_are_named(call):
    with pytest.raises(InputError):
        call()
