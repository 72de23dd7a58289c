"""`report.html` and `index.html`: self-contained pages, no script, no remote asset.

Everything that a user or a data set can name is escaped by the template engine; only our own SVG
is inserted as it is.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

import jinja2
from markupsafe import Markup, escape

from clefq.parity.gates.choosing import Duel
from clefq.parity.gates.formatting import (
    MARKS,
    NONE,
    count,
    figure,
    gigabytes,
    interval,
    short_hash,
)
from clefq.parity.gates.rows import (
    GateRow,
    PartRow,
    alarm_line,
    alarm_text,
    figure_row,
    figure_rows,
    gate_row,
    identical_text,
    part_rows,
    qualifiers,
)
from clefq.parity.gates.verdict import ORDER
from clefq.parity.report.changed import ChangedAnswer
from clefq.parity.report.classes import class_rows, left_out_note, moved
from clefq.parity.report.coherence import coherence_rows
from clefq.parity.report.details import detail_lines
from clefq.parity.report.plots import Plot, quality_by_size
from clefq.parity.report.summary import Sizes
from clefq.parity.report.svg import Axis, Interval, bar_axis, interval_bar
from clefq.parity.statistics.metric_facts import REPORT, title_of

PREREGISTRATION = {
    "preregistered": "came first",
    "grown": "set grew",
    "after_results": "came after",
    "unproven": "unproven",
    "not_preregistered": "template",
}
MOST_PARTS = 20  # the worst first; breakdown.csv has all
# slice key → heading
PARTS = {
    "cohort": "Accuracy by cohort",
    "question": "Accuracy by question",
    "length": "Accuracy by length",
}


def report_html(
    document: Mapping[str, Any], plots: Sequence[Plot], sizes: Sizes | None = None
) -> str:
    """The page of one candidate.

    Args:
        document: A `parity.json` value.
        plots: The pictures, in order.
        sizes: Sizes and speeds of the two models, where they are known.
    """
    gates = [gate_row(gate) for gate in document["gates"]]
    old = document["gate_file"]["superseded"]
    page = _environment().get_template("report.html.j2")
    return page.render(
        doc=document,
        verdict=document["verdict"],
        qualifiers=qualifiers(document),
        gates=_gate_table([row for row in gates if row.result.required]),
        advisory=_gate_table([row for row in gates if not row.result.required]),
        old_gates=_gate_table([gate_row(gate) for gate in old["gates"]] if old else []),
        no_alarm=alarm_text(document) if document["metrics"] else "",
        parts=_parts(document),
        metrics=figure_rows(REPORT, document),
        coherence=coherence_rows(document),
        details=detail_lines(document),
        model_size=_model_size(document, sizes or Sizes()),
        identical=identical_text(document),
        prereg=PREREGISTRATION[document["gate_file"]["preregistration"]["status"]],
        plots=_shown(plots),
        classes=class_rows(document),
        moved=moved(document),
        left_out=left_out_note(document),
    )


def _shown(plots: Sequence[Plot]) -> list[dict[str, Any]]:
    return [{"title": p.title, "caption": p.caption, "svg": Markup(p.svg)} for p in plots]


def _model_size(document: Mapping[str, Any], sizes: Sizes) -> list[tuple[str, str, str]]:
    """Size and speed of the candidate, each with the baseline's beside it."""
    one, other = document["baseline"]["variant"], document["candidate"]["variant"]
    found = []
    if other in sizes.bytes:
        size, whole = sizes.bytes[other], sizes.bytes.get(one)
        share = f", {size / whole:.0%} of it" if whole else ""
        found.append(("size", gigabytes(size), f"{one} {gigabytes(whole)}{share}"))
    if other in sizes.throughput:
        now, before = sizes.throughput[other], sizes.throughput.get(one)
        beside = str(now["source"])
        if before is not None and before["unit"] == now["unit"]:
            beside = f"{one} {before['value']:,.4g}: {now['value'] / before['value']:.2f}×"
        found.append(("speed", f"{now['value']:,.4g} {now['unit']}", beside))
    return found


def index_html(summary: Mapping[str, Any]) -> str:
    """The page that compares all candidates.

    Args:
        summary: A `summary.json` value.
    """
    words = [row["verdict"] for row in summary["candidates"]]
    tally = ", ".join(f"{words.count(word)} {word}" for word in ORDER if word in words)
    rows = [_summary_row(row) for row in summary["candidates"]]
    worst = [row for row in summary["candidates"] if row["verdict"] == summary["verdict"]]
    beside = dict.fromkeys(text for row in worst for text in row.get("qualifiers", ()))
    page = _environment().get_template("index.html.j2")
    return page.render(
        doc=summary,
        tally=tally,
        rows=rows,
        qualifiers=list(beside),
        choice=summary.get("choice"),
        duels=[Duel(**pair).text for pair in (summary.get("choice") or {}).get("pairs", ())],
        asked=_asked(summary),
        plots=_shown([plot for plot in [quality_by_size(summary)] if plot is not None]),
    )


