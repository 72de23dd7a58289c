"""`report.html` and `index.html`: self-contained pages, no script, no remote asset.

Everything that a user or a data set can name is escaped by the template engine; only our own SVG
is inserted as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

import jinja2
from markupsafe import Markup, escape

from clefq.parity.gates.formatting import (
    MARKS,
    NONE,
    count,
    figure,
    gigabytes,
    interval,
    short_hash,
)
from clefq.parity.gates.rows import GateRow, figure_row, figure_rows, gate_row
from clefq.parity.gates.verdict import ORDER
from clefq.parity.report.details import detail_lines
from clefq.parity.report.plots import Plot
from clefq.parity.report.svg import Interval, interval_bar
from clefq.parity.statistics.metric_facts import REPORT, title_of

PREREGISTRATION = {
    "preregistered": "came first",
    "after_results": "came after",
    "unproven": "unproven",
    "not_preregistered": "template",
}


def report_html(document: Mapping[str, Any], plots: Sequence[Plot]) -> str:
    """The page of one candidate.

    Args:
        document: A `parity.json` value.
        plots: The pictures, in order.
    """
    return (
        _environment()
        .get_template("report.html.j2")
        .render(
            doc=document,
            verdict=document["verdict"],
            gates=[gate_row(gate) for gate in document["gates"]],
            old_gates=_old_gates(document),
            metrics=figure_rows(REPORT, document),
            details=detail_lines(document),
            prereg=PREREGISTRATION[document["gate_file"]["preregistration"]["status"]],
            plots=[{"title": p.title, "caption": p.caption, "svg": Markup(p.svg)} for p in plots],
        )
    )


def index_html(summary: Mapping[str, Any]) -> str:
    """The page that compares all candidates.

    Args:
        summary: A `summary.json` value.
    """
    words = [row["verdict"] for row in summary["candidates"]]
    tally = ", ".join(f"{words.count(word)} {word}" for word in ORDER if word in words)
    rows = [_summary_row(row) for row in summary["candidates"]]
    page = _environment().get_template("index.html.j2")
    return page.render(doc=summary, tally=tally, rows=rows)


@cache
def _environment() -> jinja2.Environment:
    names = ("report.html.j2", "index.html.j2", "style.css", "base.html.j2")
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
    environment.filters.update(prose=_prose, size=gigabytes, bar=_bar)
    environment.globals.update(MARKS=MARKS, NONE=NONE, css=Markup(sources["style.css"]))
    return environment


def _prose(text: str | None) -> Markup:
    """Text with its `commands` set as code."""
    pieces = (text or "").split("`")
    shown = (f"<code>{escape(p)}</code>" if i % 2 else escape(p) for i, p in enumerate(pieces))
    return Markup("").join(map(Markup, shown))


def _bar(row: GateRow) -> Markup:
    """The picture of a gate's interval against its limit; empty where there is none."""
    found = row.result
    if found.estimate is None or found.lower is None or found.upper is None:
        return Markup("")
    return Markup(
        interval_bar(
            Interval(found.estimate, found.lower, found.upper),
            found.limit,
            found.status,
            "higher" if found.direction == "at_least" else "lower",
            f"{row.title} {row.figure} {row.interval}, needs {row.needs}: {found.status}",
        )
    )


def _old_gates(document: Mapping[str, Any]) -> list[GateRow]:
    old = document["gate_file"]["superseded"]
    return [] if old is None else [gate_row(gate) for gate in old["gates"]]


def _summary_row(row: Mapping[str, Any]) -> dict[str, Any]:
    names = ("accuracy", "accuracy_delta", "agreement", "confident_agreement", "kl", "tv")
    return {**row, "cells": [_cell(name, row[name]) for name in names]}


def _cell(name: str, metric: Mapping[str, Any] | None) -> dict[str, str]:
    if metric is None:
        return {"shown": NONE, "bounds": ""}
    found = figure_row("accuracy_candidate" if name == "accuracy" else name, metric)
    return {"shown": found.figure, "bounds": found.interval}
