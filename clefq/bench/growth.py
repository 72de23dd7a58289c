"""How work grows: the exponent of a power law, with its standard error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Exponent:
    """The k of cost ∝ size^k.

    Attributes:
        value: 1 where twice the work costs twice as much; 0 where it costs the same.
        error: Standard error; infinite for two points.
        last: The exponent between the two largest sizes alone: a fixed cost that flattens the
            small sizes has vanished there, a quadratic part that grows shows there first.
    """

    value: float
    error: float
    last: float


def exponent(sizes: Sequence[float], costs: Sequence[float]) -> Exponent:
    """Fits log cost = a + k log size by least squares.

    Args:
        sizes: Positive and increasing, at least two.
        costs: Positive, one per size.

    Raises:
        ValueError: Fewer than two points, or one that is not positive and finite.
    """
    x, y = np.asarray(sizes, float), np.asarray(costs, float)
    if len(x) != len(y) or len(x) < 2 or (np.diff(x) <= 0).any():
        raise ValueError("sizes must increase, and each needs its cost")
    if not (np.isfinite(x) & np.isfinite(y) & (x > 0) & (y > 0)).all():
        raise ValueError("sizes and costs must be positive and finite")
    x, y = np.log(x), np.log(y)
    centred = x - x.mean()
    slope = float(centred @ y / (centred @ centred))
    rest = y - y.mean() - slope * centred
    free = len(x) - 2
    error = float(np.sqrt(rest @ rest / free / (centred @ centred))) if free else float("inf")
    return Exponent(slope, error, float((y[-1] - y[-2]) / (x[-1] - x[-2])))
