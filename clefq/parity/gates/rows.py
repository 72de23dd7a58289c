"""What a table says of one gate or one figure: sign, unit, rounding and limit, decided once.

HTML, Markdown, JUnit, the terminal and the model card render these values and decide nothing of
their own, so that one gate reads alike wherever somebody meets it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from clefq.parity.gates.formatting import MARKS, NONE, count, figure, interval, signed_count
from clefq.parity.gates.judging import (
    FAIL,
    INCONCLUSIVE,
    NOT_GATED,
    PASS,
    GateResult,
    decide,
    round_up,
)
from clefq.parity.gates.preregistration import AFTER_RESULTS, GROWN, TEMPLATE, UNPROVEN
from clefq.parity.statistics.alarms import ACCURACY, AGREEMENTS
from clefq.parity.statistics.metric import AT_LEAST
from clefq.parity.statistics.metric_facts import find_facts, shown_in, title_of

_ORDER_OF_GATES = {
    TEMPLATE: "by a template",
    AFTER_RESULTS: "by gates that came after the results",
    GROWN: "by gates that came before the new records' answers, not before the old ones'",
    UNPROVEN: "by gates of which nothing shows that they came first",
}
_FIELDS = [field.name for field in fields(GateResult)]


@dataclass(frozen=True, slots=True)
class GateRow:
    """One judged gate, for people.

    Attributes:
        result: The gate as it was judged.
        title: The metric's title.
        figure: The estimate in its unit, with a sign where it is a difference.
        interval: Its bounds, likewise; words where there is none.
        needs: The limit with its sign, for example `≥ −2.00 pt`.
        questions: Questions it rests on.
        records: Records it rests on.
        level: The one-sided confidence of the bound that decides, for example `97.5%`.
        more: What would decide an open gate, or None.
    """

    result: GateResult
    title: str
    figure: str
    interval: str
    needs: str
    questions: str
    records: str
    level: str
    more: str | None

    @property
    def mark(self) -> str:
        """The sign of its status."""
        return MARKS[self.result.status]

    @property
    def status(self) -> str:
        """Its status in words."""
        return self.result.status.replace("_", " ")

    @property
    def label(self) -> str:
        """Its name, and whether it is advisory."""
        return self.result.name + ("" if self.result.required else " (advisory)")

    @property
    def bounded(self) -> bool:
        """Whether it has a figure with both bounds."""
        found = self.result
        return None not in (found.estimate, found.lower, found.upper)

    @property
    def met(self) -> bool:
        """Whether the figure's interval lies on the good side, whatever caps the gate."""
        found = self.result
        if found.status == PASS:
            return True
        if found.status == NOT_GATED or found.lower is None or found.upper is None:
            return False
        return decide(found.direction, found.limit, found.lower, found.upper)[0] == PASS

    @property
    def axis(self) -> tuple[str, str]:
        """Gates of one such key are drawn on one axis: unit and sign, and the good side."""
        facts = find_facts(self.result.metric)
        unit = facts.unit if facts is not None else ""
        signed = self.result.margin is not None or (facts is not None and facts.signed)
        return f"{unit}{' difference' if signed else ''}", self.result.direction

    @property
    def line(self) -> str:
        """The gate in one line: figure, interval, limit and reason."""
        shown = f": {self.figure} {self.interval}, needs" if self.bounded else " needs"
        return f"{self.result.name}{shown} {self.needs}: {self.result.reason}"


def qualifiers(document: Mapping[str, Any]) -> tuple[str, ...]:
    """What stands beside the verdict's word, because the word alone would say too much.

    Args:
        document: A `parity.json` value.

    Returns:
        Short phrases, for example `by a template` and `on simulated kernels`; none where the word
        holds as it stands.
    """
    return tuple(_qualifiers(document))


def _qualifiers(document: Mapping[str, Any]) -> Iterator[str]:
    order = document["gate_file"]["preregistration"]["status"]
    if order in _ORDER_OF_GATES:
        yield _ORDER_OF_GATES[order]
    sides = (document["baseline"], document["candidate"])
    if any(side["kernels"] == "simulated" for side in sides):
        yield "on simulated kernels"
    if any(side["arithmetic"] == "unknown" for side in sides):
        yield "in unknown arithmetic"
    if not document["coverage"].get("set_read", True):
        yield "without the set"
    if document["provenance"]["judged_from"] != "predictions":
        yield "from stored bounds"
    if document["verdict"]["word"] == INCONCLUSIVE and _capped(document["gates"]):
        yield "capped: every required figure meets its limit"


def broken_advisory(document: Mapping[str, Any]) -> tuple[str, ...]:
    """Advisory gates that fail, a line each: they decide nothing, and a reader must know."""
    rows = (gate_row(gate) for gate in document["gates"] if not gate["required"])
    return tuple(row.line for row in rows if row.result.status == FAIL)


