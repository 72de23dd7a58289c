"""Small inline SVG: axes, lines, points and bars as text, styled by the page's CSS classes.

Every picture has a title and a description for screen readers, and text labels instead of colour
alone. No script, no font, no remote asset.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

Point = tuple[float, float]
WIDTH, HEIGHT = 560, 330
LEFT, RIGHT, TOP, BOTTOM = 62, 18, 32, 46
ROW_HEIGHT = 26
BAR_WIDTH, BAR_HEIGHT, BAR_EDGE = 240, 42, 6


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis.

    Attributes:
        low: Value at its start; positive on a logarithmic axis.
        high: Value at its end.
        label: What it shows, with the unit.
        log: Logarithmic.
        percent: Tick labels in percent.
    """

    low: float
    high: float
    label: str
    log: bool = False
    percent: bool = False

    def place(self, value: float) -> float:
        """The value's position from 0 (start) to 1 (end), clipped to the axis."""
        low, high, at = self.low, self.high, value
        if self.log:
            low, high, at = math.log(low), math.log(high), math.log(max(value, self.low))
        return min(1.0, max(0.0, (at - low) / (high - low)))

    def ticks(self) -> list[tuple[float, str]]:
        """Tick values with their labels."""
        if self.log:
            first, last = math.ceil(math.log10(self.low)), math.floor(math.log10(self.high))
            return [(10.0**power, f"{10.0**power:g}") for power in range(first, last + 1)]
        step = nice_step(self.high - self.low)
        first = math.ceil(self.low / step - 1e-9)
        values = [step * k for k in range(first, math.floor(self.high / step + 1e-9) + 1)]
        if self.percent:
            digits = max(0, -math.floor(math.log10(step * 100) + 1e-9))
            texts = (f"{100 * value:.{digits}f}%".replace("-", "−") for value in values)
            return list(zip(values, texts, strict=True))
        return [(value, f"{value:.10g}") for value in values]


def nice_step(span: float, wanted: int = 5) -> float:
    """A step of 1, 2 or 5 times a power of ten that cuts `span` into about `wanted` parts."""
    raw = span / wanted
    power = 10.0 ** math.floor(math.log10(raw))
    return next(power * k for k in (1, 2, 5, 10) if power * k >= raw - 1e-12 * power)


