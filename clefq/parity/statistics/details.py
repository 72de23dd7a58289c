"""What a report shows beside the metrics, none of it gated on.

Percentiles of the distances, confident new answers, rank correlation of the probabilities, level
shifts of score questions, reliability of both models, gaps by cohort and coverage-adjusted
accuracies: the figures that published cards quote.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
from scipy import stats

from clefq.parity.statistics.arrays import BoolArray, IntArray
from clefq.parity.statistics.clustering import clustering
from clefq.parity.statistics.confusion import moved_answers
from clefq.parity.statistics.distributions import distributions
from clefq.parity.statistics.divergences import EDGE, SideValues
from clefq.parity.statistics.figures import indices, pending_figure
from clefq.parity.statistics.intervals import wilson
from clefq.parity.statistics.measures import CONFIDENT_MARGIN, SHARE, Measure
from clefq.parity.statistics.pair_statistics import PairStatistics, sampling_of
from clefq.parity.statistics.slices import left_out

RELIABILITY_BINS = 10
WILSON_METRICS = ("agreement", "confident_agreement", "accuracy_baseline", "accuracy_candidate")


def describe(statistics: PairStatistics) -> dict[str, Any]:
    """Every detail of one pair, as JSON values (infinite ones as float inf).

    Keys: `percentiles` (by `kl`, `tv`), `confident_new` (a metric), `spearman`, `score`,
    `reliability` (by side), `gaps`, `accuracy`, `wilson`, `clustering` (by metric), `confusion`
    and `slices_left_out` (by key). A key whose questions do not exist is None.
    """
    return {
        "percentiles": percentiles(statistics),
        "confident_new": confident_new(statistics),
        "spearman": spearman(statistics),
        "score": score_levels(statistics),
        "reliability": reliability(statistics),
        "gaps": gaps(statistics),
        "accuracy": coverage_adjusted(statistics),
        "wilson": wilson_intervals(statistics),
        "clustering": clustering(statistics),
        "confusion": moved_answers(statistics.pairs, statistics.values),
        "slices_left_out": left_out(statistics.pairs) or None,
    }


def percentiles(statistics: PairStatistics) -> dict[str, Any] | None:
    """Percentiles 50/90/95/99/99.9 and maximum of KL and TV, with bootstrap bounds."""
    values, spec = statistics.values, statistics.spec
    idx = np.flatnonzero(values.measured)
    found = distributions(
        {"kl": values.kl[idx], "tv": values.tv[idx]},
        statistics.pairs.record_index[idx],
        sampling_of(statistics.pairs, spec),
        spec.confidence,
    )
    return {name: asdict(item) for name, item in found.items()} or None


def confident_new(statistics: PairStatistics) -> dict[str, Any]:
    """Share of questions whose answer changed and where the candidate is sure (margin ≥ 0.5).

    The dangerous kind of change: nothing downstream would ask again.
    """
    values = statistics.values
    sure = values.candidate.margin >= CONFIDENT_MARGIN - EDGE
    changed = (values.valid & ~values.agree & sure).astype(np.float64)
    known = values.valid & (not statistics.pairs.candidate.meta.labels)
    measure = Measure("confident_new", SHARE, changed, known, "share", limits=(0, 1))
    idx = indices(None, measure.domain)
    pairs, spec = statistics.pairs, statistics.spec
    metric = pending_figure(measure, idx, pairs.record_index, spec.confidence).metric
    return {**metric.to_json(), "count": int(changed.sum())}


def spearman(statistics: PairStatistics) -> float | None:
    """Rank correlation of p(true) over the true/false questions; None where it is undefined.

    One probability a question: options of one question sum to one, and pooling them all lifts the
    correlation for no reason.
    """
    values = statistics.values
    first, second = values.baseline.p_true, values.candidate.p_true
    both = values.valid & ~np.isnan(first) & ~np.isnan(second)
    first, second = first[both], second[both]
    if len(first) < 2 or first.min() == first.max() or second.min() == second.max():
        return None
    return float(stats.spearmanr(first, second).statistic)


def score_levels(statistics: PairStatistics) -> dict[str, Any] | None:
    """Ordinal measures of score questions, in levels.

    `shift` is the mean signed change of the expected level, `within_one` the share of top levels
    that moved by at most one; `mae_baseline` and `mae_candidate` compare the expected level with
    gold.
    """
    pairs, values = statistics.pairs, statistics.values
    score = values.measured & np.asarray(pairs.question_type == "score", dtype=np.bool_)
    if not bool(score.any()):
        return None
    top = [pairs.position[side.top[score]] for side in (values.baseline, values.candidate)]
    change = values.candidate.expected[score] - values.baseline.expected[score]
    graded = score & values.has_gold
    return {
        "n_questions": int(score.sum()),
        "shift": float(change.mean()),
        "within_one": float((np.abs(top[0] - top[1]) <= 1).mean()),
        "n_gold": int(graded.sum()),
        "mae_baseline": _level_error(statistics, values.baseline, graded),
        "mae_candidate": _level_error(statistics, values.candidate, graded),
    }


def reliability(statistics: PairStatistics) -> dict[str, Any] | None:
    """Confidence against accuracy of both models, in ten bins with the baseline's edges."""
    values = statistics.values
    domain = values.measured & values.has_gold
    if not bool(domain.any()):
        return None
    levels = np.arange(1, RELIABILITY_BINS) / RELIABILITY_BINS
    confidence = values.baseline.confidence[domain]
    edges = np.unique(np.quantile(confidence, levels, method="inverted_cdf"))
    sides = {"baseline": values.baseline, "candidate": values.candidate}
    return {
        "edges": edges.tolist(),
        **{name: _bins(side, domain, edges) for name, side in sides.items()},
    }