def _capped(gates: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the required gates would all pass by their figures."""
    required = [gate_row(gate) for gate in gates if gate["required"]]
    return bool(required) and all(row.met for row in required)


def gate_row(gate: GateResult | Mapping[str, Any]) -> GateRow:
    """The row of one gate.

    Args:
        gate: The judged gate, or its JSON object of `parity.json`.
    """
    found = gate if isinstance(gate, GateResult) else GateResult(**{k: gate[k] for k in _FIELDS})
    facts = find_facts(found.metric)
    unit = facts.unit if facts is not None else ""
    # a margin is on a difference, be it one to a replicate
    signed = found.margin is not None or (facts is not None and facts.signed)
    sign = "≥" if found.direction == "at_least" else "≤"
    return GateRow(
        result=found,
        title=title_of(found.metric),
        figure=figure(found.estimate, unit, signed=signed),
        interval=interval(found.lower, found.upper, unit, signed=signed),
        needs=f"{sign} {figure(found.limit, unit, signed=signed)}",
        questions=count(found.n_questions),
        records=count(found.n_records),
        level=f"{100 * found.confidence:g}%",
        more=_more(found),
    )


def _more(found: GateResult) -> str | None:
    if found.questions_needed is None or found.status not in (INCONCLUSIVE, NOT_GATED):
        return None
    return f"about {round_up(found.questions_needed - found.n_questions):,} more of these questions"


@dataclass(frozen=True, slots=True)
class FigureRow:
    """One figure, for people.

    Attributes:
        name: The metric.
        title: Its title.
        meaning: One sentence.
        unit: Its unit, where the figure does not say it; else empty.
        figure: The estimate, `≥` before it where the true one may be larger.
        interval: Its bounds; words where there are none.
        bootstrap: The bounds of the plain bootstrap, likewise.
        method: How the bounds were found.
        level: Their two-sided confidence.
        questions: Questions it rests on.
        records: Records it rests on.
        noise_floor: The baseline's own figure against a replicate, or None.
    """

    name: str
    title: str
    meaning: str
    unit: str
    figure: str
    interval: str
    bootstrap: str
    method: str
    level: str
    questions: str
    records: str
    noise_floor: str | None


def figure_row(
    name: str, metric: Mapping[str, Any], noise_floor: Mapping[str, Any] | None = None
) -> FigureRow:
    """The row of one figure.

    Args:
        name: The metric.
        metric: Its JSON object of `parity.json`.
        noise_floor: The same of the baseline against its replicate, or None.
    """
    facts = find_facts(name)
    unit = facts.unit if facts is not None else ""
    signed = facts is not None and facts.signed
    boot = metric["bootstrap"] or {"lower": None, "upper": None}
    shown = figure(metric["estimate"], unit, signed=signed)
    if metric["n_infinite"]:
        on = count(metric["n_infinite"])
        shown = f"infinite on {on}" if metric["estimate"] is None else f"{shown} ({on} infinite)"
    if metric["unit"].startswith(AT_LEAST) and shown != NONE:
        shown = f"{AT_LEAST} {shown}"
    floor = None if noise_floor is None else noise_floor["estimate"]
    return FigureRow(
        name=name,
        title=title_of(name),
        meaning=facts.meaning if facts is not None else "",
        unit="" if unit == "fraction" else unit,
        figure=shown,
        interval=interval(metric["lower"], metric["upper"], unit, signed=signed),
        bootstrap=interval(boot["lower"], boot["upper"], unit, signed=signed),
        method=metric["method"].replace("_", " ").replace(" cluster", ""),
        level=f"{100 * metric['confidence']:g}%",
        questions=count(metric["n_questions"]),
        records=count(metric["n_records"]),
        noise_floor=None if noise_floor is None else figure(floor, unit, signed=signed),
    )


def figure_rows(view: str, document: Mapping[str, Any]) -> list[FigureRow]:
    """The figures that a view lists.

    Args:
        view: `report` or `model_card`.
        document: A `parity.json` value.
    """
    metrics = document["metrics"]
    floor = (document["noise_floor"] or {}).get("metrics") or {}
    return [figure_row(name, metrics[name], floor.get(name)) for name in shown_in(view, metrics)]


@dataclass(frozen=True, slots=True)
class PartRow:
    """One part of the questions (a cohort, a length band), for people.

    Attributes:
        name: Its name.
        questions: Questions with gold in it; all questions where it has no gold.
        records: Records they are of.
        baseline: Accuracy of the baseline.
        candidate: Accuracy of the candidate.
        difference: Candidate − baseline, in points.
        interval: Its bounds.
        bounds: Estimate and bounds as fractions, or None where there is no interval.
        recovery: The candidate's accuracy over the baseline's.
        recovery_interval: Its bounds.
        flips: Changed answers.
        net: Right answers more or fewer, with a sign.
    """

    name: str
    questions: str
    records: str
    baseline: str
    candidate: str
    difference: str
    interval: str
    bounds: tuple[float, float, float] | None
    recovery: str
    recovery_interval: str
    flips: str
    net: str


def part_rows(document: Mapping[str, Any], key: str) -> list[PartRow]:
    """The parts of one key, worst difference first; none where the set has no gold.

    Args:
        document: A `parity.json` value.
        key: Slice key, such as `cohort` or `length`.
    """
    found = [
        (name.partition("=")[2], metrics)
        for name, metrics in document["slices"].items()
        if name.startswith(f"{key}=") and metrics["accuracy_delta"]["estimate"] is not None
    ]
    found.sort(key=lambda part: (part[1]["accuracy_delta"]["estimate"], part[0]))
    return [_part_row(name, metrics) for name, metrics in found]


def _part_row(name: str, metrics: Mapping[str, Any]) -> PartRow:
    delta, before = metrics["accuracy_delta"], metrics["accuracy_baseline"]["estimate"]
    agreement = metrics["agreement"]
    ends = (delta["estimate"], delta["lower"], delta["upper"])
    ratio = [recovered(before, end) for end in ends]
    net = round(delta["estimate"] * delta["n_questions"])
    return PartRow(
        name=name,
        questions=count(delta["n_questions"]),
        records=count(delta["n_records"]),
        baseline=figure(before),
        candidate=figure(metrics["accuracy_candidate"]["estimate"]),
        difference=figure(delta["estimate"], signed=True),
        interval=interval(delta["lower"], delta["upper"], signed=True),
        bounds=None if None in ends else ends,
        recovery=figure(ratio[0]),
        recovery_interval=interval(ratio[1], ratio[2]),
        flips=count(round(agreement["n_questions"] * (1 - agreement["estimate"]))),
        net=signed_count(net),
    )


def recovered(baseline: float | None, difference: float | None) -> float | None:
    """The candidate's accuracy over the baseline's, at a difference or at a bound of one.

    The baseline's accuracy is taken as measured: what it adds to the error is the product of its
    own relative error and the loss, which is small where a candidate is worth a look.

    Args:
        baseline: Accuracy of the baseline.
        difference: Candidate − baseline, as fraction; None where there is none.
    """
    if difference is None or not baseline:
        return None
    return max(0.0, 1 + difference / baseline)


def alarm_text(document: Mapping[str, Any]) -> str:
    """What is said where no slice raised an alarm.

    Args:
        document: A `parity.json` value with figures.
    """
    what = "accuracy worse"
    if document["metrics"]["accuracy_delta"]["estimate"] is None:
        if not any(
            gate["slice"] is None and gate["metric"] in AGREEMENTS for gate in document["gates"]
        ):
            return (
                "No slice alarm can be raised: the set has no right answers, and no gate has a "
                "floor of agreement over all questions."
            )
        what = "agreement below the gates' floor"
    return (
        f"There is no slice alarm: in no cohort, type, length or number of options is {what} "
        "for sure (Holm-corrected over all slices of at least 10 records). A small slice "
        "can hide a loss: see its interval."
    )


def alarm_line(alarm: Mapping[str, Any]) -> str:
    """One alarm of a `parity.json` in words, without its slice's name."""
    metric = alarm["metric"]
    signed = metric == ACCURACY
    limit = "" if signed else f", the floor is {figure(alarm['limit'])}"
    name = "accuracy" if signed else title_of(metric)
    return (
        f"{name} {figure(alarm['estimate'], signed=signed)} on {count(alarm['n_questions'])} "
        f"questions (at most {figure(alarm['upper'], signed=signed)}{limit})"
    )


def identical_text(document: Mapping[str, Any]) -> tuple[str, str] | None:
    """The share of answers that are the baseline's to the last bit, and what that is out of.

    The replicates' stand beside it. None where nothing was compared, or labels alone.
    """
    coverage, noise = document["coverage"], document["noise_floor"] or {}
    by_label = "labels" in (document[role].get("answers") for role in ("baseline", "candidate"))
    if by_label or not coverage["valid"] or "identical" not in coverage:
        return None
    beside = f"{count(coverage['identical'])} of {count(coverage['valid'])}"
    pairs = zip(noise.get("identical", ()), noise.get("valid", ()), strict=True)
    shares = [figure(same / valid) for same, valid in pairs if valid]
    beside += f"; replicate {', '.join(shares)}" if shares else ""
    return figure(coverage["identical"] / coverage["valid"]), beside
