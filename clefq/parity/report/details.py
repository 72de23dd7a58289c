"""The details of a comparison in words: what published cards quote beside the gated figures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from clefq.parity.gates.formatting import count, figure, interval


def detail_lines(document: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Name and text of each detail that this comparison has.

    Args:
        document: A `parity.json` value.
    """
    details = document["details"]
    return [] if details is None else list(_lines(details, document["flips"]))


def _lines(details: Mapping[str, Any], flips: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, label in (("kl", "KL percentiles"), ("tv", "TV percentiles")):
        found = (details["percentiles"] or {}).get(name)
        if found is not None:
            yield label, _percentiles(found)
    new = details["confident_new"]
    if new["n_questions"]:
        yield (
            "confident new answers",
            f"{count(new['count'])} of {count(new['n_questions'])}: {figure(new['estimate'])} "
            f"{interval(new['lower'], new['upper'])}; changed, with a margin of at least 0.5",
        )
    margins = flips["baseline_margin"]
    if margins["flips"] is not None and margins["agreements"] is not None:
        yield (
            "baseline margins",
            f"median {margins['flips']['p50']:.3f} where answers flip, "
            f"{margins['agreements']['p50']:.3f} where they agree",
        )
    ties = flips["ties"]
    if ties["baseline"] or ties["candidate"]:
        yield (
            "ties",
            f"{count(ties['baseline'])} in the baseline, {count(ties['candidate'])} in "
            + ("the candidate; gates take the pessimistic end"),
        )
    if details["spearman"] is not None:
        yield "Spearman of p(true)", f"{details['spearman']:.4f}"
    yield from _accuracies(details)
    score = details["score"]
    if score is not None:
        yield (
            "score questions",
            f"{count(score['n_questions'])}: mean shift {score['shift']:+.4f} levels, "
            f"{figure(score['within_one'])} within one level",
        )


def _accuracies(details: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    gaps = details["gaps"]
    if gaps is not None and "difference" in gaps["worst"]:  # older reports had it the other way
        worst = gaps["worst"]
        yield (
            "mean gap over cohorts",
            f"{figure(gaps['mean'], signed=True)} (candidate − baseline, every cohort weighs "
            f"alike), mean absolute {100 * gaps['mean_absolute']:.2f} pt, worst "
            f"{worst['cohort']} {figure(worst['difference'], signed=True)}",
        )
    adjusted = details["accuracy"]
    if adjusted is not None:
        yield (
            "coverage-adjusted accuracy",
            ", ".join(
                f"{role} {figure(adjusted[role]['adjusted'])}" for role in ("baseline", "candidate")
            )
            + "; failed answers count as wrong",
        )
    yield from _clustering(details.get("clustering") or {})
    yield from operating_lines(details.get("operating") or ())


def _clustering(found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What each interval rests on; nothing to say where every record has one question."""
    for name, item in found.items():
        if item["questions_per_record"] == 1:
            continue
        text = (
            f"{item['records_in_effect']:,.0f} records in effect, design effect "
            f"{item['design_effect']:.2f}, {item['carriers']:.1f} records carry the variance"
        )
        for one in item["influence"][:1]:
            text += (
                f"; without {one['record_id']} ({count(one['questions'])} questions) it would be "
                f"{figure(one['without'], signed=name.endswith('_delta'))}"
            )
        yield f"records behind {name.replace('_', ' ')}", text


def operating_lines(curves: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    """Name and text of each gate's operating characteristic."""
    for curve in curves:
        points = (f"{item['passes']:.0%} at {100 * item['loss']:.2g}" for item in curve["curve"])
        yield f"chance to pass {curve['gate']}", f"{', '.join(points)} points of true loss"


def _percentiles(found: Mapping[str, Any]) -> str:
    parts = []
    for item in found["percentiles"]:
        bounds = ""
        if item["lower"] is not None and item["upper"] is not None:
            bounds = f" [{item['lower']:.3g}, {item['upper']:.3g}]"
        parts.append(f"p{item['level']:g} {_number(item['estimate'])}{bounds}")
    return ", ".join([*parts, f"largest {_number(found['maximum'])}"])


def _number(value: float | None) -> str:
    """Null in the document stands for infinity here."""
    return "infinite" if value is None else f"{value:.3g}"
