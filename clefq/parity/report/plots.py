"""The plots of the HTML report: each answers one question, and says so in its caption."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from clefq.parity.report.svg import Axis, Canvas, picture, text_at
from clefq.parity.statistics.arrays import BoolArray, FloatArray
from clefq.parity.statistics.divergences import QuestionValues, SideValues
from clefq.parity.statistics.intervals import wilson
from clefq.parity.statistics.noise_floor import NoiseFloor
from clefq.parity.statistics.pair_statistics import PairStatistics

MARGIN_EDGES = np.linspace(0.0, 1.0, 11)
MIN_BIN = 10
MIN_SLICE = 200
MAX_POINTS = 1500
MAX_SLICES = 40
CURVE_POINTS = 160
SMALLEST_DISTANCE = 1e-6


@dataclass(frozen=True, slots=True)
class Plot:
    """A picture with its heading and caption.

    Attributes:
        title: The question that it answers.
        caption: How to read it.
        svg: The picture.
    """

    title: str
    caption: str
    svg: str


def plots(
    document: Mapping[str, Any], statistics: PairStatistics, noise: NoiseFloor | None
) -> list[Plot]:
    """All plots that this comparison has data for, in report order.

    Args:
        document: The `parity.json` value.
        statistics: The pair's statistics.
        noise: The noise floor, or None without a replicate.
    """
    thresholds, values = statistics.spec.thresholds, statistics.values
    found = [
        flip_rate(values),
        slice_agreement(document, ("length", "cohort"), document["candidate"]["variant"]),
        distances(values.tv[values.valid], _floor(noise, "tv"), "total variation"),
        distances(values.kl[values.valid], _floor(noise, "kl"), "KL, nats"),
        p_true(values, thresholds),
        reliability(document["details"]["reliability"]),
        risk_coverage(values),
    ]
    return [plot for plot in found if plot is not None]


def _floor(noise: NoiseFloor | None, name: str) -> FloatArray | None:
    """Distances of the baseline from its replicates, all of them together."""
    if noise is None:
        return None
    found = [getattr(values, name)[values.valid] for values in noise.values]
    joined: FloatArray = np.concatenate(found)
    return joined


def flip_rate(values: QuestionValues) -> Plot | None:
    """Share of changed answers by the baseline's margin, with Wilson intervals."""
    valid = values.valid
    if not bool(valid.any()):
        return None
    bins = np.clip(np.digitize(values.baseline.margin[valid], MARGIN_EDGES) - 1, 0, 9)
    flipped = ~values.agree[valid]
    rows = [(k, int(flipped[bins == k].sum()), int((bins == k).sum())) for k in range(10)]
    uppers = [wilson(x, n)[1] for _, x, n in rows if n]
    top = min(1.0, max(0.02, 1.1 * max(x / n for _, x, n in rows if n), 0.6 * max(uppers)))
    canvas = Canvas(
        Axis(0, 1, "baseline's margin (top option minus second)"),
        Axis(0, top, "answers that flip", percent=True),
    )
    body = []
    for k, x, n in rows:
        if n == 0:
            continue
        middle = (k + 0.5) / 10
        low, high = wilson(x, n)
        body += [
            canvas.bar(k / 10, (k + 1) / 10, x / n, "bar"),
            canvas.whisker(middle, low, min(high, top), "whisker"),
            canvas.label((middle, top), f"{x}/{n}", lift=3),
        ]
    text = "; ".join(f"margin {k / 10:.1f}: {x} of {n}" for k, x, n in rows if n)
    return Plot(
        "Where do answers flip?",
        "Changed answers by the baseline's margin; above, flips/questions; 95% Wilson "
        "intervals. Flips belong at the left, where the baseline itself was unsure.",
        canvas.draw("Flip rate by margin", text, body),
    )


