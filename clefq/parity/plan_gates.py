"""How many questions the gates of a file need: from assumptions, or from an earlier report."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from clefq.errors import InputError
from clefq.parity.gates.judging import (
    GateResult,
    deciding_size,
    judge_gate,
    leans_to_failure,
    limit_of,
    round_up,
)
from clefq.parity.gates.planning import (
    DifferencePlan,
    design_effect,
    detectable_difference,
    flips_allowed,
    questions_for_floor,
    questions_for_power,
)
from clefq.parity.gates.schema import Gate, GateFile
from clefq.parity.rejudge import StoredSource
from clefq.parity.statistics.metric import Metric
from clefq.parity.statistics.metric_facts import find_facts

DISCORDANCE = 0.057
FLIPS = (0, 1, 2, 3)
SHARES = ("agreement", "confident_agreement")


@dataclass(frozen=True, slots=True)
class Assumptions:
    """What a plan rests on.

    Attributes:
        discordance: Share of questions that exactly one model has right.
        difference: True accuracy difference, candidate − baseline.
        deff: Design effect of the questions of one record.
        power: Probability of a decision if the assumptions hold.
        questions: Questions of the present set, or None.
        source: Where they come from: `assumed`, or the report's path.
    """

    discordance: float = DISCORDANCE
    difference: float = 0.0
    deff: float = 1.0
    power: float = 0.8
    questions: int | None = None
    source: str = "assumed"


@dataclass(frozen=True, slots=True)
class PlanRow:
    """What one gate needs.

    Attributes:
        gate: Name of the gate, with its slice.
        metric: Metric name.
        limit: The limit on the figure.
        needed: The fewest questions of this gate's domain that decide it with the wanted power, or
            None where it cannot be said. Of a gate that is decided now, never more than there are.
        have: Questions of the present set in this gate's domain, or None.
        decided: Whether the present set decides it; None without one.
        note: What that means, in words.
        required: Whether the gate decides the verdict.
        failing: Whether it fails, or its figure is on the wrong side of its limit.
    """

    gate: str
    metric: str
    limit: float
    needed: int | None
    have: int | None
    decided: bool | None
    note: str
    required: bool = True
    failing: bool = False

    def to_json(self) -> dict[str, Any]:
        """The JSON object."""
        return asdict(self)


def assumptions_of(document: Mapping[str, Any], power: float, source: str) -> Assumptions:
    """Discordance, difference and design effect as a report found them.

    Args:
        document: A `parity.json` value.
        power: Wanted power.
        source: The report's path.

    Raises:
        InputError: The report has no figures (its comparison was invalid).
    """
    metrics = document["metrics"]
    if "agreement" not in metrics:
        raise InputError(
            f"{source} holds no figures to plan from.", fix="give assumptions instead."
        )
    delta = metrics["accuracy_delta"]
    n = delta["n_questions"]
    changed = document["flips"]["gained"] + document["flips"]["lost"]
    # Without a single discordant answer the rule of three bounds the discordance.
    discordance = max(changed, 3) / n if n else DISCORDANCE
    agreement = Metric.from_json(metrics["agreement"])
    return Assumptions(
        discordance=min(discordance, 0.99),
        difference=delta["estimate"] or 0.0,
        deff=design_effect(agreement) or 1.0,
        power=power,
        questions=agreement.n_questions,
        source=source,
    )


def plan_from_report(
    gates: GateFile, document: Mapping[str, Any], power: float
) -> Iterator[PlanRow]:
    """One row per gate and slice, from the figures of a report.

    Args:
        gates: The gates to plan for; not necessarily those of the report.
        document: A `parity.json` value.
        power: Wanted power.
    """
    source = StoredSource(document)
    for gate in gates.at_each_look:
        for result in judge_gate(gate, source):
            yield _row_of_result(gate, result, power)


def _row_of_result(gate: Gate, result: GateResult, power: float) -> PlanRow:
    decided = result.status in ("pass", "fail")
    needed = _fewest(gate, result, power)
    if decided:
        # what decides at this size is decided, whatever a fresh set of it would do
        needed = result.n_questions if needed is None else min(needed, result.n_questions)
    note = {
        "pass": "passes now",
        "fail": "fails now",
        "inconclusive": "open" if needed else "no size decides it: " + result.reason,
        "not_gated": "too few" if result.n_questions else result.reason,
    }[result.status]
    return PlanRow(
        gate=result.name,
        metric=gate.metric,
        limit=result.limit,
        needed=needed,
        have=result.n_questions,
        decided=decided,
        note=note,
        required=result.required,
        failing=result.status == "fail" or leans_to_failure(result),
    )


def _fewest(gate: Gate, result: GateResult, power: float) -> int | None:
    """The fewest questions of a gate's domain that decide it, its minima included."""
    needed: int | None = None
    if result.estimate is not None and result.lower is not None and result.upper is not None:
        figure = Metric(
            result.estimate, result.lower, result.upper, 2 * gate.confidence - 1, "stored",
            None, result.n_questions, result.n_records, 0, _unit_of(result),
        )  # fmt: skip
        needed = deciding_size(figure, result.limit, gate.confidence, power)
    if needed is not None and result.status == "inconclusive":
        needed = max(needed, result.n_questions + 1)
    if result.status == "not_gated":
        return max(needed or 0, result.questions_needed or 0, gate.min_n)
    return None if needed is None else max(needed, gate.min_n)