def gaps(statistics: PairStatistics) -> dict[str, Any] | None:
    """Accuracy differences by cohort: all, their unweighted means, the worst.

    Cards that report a "mean gap" over benchmarks mean this: every cohort weighs alike. A gap is
    candidate − baseline, as every difference here: a negative one is a loss, whatever the sign on
    such a card.
    """
    by_cohort = {}
    for name, metrics in _cohorts(statistics).items():
        estimate = metrics["accuracy_delta"].estimate
        if estimate is not None:
            by_cohort[name] = estimate
    if not by_cohort:
        return None
    worst = min(sorted(by_cohort), key=lambda name: by_cohort[name])
    return {
        "by_cohort": by_cohort,
        "mean": float(np.mean(list(by_cohort.values()))),
        "mean_absolute": float(np.mean(np.abs(list(by_cohort.values())))),
        "worst": {"cohort": worst, "difference": by_cohort[worst]},
    }


def coverage_adjusted(statistics: PairStatistics) -> dict[str, Any] | None:
    """Accuracy with failures counted as wrong (`adjusted`), and over answered questions only."""
    values = statistics.values
    gold = values.has_gold
    if not bool(gold.any()):
        return None
    found: dict[str, Any] = {}
    for name, side in (("baseline", values.baseline), ("candidate", values.candidate)):
        answered = gold & side.valid
        right = int(side.correct[gold].sum())
        found[name] = {
            "coverage": float(side.valid[gold].mean()),
            "answered": right / int(answered.sum()) if bool(answered.any()) else None,
            "adjusted": right / int(gold.sum()),
        }
    return found


def wilson_intervals(statistics: PairStatistics) -> dict[str, Any]:
    """Wilson intervals as published cards give them: every question counts as independent."""
    found = {}
    for name in WILSON_METRICS:
        metric = statistics.metrics[name]
        if metric.estimate is not None:
            n = metric.n_questions
            lower, upper = wilson(round(metric.estimate * n), n, metric.confidence)
            found[name] = {"lower": lower, "upper": upper}
    return found


def _cohorts(statistics: PairStatistics) -> Mapping[str, Any]:
    prefix = "cohort="
    return {
        name.removeprefix(prefix): metrics
        for name, metrics in statistics.slices.items()
        if name.startswith(prefix)
    }


def _level_error(statistics: PairStatistics, side: SideValues, graded: BoolArray) -> float | None:
    if not bool(graded.any()):
        return None
    pairs = statistics.pairs
    level: IntArray = pairs.position[pairs.gold[graded]]
    return float(np.abs(side.expected[graded] - level).mean())


def _bins(side: SideValues, domain: BoolArray, edges: Any) -> list[dict[str, Any]]:
    confidence, correct = side.confidence[domain], side.correct[domain]
    at = np.searchsorted(edges, confidence, side="right")
    return [
        {
            "n": int((at == k).sum()),
            "confidence": float(confidence[at == k].mean()),
            "accuracy": float(correct[at == k].mean()),
        }
        for k in range(len(edges) + 1)
        if bool((at == k).any())
    ]