def slice_agreement(document: Mapping[str, Any], keys: Sequence[str], variant: str) -> Plot | None:
    """Agreement with its interval in every slice; small slices greyed."""
    rows = [
        (name, metrics["agreement"])
        for key in keys
        for name, metrics in document["slices"].items()
        if name.startswith(f"{key}=") and metrics.get("agreement", {}).get("estimate") is not None
    ]
    hidden = max(0, len(rows) - MAX_SLICES)
    rows = rows[:MAX_SLICES]
    if not rows:
        return None
    lows = [metric["lower"] for _, metric in rows if metric["lower"] is not None]
    lowest = min([*lows, *(metric["estimate"] for _, metric in rows)])
    left, line, width = 190, 26, 640
    height = line * len(rows) + 44
    axis = Axis(max(0.0, lowest - 0.03), 1.0, "", percent=True)

    def px(value: float) -> float:
        return left + axis.place(value) * (width - left - 84)

    parts = []
    for value, text in axis.ticks():
        x = px(value)
        parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="4" y2="{height - 36}"/>')
        parts.append(text_at((x, height - 20), text))
    parts.append(text_at(((left + width - 84) / 2, height - 3), "agreement with the baseline"))
    for index, (name, metric) in enumerate(rows):
        y = 17.0 + index * line
        style = "small" if metric["n_questions"] < MIN_SLICE else "main"
        parts.append(text_at((left - 8, y + 4), _shorten(name), "end", f"t {style}"))
        if metric["lower"] is not None:
            parts.append(
                f'<line class="iv {style}" x1="{px(metric["lower"]):.1f}" '
                f'x2="{px(metric["upper"]):.1f}" y1="{y}" y2="{y}"/>'
            )
        parts.append(
            f'<circle class="pt {style}" cx="{px(metric["estimate"]):.1f}" cy="{y}" r="4.5"/>'
        )
        label = f"n={metric['n_questions']:,}"
        parts.append(text_at((width - 76, y + 4), label, "start", f"t {style}"))
    text = "; ".join(f"{name}: {metric['estimate']:.4f}" for name, metric in rows)
    more = f" {hidden} further slices are in breakdown.csv." if hidden else ""
    return Plot(
        "Does it hold for every length and cohort?",
        f"Agreement with 95% intervals; slices under {MIN_SLICE} questions are grey: too few "
        f"to judge.{more}",
        picture((width, height), f"Agreement of {variant} by slice", text, parts),
    )


def distances(values: FloatArray, floor: FloatArray | None, name: str) -> Plot | None:
    """Share of questions whose distributions moved by more than x, on a logarithmic axis."""
    if values.size == 0 or not bool((values > SMALLEST_DISTANCE).any()):
        return None
    top = max(1.0, float(np.max(values[np.isfinite(values)], initial=1.0)))
    canvas = Canvas(
        Axis(SMALLEST_DISTANCE, top, f"{name} (logarithmic)", log=True),
        Axis(0, 1, "questions that moved more", percent=True),
    )
    body = [canvas.line(_survival(values, top), "curve main")]
    if floor is not None and floor.size:
        body.append(canvas.line(_survival(floor, top), "curve ref"))
    quantiles = np.percentile(values, (50, 90, 99), method="inverted_cdf")
    for level, value in zip((50, 90, 99), quantiles, strict=True):
        if SMALLEST_DISTANCE < value < np.inf:
            point = (float(value), 1 - level / 100)
            body += [
                canvas.dot(point, "pt main"),
                canvas.label(point, f"p{level} {value:.2g}", _anchor(canvas, point), 8),
            ]
    text = ", ".join(f"p{k} {v:.3g}" for k, v in zip((50, 90, 99), quantiles, strict=True))
    against = (
        " Dashed: the noise floor, the baseline against its own replicate."
        if floor is not None
        else (" Add --replicate to see the noise floor of the baseline itself.")
    )
    return Plot(
        f"How far do distributions move? ({name.split(',')[0]})",
        f"Share of questions beyond each distance.{against}",
        canvas.draw(f"Distribution of {name}", text, body),
    )


def _anchor(canvas: Canvas, point: tuple[float, float]) -> str:
    """Text runs towards the middle of the picture."""
    return "end" if canvas.x.place(point[0]) > 0.8 else "start"


def _survival(values: FloatArray, top: float) -> list[tuple[float, float]]:
    grid = np.geomspace(SMALLEST_DISTANCE, top, CURVE_POINTS)
    ordered = np.sort(values)
    above = 1 - np.searchsorted(ordered, grid, side="right") / len(ordered)
    return [(float(x), float(y)) for x, y in zip(grid, above, strict=True)]


