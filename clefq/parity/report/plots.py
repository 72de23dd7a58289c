"""The plots of the HTML report: each answers one question, and says so in its caption."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from clefq.parity.gates.operating import SHARES
from clefq.parity.report.svg import Axis, Canvas, Rows, text_at
from clefq.parity.statistics.arrays import BoolArray, FloatArray
from clefq.parity.statistics.divergences import QuestionValues, SideValues
from clefq.parity.statistics.intervals import wilson
from clefq.parity.statistics.noise_floor import ReplicateNoise
from clefq.parity.statistics.pair_statistics import PairStatistics
from clefq.parity.statistics.slices import slice_order

MARGIN_EDGES = np.linspace(0.0, 1.0, 11)
MIN_BIN = 10
MIN_SLICE = 200
MAX_POINTS = 1500
MAX_SLICES = 40
CURVE_POINTS = 160
APART = 9  # user units between two models of one size
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
    document: Mapping[str, Any], statistics: PairStatistics, noise: ReplicateNoise | None
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
        distances(values.tv[values.measured], _floor(noise, "tv"), "total variation"),
        distances(values.kl[values.measured], _floor(noise, "kl"), "KL, nats"),
        p_true(values, thresholds),
        reliability(document["details"]["reliability"]),
        risk_coverage(values),
        *(chance_to_pass(curve) for curve in document["details"]["operating"]),
    ]
    return [plot for plot in found if plot is not None]


def chance_to_pass(curve: Mapping[str, Any]) -> Plot:
    """How likely this set passes a gate, by the candidate's true loss.

    Args:
        curve: An object under `operating` in the details.
    """
    points = [(item["loss"], item["passes"]) for item in curve["curve"]]
    share = curve["metric"] in SHARES
    tolerated = 1 - curve["limit"] if share else -curve["limit"]
    what = "answers that change" if share else "accuracy lost"
    canvas = Canvas(
        Axis(0, 1.02 * max(points[-1][0], tolerated), f"true share of {what}", percent=True),
        Axis(0, 1, "chance to pass", percent=True),
    )
    body = [canvas.line(((tolerated, 0), (tolerated, 1)), "threshold")]
    body.append(canvas.label((tolerated, 1), "limit"))
    body.append(canvas.line(points, "curve main"))
    body += [canvas.dot(point, "pt main") for point in points]
    text = ", ".join(f"{passes:.0%} at {100 * loss:.3g} points" for loss, passes in points)
    return Plot(
        f"Can this set pass {curve['gate']}?",
        f"Share of {curve['trials']} simulated sets of this size and make-up that pass, by the "
        "true loss. A good set passes nearly always on the left and hardly ever from the limit "
        "on; where the left end is low, a sound candidate fails for want of questions.",
        canvas.draw(f"Chance to pass {curve['gate']} by the true loss", text, body),
    )


def _floor(noise: ReplicateNoise | None, name: str) -> FloatArray | None:
    """Distances of the baseline from its replicates, all of them together."""
    if noise is None:
        return None
    found = [getattr(values, name)[values.measured] for values in noise.values]
    joined: FloatArray = np.concatenate(found)
    return joined


def flip_rate(values: QuestionValues) -> Plot | None:
    """Share of changed answers by the baseline's margin, with Wilson intervals."""
    valid = values.valid & ~np.isnan(values.baseline.margin)
    if not bool(valid.any()):
        return None
    bins = np.clip(np.digitize(values.baseline.margin[valid], MARGIN_EDGES) - 1, 0, 9)
    flipped = ~values.agree[valid]
    rows = [(k, int(flipped[bins == k].sum()), int((bins == k).sum())) for k in range(10)]
    drawn = [wilson(x, n)[1] if n >= MIN_BIN else x / n for _, x, n in rows if n]
    top = max(0.02, 1.03 * max(drawn))
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
        body.append(canvas.bar(k / 10, (k + 1) / 10, x / n, "bar"))
        if n >= MIN_BIN:
            body.append(canvas.whisker(middle, low, high, "whisker"))
        body.append(text_at((canvas.at((middle, top))[0], 18), f"{x}/{n}"))
    text = "; ".join(f"margin {k / 10:.1f}: {x} of {n}" for k, x, n in rows if n)
    return Plot(
        "Where do answers flip?",
        "Changed answers by the baseline's margin; above, flips/questions; 95% Wilson intervals "
        f"where a bar has {MIN_BIN} questions. Flips belong at the left, where the baseline "
        "itself was unsure.",
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
    rows.sort(key=lambda row: (keys.index(row[0].partition("=")[0]), slice_order(row[0])))
    hidden = max(0, len(rows) - MAX_SLICES)
    rows = rows[:MAX_SLICES]
    if not rows:
        return None
    lows = [metric["lower"] for _, metric in rows if metric["lower"] is not None]
    lowest = min([*lows, *(metric["estimate"] for _, metric in rows)])
    axis = Axis(max(0.0, lowest - 0.03), 1.0, "agreement with the baseline", percent=True)
    chart = Rows(axis, len(rows), left=150, right=82)
    parts: list[str] = []
    for index, (name, metric) in enumerate(rows):
        style = "small" if metric["n_questions"] < MIN_SLICE else "main"
        parts += chart.row(index, _shorten(name), metric, f"n={metric['n_questions']:,}", style)
    text = "; ".join(f"{name}: {metric['estimate']:.4f}" for name, metric in rows)
    more = f" {hidden} further slices are in breakdown.csv." if hidden else ""
    return Plot(
        "Does it hold for every length and cohort?",
        f"Agreement with 95% intervals; slices under {MIN_SLICE} questions are grey: too few "
        f"to judge.{more}",
        chart.draw(f"Agreement of {variant} by slice", text, parts),
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
            body.append(canvas.dot((float(value), 1 - level / 100), "pt main"))
    # the curve falls: the upper right corner is free
    body += canvas.notes([f"p{k} {v:.2g}" for k, v in zip((50, 90, 99), quantiles, strict=True)])
    if floor is not None:
        body += canvas.legend([("main", "candidate"), ("ref", "noise floor")])
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


def _survival(values: FloatArray, top: float) -> list[tuple[float, float]]:
    grid = np.geomspace(SMALLEST_DISTANCE, top, CURVE_POINTS)
    ordered = np.sort(values)
    above = 1 - np.searchsorted(ordered, grid, side="right") / len(ordered)
    return [(float(x), float(y)) for x, y in zip(grid, above, strict=True)]


def p_true(values: QuestionValues, thresholds: Sequence[float]) -> Plot | None:
    """p(true) of both models, with the thresholds between which decisions change."""
    known = values.measured & np.isfinite(values.baseline.p_true)
    if not bool(known.any()):
        return None
    before, after = values.baseline.p_true[known], values.candidate.p_true[known]
    stride = max(1, -(-len(before) // MAX_POINTS))
    canvas = Canvas(Axis(0, 1, "baseline p(true)"), Axis(0, 1, "candidate p(true)"))
    body = [canvas.line(((0, 0), (1, 1)), "diagonal")]
    flipped = np.zeros(len(before), dtype=np.bool_)
    for threshold in thresholds:
        body.append(canvas.line(((threshold, 0), (threshold, 1)), "threshold"))
        body.append(canvas.line(((0, threshold), (1, threshold)), "threshold"))
        body.append(canvas.label((threshold, 1), f"{threshold:g}"))
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
    body += canvas.legend([("ref", "baseline"), ("main", "candidate")])
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
    known = values.measured & values.has_gold
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
    body += canvas.legend([(style, role) for role, style, _ in curves])
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


@dataclass(frozen=True, slots=True)
class _Spot:
    """One model in the plot of quality against size.

    Attributes:
        name: The variant.
        size: In the unit of the axis.
        quality: Accuracy difference, or agreement where the set has no gold.
        lower: Its lower bound, or None.
        upper: Its upper bound, or None.
    """

    name: str
    size: float
    quality: float
    lower: float | None
    upper: float | None


def quality_by_size(summary: Mapping[str, Any]) -> Plot | None:
    """Accuracy lost or gained (agreement without gold) against size; the models that none beats.

    Args:
        summary: A `summary.json` value.
    """
    found = [row["accuracy_delta"] for row in summary["candidates"]]
    graded = any(metric is not None and metric["estimate"] is not None for metric in found)
    largest = max((row["size_bytes"] or 0 for row in _rows(summary)), default=0)
    unit, scale = ("GB", 1e9) if largest >= 1e8 else ("MB", 1e6)
    spots = _spots(summary, "accuracy_delta" if graded else "agreement", scale)
    if len(spots) < 2:
        return None
    best = _front(spots)
    ends = [end for s in spots for end in (s.lower, s.upper, s.quality) if end is not None]
    edge = 0.05 * (max(ends) - min(ends)) or 0.01
    label = "accuracy, candidate − baseline" if graded else "agreement with the baseline"
    canvas = Canvas(
        Axis(0, 1.15 * max(spot.size for spot in spots), f"weights on disk, {unit}"),
        Axis(min(ends) - edge, max(ends) + edge, label, percent=True),
    )
    body = [canvas.line([(s.size, s.quality) for s in best], "curve ref")]
    body += _draw_spots(canvas, spots, best)
    body += canvas.legend([("ref", "no other is both smaller and better")])
    text = "; ".join(f"{s.name}: {s.size:.4g} {unit}, {s.quality:+.4f}" for s in spots)
    return Plot(
        f"What does each {'gigabyte' if unit == 'GB' else 'megabyte'} buy?",
        f"{label.capitalize()}, with its 95% interval. Grey: another model is at most as large "
        "and at least as good, as measured; where intervals overlap, which is better is open.",
        canvas.draw("Quality against size", text, body),
    )


def _rows(summary: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [summary["baseline"], *summary["candidates"]]


def _spots(summary: Mapping[str, Any], name: str, scale: float) -> list[_Spot]:
    """The models of which size and quality are known; the baseline is what it is itself."""
    itself = {"estimate": 0.0 if name == "accuracy_delta" else 1.0, "lower": None, "upper": None}
    return [
        _Spot(row["variant"], row["size_bytes"] / scale, *(metric[key] for key in _ENDS))
        for row in _rows(summary)
        if row["size_bytes"]
        and (metric := row.get(name, itself)) is not None
        and metric["estimate"] is not None
    ]


_ENDS = ("estimate", "lower", "upper")


def _front(spots: Sequence[_Spot]) -> list[_Spot]:
    """The models that no other beats: smaller or as small, and better or as good; by size."""
    found: list[_Spot] = []
    for spot in sorted(spots, key=lambda s: (s.size, -s.quality, s.name)):
        if not found or spot.quality > found[-1].quality:
            found.append(spot)
    return found


def _draw_spots(canvas: Canvas, spots: Sequence[_Spot], best: Sequence[_Spot]) -> Iterator[str]:
    """Points with intervals and names; what would lie on a neighbour is moved aside."""
    ordered = sorted(spots, key=lambda s: (s.size, s.name))
    places = _apart([canvas.at((spot.size, 0))[0] for spot in ordered])
    named: list[tuple[float, float]] = []
    edges = [canvas.at((canvas.x.low, 0))[0], *places, canvas.at((canvas.x.high, 0))[0]]
    for index, (spot, x) in enumerate(zip(ordered, places, strict=True)):
        style = "main" if spot in best else "small"
        if spot.lower is not None and spot.upper is not None:
            low, high = (canvas.at((0, end))[1] for end in (spot.lower, spot.upper))
            ends = f'y1="{low:.1f}" y2="{high:.1f}"'
            yield f'<line class="iv {style}" x1="{x:.1f}" x2="{x:.1f}" {ends}/>'
        y = canvas.at((0, spot.quality))[1]
        yield f'<circle class="pt {style}" cx="{x:.1f}" cy="{y:.1f}" r="4.5"/>'
        line = y - 8
        while any(abs(line - other) < 15 and abs(x - at) < 110 for at, other in named):
            line -= 15
        named.append((x, line))
        # the name runs to the side that is free
        right = edges[index + 2] - x > x - edges[index]
        yield text_at((x + 8 if right else x - 8, line), spot.name, "start" if right else "end")


def _apart(places: Sequence[float]) -> list[float]:
    """Sorted positions, moved so that neighbours do not lie on each other."""
    found: list[float] = []
    for place in places:
        found.append(max(place, found[-1] + APART) if found else place)
    return found


def _shorten(text: str) -> str:
    name = text.split("=", 1)[1]
    return name if len(name) <= 20 else name[:19] + "…"
