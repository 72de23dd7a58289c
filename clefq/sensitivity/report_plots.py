"""The pictures of the report: the heat map of the blocks, and the fronts of all layouts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from clefq.parity.report.svg import Axis, Canvas, picture, text_at
from clefq.sensitivity.report_text import milli, short
from clefq.sensitivity.schema import SEARCHED, BlockResult, LayoutResult, Sensitivity

LABEL, CELL, ROW, GAP, TOP = 118, 46, 30, 10, 40
_WIDTH = 1080
_TEXT_FROM = 34  # cells at least this wide hold their number
_LEVELS = 10
_SMALLEST = 1e-9
_LETTER, _LINE, _STEP = 7.0, 14.0, 3.5
_MIXERS = ("attention", "deltanet")


def heat_map(found: Sensitivity) -> str:
    """Layers from left to right, a row per kind and scheme, darker where KL is larger."""
    layers = sorted({result.layer for result in found.blocks})
    schemes = list(dict.fromkeys(result.scheme for result in found.blocks))
    by = {(r.layer, r.kind in _MIXERS, r.scheme): r for r in found.blocks}
    cell = min(CELL, max(9, (_WIDTH - LABEL) // len(layers)))
    scale = _Scale([r.damage.kl.estimate for r in found.blocks])
    parts = []
    for column, layer in enumerate(layers):
        x = LABEL + column * cell
        if cell >= 20 or layer % 4 == 0:
            parts.append(text_at((x + cell / 2, TOP - 22), f"{layer}"))
        mixer = by[layer, True, schemes[0]].kind
        parts.append(text_at((x + cell / 2, TOP - 7), "A" if mixer == "attention" else "D"))
    y = TOP
    for is_mixer, label in ((True, "attention / DeltaNet"), (False, "MLP")):
        parts.append(text_at((0, y + 12), label, "start", "t small"))
        y += 18
        for scheme in schemes:
            parts.append(text_at((12, y + ROW / 2 + 4), scheme, "start"))
            for column, layer in enumerate(layers):
                at = (LABEL + column * cell, y)
                parts.append(_cell(by[layer, is_mixer, scheme], at, cell, scale))
            y += ROW
        y += GAP
    parts += _legend(scale, y + 6)
    width = max(LABEL + cell * len(layers), LABEL + 330)
    described = (
        "KL of each block quantized alone, by layer and scheme; the table below has the numbers"
    )
    svg = picture((width, y + 44), "damage by block", described, parts, "heat")
    return svg.replace("<svg ", f'<svg style="max-width:{1.15 * width:.0f}px" ', 1)


class _Scale:
    """KL to one of ten shades, logarithmic over the range that occurs."""

    def __init__(self, values: Sequence[float | None]) -> None:
        finite = [max(value, _SMALLEST) for value in values if value is not None]
        self.low = min(finite, default=_SMALLEST)
        self.high = max(max(finite, default=1.0), self.low * 1.001)

    def level(self, value: float | None) -> int:
        """Shade from 0 (least) to 9; infinite damage is the darkest."""
        if value is None:
            return _LEVELS - 1
        share = math.log(max(value, self.low) / self.low) / math.log(self.high / self.low)
        return min(_LEVELS - 1, int(share * _LEVELS))


def _cell(result: BlockResult, at: tuple[float, float], width: int, scale: _Scale) -> str:
    x, y = at
    kl = result.damage.kl
    level = scale.level(kl.estimate)
    title = (
        f"{result.block} in {result.scheme}: KL {milli(kl)} thousandths, "
        f"{result.damage.flips} flips, output error {100 * result.output_error:.1f}%"
    )
    box = f'x="{x + 1:.1f}" y="{y + 1:.1f}" width="{width - 2}" height="{ROW - 2}"'
    text = ""
    if width >= _TEXT_FROM:
        style = "t on" if level >= _LEVELS // 2 else "t"
        shown = "inf" if kl.estimate is None else short(1000 * kl.estimate, 2)
        text = text_at((x + width / 2, y + ROW / 2 + 4), shown, "middle", style)
    return f'<g><title>{escape(title)}</title><rect class="h h{level}" {box}/>{text}</g>'


def _legend(scale: _Scale, y: float) -> list[str]:
    parts = [text_at((0, y + 12), "KL, nats/1000", "start", "t small")]
    for level in range(_LEVELS):
        x = LABEL + level * 22
        parts.append(f'<rect class="h h{level}" x="{x}" y="{y}" width="20" height="14"/>')
    ends = ((LABEL, scale.low, "start"), (LABEL + 220, scale.high, "end"))
    parts += [
        text_at((x, y + 30), short(1000 * value), anchor, "t small") for x, value, anchor in ends
    ]
    return parts


def front_plot(found: Sensitivity, by: str) -> str:
    """Every layout by size (or estimated speed) and KL, with the predicted front.

    Args:
        found: The result.
        by: `bytes` or `speed`.
    """
    points = [point for point in found.front if point.by == by and point.kl > 0]
    shown = [layout for layout in found.layouts if _kl(layout) is not None]
    if not points and not shown:
        return ""
    unit = 1e9 if found.model["bf16_bytes"] >= 1e8 else 1e6

    def across(item: LayoutResult) -> float:
        return item.nbytes / unit if by == "bytes" else item.speedup

    line = [(p.nbytes / unit if by == "bytes" else p.speedup, 1000 * p.kl) for p in points]
    dots = [(across(item), 1000 * (_kl(item) or _SMALLEST), item) for item in shown]
    xs = [x for x, _ in line] + [x for x, _, _ in dots]
    ys = [y for _, y in line] + [y for _, y, _ in dots]
    span = (max(xs) - min(xs)) or 1.0
    name = (
        f"size, {'GB' if unit == 1e9 else 'MB'}" if by == "bytes" else "estimated speed, BF16 = 1"
    )
    canvas = Canvas(
        Axis(min(xs) - 0.04 * span, max(xs) + 0.16 * span, name),
        Axis(
            10 ** math.floor(math.log10(min(ys))),
            10 ** math.ceil(math.log10(max(ys))),
            "KL, thousandths of a nat",
            log=True,
        ),
        height=360,
    )
    body = [canvas.line(sorted(line), "curve ref")] if line else []
    body += _marks(canvas, dots)
    described = "measured layouts and the least predicted KL; the table has the numbers"
    return canvas.draw(f"damage by {name}", described, body)


def _marks(canvas: Canvas, dots: Sequence[tuple[float, float, LayoutResult]]) -> list[str]:
    parts: list[str] = []
    names = _Names()
    for x, y, layout in sorted(dots, key=lambda dot: dot[1]):
        ours = layout.origin == SEARCHED
        measured = layout.measured
        if measured is not None and measured.kl.lower and measured.kl.upper:
            low, high = 1000 * measured.kl.lower, 1000 * measured.kl.upper
            parts.append(canvas.whisker(x, low, high, "whisker"))
        parts.append(
            canvas.diamond((x, y), "pt main", 7) if ours else canvas.dot((x, y), "pt small")
        )
        px, py = canvas.at((x, y))
        parts.append(text_at(names.place(px + 9, py + 4, layout.name), layout.name, "start"))
    return parts


class _Names:
    """Places names beside their points so that none lies on another."""

    def __init__(self) -> None:
        self._taken: list[tuple[float, float, float]] = []

    def place(self, x: float, y: float, name: str) -> tuple[float, float]:
        """The free place nearest to (x, y), straight above or below it."""
        right = x + _LETTER * len(name)
        steps = (sign * _STEP * step for step in range(40) for sign in (1, -1))
        at = next(dy for dy in steps if not self._overlaps(x, right, y + dy))
        self._taken.append((x, right, y + at))
        return x, y + at

    def _overlaps(self, left: float, right: float, y: float) -> bool:
        return any(
            left < other_right and right > other_left and abs(y - other) < _LINE
            for other_left, other_right, other in self._taken
        )


def _kl(layout: LayoutResult) -> float | None:
    return None if layout.measured is None else layout.measured.kl.estimate
