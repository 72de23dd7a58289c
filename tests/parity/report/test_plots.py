"""The pictures show what the figures say."""

import re
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from clefq.parity.gates.compare import CandidateReport
from clefq.parity.report.plots import (
    Plot,
    chance_to_pass,
    distances,
    flip_rate,
    p_true,
    plots,
    quality_by_size,
    risk_coverage,
)
from clefq.parity.report.svg import BOTTOM, HEIGHT, TOP


def curve(plot: Plot, style: str) -> list[tuple[float, float]]:
    found = re.search(rf'class="curve {style}" points="([^"]+)"', plot.svg)
    assert found is not None
    return [tuple(map(float, pair.split(","))) for pair in found[1].split()]  # type: ignore[misc]


def height(pixel: float) -> float:
    """Share of the axis at a vertical pixel position."""
    return (HEIGHT - BOTTOM - pixel) / (HEIGHT - TOP - BOTTOM)


def test_survival_falls_from_all_to_none() -> None:
    values = np.array([1e-4] * 50 + [1e-2] * 40 + [0.5] * 10)
    plot = distances(values, values[:50], "total variation")
    assert plot is not None
    ys = [height(y) for _, y in curve(plot, "main")]
    assert ys == sorted(ys, reverse=True)
    assert (ys[0], ys[-1]) == (pytest.approx(1, abs=0.01), pytest.approx(0, abs=0.01))
    assert any(abs(y - 0.1) < 0.01 for y in ys) and any(abs(y - 0.5) < 0.01 for y in ys)
    floor = [height(y) for _, y in curve(plot, "ref")]
    assert floor[len(floor) // 2] == pytest.approx(0, abs=0.01)
    assert "p50 0.0001" in plot.svg and "p90 0.01" in plot.svg and "p99 0.5" in plot.svg
    assert distances(np.zeros(5), None, "total variation") is None


def test_flip_rates_count_every_question(report: CandidateReport) -> None:
    assert report.statistics is not None
    values = report.statistics.values
    plot = flip_rate(values)
    assert plot is not None
    bars = [(int(x), int(n)) for x, n in re.findall(r">(\d+)/(\d+)</text>", plot.svg)]
    assert sum(n for _, n in bars) == int(values.valid.sum())
    assert sum(x for x, _ in bars) == int((values.valid & ~values.agree).sum())


def test_no_whisker_is_clipped_and_no_label_lies_on_one(report: CandidateReport) -> None:
    assert report.statistics is not None
    plot = flip_rate(report.statistics.values)
    assert plot is not None
    whiskers = re.findall(r'class="whisker" points="[\d.]+,([\d.]+) [\d.]+,([\d.]+)"', plot.svg)
    tops = [float(high) for _, high in whiskers]
    assert tops and min(tops) > TOP + 1  # a clipped one would end at the edge
    labels = re.findall(r'y="([\d.]+)" text-anchor="middle">\d+/\d+<', plot.svg)
    assert labels and max(map(float, labels)) < TOP - 10


def model(name: str, size: int | None, delta: float) -> dict[str, Any]:
    figure = {"estimate": delta, "lower": delta - 0.01, "upper": delta + 0.01}
    return {"variant": name, "size_bytes": size, "accuracy_delta": figure, "agreement": None}


def test_the_front_holds_what_no_other_beats() -> None:
    rows = [model("small", 10**9, -0.02), model("worse", 2 * 10**9, -0.03),
            model("good", 2 * 10**9, 0.001), model("gone", None, 0.0)]  # fmt: skip
    summary = {"baseline": {"variant": "bf16", "size_bytes": 4 * 10**9}, "candidates": rows}
    plot = quality_by_size(summary)
    assert plot is not None and "gigabyte" in plot.title
    front = curve(plot, "ref")
    assert len(front) == 2 and front == sorted(front)
    assert plot.svg.count('class="pt main"') == 2
    assert plot.svg.count('class="pt small"') == 2 and "gone" not in plot.svg
    at = [float(x) for x in re.findall(r'class="pt \w+" cx="([\d.]+)"', plot.svg)]
    assert min(b - a for a, b in pairwise(at)) >= 8.9  # two of one size
    assert quality_by_size({**summary, "candidates": rows[3:]}) is None


def test_crossings_are_the_threshold_flips(report: CandidateReport) -> None:
    assert report.statistics is not None
    plot = p_true(report.statistics.values, (0.5,))
    assert plot is not None
    metric = report.statistics.metrics["threshold_flips@0.5"]
    assert metric.estimate is not None
    crossed = round(metric.estimate * metric.n_questions)
    assert plot.svg.count("<polygon") == crossed > 0
    assert f"{crossed} of {metric.n_questions} questions cross" in plot.caption


def test_risk_at_full_coverage_is_the_error_rate(report: CandidateReport) -> None:
    assert report.statistics is not None
    plot = risk_coverage(report.statistics.values)
    assert plot is not None
    for role in ("baseline", "candidate"):
        accuracy = report.statistics.metrics[f"accuracy_{role}"].estimate
        assert accuracy is not None
        assert f"{role}: {1 - accuracy:.4f} at full coverage" in plot.svg


def test_the_chance_to_pass_is_drawn_as_it_was_found() -> None:
    points = [(0.0, 1.0), (0.005, 0.9), (0.01, 0.3), (0.02, 0.0)]
    curve_of = {
        "gate": "steady", "metric": "agreement", "limit": 0.98, "trials": 100, "resemblance": 0.0,
        "curve": [{"loss": loss, "passes": share} for loss, share in points],
    }  # fmt: skip
    plot = chance_to_pass(curve_of)
    drawn = curve(plot, "main")
    assert [height(y) for _, y in drawn] == pytest.approx([y for _, y in points], abs=0.01)
    limit = re.search(r'class="threshold" points="([\d.]+),', plot.svg)
    assert limit is not None and float(limit[1]) == pytest.approx(drawn[-1][0], abs=0.2)
    difference = chance_to_pass({**curve_of, "metric": "accuracy_delta", "limit": -0.02})
    assert curve(difference, "main") == drawn and "accuracy lost" in difference.svg


def test_every_plot_describes_itself(report: CandidateReport, document: dict) -> None:
    assert report.statistics is not None
    found = plots(document, report.statistics, report.noise)
    assert len(found) == 7
    for plot in found:
        assert plot.caption.endswith(".")
        description = re.search(r"<desc>(.*?)</desc>", plot.svg)
        assert description is not None and len(description[1]) > 10
        assert "nan" not in plot.svg.lower().replace("nano", "")
