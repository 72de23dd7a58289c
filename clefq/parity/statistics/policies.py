"""Decision policies: what a threshold rule of the user would do differently.

A policy acts on a question when p(option) reaches its threshold, and holds otherwise; a question
without a valid answer is held. Only the changed decisions cost something.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Protocol

import numpy as np

from clefq.parity.statistics.arrays import BoolArray, FloatArray, IntArray
from clefq.parity.statistics.divergences import EDGE, QuestionValues
from clefq.parity.statistics.measures import MEAN, SHARE, Measure
from clefq.parity.statistics.pairs import PairedSet, PairedSide

PER_DECISIONS = 10_000
PREFIXES = (
    "policy_changes@",
    "policy_act_to_hold@",
    "policy_hold_to_act@",
    "policy_new_errors@",
    "policy_cost@",
)


class Policy(Protocol):
    """A decision rule.

    Attributes:
        name: Names its metrics, for example `policy_cost@NAME`.
        questions: Pattern of question ids, with `*` and `?`.
        option: The option id whose probability is compared.
        threshold: Act at or above it.
        cost_act_to_hold: Cost of one decision that changes from act to hold.
        cost_hold_to_act: Cost of one decision that changes from hold to act.
        candidate_threshold: The candidate acts at or above this instead; None for the same.
    """

    @property
    def name(self) -> str: ...  # noqa: D102
    @property
    def questions(self) -> str: ...  # noqa: D102
    @property
    def option(self) -> str: ...  # noqa: D102
    @property
    def threshold(self) -> float: ...  # noqa: D102
    @property
    def cost_act_to_hold(self) -> float: ...  # noqa: D102
    @property
    def cost_hold_to_act(self) -> float: ...  # noqa: D102
    @property
    def candidate_threshold(self) -> float | None: ...  # noqa: D102


@dataclass(frozen=True, slots=True)
class Decisions:
    """What both models would do under a policy.

    Attributes:
        domain: Questions that it decides, bool [n].
        before: Whether the baseline acts, bool [n].
        after: Whether the candidate acts, bool [n].
        wrong: Whether acting is wrong (gold is another option), bool [n]; False without gold.
    """

    domain: BoolArray
    before: BoolArray
    after: BoolArray
    wrong: BoolArray


def decide(pairs: PairedSet, policy: Policy) -> Decisions:
    """Applies a policy to both models' answers.

    It decides the questions whose id matches and that have its option; none where a side knows
    no probabilities.
    """
    option = option_places(pairs, policy.option)
    domain = matching(pairs, policy.questions) & (option >= 0) & (not pairs.by_label)
    has_gold = pairs.gold >= 0
    own = policy.candidate_threshold
    return Decisions(
        domain=domain,
        before=domain & _acts(pairs.baseline, option, policy.threshold),
        after=domain & _acts(pairs.candidate, option, policy.threshold if own is None else own),
        wrong=domain & has_gold & (pairs.gold != option),
    )


def policy_measures(pairs: PairedSet, values: QuestionValues, policy: Policy) -> dict[str, Measure]:
    """The ratio metrics of one policy, by name."""
    return {measure.name: measure for measure in _measures(values, decide(pairs, policy), policy)}


def _measures(values: QuestionValues, decisions: Decisions, policy: Policy) -> Iterator[Measure]:
    domain = decisions.domain
    stopped = decisions.before & ~decisions.after
    started = decisions.after & ~decisions.before
    errors = (started & decisions.wrong).astype(np.float64)
    cost = PER_DECISIONS * (policy.cost_act_to_hold * stopped + policy.cost_hold_to_act * started)
    shares: tuple[tuple[str, FloatArray, BoolArray], ...] = (
        ("policy_changes@", (stopped | started).astype(np.float64), domain),
        ("policy_act_to_hold@", stopped.astype(np.float64), domain),
        ("policy_hold_to_act@", started.astype(np.float64), domain),
        ("policy_new_errors@", errors, domain & values.has_gold),
    )
    for prefix, value, where in shares:
        yield Measure(f"{prefix}{policy.name}", SHARE, value, where, "share", limits=(0, 1))
    yield Measure(
        f"policy_cost@{policy.name}",
        MEAN,
        cost.astype(np.float64),
        domain,
        "cost per 10,000 decisions",
        limits=(0, PER_DECISIONS * max(policy.cost_act_to_hold, policy.cost_hold_to_act)),
        rare=True,
    )


def matching(pairs: PairedSet, pattern: str) -> BoolArray:
    """Questions whose id matches a pattern with `*` and `?`, bool [n]."""
    ids = np.unique(pairs.question_ids.astype(str))
    found = {name for name in ids if fnmatchcase(name, pattern)}
    return np.array([name in found for name in pairs.question_ids], dtype=np.bool_)


def option_places(pairs: PairedSet, name: str) -> IntArray:
    """Flat index of an option in each question, −1 where there is none, int64 [n]."""
    result = np.full(pairs.n_questions, -1, dtype=np.int64)
    for code in np.flatnonzero(pairs.option_names == name):
        flat = np.flatnonzero(pairs.option_code == code)
        result[np.searchsorted(pairs.option_start, flat, side="right") - 1] = flat
    return result


def _acts(side: PairedSide, option: IntArray, threshold: float) -> BoolArray:
    probability = np.exp(side.logprobs[np.maximum(option, 0)])
    # a failed answer is NaN, which reaches no threshold
    return np.asarray(probability >= threshold - EDGE, dtype=np.bool_)
