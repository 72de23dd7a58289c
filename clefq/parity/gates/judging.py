"""Judges gates: one figure with its bound against one limit gives one status.

Non-inferiority: the whole one-sided interval on the good side of the limit is `pass`, on the bad
side `fail`, anything else `inconclusive`. Too little data is `not_gated`, never a guess. Pure:
figures come through a `FigureSource`, from predictions or from a stored report alike.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import NormalDist
from typing import Any, Protocol

from clefq.parity.gates.planning import design_effect, questions_for_floor
from clefq.parity.gates.schema import MIN_RECORDS_KL, Gate, GateFile
from clefq.parity.statistics.metric import AT_LEAST, OVERALL, Metric
from clefq.parity.statistics.slices import GOLD
from clefq.store.reading import Count, Stored

PASS, FAIL, INCONCLUSIVE, NOT_GATED = "pass", "fail", "inconclusive", "not_gated"
POWER = 0.8
MOST_QUESTIONS = 10_000_000
# means of values without a largest one: one record that the set lacks can outweigh all others
WITHOUT_UPPER_BOUND = ("kl", "nll_delta")
UNBOUNDED = "no upper bound of its mean holds at any size; total variation has one"
ROUNDED = "the source rounds probabilities, so the figure is only a lower limit"


@dataclass(frozen=True, slots=True)
class FigureQuery:
    """What a gate asks for.

    Attributes:
        metric: Metric name.
        slice: Slice name, or `overall`.
        confidence: Two-sided confidence of the interval.
        limit: The value that the bound will be compared with.
        reference: `baseline`, or `replicate` for the excess over the noise floor.
    """

    metric: str
    slice: str
    confidence: float
    limit: float
    reference: str


class FigureSource(Protocol):
    """Where figures come from."""

    def figure(self, query: FigureQuery) -> Metric | None:
        """The figure, or None where it cannot be had (`missing` says why)."""
        ...

    def missing(self, query: FigureQuery) -> str:
        """Why `figure` returned None, in a few words."""
        ...

    def slice_names(self, by: str) -> Sequence[str]:
        """Names of all slices of one key, for example `length=<2K`."""
        ...


@dataclass(frozen=True, slots=True)
class GateResult(Stored):
    """One judged gate: the JSON form of `gates` in `parity.json`.

    Attributes:
        name: The gate's name; with the slice in brackets where it covers several.
        metric: Metric name.
        slice: Slice name, or None for all questions.
        direction: `at_least` or `at_most`.
        margin: Tolerated loss, or None.
        bound: Floor or ceiling, or None.
        reference: `baseline` or `replicate`.
        confidence: One-sided confidence.
        status: `pass`, `fail`, `inconclusive` or `not_gated`.
        required: Whether it decides the verdict.
        reason: One clause that explains the status.
        estimate: The figure.
        lower: Lower bound at this gate's confidence.
        upper: Upper bound.
        n_questions: Questions it rests on.
        n_records: Records it rests on.
        questions_needed: Questions in all at which it would probably be decided (80% power, if
            the estimate stays), or None where that is moot or out of reach.
    """

    name: str
    metric: str
    slice: str | None
    direction: str
    margin: float | None
    bound: float | None
    reference: str
    confidence: float
    status: str
    required: bool
    reason: str
    estimate: float | None
    lower: float | None
    upper: float | None
    n_questions: Count
    n_records: Count
    questions_needed: int | None

    @property
    def limit(self) -> float:
        """The value that the deciding bound is compared with."""
        return limit_of(self.direction, self.margin, self.bound)

    def to_json(self) -> dict[str, Any]:
        """The JSON object of `parity.json`."""
        return asdict(self)


def limit_of(direction: str, margin: float | None, bound: float | None) -> float:
    """The limit on the figure: −margin or +margin for differences, the bound for levels."""
    if bound is not None:
        return bound
    assert margin is not None, "a gate has a margin or a bound"
    return -margin if direction == "at_least" else margin


def judge_gates(gates: GateFile, source: FigureSource) -> tuple[GateResult, ...]:
    """Judges every gate of a file, slices expanded, in the file's order."""
    return tuple(result for gate in gates.at_each_look for result in judge_gate(gate, source))