def p_true(values: QuestionValues, thresholds: Sequence[float]) -> Plot | None:
    """p(true) of both models, with the thresholds between which decisions change."""
    known = values.valid & np.isfinite(values.baseline.p_true)
    if not bool(known.any()):
        return None
    before, after = values.baseline.p_true[known], values.candidate.p_true[known]
    stride = max(1, -(-len(before) // MAX_POINTS))
    canvas = Canvas(Axis(0, 1, "baseline p(true)"), Axis(0, 1, "candidate p(true)"), 640, 420)
    body = [canvas.line(((0, 0), (1, 1)), "diagonal")]
    flipped = np.zeros(len(before), dtype=np.bool_)
    for threshold in thresholds:
        body.append(canvas.line(((threshold, 0), (threshold, 1)), "threshold"))
        body.append(canvas.line(((0, threshold), (1, threshold)), "threshold"))
        body.append(canvas.label((threshold, 1), f"{threshold:g}", "start", -10))
        flipped |= (before >= threshold) != (after >= threshold)
    for x, y in zip(before[~flipped][::stride], after[~flipped][::stride], strict=True):
        body.append(canvas.dot((float(x), float(y)), "pt faint", 2.5))
    for x, y in zip(before[flipped][:MAX_POINTS], after[flipped][:MAX_POINTS], strict=True):
        body.append(canvas.diamond((float(x), float(y)), "pt fail"))
    crossed = int(flipped.sum())
    thin = f" Every {stride}th steady question is drawn." if stride > 1 else ""
    return Plot(
        "Which true/false decisions change?",
        f"{crossed} of {len(before)} questions cross a threshold (diamonds).{thin}",
        canvas.draw("p(true) of both models", f"{crossed} of {len(before)} cross", body),
    )


def reliability(details: Mapping[str, Any] | None) -> Plot | None:
    """Accuracy against confidence of both models, in the baseline's bins.

    Args:
        details: The object under `reliability` in the details, or None without gold.
    """
    if details is None:
        return None
    sides = {
        role: [
            (bin_["confidence"], bin_["accuracy"]) for bin_ in details[role] if bin_["n"] >= MIN_BIN
        ]
        for role in ("baseline", "candidate")
    }
    known = [value for points in sides.values() for point in points for value in point]
    if not known:
        return None
    low = max(0.0, min(known) - 0.05)
    canvas = Canvas(
        Axis(low, 1, "confidence in the chosen option"), Axis(low, 1, "accuracy", percent=True)
    )
    body = [canvas.line(((low, low), (1, 1)), "diagonal")]
    for role, style in (("baseline", "ref"), ("candidate", "main")):
        body.append(canvas.line(sides[role], f"curve {style}"))
        mark = canvas.diamond if style == "ref" else canvas.dot
        body += [mark(point, f"pt {style}") for point in sides[role]]
    text = "; ".join(
        f"{role}: " + ", ".join(f"{x:.2f} to {y:.2f}" for x, y in points)
        for role, points in sides.items()
    )
    return Plot(
        "Do stated confidences still hold?",
        "Accuracy in bins of confidence: baseline dashed with diamonds, candidate solid with "
        "dots. On the diagonal, 80% confidence means 80% right.",
        canvas.draw("Reliability of both models", text, body),
    )


def risk_coverage(values: QuestionValues) -> Plot | None:
    """Error rate among the most confident answers, for both models."""
    known = values.valid & values.has_gold
    if int(known.sum()) < 10:
        return None
    curves = [
        (role, style, _risk_points(side, known))
        for role, style, side in (
            ("baseline", "ref", values.baseline),
            ("candidate", "main", values.candidate),
        )
    ]
    top = max(0.02, 1.1 * max(y for _, _, points in curves for _, y in points))
    canvas = Canvas(
        Axis(0, 1, "share answered, most confident first", percent=True),
        Axis(0, min(1.0, top), "errors among them", percent=True),
    )
    body = [canvas.line(points, f"curve {style}") for _, style, points in curves]
    body += [canvas.label(points[-1], role, "end", 8) for role, _, points in curves]
    text = "; ".join(f"{role}: {points[-1][1]:.4f} at full coverage" for role, _, points in curves)
    return Plot(
        "What does abstaining buy?",
        "Error rate when only the most confident share is answered automatically: baseline "
        "dashed, candidate solid.",
        canvas.draw("Risk against coverage", text, body),
    )


def _risk_points(side: SideValues, known: BoolArray) -> list[tuple[float, float]]:
    order = np.argsort(-side.confidence[known], kind="stable")
    wrong = np.cumsum(~side.correct[known][order])
    n = len(order)
    steps = np.unique(np.linspace(max(1, n // 50), n, CURVE_POINTS).astype(np.int64))
    return [(float(k / n), float(wrong[k - 1] / k)) for k in steps]


def _shorten(text: str) -> str:
    name = text.split("=", 1)[1]
    return name if len(name) <= 24 else name[:23] + "…"