def smallest_set(rows: Iterable[PlanRow], total: int) -> int | None:
    """Questions of a set in all that decides the verdict, in the proportions of the present one.

    A pass needs every required gate, one that fails is enough for a failure: the verdict's own
    advice is counted likewise.

    Args:
        rows: The plan from a report.
        total: Questions of the present set.

    Returns:
        The number; None where a required gate has no number, or there is none.
    """
    required = [row for row in rows if row.required]
    failing = [row for row in required if row.failing]
    shares = [
        row.needed / row.have if row.needed and row.have else None for row in failing or required
    ]
    known = [share for share in shares if share is not None]
    if not known or len(known) < len(shares):
        return None
    share = min(known) if failing else max(known)
    if share > 1:
        return total + round_up(total * (share - 1))
    return min(total, round_up(total * share))


def _unit_of(result: GateResult) -> str:
    facts = find_facts(result.metric)
    share = facts is not None and facts.unit == "fraction" and result.margin is None
    return "share" if share else ""


def plan_from_assumptions(
    gates: GateFile, assumed: Assumptions, document: Mapping[str, Any] | None = None
) -> Iterator[PlanRow]:
    """One row per gate from assumptions alone; floors give a row per number of flips.

    Args:
        gates: The gates to plan for.
        assumed: The assumptions.
        document: A `parity.json` value, from which gates are planned that no assumption is about.
    """
    for gate in gates.at_each_look:
        limit = limit_of(gate.direction, gate.margin, gate.bound)
        whole = gate.slice is None and gate.reference == "baseline"
        if document is not None and not (whole and _about(gate)):
            yield from plan_from_report(replace(gates, gates=(gate,)), document, assumed.power)
        elif gate.metric == "accuracy_delta" and gate.margin is not None:
            yield _difference_row(gate, limit, assumed)
        elif gate.metric in SHARES and gate.bound is not None:
            yield from _floor_rows(gate, limit, assumed)
        else:
            note = "cannot be planned without a report"
            yield PlanRow(gate.name, gate.metric, limit, None, None, None, note)


def _about(gate: Gate) -> bool:
    """Whether the assumptions say something of a gate's figure."""
    if gate.margin is not None:
        return gate.metric == "accuracy_delta"
    return gate.metric in SHARES


def _difference_row(gate: Gate, limit: float, assumed: Assumptions) -> PlanRow:
    assert gate.margin is not None, "a difference gate has a margin"
    plan = DifferencePlan(
        assumed.discordance,
        assumed.difference,
        gate.margin,
        gate.confidence,
        assumed.power,
        assumed.deff,
    )
    needed = max(questions_for_power(plan), gate.min_n)
    note = f"{assumed.power:.0%} power at a true difference of {100 * assumed.difference:+g} pt"
    have = assumed.questions
    if have is None:
        return PlanRow(gate.name, gate.metric, limit, needed, None, None, note)
    smallest = detectable_difference(plan, have)
    note = f"{have:,} questions show a margin of {100 * smallest:.2f} pt"
    return PlanRow(gate.name, gate.metric, limit, needed, have, have >= needed, note)


def _floor_rows(gate: Gate, limit: float, assumed: Assumptions) -> Iterator[PlanRow]:
    have = assumed.questions
    if have is not None:
        allowed = flips_allowed(have, limit, gate.confidence, assumed.deff)
        if have < gate.min_n:
            allowed = None
        needed = questions_for_floor(limit, 0, gate.confidence, assumed.deff)
        note = (
            "too few even without a flip"
            if allowed is None
            else f"{have:,} questions withstand {allowed} flip{'' if allowed == 1 else 's'}"
        )
        yield PlanRow(
            gate.name,
            gate.metric,
            limit,
            max(needed, gate.min_n),
            have,
            allowed is not None,
            note,
        )
        return
    for flips in FLIPS:
        needed = questions_for_floor(limit, flips, gate.confidence, assumed.deff)
        note = f"passes with {flips} flip{'' if flips == 1 else 's'}"
        yield PlanRow(gate.name, gate.metric, limit, max(needed, gate.min_n), None, None, note)