def judge_gate(gate: Gate, source: FigureSource) -> Iterator[GateResult]:
    """Judges one gate: one result, or one per slice where it names all slices of a key.

    With `*`, slices below the minimum are shown as not gated and do not count; where no slice
    reaches it, the gate as a whole is not gated, and a required one then counts.
    """
    if gate.slice is None:
        yield _judge(gate, OVERALL, source)
        return
    by, wanted = gate.slice.by, gate.slice.value
    several = wanted == "*" or (by == GOLD and wanted.endswith("/*"))
    if not several:
        yield _judge(gate, f"{by}={wanted}", source)
        return
    results = []
    for name in source.slice_names(by):
        if not name.startswith(f"{by}={wanted[:-1]}"):
            continue
        value = name.split("=", 1)[1]
        result = replace(_judge(gate, name, source), name=f"{gate.name}[{value}]")
        if result.status == NOT_GATED:
            result = replace(result, required=False)
        results.append(result)
    if not any(result.status != NOT_GATED for result in results):
        query = _query(gate, f"{by}={wanted}")
        yield _unjudged(gate, query, f"no {by} slice has {gate.min_n} questions")
    yield from results


def _query(gate: Gate, slice_name: str) -> FigureQuery:
    limit = limit_of(gate.direction, gate.margin, gate.bound)
    # A one-sided bound at confidence c is the end of a two-sided interval at 2c - 1.
    return FigureQuery(gate.metric, slice_name, 2 * gate.confidence - 1, limit, gate.reference)


def _judge(gate: Gate, slice_name: str, source: FigureSource) -> GateResult:
    query = _query(gate, slice_name)
    figure = source.figure(query)
    if figure is None:
        return _unjudged(gate, query, source.missing(query))
    empty = replace(
        _unjudged(gate, query, ""),
        estimate=figure.estimate,
        lower=figure.lower,
        upper=figure.upper,
        n_questions=figure.n_questions,
        n_records=figure.n_records,
    )
    short = _too_little(gate, figure)
    if short is not None:
        return replace(empty, reason=short[0], questions_needed=short[1])
    if figure.n_infinite:
        # an infinite excess may be the replicate's doing
        own = gate.metric == "kl" and gate.reference == "baseline"
        status = FAIL if own else INCONCLUSIVE
        return replace(empty, status=status, reason=f"infinite on {figure.n_infinite} questions")
    if figure.estimate is None or (figure.lower is None and figure.upper is None):
        reason = "no interval can be given, as where a few records hold most questions"
        return replace(empty, reason=reason)
    lower = -math.inf if figure.lower is None else figure.lower
    upper = math.inf if figure.upper is None else figure.upper
    status, reason = decide(gate.direction, query.limit, lower, upper)
    if status == PASS and figure.unit.startswith(AT_LEAST):
        return replace(empty, status=INCONCLUSIVE, reason=ROUNDED)
    if status != FAIL and gate.required and gate.metric in WITHOUT_UPPER_BOUND:
        return replace(empty, reason=UNBOUNDED)
    needed_n = questions_needed(figure, query.limit, gate.confidence)
    return replace(
        empty,
        status=status,
        reason=reason,
        questions_needed=needed_n if status == INCONCLUSIVE else None,
    )


def decide(direction: str, limit: float, lower: float, upper: float) -> tuple[str, str]:
    """Status and reason of an interval against a limit.

    Args:
        direction: `at_least` or `at_most`.
        limit: The limit.
        lower: Lower bound.
        upper: Upper bound.
    """
    if direction == "at_least":
        if lower >= limit:
            return PASS, "lower bound reaches the limit"
        if upper < limit:
            return FAIL, "upper bound is below the limit"
    else:
        if upper <= limit:
            return PASS, "upper bound stays within the limit"
        if lower > limit:
            return FAIL, "lower bound is above the limit"
    return INCONCLUSIVE, "the interval contains the limit"


def questions_needed(
    figure: Metric, limit: float, confidence: float, power: float = POWER
) -> int | None:
    """Questions in all at which an open gate would be decided: more than there are.

    See `deciding_size`.
    """
    found = deciding_size(figure, limit, confidence, power)
    return None if found is None else max(figure.n_questions + 1, found)


