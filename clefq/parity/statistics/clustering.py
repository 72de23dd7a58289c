"""How many records a figure really rests on, and which of them move it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from clefq.parity.statistics.figures import record_ratio, scope_indices
from clefq.parity.statistics.intervals import UNEVEN, Ratio, design_effect, unevenness
from clefq.parity.statistics.measures import Measure, measures
from clefq.parity.statistics.pair_statistics import PairStatistics, gold_places

CLUSTERED_METRICS = ("agreement", "confident_agreement", "accuracy_delta", "tv")
FEW_CARRIERS = 10
MOST_INFLUENTIAL = 5


def clustering(statistics: PairStatistics) -> dict[str, Any]:
    """For each metric that gates usually read, what its interval rests on, as JSON values.

    Keys of each: `records_in_effect` ((ΣD)²/ΣD²), `design_effect`, `carriers` (records that carry
    the variance, (Σe²)²/Σe⁴ for e = N − θD; 0 where nothing varies), `questions_per_record` (the
    most), `unevenness` (that over the typical size; see `worst_kind`) and `influence`: the records
    without which the figure would change most, and the change.
    Metrics without a figure are missing.
    """
    found: dict[str, Any] = statistics.once("clustering", lambda: _every(statistics))
    return found


def _every(statistics: PairStatistics) -> dict[str, Any]:
    pairs = statistics.pairs
    found = {}
    for name, measure in measures(pairs, statistics.values, ()).items():
        if name in CLUSTERED_METRICS and statistics.metrics[name].estimate is not None:
            found[name] = _clustering(statistics, measure)
    return found


def _clustering(statistics: PairStatistics, measure: Measure) -> dict[str, Any]:
    pairs = statistics.pairs
    at = scope_indices(None, measure, gold_places(pairs))
    values, records = measure.value[at], pairs.record_index[at]
    value = record_ratio(values, records)
    residual = value.numerator - value.estimate * value.denominator
    squares = residual * residual
    fourth = float((squares * squares).sum())
    carriers = float(squares.sum()) ** 2 / fourth if value.variance > 0 else 0.0
    return {
        "records_in_effect": value.records_in_effect,
        "design_effect": design_effect(value, float(values.var())),
        "carriers": carriers,
        "questions_per_record": int(value.denominator.max()),
        "unevenness": unevenness(value.denominator),
        "influence": _influence(
            value, pairs.record_ids[records[np.diff(records, prepend=-1) != 0]]
        ),
    }


def _influence(value: Ratio, record_ids: Any) -> list[dict[str, Any]]:
    """What leaving one record out does to the figure: −e/(n − D); the largest first."""
    if value.n_records < 2 or value.variance <= 0:
        return []
    residual = value.numerator - value.estimate * value.denominator
    change = -residual / (value.total - value.denominator)
    size = np.abs(change)
    # the stable order of the few that may be shown, ties in hash order
    least = np.partition(size, -min(MOST_INFLUENTIAL, len(size)))[-min(MOST_INFLUENTIAL, len(size))]
    shown = np.flatnonzero(size >= least)
    order = shown[np.argsort(-size[shown], kind="stable")][:MOST_INFLUENTIAL]
    return [
        {
            "record_id": str(record_ids[i]),
            "questions": int(value.denominator[i]),
            "without": value.estimate + float(change[i]),
            "change": float(change[i]),
        }
        for i in order
        if change[i] != 0
    ]


def record_banners(found: Mapping[str, Any], gated: Collection[str]) -> tuple[str, ...]:
    """A warning for each metric whose variance a handful of records carry, and of long records.

    None where every record has one question: the interval is then made for few events.

    Args:
        found: What `clustering` returned, or its copy from a report.
        gated: Metrics that a gate reads overall.
    """
    few = tuple(
        f"few records decide: {max(1, round(item['carriers']))} of "
        f"{item['records_in_effect']:,.0f} records in effect carry the variance of "
        f"{name.replace('_', ' ')}; its bound allows for one more like the largest"
        for name, item in found.items()
        if name in gated
        and 0 < item["carriers"] < FEW_CARRIERS
        and item["questions_per_record"] > 1
    )
    uneven = [
        item
        for name, item in found.items()
        if name in gated and item.get("unevenness", 1.0) > UNEVEN
    ]
    if not uneven:
        return few
    worst = max(uneven, key=lambda item: float(item["unevenness"]))
    return (
        *few,
        f"long records: the largest holds {worst['questions_per_record']:,} questions, "
        f"{worst['unevenness']:.1f} times what is typical; such records are few, and the bounds "
        "allow for more of them to break than of others",
    )
