"""What two models say about each question: answers, margins, distances of their distributions.

Everything is per question and in log space, in steps of 2^-32 (see `GRID`); sums over options run
in the canonical order of `PairedSet`, so that their prompt order changes nothing but ties.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from clefq.parity.statistics.arrays import BoolArray, FloatArray, IntArray
from clefq.parity.statistics.flatten import segment_sum
from clefq.parity.statistics.pairs import PairedSet, PairedSide

# A margin or probability this close below a threshold counts as reaching it: exp(log(0.75)) −
# exp(log(0.25)) is not 0.5 to the last bit.
EDGE = 1e-9
# Values per question are rounded to multiples of 2^-32. Processors and library versions compute
# exp and log differently in the last bit; after rounding they agree (but for one value in millions
# that lies on an edge), and sums of up to a million questions are exact in any order.
GRID = float(1 << 32)


@dataclass(frozen=True, slots=True)
class SideValues:
    """One model's answers; NaN (or −1, False) where the question failed.

    Where only labels are known, everything that takes a probability is NaN.

    Attributes:
        valid: Whether it answered, bool [n].
        top: Flat index of the chosen option, int64 [n]; canonical order breaks ties.
        best: Whether an option has the highest probability of its question, bool [options].
        tied: Whether several options share it, bool [n].
        margin: Top probability minus the second, float64 [n].
        confidence: Top probability, float64 [n].
        correct: Whether the chosen option is gold, bool [n]; False without gold.
        brier: Σ(p − y)² over the options, float64 [n]; NaN without gold.
        nll: −log p(gold), nats, float64 [n]; NaN without gold, inf at probability zero.
        expected: Σ level·p of score questions, float64 [n]; NaN for other types.
        p_true: p("true") of noul questions, float64 [n]; NaN for other types.
    """

    valid: BoolArray
    top: IntArray
    best: BoolArray
    tied: BoolArray
    margin: FloatArray
    confidence: FloatArray
    correct: BoolArray
    brier: FloatArray
    nll: FloatArray
    expected: FloatArray
    p_true: FloatArray


@dataclass(frozen=True, slots=True)
class QuestionValues:
    """Both models' answers and their distance, question by question.

    A tie bracket is over orders of the options shared by both models: equal sets of best options
    agree in every order, different ones disagree in some order.

    Attributes:
        baseline: The baseline's answers.
        candidate: The candidate's answers.
        valid: Both answered, bool [n].
        measured: Both answered, and with probabilities on both sides, bool [n]; where one side
            knows only the chosen options, nothing but these can be compared.
        has_gold: bool [n].
        agree: Both chose the same option, bool [n]; False where one failed.
        agree_surely: They do in every order of the options, bool [n].
        gained_surely: Both answered and the candidate alone is right in every order, bool [n].
            Where the baseline failed, nobody knows what it would have said.
        lost_possibly: The baseline alone is right in some order, bool [n].
        right_possibly: The baseline is right in some order, bool [n].
        kl: KL(baseline‖candidate), nats, float64 [n]; inf where p > 0 and q = 0; NaN if not
            measured.
        tv: Total variation, float64 [n]; NaN if not measured.
        js: Jensen–Shannon divergence, nats, float64 [n]; NaN if not measured.
    """

    baseline: SideValues
    candidate: SideValues
    valid: BoolArray
    measured: BoolArray
    has_gold: BoolArray
    agree: BoolArray
    agree_surely: BoolArray
    gained_surely: BoolArray
    lost_possibly: BoolArray
    right_possibly: BoolArray
    kl: FloatArray
    tv: FloatArray
    js: FloatArray


def question_values(pairs: PairedSet) -> QuestionValues:
    """Computes every per-question value of a paired set."""
    baseline, candidate = side_values(pairs, pairs.baseline), side_values(pairs, pairs.candidate)
    valid = baseline.valid & candidate.valid
    start = pairs.option_start
    only_first = _any(baseline.best & ~candidate.best, start)
    only_second = _any(candidate.best & ~baseline.best, start)
    has_gold = pairs.gold >= 0
    gold = np.where(has_gold, pairs.gold, 0)
    first_may, second_may = baseline.best[gold] & has_gold, candidate.best[gold] & has_gold
    second_must = second_may & ~candidate.tied
    measured = valid & (not pairs.by_label)
    kl, tv, js = _distances(pairs, measured)
    return QuestionValues(
        baseline=baseline,
        candidate=candidate,
        valid=valid,
        measured=measured,
        has_gold=has_gold,
        agree=valid & (baseline.top == candidate.top),
        agree_surely=valid & ~only_first & ~only_second,
        gained_surely=valid & second_must & ~first_may,
        lost_possibly=first_may & (~second_may | only_second),
        right_possibly=first_may,
        kl=kl,
        tv=tv,
        js=js,
    )


def side_values(pairs: PairedSet, side: PairedSide) -> SideValues:
    """Computes one model's per-question values."""
    start, counts = pairs.option_start, pairs.option_counts
    valid = ~side.failed
    logprobs = np.where(np.repeat(valid, counts), side.logprobs, 0.0)
    highest = np.maximum.reduceat(logprobs, start[:-1])
    best = (logprobs == np.repeat(highest, counts)) & np.repeat(valid, counts)
    first = np.minimum.reduceat(np.where(best, pairs.position, np.iinfo(np.int64).max), start[:-1])
    is_top = best & (pairs.position == np.repeat(first, counts))
    top = np.full(len(counts), -1, dtype=np.int64)
    top[valid] = np.flatnonzero(is_top)
    second = np.maximum.reduceat(np.where(is_top, -np.inf, logprobs), start[:-1])
    probability = np.exp(logprobs)
    failed = np.where(valid & (not side.meta.labels), 0.0, np.nan)
    return SideValues(
        valid=valid,
        top=top,
        best=best,
        tied=segment_sum(best.astype(np.float64), start) > 1,
        margin=on_grid(np.exp(highest) - np.exp(second)) + failed,
        confidence=on_grid(np.exp(highest)) + failed,
        correct=valid & (pairs.gold >= 0) & (top == pairs.gold),
        brier=on_grid(_brier(pairs, probability)) + failed,
        nll=on_grid(_nll(pairs, side)) + failed,
        expected=on_grid(_expected(pairs, probability)) + failed,
        p_true=on_grid(_p_true(pairs, probability)) + failed,
    )


