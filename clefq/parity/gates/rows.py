"""What a table says of one gate or one figure: sign, unit, rounding and limit, decided once.

HTML, Markdown, JUnit, the terminal and the model card render these values and decide nothing of
their own, so that one gate reads alike wherever somebody meets it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from clefq.parity.gates.formatting import MARKS, NONE, count, figure, interval
from clefq.parity.gates.judging import INCONCLUSIVE, NOT_GATED, GateResult, round_up
from clefq.parity.statistics.metric import AT_LEAST
from clefq.parity.statistics.metric_facts import find_facts, shown_in, title_of

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
    def line(self) -> str:
        """The gate in one line: figure, interval, limit and reason."""
        shown = f": {self.figure} {self.interval}, needs" if self.bounded else " needs"
        return f"{self.result.name}{shown} {self.needs}: {self.result.reason}"


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
