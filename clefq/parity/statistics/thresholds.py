"""A threshold of your automation, carried over from the baseline to the candidate.

A policy acts on a question when p(option) ≥ T. A candidate whose probabilities are a little sharper
or flatter acts on other questions at the same T, with unchanged accuracy. Here the candidate's own
threshold is chosen on one part of the records, so that it keeps what the baseline's achieved there
(its precision, its recall or its action rate), and judged on the other part, which had no say.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from clefq.errors import InputError
from clefq.parity.statistics.arrays import BoolArray, FloatArray
from clefq.parity.statistics.divergences import EDGE
from clefq.parity.statistics.figures import (
    Pending,
    Sampling,
    indices,
    pending_figure,
    resolve,
)
from clefq.parity.statistics.measures import PAIRED, SHARE, Measure
from clefq.parity.statistics.metric import Metric
from clefq.parity.statistics.pairs import PairedSet
from clefq.parity.statistics.policies import matching, option_places

Keep = Literal["precision", "recall", "action-rate"]
KEEPS: tuple[Keep, ...] = ("precision", "recall", "action-rate")
_DECIMALS = 4


@dataclass(frozen=True, slots=True)
class ThresholdRule:
    """What is asked.

    Attributes:
        questions: Pattern of question ids, with `*` and `?`.
        option: The option whose probability is compared.
        threshold: The baseline's T: it acts at or above.
        keep: What of the baseline the candidate's threshold must keep.
        target: A precision that both must reach instead of the baseline's own, or None.
    """

    questions: str
    option: str
    threshold: float
    keep: Keep
    target: float | None = None


@dataclass(frozen=True, slots=True)
class Decided:
    """The questions that a rule decides.

    Attributes:
        domain: bool [n].
        baseline: The baseline's p(option), float64 [n]; NaN where it failed or has no such option.
        candidate: The candidate's.
        has_gold: In the domain and with gold, bool [n].
        right: Whether acting is right, bool [n].
    """

    domain: BoolArray
    baseline: FloatArray
    candidate: FloatArray
    has_gold: BoolArray
    right: BoolArray


@dataclass(frozen=True, slots=True)
class Acting:
    """What one model does at one threshold on the judging part.

    Attributes:
        threshold: T.
        acted: Questions acted on.
        held: The others.
        wrong: Acted on although gold is another option.
        action_rate: Share of decided questions acted on.
        precision: Share of acted-on questions with gold where acting is right.
        recall: Share of questions whose gold is the option that are acted on.
        error_rate: Share of questions with gold that are acted on wrongly.
    """

    threshold: float
    acted: int
    held: int
    wrong: int
    action_rate: Metric
    precision: Metric
    recall: Metric
    error_rate: Metric


@dataclass(frozen=True, slots=True)
class ThresholdResult:
    """The chosen threshold and what it does.

    Attributes:
        rule: What was asked.
        chosen: The candidate's threshold, or None where none keeps what was asked.
        baseline_threshold: The baseline's: the rule's, or the one that reaches the target.
        kept: On the choosing part: the baseline's figure, and the candidate's at its threshold.
        choosing: Questions of the choosing part.
        judging: Questions of the judging part.
        before: The baseline at its threshold.
        same: The candidate at the baseline's threshold.
        after: The candidate at its own, or None.
        differences: Candidate at its own threshold (or else the same) minus baseline, paired:
            `action_rate`, `recall`, `error_rate`.
    """

    rule: ThresholdRule
    chosen: float | None
    baseline_threshold: float
    kept: tuple[float, float | None]
    choosing: int
    judging: int
    before: Acting
    same: Acting
    after: Acting | None
    differences: Mapping[str, Metric]


def decided(pairs: PairedSet, rule: ThresholdRule) -> Decided:
    """The questions that a rule is about, with both models' p(option).

    Raises:
        InputError: No question matches, none has the option, or none with gold has it where gold
            is needed.
    """
    named = matching(pairs, rule.questions)
    if not bool(named.any()):
        ids = sorted({str(name) for name in pairs.question_ids})
        raise InputError(
            f"no question id matches {rule.questions!r}.",
            fix=f"the set has {', '.join(ids[:8])}{', …' if len(ids) > 8 else ''}.",
        )
    option = option_places(pairs, rule.option)
    domain = named & (option >= 0)
    if not bool(domain.any()):
        raise InputError(
            f"no question of {rule.questions!r} has an option {rule.option!r}.",
            fix=f"such a question has {', '.join(pairs.options(int(np.flatnonzero(named)[0])))}.",
        )
    has_gold = domain & (pairs.gold >= 0)
    if rule.keep != "action-rate" and not bool(has_gold.any()):
        raise InputError(
            f"--keep {rule.keep} needs gold, and no question of {rule.questions!r} has any.",
            fix="use --keep action-rate, or add gold to the set.",
        )
    at = np.maximum(option, 0)
    first, second = (
        np.where(domain & ~side.failed, np.exp(side.logprobs[at]), np.nan)
        for side in (pairs.baseline, pairs.candidate)
    )
    return Decided(domain, first, second, has_gold, has_gold & (pairs.gold == option))


def choosing_part(pairs: PairedSet, share: float) -> BoolArray:
    """The records on which thresholds are chosen, as their questions, bool [n].

    A record belongs to it by the SHA-256 of its id alone, so that nobody picks, and the same record
    lies on the same side in every set and on every machine.

    Args:
        pairs: The set.
        share: About which share of the records to choose on, 0 < share < 1.
    """
    parts = [
        int.from_bytes(hashlib.sha256(f"threshold\0{name}".encode()).digest()[:8], "big") / 2**64
        for name in pairs.record_ids
    ]
    return np.asarray(np.array(parts) < share, dtype=np.bool_)[pairs.record_index]


def threshold_result(
    pairs: PairedSet, rule: ThresholdRule, share: float, sampling: Sampling, confidence: float
) -> ThresholdResult:
    """Chooses the candidate's threshold on one part and judges it on the other.

    Args:
        pairs: Both models' answers.
        rule: What is asked.
        share: Share of the records to choose on.
        sampling: How the percentile intervals are resampled.
        confidence: Two-sided confidence of the intervals.

    Raises:
        InputError: Nothing to decide on, or a part without a question to choose or judge by.
    """
    questions = decided(pairs, rule)
    choosing = choosing_part(pairs, share) & questions.domain
    judging = questions.domain & ~choosing
    for part, word in ((choosing, "choose"), (judging, "judge")):
        if not bool(part.any()):
            raise InputError(
                f"no question is left to {word} on: {int(questions.domain.sum())} match in all.",
                fix="use a larger set, or another --choose-on share.",
            )
    first = rule.threshold
    if rule.target is not None:
        found = threshold_for(questions, questions.baseline, choosing, "precision", rule.target)
        if found is None:
            raise InputError(
                f"the baseline reaches a precision of {rule.target:g} at no threshold on the "
                "records to choose on.",
                fix="ask for a lower --precision.",
            )
        first = found
    before = achieved(questions, questions.baseline, choosing, rule.keep, first)
    goal = before if rule.target is None else rule.target
    chosen = threshold_for(questions, questions.candidate, choosing, rule.keep, goal)
    reached = None
    if chosen is not None:
        reached = achieved(questions, questions.candidate, choosing, rule.keep, chosen)
    judge = _Judge(pairs, questions, judging, sampling, confidence)
    last = first if chosen is None else chosen
    return ThresholdResult(
        rule=rule,
        chosen=chosen,
        baseline_threshold=first,
        kept=(before, reached),
        choosing=int(choosing.sum()),
        judging=int(judging.sum()),
        before=judge.acting(questions.baseline, first),
        same=judge.acting(questions.candidate, first),
        after=None if chosen is None else judge.acting(questions.candidate, chosen),
        differences=judge.differences((questions.baseline, first), (questions.candidate, last)),
    )


def acts(probability: FloatArray, threshold: float) -> BoolArray:
    """Where a model acts; a failed answer (NaN) reaches no threshold."""
    return np.asarray(probability >= threshold - EDGE, dtype=np.bool_)


def achieved(
    questions: Decided, probability: FloatArray, part: BoolArray, keep: Keep, threshold: float
) -> float:
    """A model's precision, recall or action rate at a threshold, on one part.

    Raises:
        InputError: The figure does not exist there: nothing is acted on, or nothing is to find.
    """
    acting = acts(probability, threshold) & part
    if keep == "action-rate":
        return float(acting.sum() / part.sum())
    domain = questions.has_gold & part & (acting if keep == "precision" else questions.right)
    if not bool(domain.any()):
        what = "acts on nothing" if keep == "precision" else "has nothing to find"
        raise InputError(
            f"at {threshold:g} the baseline {what} among the records to choose on.",
            fix="use a larger set, a lower --at, or --keep action-rate.",
        )
    hits = questions.right if keep == "precision" else acting
    return float((hits & domain).sum() / domain.sum())


def threshold_for(
    questions: Decided, probability: FloatArray, part: BoolArray, keep: Keep, goal: float
) -> float | None:
    """The threshold at which a model keeps a goal on one part and otherwise acts most surely.

    For precision, the lowest threshold that has at least the goal: the most is acted on. For recall
    and action rate, the highest that has at least the goal: no more is acted on than needed.

    Returns:
        The threshold, or None where no threshold has the goal.
    """
    counted = part & np.isfinite(probability)
    if keep != "action-rate":
        counted &= questions.has_gold
    order = np.argsort(-probability[counted], kind="stable")
    sorted_p = probability[counted][order]
    right = questions.right[counted][order].astype(np.float64)
    if not len(sorted_p):
        return None
    taken = np.arange(1, len(sorted_p) + 1)
    if keep == "precision":
        reached = np.cumsum(right) / taken
    elif keep == "recall":
        reached = np.cumsum(right) / max(1.0, float((questions.right & part).sum()))
    else:
        reached = taken / part.sum()
    # equal probabilities are acted on together
    last = np.append(sorted_p[1:] < sorted_p[:-1] - 2 * EDGE, True)
    good = np.flatnonzero(last & (reached >= goal - EDGE))
    if not len(good):
        return None
    at = int(good[-1] if keep == "precision" else good[0])
    below = float(sorted_p[at + 1]) if at + 1 < len(sorted_p) else 0.0
    return _between(below, float(sorted_p[at]))


def _between(below: float, above: float) -> float:
    """A short number above `below` and at most `above`, the middle where it has to be exact."""
    middle = (below + above) / 2
    short = round(middle, _DECIMALS)
    return short if below + EDGE < short <= above else middle


class _Judge:
    """Figures on the judging part."""

    def __init__(
        self,
        pairs: PairedSet,
        questions: Decided,
        part: BoolArray,
        sampling: Sampling,
        confidence: float,
    ) -> None:
        self.records = pairs.record_index
        self.questions = questions
        self.part = part
        self.sampling = sampling
        self.confidence = confidence

    def acting(self, probability: FloatArray, threshold: float) -> Acting:
        """What a model does at a threshold."""
        questions, acting = self.questions, acts(probability, threshold) & self.part
        wrong = acting & questions.has_gold & ~questions.right
        figures = self._figures(
            self._share("action_rate", acting, self.part),
            self._share("precision", questions.right, acting & questions.has_gold),
            self._share("recall", acting, questions.right & self.part),
            self._share("error_rate", wrong, questions.has_gold & self.part),
        )
        acted = int(acting.sum())
        held, wrongly = int(self.part.sum()) - acted, int(wrong.sum())
        return Acting(threshold, acted, held, wrongly, *figures)

    def differences(
        self, before: tuple[FloatArray, float], after: tuple[FloatArray, float]
    ) -> dict[str, Metric]:
        """Candidate minus baseline, question by question."""
        questions = self.questions
        first, second = (acts(*side) & self.part for side in (before, after))
        wrong = questions.has_gold & ~questions.right
        rows = {
            "action_rate": (first, second, self.part),
            "recall": (first, second, questions.right & self.part),
            "error_rate": (first & wrong, second & wrong, questions.has_gold & self.part),
        }
        found = self._figures(
            *(
                Measure(
                    name,
                    PAIRED,
                    last.astype(np.float64) - old.astype(np.float64),
                    domain,
                    "difference",
                    limits=(-1, 1),
                )
                for name, (old, last, domain) in rows.items()
            )
        )
        return dict(zip(rows, found, strict=True))

    def _share(self, name: str, value: BoolArray, domain: BoolArray) -> Measure:
        return Measure(name, SHARE, value.astype(np.float64), domain, "share", limits=(0, 1))

    def _figures(self, *measures: Measure) -> list[Metric]:
        waiting: list[Pending] = [
            pending_figure(measure, indices(None, measure.domain), self.records, self.confidence)
            for measure in measures
        ]
        return resolve(waiting, self.sampling)