def _asked(summary: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """A figure over all questions, which says how many there are."""
    found = (row["agreement"] for row in summary["candidates"])
    return next((metric for metric in found if metric is not None), None)


def flips_html(
    document: Mapping[str, Any],
    changed: Sequence[ChangedAnswer],
    slices: Sequence[str],
    texts: bool,
) -> str:
    """The page of changed answers with their texts.

    Args:
        document: A `parity.json` value.
        changed: The answers to show.
        slices: The slices that they were taken from; empty for all.
        texts: Whether the set was at hand.
    """
    tally = Counter(item.effect for item in changed)
    effects = ", ".join(f"{number:,} {effect}" for effect, number in tally.most_common())
    page = _environment().get_template("flips.html.j2")
    return page.render(
        doc=document, rows=changed, slices=slices, texts=texts, effects=effects or "none"
    )


@cache
def _environment() -> jinja2.Environment:
    names = ("report.html.j2", "index.html.j2", "flips.html.j2", "style.css", "base.html.j2")
    folder = files("clefq.parity.report").joinpath("templates")
    sources = {name: folder.joinpath(name).read_text("utf-8") for name in names}
    environment = jinja2.Environment(
        loader=jinja2.DictLoader(sources),
        autoescape=jinja2.select_autoescape(("html", "j2"), default=True),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        figure=figure, interval=interval, count=count, short=short_hash, title=title_of
    )
    environment.filters.update(prose=_prose, size=gigabytes, alarm=alarm_line)
    environment.globals.update(MARKS=MARKS, NONE=NONE, css=Markup(sources["style.css"]))
    return environment


def _prose(text: str | None) -> Markup:
    """Text with its `commands` set as code."""
    pieces = (text or "").split("`")
    shown = (f"<code>{escape(p)}</code>" if i % 2 else escape(p) for i, p in enumerate(pieces))
    return Markup("").join(map(Markup, shown))


def _gate_table(rows: Sequence[GateRow]) -> list[dict[str, Any]]:
    """Rows with their bars, whose axes are common to all of one unit and good side."""
    drawn: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        if row.bounded:
            found = row.result
            drawn.setdefault(row.axis, []).extend(_known(found.lower, found.upper, found.limit))
    axes = {key: _axis(key[0], values) for key, values in drawn.items()}
    return [{"row": row, "bar": _bar(row, axes.get(row.axis))} for row in rows]


def _known(*values: float | None) -> list[float]:
    return [value for value in values if value is not None]


def _axis(unit: str, values: Sequence[float]) -> Axis:
    share = unit == "fraction"
    below = -math.inf if unit.endswith("difference") else 0.0
    return bar_axis(values, below, 1.0 if share else math.inf)


def _bar(row: GateRow, axis: Axis | None) -> Markup:
    """The picture of a gate's interval against its limit; empty where there is none."""
    found = row.result
    if axis is None or found.estimate is None or found.lower is None or found.upper is None:
        return Markup("")
    words = f"{row.title} {row.figure} {row.interval}, needs {row.needs}: {found.status}"
    better = "higher" if found.direction == "at_least" else "lower"
    unit = row.axis[0]
    return Markup(
        interval_bar(
            Interval(found.estimate, found.lower, found.upper),
            axis,
            found.limit,
            (found.status, better, words),
            (_end(axis.low, unit), _end(axis.high, unit)),
        )
    )


def _end(value: float, unit: str) -> str:
    signed = unit.endswith("difference")
    return figure(value, unit.removesuffix(" difference"), signed=signed)


def _parts(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Accuracy by cohort and by length, each part with its difference on one axis."""
    found = {title: part_rows(document, key) for key, title in PARTS.items()}
    ends = [end for rows in found.values() for row in rows for end in row.bounds or ()]
    axis = bar_axis([0.0, *ends], -1.0, 1.0)
    return [
        {
            "title": title
            if len(rows) <= MOST_PARTS
            else f"{title}: {MOST_PARTS} of {len(rows):,}",
            "rows": [{"row": row, "bar": _part_bar(row, axis)} for row in rows[:MOST_PARTS]],
        }
        for title, rows in found.items()
        if rows
    ]


def _part_bar(row: PartRow, axis: Axis) -> Markup:
    if row.bounds is None:
        return Markup("")
    words = f"accuracy in {row.name}: {row.difference} {row.interval}"
    ends = (figure(axis.low, signed=True), figure(axis.high, signed=True))
    return Markup(interval_bar(Interval(*row.bounds), axis, 0.0, ("", "", words), ends))


def _summary_row(row: Mapping[str, Any]) -> dict[str, Any]:
    names = ("accuracy", "accuracy_delta", "agreement", "confident_agreement", "kl", "tv")
    return {**row, "cells": [_cell(name, row[name]) for name in names]}


def _cell(name: str, metric: Mapping[str, Any] | None) -> dict[str, str]:
    if metric is None:
        return {"shown": NONE, "bounds": ""}
    found = figure_row("accuracy_candidate" if name == "accuracy" else name, metric)
    return {"shown": found.figure, "bounds": found.interval}