@dataclass(frozen=True, slots=True)
class Canvas:
    """A plot area with two axes.

    Attributes:
        x: Horizontal axis.
        y: Vertical axis.
        width: Whole width in user units.
        height: Whole height.
    """

    x: Axis
    y: Axis
    width: int = WIDTH
    height: int = HEIGHT

    def at(self, point: Point) -> Point:
        """Pixel position of a data point."""
        return (
            LEFT + self.x.place(point[0]) * (self.width - LEFT - RIGHT),
            self.height - BOTTOM - self.y.place(point[1]) * (self.height - TOP - BOTTOM),
        )

    def line(self, points: Sequence[Point], style: str) -> str:
        """A polyline."""
        path = " ".join(f"{px:.1f},{py:.1f}" for px, py in map(self.at, points))
        return f'<polyline class="{style}" points="{path}"/>'

    def dot(self, point: Point, style: str, radius: float = 4) -> str:
        """A filled circle."""
        px, py = self.at(point)
        return f'<circle class="{style}" cx="{px:.1f}" cy="{py:.1f}" r="{radius:g}"/>'

    def diamond(self, point: Point, style: str, radius: float = 5) -> str:
        """A diamond: told from a circle without colour."""
        px, py = self.at(point)
        corners = ((0, -radius), (radius, 0), (0, radius), (-radius, 0))
        path = " ".join(f"{px + dx:.1f},{py + dy:.1f}" for dx, dy in corners)
        return f'<polygon class="{style}" points="{path}"/>'

    def whisker(self, x: float, low: float, high: float, style: str) -> str:
        """A vertical interval."""
        return self.line(((x, low), (x, high)), style)

    def bar(self, left: float, right: float, top: float, style: str) -> str:
        """A bar from the bottom of the axis to `top`."""
        x0, y0 = self.at((left, top))
        x1, y1 = self.at((right, self.y.low))
        size = f'width="{max(0.0, x1 - x0 - 2):.1f}" height="{max(0.0, y1 - y0):.1f}"'
        return f'<rect class="{style}" x="{x0 + 1:.1f}" y="{y0:.1f}" {size}/>'

    def label(self, point: Point, text: str, anchor: str = "middle", lift: float = 6) -> str:
        """Text above a data point."""
        px, py = self.at(point)
        return text_at((px, py - lift), text, anchor)

    def legend(self, entries: Iterable[tuple[str, str]], at: float = LEFT) -> Iterable[str]:
        """Names of curves, one beside the other above the plot area, where nothing is drawn.

        Args:
            entries: Style (`main`, `ref`) and text of each.
            at: Where the first begins.
        """
        for style, text in entries:
            yield f'<line class="curve {style}" x1="{at:g}" x2="{at + 26:g}" y1="14" y2="14"/>'
            yield text_at((at + 32, 18), text, "start")
            at += 56 + 7.5 * len(text)

    def notes(self, lines: Sequence[str]) -> Iterable[str]:
        """Text in the upper right corner of the plot area, a line each."""
        for index, line in enumerate(lines):
            yield text_at((self.width - RIGHT - 4, TOP + 16 + 18 * index), line, "end")

    def draw(self, title: str, description: str, body: Iterable[str]) -> str:
        """The whole picture with axes."""
        parts = [*self._axes(), *body]
        return picture((self.width, self.height), title, description, parts)

    def _axes(self) -> Iterable[str]:
        bottom, right = self.height - BOTTOM, self.width - RIGHT
        for value, text in self.y.ticks():
            _, py = self.at((self.x.low, value))
            yield f'<line class="grid" x1="{LEFT}" x2="{right}" y1="{py:.1f}" y2="{py:.1f}"/>'
            yield text_at((LEFT - 6, py + 4), text, "end")
        for value, text in self.x.ticks():
            px, _ = self.at((value, self.y.low))
            span = f'y1="{bottom}" y2="{bottom + 4}"'
            yield f'<line class="axis" x1="{px:.1f}" x2="{px:.1f}" {span}/>'
            yield text_at((px, bottom + 18), text)
        yield f'<line class="axis" x1="{LEFT}" x2="{right}" y1="{bottom}" y2="{bottom}"/>'
        yield text_at(((LEFT + right) / 2, self.height - 8), self.x.label)
        middle = (TOP + bottom) / 2
        yield (
            f'<text class="t" text-anchor="middle" transform="translate(14 {middle:.0f}) '
            f'rotate(-90)">{escape(self.y.label)}</text>'
        )


def text_at(point: Point, text: str, anchor: str = "middle", style: str = "t") -> str:
    """Text at a pixel position."""
    where = f'x="{point[0]:.1f}" y="{point[1]:.1f}"'
    return f'<text class="{style}" {where} text-anchor="{anchor}">{escape(text)}</text>'


def picture(
    size: tuple[int, int], title: str, description: str, parts: Iterable[str], style: str = "plot"
) -> str:
    """An SVG element with its accessible name."""
    width, height = size
    return (
        f'<svg class="{style}" viewBox="0 0 {width} {height}" role="img" '
        f'preserveAspectRatio="xMinYMid meet" xmlns="http://www.w3.org/2000/svg">'
        f"<title>{escape(title)}</title><desc>{escape(description)}</desc>"
        + "".join(parts)
        + "</svg>"
    )