def deciding_size(
    figure: Metric, limit: float, confidence: float, power: float = POWER
) -> int | None:
    """Questions in all that decide with that power, if the estimate stays where it is.

    The half-width w towards the limit shrinks with the root of n, so n·(w/d)² for the distance d
    puts the bound on the limit (an even chance); ((z_a + z_b)/z_a)² adds the power. Where nothing
    happened at all (no flip, no answer gained or lost) a bound shrinks with n itself and there is
    no chance to allow for: the number is then the one of `questions_for_floor`, exactly.

    Returns:
        The number, rounded up to two significant digits where it rests on chance; None where the
        estimate lies so close to the limit that more than ten million would be needed.
    """
    if figure.estimate is None or figure.lower is None or figure.upper is None:
        return None
    without = _needed_without_event(figure, limit, confidence)
    if without is not None:
        return None if without > MOST_QUESTIONS else without
    distance = abs(figure.estimate - limit)
    towards = figure.lower if figure.estimate >= limit else figure.upper
    width = abs(figure.estimate - towards)
    if distance == 0:
        return None
    normal = NormalDist()
    z_a, z_b = normal.inv_cdf(confidence), normal.inv_cdf(power)
    needed = figure.n_questions * ((width / distance) * (z_a + z_b) / z_a) ** 2
    return None if needed > MOST_QUESTIONS else round_up(needed)


def _needed_without_event(figure: Metric, limit: float, confidence: float) -> int | None:
    """Questions at which a figure without a single event reaches its limit, else None."""
    assert figure.estimate is not None and figure.lower is not None and figure.upper is not None
    if figure.estimate == figure.lower == 0 and figure.unit not in ("share", ""):
        return math.ceil(figure.n_questions * figure.upper / limit) if limit > 0 else None
    if figure.estimate == figure.upper == 1 or figure.estimate == figure.lower == 0:
        floor = limit if figure.estimate == 1 else 1 - limit
        deff = design_effect(replace(figure, confidence=2 * confidence - 1))
        if deff is None or not 0 < floor < 1:
            return None
        return questions_for_floor(floor, 0, confidence, deff)
    if figure.estimate == 0 and 0 < figure.upper == -figure.lower and 0 < abs(limit) < 1:
        # Tango's bound is then z²/(m + z²) at the effective size m; with as many answers gained
        # as lost it is far wider than the records allow, and the root law holds
        z2 = NormalDist().inv_cdf(confidence) ** 2
        size, wanted = (z2 * (1 - bound) / bound for bound in (figure.upper, abs(limit)))
        if size > figure.n_records / 2:
            return math.ceil(figure.n_questions * wanted / size)
    return None


def round_up(value: float) -> int:
    """A count rounded up to two significant digits: plans are no more precise than that."""
    digits: int = 10 ** max(0, math.floor(math.log10(max(value, 1))) - 1)
    return math.ceil(value / digits) * digits


def _too_little(gate: Gate, figure: Metric) -> tuple[str, int | None] | None:
    """Why a figure rests on too little, and the questions in all that would be enough."""
    least = max(gate.min_records, MIN_RECORDS_KL if gate.metric == "kl" else 0)
    if figure.n_records >= least and figure.n_questions >= gate.min_n:
        return None
    if figure.n_records == 0:
        return "no question here", None
    by_records = figure.n_questions * least / figure.n_records
    needed = max(gate.min_n, math.ceil(by_records))
    if figure.n_questions < gate.min_n:
        return f"{figure.n_questions} questions, {gate.min_n} are needed", needed
    return f"{figure.n_records} records, {least} are needed", needed


def _unjudged(gate: Gate, query: FigureQuery, reason: str) -> GateResult:
    return GateResult(
        name=gate.name,
        metric=gate.metric,
        slice=None if query.slice == OVERALL else query.slice,
        direction=gate.direction,
        margin=gate.margin,
        bound=gate.bound,
        reference=gate.reference,
        confidence=gate.confidence,
        status=NOT_GATED,
        required=gate.required,
        reason=reason,
        estimate=None,
        lower=None,
        upper=None,
        n_questions=0,
        n_records=0,
        questions_needed=None,
    )


def leans_to_failure(result: GateResult) -> bool:
    """Whether an undecided gate's figure itself is on the wrong side of its limit."""
    if result.estimate is None or result.status != INCONCLUSIVE:
        return False
    if result.direction == "at_least":
        return result.estimate < result.limit
    return result.estimate > result.limit
