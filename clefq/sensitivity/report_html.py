"""`sensitivity.html`: heat map, Pareto front and tables on one page, without script or asset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

import jinja2
from markupsafe import Markup

from clefq.console import size_text
from clefq.parity.gates.formatting import NONE, figure, short_hash
from clefq.sensitivity.report_plots import front_plot, heat_map
from clefq.sensitivity.report_text import milli, short
from clefq.sensitivity.schema import BlockResult, LayoutResult, Sensitivity, searched, worst_first


def report_html(found: Sensitivity) -> str:
    """The page of one sweep."""
    best = searched(found)
    return (
        _environment()
        .get_template("sensitivity.html.j2")
        .render(
            doc=found,
            best=None if best is None else _layout(best),
            worst=worst_first(found)[:3],
            heat=Markup(heat_map(found)),
            fronts=[Markup(front_plot(found, by)) for by in ("bytes", "speed")],
            layouts=[_layout(item) for item in sorted(found.layouts, key=lambda i: i.nbytes)],
            blocks=_blocks(found),
            schemes=list(dict.fromkeys(result.scheme for result in found.blocks)),
            chosen=None if best is None else _chosen(best),
            effort=found.effort.layer_passes / max(1, found.effort.full_passes),
        )
    )


@cache
def _environment() -> jinja2.Environment:
    shared = files("clefq.parity.report").joinpath("templates")
    own = files("clefq.sensitivity").joinpath("templates")
    sources = {
        "base.html.j2": shared.joinpath("base.html.j2").read_text("utf-8"),
        "sensitivity.html.j2": own.joinpath("sensitivity.html.j2").read_text("utf-8"),
    }
    css = shared.joinpath("style.css").read_text("utf-8")
    css += own.joinpath("sensitivity.css").read_text("utf-8")
    environment = jinja2.Environment(
        loader=jinja2.DictLoader(sources),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(short=short_hash, size=size_text, figure=figure)
    environment.globals.update(css=Markup(css), NONE=NONE)
    return environment


def _layout(layout: LayoutResult) -> dict[str, Any]:
    damage = layout.measured
    row: dict[str, Any] = {
        "name": layout.name,
        "origin": layout.origin,
        "front": layout.on_front,
        "size": size_text(layout.nbytes),
        "speed": f"{layout.speedup:.2f}×",
        "predicted": milli(layout.predicted_kl, bounds=False),
        "predicted_bounds": _bounds(milli(layout.predicted_kl)),
    }
    if damage is None:
        return row | {"kl": None}
    return row | {
        "kl": milli(damage.kl, bounds=False),
        "kl_bounds": _bounds(milli(damage.kl)),
        "tv": milli(damage.tv, bounds=False),
        "agreement": figure(damage.agreement.estimate),
        "agreement_bounds": _span(damage.agreement.lower, damage.agreement.upper),
        "flips": damage.flips,
        "accuracy": figure(damage.accuracy_delta.estimate, signed=True),
    }


def _bounds(text: str) -> str:
    return text[text.index("[") :] if "[" in text else ""


def _span(lower: float | None, upper: float | None) -> str:
    if lower is None or upper is None:
        return ""
    return f"[{100 * lower:.2f}, {100 * upper:.2f}]"


def _blocks(found: Sensitivity) -> Sequence[Mapping[str, Any]]:
    by: dict[str, list[BlockResult]] = {}
    for result in found.blocks:
        by.setdefault(result.block, []).append(result)
    return [
        {"name": name, "cells": [_cell(result) for result in by[name]]}
        for name in worst_first(found)
    ]


def _cell(result: BlockResult) -> dict[str, Any]:
    return {
        "kl": milli(result.damage.kl, bounds=False),
        "bounds": _bounds(milli(result.damage.kl)),
        "flips": result.damage.flips,
        "tv": milli(result.damage.tv, bounds=False),
        "weights": "/".join(f"{100 * value:.1f}" for value in result.weight_error.values()),
        "output": short(100 * result.output_error),
    }


def _chosen(layout: LayoutResult) -> list[tuple[str, str]]:
    """Format to the blocks that have it, layers run together."""
    found: dict[str, dict[str, list[int]]] = {}
    for name, form in layout.formats.items():
        layer, _, kind = name.partition(".")
        found.setdefault(form, {}).setdefault(kind, []).append(int(layer))
    return [
        (form, "; ".join(f"{kind} of {_ranges(layers)}" for kind, layers in sorted(kinds.items())))
        for form, kinds in found.items()
    ]


def _ranges(numbers: Sequence[int]) -> str:
    parts: list[str] = []
    start = before = numbers[0]
    for number in [*numbers[1:], None]:
        if number is not None and number == before + 1:
            before = number
            continue
        parts.append(f"{start}" if start == before else f"{start}–{before}")
        if number is not None:
            start = before = number
    return ", ".join(parts)