def on_grid(values: FloatArray) -> FloatArray:
    """Rounds to multiples of 2^-32; infinities and NaN stay."""
    return np.rint(values * GRID) / GRID


def floor_log(side: PairedSide) -> float:
    """The log-probability that stands in for zero: log(d/2) of a source with quantum d."""
    quantum = side.meta.probability_quantum
    return -math.inf if quantum is None else math.log(quantum / 2)


def _brier(pairs: PairedSet, probability: FloatArray) -> FloatArray:
    has_gold = pairs.gold >= 0
    distance = probability.copy()
    distance[pairs.gold[has_gold]] -= 1.0
    return np.where(has_gold, segment_sum(distance * distance, pairs.option_start), np.nan)


def _nll(pairs: PairedSet, side: PairedSide) -> FloatArray:
    has_gold = pairs.gold >= 0
    result = np.full(len(has_gold), np.nan)
    result[has_gold] = -np.maximum(side.logprobs[pairs.gold[has_gold]], floor_log(side))
    return result + 0.0  # −0.0 → 0.0


def _expected(pairs: PairedSet, probability: FloatArray) -> FloatArray:
    level = segment_sum(probability * pairs.position, pairs.option_start)
    return np.where(pairs.question_type == "score", level, np.nan)


def _p_true(pairs: PairedSet, probability: FloatArray) -> FloatArray:
    result = np.full(pairs.n_questions, np.nan)
    names = np.flatnonzero(pairs.option_names == "true")
    noul = np.repeat(pairs.question_type == "noul", pairs.option_counts)
    for code in names:
        flat = np.flatnonzero((pairs.option_code == code) & noul)
        question = np.searchsorted(pairs.option_start, flat, side="right") - 1
        result[question] = probability[flat]
    return result


def _distances(pairs: PairedSet, valid: BoolArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """KL, TV and JS of every question; NaN where one side failed or has labels only."""
    both = np.repeat(valid, pairs.option_counts)
    first = np.where(both, pairs.baseline.logprobs, 0.0)
    second = np.where(both, pairs.candidate.logprobs, 0.0)
    p, q = np.exp(first), np.exp(second)
    outside = np.where(valid, 0.0, np.nan)

    def total(terms: FloatArray) -> FloatArray:
        return np.maximum(segment_sum(terms, pairs.option_start), 0.0)

    with np.errstate(invalid="ignore"):
        floored = np.maximum(second, floor_log(pairs.candidate))
        kl_terms = np.where(p > 0, p * (first - floored), 0.0)
        # p·log(p/m) with m = (p + q)/2 is p·(log 2 − log(1 + q/p)): zero to the bit where p = q
        towards_q = math.log(2) - np.logaddexp(0.0, second - first)
        towards_p = math.log(2) - np.logaddexp(0.0, first - second)
        js_terms = np.where(p > 0, p * towards_q, 0.0) + np.where(q > 0, q * towards_p, 0.0)
    found = total(kl_terms), total(np.abs(p - q)) / 2, total(js_terms) / 2
    kl, tv, js = (on_grid(value) + outside for value in found)
    return kl, tv, js


def _any(flags: BoolArray, start: IntArray) -> BoolArray:
    return segment_sum(flags.astype(np.float64), start) > 0
