"""How many questions a gate needs, from assumptions or from an earlier comparison.

Everything here is per question: divide by the questions per record for records, and pass a design
effect (deff) where the questions of a record resemble each other.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from clefq.errors import InputError
from clefq.parity.statistics.intervals import (
    MIN_RECORDS,
    clopper_pearson,
    normal_quantile,
    t_quantile,
)
from clefq.parity.statistics.metric import Metric

MOST_QUESTIONS = 100_000_000


@dataclass(frozen=True, slots=True)
class DifferencePlan:
    """Assumptions about an accuracy difference.

    Attributes:
        discordance: ψ, the share of questions that exactly one model has right.
        difference: True difference δ, candidate − baseline.
        margin: Tolerated loss m > 0.
        confidence: One-sided confidence.
        power: Probability of passing if δ is true.
        deff: Design effect of the questions of one record.
    """

    discordance: float
    difference: float = 0.0
    margin: float = 0.02
    confidence: float = 0.975
    power: float = 0.8
    deff: float = 1.0


def questions_for_half_width(
    discordance: float, half_width: float, confidence: float = 0.95, deff: float = 1.0
) -> int:
    """Questions at which the two-sided interval of an accuracy difference has a half-width h.

    n = z²·ψ·deff/h², rounded up (ψ = 0.057, h = 0.02: 548).

    Raises:
        InputError: An assumption is out of range.
    """
    _check(discordance=discordance, half_width=half_width, confidence=confidence)
    _check_deff(deff)
    z = normal_quantile(confidence)
    return _ceil(z * z * discordance * deff / half_width**2)


def questions_for_power(plan: DifferencePlan) -> int:
    """Questions at which a non-inferiority gate passes with the wanted power.

    n = (z_α + z_β)²·(ψ − δ²)·deff/(δ + m)², rounded up (ψ = 0.057, m = 0.02, δ = 0, 80%: 1,119).

    Raises:
        InputError: An assumption is out of range, or the true difference is beyond the margin:
            no number of questions will do.
    """
    _check(discordance=plan.discordance, margin=plan.margin)
    _check(confidence=plan.confidence, power=plan.power)
    _check_deff(plan.deff)
    spread = plan.discordance - plan.difference**2
    if spread < 0 or abs(plan.difference) > plan.discordance:
        raise InputError(
            f"a difference of {plan.difference:g} needs a discordance of at least "
            f"{abs(plan.difference):g}, not {plan.discordance:g}."
        )
    distance = plan.difference + plan.margin
    if distance <= 0:
        raise InputError(
            f"a true difference of {plan.difference:g} lies at or beyond the margin "
            f"{plan.margin:g}: no number of questions passes."
        )
    z = _one_sided(plan.confidence) + _one_sided(plan.power)
    return _ceil(z * z * spread * plan.deff / distance**2)


def questions_for_floor(
    floor: float, flips: int = 0, confidence: float = 0.975, deff: float = 1.0
) -> int:
    """Smallest number of questions at which a share with `flips` misses still reaches a floor.

    The lower Korn–Graubard bound, one question per record: n_eff = n/deff·(z/t)². Floors 0.95,
    0.98 and 0.99 take 75, 186 and 370 questions without a flip at one-sided 97.5%.

    Args:
        floor: The floor, in (0, 1).
        flips: Misses that it should withstand.
        confidence: One-sided confidence.
        deff: Design effect.

    Raises:
        InputError: An assumption is out of range.
    """
    _check(floor=floor, confidence=confidence)
    _check_deff(deff)
    if flips < 0:
        raise InputError(f"flips is {flips}, expected 0 or more.")
    low, high = max(MIN_RECORDS, flips + 1), 2 * max(MIN_RECORDS, flips + 1)
    while floor_bound(high, flips, confidence, deff) < floor:
        low, high = high, high * 2
        if high > MOST_QUESTIONS:
            raise InputError(f"a floor of {floor:g} takes more than {MOST_QUESTIONS:,} questions.")
    if floor_bound(low, flips, confidence, deff) >= floor:
        return low
    while high - low > 1:
        middle = (low + high) // 2
        if floor_bound(middle, flips, confidence, deff) < floor:
            low = middle
        else:
            high = middle
    return high


def floor_bound(questions: int, flips: int, confidence: float = 0.975, deff: float = 1.0) -> float:
    """One-sided lower bound of a share with `flips` misses, one question per record."""
    two_sided = 2 * confidence - 1
    shrink = (normal_quantile(two_sided) / t_quantile(two_sided, questions)) ** 2
    size = questions / deff * shrink
    share = 1 - flips / questions
    return clopper_pearson(share * size, size, two_sided)[0]


def flips_allowed(
    questions: int, floor: float, confidence: float = 0.975, deff: float = 1.0
) -> int | None:
    """Most misses with which a share of so many questions reaches a floor; None if not even 0."""
    _check(floor=floor, confidence=confidence)
    _check_deff(deff)
    if questions < MIN_RECORDS or floor_bound(questions, 0, confidence, deff) < floor:
        return None
    low, high = 0, questions
    while high - low > 1:
        middle = (low + high) // 2
        if floor_bound(questions, middle, confidence, deff) >= floor:
            low = middle
        else:
            high = middle
    return low


def detectable_difference(plan: DifferencePlan, questions: int) -> float:
    """Smallest margin that so many questions pass with the plan's power at its difference.

    The inverse of `questions_for_power`: m = (z_α + z_β)·√((ψ − δ²)·deff/n) − δ.
    """
    _check(discordance=plan.discordance, confidence=plan.confidence, power=plan.power)
    _check_deff(plan.deff)
    if questions < 1:
        raise InputError(f"questions is {questions}, expected 1 or more.")
    z = _one_sided(plan.confidence) + _one_sided(plan.power)
    spread = max(0.0, plan.discordance - plan.difference**2)
    return z * math.sqrt(spread * plan.deff / questions) - plan.difference


def design_effect(metric: Metric) -> float | None:
    """The design effect that an earlier share's interval implies, or None without an interval.

    The deff at which `floor_bound` is the reported lower bound (the upper one, at a share of 0):
    how much wider it is than that of one question per record, lumps of events included.
    """
    if metric.estimate is None or metric.lower is None or metric.upper is None:
        return None
    use_lower = metric.estimate > 0

    def bound(size: float) -> float:
        ends = clopper_pearson(_share(metric) * size, size, metric.confidence)
        return ends[0] if use_lower else -ends[1]

    target = metric.lower if use_lower else -metric.upper
    low, high = 1e-3, float(metric.n_questions)
    if bound(high) <= target:
        return 1.0
    for _ in range(100):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if bound(middle) < target else (low, middle)
    t = t_quantile(metric.confidence, metric.n_records)
    shrink = (normal_quantile(metric.confidence) / t) ** 2
    return max(1.0, metric.n_questions * shrink / high)


def _share(metric: Metric) -> float:
    assert metric.estimate is not None
    return metric.estimate


def _one_sided(confidence: float) -> float:
    return normal_quantile(2 * confidence - 1)


def _ceil(value: float) -> int:
    if not value <= MOST_QUESTIONS:
        raise InputError(f"that takes more than {MOST_QUESTIONS:,} questions.")
    return max(1, math.ceil(value - 1e-9))


def _check(**shares: float) -> None:
    faults = [
        f"{name} is {value:g}, expected more than 0 and less than 1"
        for name, value in shares.items()
        if not 0 < value < 1
    ]
    if faults:
        raise InputError(f"{faults[0]}.", faults=faults[1:])


def _check_deff(deff: float) -> None:
    if not deff >= 1:
        raise InputError(f"deff is {deff:g}, expected 1 or more.")
