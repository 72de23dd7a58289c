"""One format per block, at the least total damage within a budget: exact.

A multiple-choice knapsack (Kellerer, Pferschy, Pisinger, Knapsack Problems, 2004, chapter 11) by
dynamic programming over lists of undominated (weight, damage) states. A state is dropped where
even the best continuation by Lagrangian relaxation, Σ min(damage + λ·weight) − λ·room, is worse
than a solution that is known already; no optimum is lost. Weights are whole numbers, so that a
budget is met exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]
_SLACK = 1e-12  # relative: a bound computed in another order must not cut the optimum off


@dataclass(frozen=True, slots=True)
class Choices:
    """The choices of one block.

    Attributes:
        weights: What each one takes of the budget (bytes or time), whole and not negative.
        damages: What each one costs; inf forbids it.
    """

    weights: tuple[int, ...]
    damages: tuple[float, ...]


def solve(blocks: Sequence[Choices], budget: int) -> tuple[int, ...] | None:
    """The choice per block with the least total damage at a total weight within the budget.

    Of equally good choices the lightest.

    Args:
        blocks: Choices of each block; at least one finite damage each.
        budget: Most total weight.

    Returns:
        An index into each block's options, or None where nothing fits.
    """
    weights = [np.array(block.weights, dtype=np.int64) for block in blocks]
    damages = [np.array(block.damages, dtype=np.float64) for block in blocks]
    allowed = [np.isfinite(damage) for damage in damages]
    lightest = [int(w[ok].min()) for w, ok in zip(weights, allowed, strict=True)]
    if sum(lightest) > budget:
        return None
    bound = _Bound(weights, damages, budget)
    room_after = np.append(np.cumsum(lightest[::-1])[::-1], 0)
    states = _States(np.zeros(1, dtype=np.int64), np.zeros(1))
    trail: list[tuple[IntArray, IntArray]] = []
    for at, (weight, damage, ok) in enumerate(zip(weights, damages, allowed, strict=True)):
        states, parent, choice = states.extend(weight[ok], damage[ok])
        choice = np.flatnonzero(ok)[choice]
        keep = states.weight <= budget - room_after[at + 1]
        keep &= bound.reachable(at + 1, states)
        states = _States(states.weight[keep], states.damage[keep])
        trail.append((parent[keep], choice[keep]))
    index = len(states.weight) - 1  # damage falls as weight rises: the last is the best
    picked = []
    for parent, choice in reversed(trail):
        picked.append(int(choice[index]))
        index = int(parent[index])
    return tuple(reversed(picked))


@dataclass(frozen=True, slots=True)
class _States:
    """Undominated partial choices: weights rising, damages falling."""

    weight: IntArray
    damage: FloatArray

    def extend(self, weight: IntArray, damage: FloatArray) -> tuple[_States, IntArray, IntArray]:
        """Every state with every option, undominated; with parents and options."""
        total = (self.weight[:, None] + weight).ravel()
        cost = (self.damage[:, None] + damage).ravel()
        order = np.lexsort((cost, total))
        lowest = np.minimum.accumulate(cost[order])
        first = np.append(True, lowest[1:] < lowest[:-1])
        kept = order[first]
        parent, choice = np.divmod(kept, len(weight))
        return _States(total[kept], cost[kept]), parent, choice


class _Bound:
    """Lagrangian lower bounds on what is left, and one feasible solution to hold them against."""

    def __init__(
        self, weights: Sequence[IntArray], damages: Sequence[FloatArray], budget: int
    ) -> None:
        self._weights, self._damages, self._budget = weights, damages, budget
        self._multiplier, self._best = self._search()
        floors = [
            float((d + self._multiplier * w).min()) for w, d in zip(weights, damages, strict=True)
        ]
        self._rest = np.append(np.cumsum(floors[::-1])[::-1], 0.0)

    def reachable(self, at: int, states: _States) -> npt.NDArray[np.bool_]:
        """Which states before block `at` may lead to nothing worse than what is known."""
        room = self._budget - states.weight
        bound = states.damage + self._rest[at] - self._multiplier * room
        scale = abs(self._best) + self._multiplier * self._budget
        return np.asarray(bound <= self._best + _SLACK * (1 + scale))

    def _search(self) -> tuple[float, float]:
        """The multiplier at which the relaxed choice just fits, and the best damage seen."""
        best = np.inf
        weight, damage = self._relaxed(0.0)
        if weight <= self._budget:
            return 0.0, damage
        low, high = 0.0, 1e-300
        while (found := self._relaxed(high))[0] > self._budget and high < 1e300:
            low, high = high, high * 1e3
        if found[0] > self._budget:  # no multiplier tells zero damages from zero
            return 0.0, best
        best = found[1]
        for _ in range(200):
            middle = (low + high) / 2
            if middle in (low, high):
                break
            weight, damage = self._relaxed(middle)
            if weight <= self._budget:
                high, best = middle, min(best, damage)
            else:
                low = middle
        return high, best

    def _relaxed(self, multiplier: float) -> tuple[int, float]:
        total, cost = 0, 0.0
        for weight, damage in zip(self._weights, self._damages, strict=True):
            value = damage + multiplier * weight
            at = int(np.lexsort((weight, value))[0])
            total, cost = total + int(weight[at]), cost + float(damage[at])
        return total, cost
