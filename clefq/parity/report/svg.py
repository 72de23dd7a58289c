"""Small inline SVG: axes, lines, points and bars as text, styled by the page's CSS classes.

Every picture has a title and a description for screen readers, and text labels instead of colour
alone. No script, no font, no remote asset.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

Point = tuple[float, float]
WIDTH, HEIGHT = 640, 320
LEFT, RIGHT, TOP, BOTTOM = 62, 16, 14, 46


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
            return [(value, f"{100 * value:.{digits}f}%") for value in values]
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


def interval_bar(
    interval: Interval, limit: float, status: str, better: str, description: str
) -> str:
    """An interval beside its limit: the bad side of the limit is hatched.

    Args:
        interval: Estimate and bounds.
        limit: The limit.
        status: The gate's status, a CSS class.
        better: `higher` or `lower`.
        description: The same in words, for screen readers.
    """
    width, height, middle = 240, 34, 17
    values = (interval.lower, interval.upper, limit)
    span = max(values) - min(values) or max(abs(limit), 1e-3)
    axis = Axis(min(values) - 0.15 * span, max(values) + 0.15 * span, "")

    def px(value: float) -> float:
        return 4 + axis.place(value) * (width - 8)

    low, high, at, mark = px(interval.lower), px(interval.upper), px(interval.estimate), px(limit)
    bad_x, bad_w = (4.0, mark - 4) if better == "higher" else (mark, width - 4 - mark)
    parts = [
        f'<rect class="bad" x="{bad_x:.1f}" y="4" width="{bad_w:.1f}" height="{height - 8}"/>',
        f'<line class="limit" x1="{mark:.1f}" x2="{mark:.1f}" y1="1" y2="{height - 1}"/>',
        f'<line class="iv {status}" x1="{low:.1f}" x2="{high:.1f}" y1="{middle}" y2="{middle}"/>',
    ]
    for end in (low, high):
        parts.append(
            f'<line class="iv {status}" x1="{end:.1f}" x2="{end:.1f}" '
            f'y1="{middle - 5}" y2="{middle + 5}"/>'
        )
    parts.append(f'<circle class="pt {status}" cx="{at:.1f}" cy="{middle}" r="4.5"/>')
    return picture((width, height), "interval against the limit", description, parts, "bar")