@dataclass(frozen=True, slots=True)
class Rows:
    """A chart of one line per row: names on the left, marks on a common axis, notes on the right.

    Attributes:
        axis: The common axis; its label stands below.
        count: How many rows.
        left: Room for names, in user units.
        right: Room for notes.
        width: Whole width.
    """

    axis: Axis
    count: int
    left: int
    right: int
    width: int = WIDTH

    @property
    def height(self) -> int:
        """Whole height, with the axis."""
        return ROW_HEIGHT * self.count + 50

    def x(self, value: float) -> float:
        """Where a value lies."""
        return self.left + self.axis.place(value) * (self.width - self.left - self.right)

    @staticmethod
    def y(row: int) -> float:
        """Where a row lies."""
        return 17.0 + row * ROW_HEIGHT

    def grid(self) -> Iterator[str]:
        """The axis: its lines, their values, its label."""
        for value, text in self.axis.ticks():
            x, end = self.x(value), self.height - 42
            yield f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="4" y2="{end}"/>'
            yield text_at((x, self.height - 25), text)
        middle = (self.left + self.width - self.right) / 2
        yield text_at((middle, self.height - 6), self.axis.label)

    def row(
        self, row: int, name: str, metric: Mapping[str, Any], note: str, style: str = "main"
    ) -> Iterator[str]:
        """A name, an estimate with its interval where it has one, and a note.

        Args:
            row: Which, from 0.
            name: On the left.
            metric: `estimate`, `lower` and `upper`.
            note: On the right.
            style: CSS class.
        """
        y = self.y(row)
        yield text_at((self.left - 8, y + 4), name, "end", f"t {style}")
        if metric["lower"] is not None and metric["upper"] is not None:
            yield (
                f'<line class="iv {style}" x1="{self.x(metric["lower"]):.1f}" '
                f'x2="{self.x(metric["upper"]):.1f}" y1="{y}" y2="{y}"/>'
            )
        at = self.x(metric["estimate"])
        yield f'<circle class="pt {style}" cx="{at:.1f}" cy="{y}" r="4.5"/>'
        yield text_at((self.width - self.right + 12, y + 4), note, "start", f"t {style}")

    def draw(self, title: str, description: str, parts: Iterable[str]) -> str:
        """The whole picture."""
        size = (self.width, self.height)
        return picture(size, title, description, [*self.grid(), *parts])


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate with its interval.

    Attributes:
        estimate: The figure.
        lower: Lower bound.
        upper: Upper bound.
    """

    estimate: float
    lower: float
    upper: float


def bar_axis(values: Iterable[float], floor: float, ceiling: float) -> Axis:
    """The common axis of several bars.

    Args:
        values: All bounds and limits that are drawn on it.
        floor: Smallest value that their unit has.
        ceiling: Largest.
    """
    known = list(values)
    low, high = min(known), max(known)
    span = high - low or max(abs(high), 1e-3)
    return Axis(max(floor, low - 0.06 * span), min(ceiling, high + 0.06 * span), "")


def interval_bar(
    interval: Interval,
    axis: Axis,
    limit: float,
    look: tuple[str, str, str],
    ends: tuple[str, str],
) -> str:
    """An interval beside its limit: the bad side of the limit is shaded.

    Args:
        interval: Estimate and bounds.
        axis: The axis that bars of its unit share.
        limit: The limit.
        look: CSS class; which way is better (`higher`, `lower`, or empty where neither side is
            bad); the same in words, for screen readers.
        ends: The axis's first and last value as text.
    """
    style, better, description = look
    middle = 14

    def px(value: float) -> float:
        return BAR_EDGE + axis.place(value) * (BAR_WIDTH - 2 * BAR_EDGE)

    low, high, at, mark = px(interval.lower), px(interval.upper), px(interval.estimate), px(limit)
    parts = [f'<line class="grid" x1="{BAR_EDGE}" x2="{BAR_WIDTH - BAR_EDGE}" y1="27" y2="27"/>']
    if better:
        bad_x, bad_end = (BAR_EDGE, mark) if better == "higher" else (mark, BAR_WIDTH - BAR_EDGE)
        parts.append(
            f'<rect class="bad" x="{bad_x:.1f}" y="2" width="{bad_end - bad_x:.1f}" height="25"/>'
        )
    parts.append(
        f'<line class="limit" x1="{mark:.1f}" x2="{mark:.1f}" y1="1" y2="27"/>'
        f'<line class="iv {style}" x1="{low:.1f}" x2="{high:.1f}" y1="{middle}" y2="{middle}"/>'
    )
    for end in (low, high):
        parts.append(
            f'<line class="iv {style}" x1="{end:.1f}" x2="{end:.1f}" '
            f'y1="{middle - 5}" y2="{middle + 5}"/>'
        )
    parts.append(f'<circle class="pt {style}" cx="{at:.1f}" cy="{middle}" r="4.5"/>')
    parts.append(text_at((BAR_EDGE, 39), ends[0], "start", "small"))
    parts.append(text_at((BAR_WIDTH - BAR_EDGE, 39), ends[1], "end", "small"))
    size = (BAR_WIDTH, BAR_HEIGHT)
    return picture(size, "interval against the limit", description, parts, "bar")
