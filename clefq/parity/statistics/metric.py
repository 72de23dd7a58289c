"""One reported figure with its intervals: the JSON form of `metrics` in `parity.json`."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

from clefq.errors import InputError
from clefq.store.reading import Count, Stored

# Begins a unit such as `≥ nats`: the true figure may be larger, so that no ceiling can be shown.
AT_LEAST = "≥"
# The name of all questions, beside those of slices.
OVERALL = "overall"


@dataclass(frozen=True, slots=True)
class Bootstrap(Stored):
    """The plain paired cluster-bootstrap percentile interval, shown beside the one that gates.

    Attributes:
        lower: Lower bound, or None where there is none (fewer than 10 records).
        upper: Upper bound, or None.
        resamples: Number of resamples drawn.
    """

    lower: float | None
    upper: float | None
    resamples: Count


@dataclass(frozen=True, slots=True)
class Metric(Stored):
    """One figure. All figures are fractions (or nats, or levels), never points.

    Attributes:
        estimate: The figure on canonical option order; None where it is not defined (no question
            in the domain, or infinite: see `n_infinite`).
        lower: Lower bound of the interval that gates, or None (see `method`).
        upper: Upper bound of the interval that gates, or None.
        confidence: Two-sided confidence of both intervals; 0.95 makes one-sided 97.5% bounds.
        method: How the bounds were found, for example `korn_graubard` or `tango`; `none` where
            there are none.
        bootstrap: The percentile interval of the cluster bootstrap; None where none was drawn.
        n_questions: Questions in the domain (the denominator).
        n_records: Records with at least one such question.
        n_infinite: Questions whose value is infinite.
        unit: `share`, `difference`, `nats`, `≥ nats`, `levels` or `score`.
    """

    estimate: float | None
    lower: float | None
    upper: float | None
    confidence: float
    method: str
    bootstrap: Bootstrap | None
    n_questions: Count
    n_records: Count
    n_infinite: Count
    unit: str

    def to_json(self) -> dict[str, Any]:
        """The JSON object of `parity.json`."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Any) -> Metric:
        """Reads `to_json`'s object back; strict on missing and unknown keys.

        Raises:
            InputError: The object's keys differ.
        """
        data = _exact(value, cls)
        inner = data["bootstrap"]
        if inner is not None:
            data["bootstrap"] = Bootstrap(**_exact(inner, Bootstrap))
        return cls(**data)


def _exact(value: Any, cls: type[Metric] | type[Bootstrap]) -> dict[str, Any]:
    names = {field.name for field in fields(cls)}
    keys = set(value) if isinstance(value, dict) else set()
    if keys != names:
        raise InputError(f"a metric differs in {', '.join(sorted(map(str, keys ^ names)))}.")
    return dict(value)
