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

from clefq.parity.gates.cards import find_card
from clefq.parity.gates.formatting import (
    MARKS,
    NONE,
    count,
    figure,
    gate_limit,
    gigabytes,
    interval,
    limit_text,
    short_hash,
)
from clefq.parity.gates.judging import round_up, title_of
from clefq.parity.gates.verdict import ORDER
from clefq.parity.report.details import detail_lines
from clefq.parity.report.markdown import shown_metrics
from clefq.parity.report.plots import Plot
from clefq.parity.report.svg import Interval, interval_bar

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
            gates=[_gate_row(gate) for gate in document["gates"]],
            old_gates=_old_gates(document),
            metrics=_metric_rows(document),
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
    environment.filters.update(prose=_prose, size=gigabytes)
    environment.globals.update(MARKS=MARKS, NONE=NONE, css=Markup(sources["style.css"]))
    return environment


def _prose(text: str | None) -> Markup:
    """Text with its `commands` set as code."""
    pieces = (text or "").split("`")
    shown = (f"<code>{escape(p)}</code>" if i % 2 else escape(p) for i, p in enumerate(pieces))
    return Markup("").join(map(Markup, shown))


def _gate_row(gate: Mapping[str, Any]) -> dict[str, Any]:
    card = find_card(gate["metric"])
    unit = card.unit if card else ""
    signed = gate["margin"] is not None
    shown = figure(gate["estimate"], unit, signed=signed)
    bounds = interval(gate["lower"], gate["upper"], unit, signed=signed)
    needs = limit_text(gate, unit, signed=signed)
    bar = None
    if None not in (gate["estimate"], gate["lower"], gate["upper"]):
        bar = Markup(
            interval_bar(
                Interval(gate["estimate"], gate["lower"], gate["upper"]),
                gate_limit(gate),
                gate["status"],
                "higher" if gate["direction"] == "at_least" else "lower",
                f"{title_of(gate['metric'])} {shown} {bounds}, needs {needs}: {gate['status']}",
            )
        )
    return {
        **gate,
        "title": title_of(gate["metric"]),
        "shown": shown,
        "bounds": bounds,
        "needs": needs,
        "bar": bar,
        "level": f"{100 * gate['confidence']:g}%",
        "more": _more(gate),
    }


def _more(gate: Mapping[str, Any]) -> str | None:
    needed = gate["questions_needed"]
    if needed is None or gate["status"] not in ("inconclusive", "not_gated"):
        return None
    return f"about {round_up(needed - gate['n_questions']):,} more of these questions"


def _old_gates(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    old = document["gate_file"]["superseded"]
    return [] if old is None else [_gate_row(gate) for gate in old["gates"]]


def _metric_rows(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    metrics = document["metrics"]
    floor = document["noise_floor"]
    return [_metric_row(name, metrics[name], floor) for name in shown_metrics(metrics)]


def _metric_row(
    name: str, metric: Mapping[str, Any], floor: Mapping[str, Any] | None
) -> dict[str, Any]:
    card = find_card(name)
    unit = card.unit if card else ""
    signed = card is not None and card.kind == "difference"
    boot = metric["bootstrap"] or {"lower": None, "upper": None}
    shown = figure(metric["estimate"], unit, signed=signed)
    if metric["unit"].startswith("≥"):
        shown = f"≥ {shown}"
    reference = ((floor or {}).get("metrics") or {}).get(name)
    return {
        "name": name,
        "title": title_of(name),
        "meaning": card.meaning if card else "",
        "unit": unit,
        "better": card.direction if card else "",
        "shown": shown,
        "bounds": interval(metric["lower"], metric["upper"], unit, signed=signed),
        "boot": interval(boot["lower"], boot["upper"], unit, signed=signed),
        "method": metric["method"].replace("_", " ").replace(" cluster", ""),
        "n": metric["n_questions"],
        "records": metric["n_records"],
        "infinite": metric["n_infinite"],
        "floor": None if reference is None else figure(reference["estimate"], unit, signed=signed),
    }


def _summary_row(row: Mapping[str, Any]) -> dict[str, Any]:
    def cell(name: str, *, signed: bool = False, unit: str = "fraction") -> dict[str, str]:
        metric = row[name]
        if metric is None:
            return {"shown": NONE, "bounds": ""}
        return {
            "shown": figure(metric["estimate"], unit, signed=signed),
            "bounds": interval(metric["lower"], metric["upper"], unit, signed=signed),
        }

    return {
        **row,
        "cells": [
            cell("accuracy"),
            cell("accuracy_delta", signed=True),
            cell("agreement"),
            cell("confident_agreement"),
            cell("kl", unit="nats"),
            cell("tv"),
        ],
    }
