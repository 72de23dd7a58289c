"""The section on coherence: how far each model's own answers move, by what was changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from clefq.parity.gates.rows import FigureRow, figure_row
from clefq.parity.report.plots import Plot
from clefq.parity.report.svg import Axis, Rows
from clefq.store.variant_links import ALL, TRANSFORMS

LEFT, WIDTH, RIGHT = 205, 600, 76
TOGETHER = "all of these (flips: in any of them)"
NO_STATE = "no state (more is better)"


@dataclass(frozen=True, slots=True)
class CoherenceRow:
    """One transform.

    Attributes:
        title: What was changed.
        tv: Total variation of a model's own answers: baseline, candidate, difference.
        flips: Share of own answers that become another, likewise; None where that says nothing.
    """

    title: str
    tv: tuple[FigureRow, FigureRow, FigureRow]
    flips: tuple[FigureRow, FigureRow, FigureRow] | None


def coherence_rows(document: Mapping[str, Any]) -> list[CoherenceRow]:
    """The rows, all transforms together first; empty where the set has no variants.

    Args:
        document: A `parity.json` value.
    """
    metrics = document["metrics"]
    rows = []
    for name in (ALL, *TRANSFORMS):
        tv, flips = (_three(metrics, f"coherence_{what}_{{}}@{name}") for what in ("tv", "flips"))
        if tv is not None:
            title = TOGETHER if name == ALL else TRANSFORMS[name].title
            rows.append(CoherenceRow(title, tv, flips))
    used = _three(metrics, "state_use_{}")
    return rows if used is None else [*rows, CoherenceRow(NO_STATE, used, None)]


def _three(metrics: Mapping[str, Any], form: str) -> tuple[FigureRow, FigureRow, FigureRow] | None:
    names = [form.format(what) for what in ("baseline", "candidate", "delta")]
    if any(name not in metrics for name in names):
        return None
    one, other, delta = (figure_row(name, metrics[name]) for name in names)
    return one, other, delta


def coherence_plot(document: Mapping[str, Any]) -> Plot | None:
    """Both models' own movement by transform."""
    metrics = document["metrics"]
    rows = []
    for name, facts in TRANSFORMS.items():
        stem, end = ("state_use_", "") if facts.asks == "without the state" else (
            "coherence_tv_", f"@{name}"
        )  # fmt: skip
        sides = [metrics.get(f"{stem}{role}{end}") for role in ("baseline", "candidate")]
        if None not in sides and all(side["estimate"] is not None for side in sides):
            title = NO_STATE if stem == "state_use_" else facts.title
            rows.append((title, sides[0]["estimate"], sides[1]))
    if not rows:
        return None
    ends = [value for _, one, side in rows for value in (one, side["upper"] or side["estimate"])]
    label = "mean movement of a model's own answers (TV)"
    axis = Axis(0.0, max(0.02, *ends) * 1.02, label, percent=True)
    chart = Rows(axis, len(rows), LEFT, RIGHT, WIDTH)
    parts: list[str] = []
    for index, (title, one, side) in enumerate(rows):
        x, y = chart.x(one), chart.y(index)
        corners = f"{x:.1f},{y - 6} {x + 6:.1f},{y} {x:.1f},{y + 6} {x - 6:.1f},{y}"
        parts.append(f'<polygon class="pt ref" points="{corners}"/>')
        note = f"{100 * (side['estimate'] - one):+.1f} pt".replace("-", "−")
        parts += chart.row(index, title, side, note)
    text = "; ".join(f"{title}: {one:.4f} to {side['estimate']:.4f}" for title, one, side in rows)
    return Plot(
        "How far do a model's own answers move?",
        "The same questions asked in another form, each model against itself: baseline diamonds, "
        "candidate dots with 95% intervals, on the right the difference. Without the state "
        "answers should move.",
        chart.draw("Movement of own answers by what was changed", text, parts),
    )
