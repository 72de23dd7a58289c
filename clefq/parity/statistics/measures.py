"""The ratio metrics: for each a numerator and a domain per question, and how its bounds are found.

Failed questions are never dropped: they count against `coverage`, as disagreements, as threshold
flips and as wrong answers. Distances and score differences exist only where both models answered.
What takes a probability has no question where one side knows only the chosen options.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from clefq.errors import InputError
from clefq.parity.statistics.arrays import BoolArray, FloatArray
from clefq.parity.statistics.coherence import by_name, moved
from clefq.parity.statistics.divergences import EDGE, QuestionValues
from clefq.parity.statistics.metric import AT_LEAST
from clefq.parity.statistics.pairs import PairedSet

CONFIDENT_MARGIN = 0.5
FLIPS_PREFIX = "threshold_flips@"
# how the names of figures about variants of records begin
COHERENCE = ("coherence_tv_", "coherence_flips_", "state_use_")
SHARE, PAIRED, MEAN = "share", "paired", "mean"


@dataclass(frozen=True, slots=True)
class Measure:
    """A ratio metric per question.

    Attributes:
        name: Metric name.
        kind: `share` (0 or 1 per question), `paired` (−1, 0 or 1) or `mean`.
        value: Numerator, float64 [n]; anything outside the domain.
        domain: Questions it is about, bool [n].
        unit: Unit of the figure.
        pessimistic: The numerator at the bad end of the tie bracket, float64 [n], where ties can
            change it.
        limits: The range that values cannot leave.
        rare: Values are zero but for rare events, so that a sample without one says little: its
            bounds are then those of a share without an event, times the limits. Needs finite
            limits.
        whole_records: The values are about records: each lies at one question of its record, and
            a scope holds the records whose questions with gold all lie in it.
    """

    name: str
    kind: str
    value: FloatArray
    domain: BoolArray
    unit: str
    pessimistic: FloatArray | None = None
    limits: tuple[float, float] = (-np.inf, np.inf)
    rare: bool = False
    whole_records: bool = False


def measures(
    pairs: PairedSet, values: QuestionValues, thresholds: tuple[float, ...]
) -> dict[str, Measure]:
    """Every ratio metric of a paired set, by name."""
    found = (
        *_answers(values),
        *_records(pairs, values),
        *_distances(pairs, values),
        *_flips(pairs, values, thresholds),
        *_coherence(pairs),
    )
    return {measure.name: measure for measure in found}


def find_measure(
    pairs: PairedSet, values: QuestionValues, name: str, thresholds: tuple[float, ...]
) -> Measure:
    """One ratio metric; `threshold_flips@T` for any T in [0, 1], declared or not.

    Raises:
        InputError: No ratio metric has this name.
    """
    if name.startswith(FLIPS_PREFIX):
        try:
            thresholds = (float(name.removeprefix(FLIPS_PREFIX)),)
        except ValueError as error:
            raise InputError(f"{name} does not end in a threshold.") from error
        name = f"{FLIPS_PREFIX}{thresholds[0]:g}"
    found = measures(pairs, values, thresholds)
    if name not in found:
        found = {known: found[known] for known in found if not known.startswith(COHERENCE)}
        raise InputError(f"no gate can be set on {name}.", fix=f"choose from {', '.join(found)}.")
    return found[name]


def _answers(values: QuestionValues) -> Iterator[Measure]:
    everything = np.ones(len(values.valid), dtype=np.bool_)
    agree, surely = values.agree.astype(np.float64), values.agree_surely.astype(np.float64)
    before = values.baseline.correct.astype(np.float64)
    after = values.candidate.correct.astype(np.float64)
    worst = values.gained_surely.astype(np.float64) - values.lost_possibly.astype(np.float64)
    gold = values.has_gold
    confident = values.baseline.valid & (values.baseline.margin >= CONFIDENT_MARGIN - EDGE)
    covered = values.valid.astype(np.float64)
    yield Measure("coverage", SHARE, covered, everything, "share", limits=(0, 1))
    yield Measure("agreement", SHARE, agree, everything, "share", surely, (0, 1))
    yield Measure("confident_agreement", SHARE, agree, confident, "share", surely, (0, 1))
    yield Measure("accuracy_baseline", SHARE, before, gold, "share", limits=(0, 1))
    right_surely = np.where(values.candidate.tied, 0.0, after)
    yield Measure("accuracy_candidate", SHARE, after, gold, "share", right_surely, (0, 1))
    yield Measure("accuracy_delta", PAIRED, after - before, gold, "difference", worst, (-1, 1))


def _records(pairs: PairedSet, values: QuestionValues) -> Iterator[Measure]:
    """Whether all questions of a record are right: a record without gold has no such value."""
    gold = values.has_gold
    starts = pairs.record_start[:-1]

    def every(right: BoolArray) -> BoolArray:
        return np.logical_and.reduceat(right | ~gold, starts)

    def some(event: BoolArray) -> BoolArray:
        return np.logical_or.reduceat(event & gold, starts)

    place = np.flatnonzero(gold)
    place = place[np.diff(pairs.record_index[place], prepend=-1) != 0]
    domain = np.zeros(len(gold), dtype=np.bool_)
    domain[place] = True

    def measure(name: str, kind: str, value: FloatArray, worst: FloatArray | None) -> Measure:
        at = pairs.record_index
        pessimistic = None if worst is None else worst[at]
        unit, low = ("difference", -1) if kind == PAIRED else ("share", 0)
        return Measure(
            name, kind, value[at], domain, unit, pessimistic, (low, 1), whole_records=True
        )

    surely = values.candidate.correct & ~values.candidate.tied
    before = every(values.baseline.correct).astype(np.float64)
    after = every(values.candidate.correct).astype(np.float64)
    after_surely = every(surely).astype(np.float64)
    yield measure("record_exact_baseline", SHARE, before, None)
    yield measure("record_exact_candidate", SHARE, after, after_surely)
    # in the worst order of the options: the baseline all right wherever it may be, the candidate
    # never where it may not; questions are ordered independently of each other
    lost = every(values.right_possibly) & some(values.lost_possibly)
    gained = every(surely) & some(values.gained_surely)
    worst = gained.astype(np.float64) - lost.astype(np.float64)
    yield measure("record_exact_delta", PAIRED, after - before, worst)


def _distances(pairs: PairedSet, values: QuestionValues) -> Iterator[Measure]:
    before, after, valid = values.baseline, values.candidate, values.measured
    both_gold = valid & values.has_gold
    score = valid & np.asarray(pairs.question_type == "score", dtype=np.bool_)
    rounded = [
        side.meta.probability_quantum is not None for side in (pairs.baseline, pairs.candidate)
    ]
    with np.errstate(invalid="ignore"):
        nll = after.nll - before.nll
    # what a source rounds to zero is missing from either side of KL, and from the candidate's NLL
    kl_unit, nll_unit = (
        f"{AT_LEAST} nats" if hidden else "nats" for hidden in (any(rounded), rounded[1])
    )
    yield Measure("kl", MEAN, values.kl, valid, kl_unit, limits=(0, np.inf))
    yield Measure("tv", MEAN, values.tv, valid, "share", limits=(0, 1))
    yield Measure("js", MEAN, values.js, valid, "nats", limits=(0, float(np.log(2))))
    brier = after.brier - before.brier
    yield Measure("brier_delta", MEAN, brier, both_gold, "difference", limits=(-2, 2))
    yield Measure("nll_delta", MEAN, nll, both_gold, nll_unit)
    shift = np.abs(after.expected - before.expected)
    levels = float(pairs.option_counts[score].max() - 1) if bool(score.any()) else np.inf
    yield Measure("score_mae", MEAN, shift, score, "levels", limits=(0, levels))


def _flips(
    pairs: PairedSet, values: QuestionValues, thresholds: tuple[float, ...]
) -> Iterator[Measure]:
    noul = np.asarray(pairs.question_type == "noul", dtype=np.bool_)
    if pairs.by_label:
        noul = np.zeros_like(noul)
    for threshold in thresholds:
        before = values.baseline.p_true >= threshold - EDGE
        after = values.candidate.p_true >= threshold - EDGE
        flipped = (~values.valid | (before != after)).astype(np.float64)
        name = f"{FLIPS_PREFIX}{threshold:g}"
        yield Measure(name, SHARE, flipped, noul, "share", limits=(0, 1))


def _coherence(pairs: PairedSet) -> Iterator[Measure]:
    for name, transform, found in by_name(moved(pairs)):
        measured = found.domain & (not pairs.by_label)
        if transform is not None and transform.asks == "without the state":
            yield from _levels("state_use_{}", measured, found.tv)
            continue
        yield from _levels("coherence_tv_{}@" + name, measured, found.tv)
        yield from _levels("coherence_flips_{}@" + name, found.domain, found.flipped)


def _levels(
    name: str, domain: BoolArray, values: tuple[FloatArray, FloatArray]
) -> Iterator[Measure]:
    """A figure of both models, and the difference."""
    before, after = values
    # whether an answer flips is 0 or 1, but for the mean over several variants
    events = all(bool(np.isin(side, (0.0, 1.0)).all()) for side in values) and "flips" in name
    level, paired = (SHARE, PAIRED) if events else (MEAN, MEAN)
    yield Measure(name.format("baseline"), level, before, domain, "share", limits=(0, 1))
    yield Measure(name.format("candidate"), level, after, domain, "share", limits=(0, 1))
    yield Measure(
        name.format("delta"), paired, after - before, domain, "difference", limits=(-1, 1)
    )
