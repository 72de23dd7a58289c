"""Which of several candidates to take: paired differences between them, then size and speed.

Only candidates that pass are chosen from. One that is shown to lose accuracy against another is
out; among the rest, between which no difference is shown, the smallest is taken, then the fastest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import Any

from clefq.parity.gates.formatting import figure, gigabytes, interval
from clefq.parity.gates.judging import PASS
from clefq.parity.statistics.divergences import question_values
from clefq.parity.statistics.pair_statistics import PairStatistics, StatisticsSpec
from clefq.parity.statistics.pairs import PairingError, join
from clefq.store.predictions import Predictions
from clefq.store.reading import Count, Stored

CONFIDENCE = 0.95
ALIKE = 0.02  # sizes and speeds closer than this do not decide


@dataclass(frozen=True, slots=True)
class Duel(Stored):
    """Two candidates on the same questions.

    Attributes:
        one: The first.
        other: The second.
        estimate: Accuracy of the first minus the second's, as fraction; null without gold.
        lower: Its lower bound, so that all pairs hold at once with 95% (Bonferroni).
        upper: Its upper bound.
        gained: Questions that only the first has right.
        lost: Questions that only the second has right.
        changed: Questions that the two answer differently.
        n_questions: Questions with gold.
    """

    one: str
    other: str
    estimate: float | None
    lower: float | None
    upper: float | None
    gained: Count
    lost: Count
    changed: Count
    n_questions: Count

    @property
    def text(self) -> str:
        """The pair in one line."""
        found = f"{figure(self.estimate, signed=True)} "
        found += interval(self.lower, self.upper, signed=True)
        return (
            f"{self.one} − {self.other}: accuracy {found}, {self.gained:,} right answers more and "
            f"{self.lost:,} fewer, {self.changed:,} answers differ"
        )


@dataclass(frozen=True, slots=True)
class Choice(Stored):
    """What is recommended.

    Attributes:
        recommended: The variant, or null where nothing tells the candidates apart or none passes.
        reason: Why.
        pairs: Every pair of candidates.
    """

    recommended: str | None
    reason: str
    pairs: tuple[Duel, ...]

    def to_json(self) -> dict[str, Any]:
        """The JSON object of `summary.json`."""
        return asdict(self)


def duels(candidates: Sequence[Predictions], gate_file_sha256: str) -> tuple[Duel, ...]:
    """Every pair of candidates, question by question; files that contradict each other have none.

    Args:
        candidates: Their predictions on one set.
        gate_file_sha256: Makes the seed, as everywhere.
    """
    found = list(combinations(candidates, 2))
    level = 1 - (1 - CONFIDENCE) / max(1, len(found))
    spec = StatisticsSpec(gate_file_sha256=gate_file_sha256, confidence=level, slices=False)
    return tuple(duel for one, other in found for duel in _duel(one, other, spec))


def _duel(one: Predictions, other: Predictions, spec: StatisticsSpec) -> Iterator[Duel]:
    try:
        pairs = join(other, one)
    except PairingError:
        return
    values = question_values(pairs)
    metric = PairStatistics({}, {}, {}, pairs, values, spec).for_gate("accuracy_delta")
    assert metric is not None, "the whole set is a scope"
    first, second = values.candidate.correct, values.baseline.correct
    yield Duel(
        one=one.meta.variant,
        other=other.meta.variant,
        estimate=metric.estimate,
        lower=metric.lower,
        upper=metric.upper,
        gained=int((values.has_gold & first & ~second).sum()),
        lost=int((values.has_gold & second & ~first).sum()),
        changed=int((~values.agree).sum()),
        n_questions=metric.n_questions,
    )


def choose(
    words: Mapping[str, str],
    pairs: Sequence[Duel],
    sizes: Mapping[str, int],
    speeds: Mapping[str, float],
) -> Choice:
    """The recommendation and its reason.

    Args:
        words: Variant → verdict of every candidate.
        pairs: Every pair of them.
        sizes: Variant → bytes, where known.
        speeds: Variant → speed in one unit, where measured.
    """
    found = tuple(pairs)
    passing = [name for name, word in words.items() if word == PASS]
    if len(passing) < 2:
        only = passing[0] if passing else None
        return Choice(only, "it alone passes" if only else "no candidate passes", found)
    beaten = {name: by for pair in pairs for name, by in _loser(pair) if by in passing}
    rest = [name for name in passing if name not in beaten]
    out = [f"{name} is shown to be less accurate than {beaten[name]}" for name in beaten]
    out = [text for text in out if text.split(" ", 1)[0] in passing]
    if len(rest) == 1:
        return Choice(rest[0], "; ".join(out), found)
    same = f"no difference in accuracy is shown between {', '.join(rest)}"
    small = _first(rest, {name: float(sizes[name]) for name in rest if name in sizes})
    if small is not None:
        why = f"the smallest, {gigabytes(sizes[small])}"
        return Choice(small, "; ".join([*out, same, why]), found)
    fast = _first(rest, {name: -speeds[name] for name in rest if name in speeds})
    if fast is not None:
        return Choice(fast, "; ".join([*out, same, "the fastest"]), found)
    return Choice(None, "; ".join([*out, same, "nor in size or speed, where known"]), found)


def _loser(pair: Duel) -> Iterator[tuple[str, str]]:
    """Who is shown to be less accurate than whom."""
    if pair.upper is not None and pair.upper < 0:
        yield pair.one, pair.other
    if pair.lower is not None and pair.lower > 0:
        yield pair.other, pair.one


def _first(names: Sequence[str], values: Mapping[str, float]) -> str | None:
    """The one with the clearly smallest value; None where one is unknown or two are alike."""
    if len(values) < len(names):
        return None
    best, second = sorted(names, key=lambda name: values[name])[:2]
    clear = values[second] - values[best] > ALIKE * abs(values[best])
    return best if clear else None
