"""The layout with the least predicted damage within a budget.

Predicted damage is the sum of the KLs of its blocks, each quantized alone. For small
perturbations KL is quadratic in them, and errors of different blocks are nearly independent, so
that their squares add up; how well that holds is measured, not assumed: every layout is shown with
its predicted and its measured KL.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from clefq.clef.formats import BF16
from clefq.errors import InputError
from clefq.sensitivity.blocks import Layout
from clefq.sensitivity.cost import CostModel
from clefq.sensitivity.knapsack import Choices, solve
from clefq.sensitivity.schema import Budget, FrontPoint, LayoutResult, StoredBlock

BYTES, SPEED = "bytes", "speed"
_POINTS = 24


@dataclass(frozen=True)
class Costs:
    """What the search chooses from.

    Attributes:
        model: Sizes and estimated speeds.
        stored: (block name, scheme) to measurement.
        schemes: Formats beside BF16.
    """

    model: CostModel
    stored: Mapping[tuple[str, str], StoredBlock]
    schemes: Sequence[str]

    @property
    def forms(self) -> tuple[str, ...]:
        """Every format a block may have."""
        return (BF16, *self.schemes)

    def kl(self, block: str, form: str) -> float:
        """Mean KL of one block alone; inf where it has none."""
        if form == BF16:
            return 0.0
        damage = self.stored[block, form].result.damage
        estimate = damage.kl.estimate
        # a question that the block leaves without a finite answer has no KL, but is no gain
        unanswered = damage.kl.n_questions < damage.agreement.n_questions
        return math.inf if estimate is None or unanswered else estimate

    def total_kl(self, layout: Layout) -> float:
        """Predicted KL of a layout."""
        return sum(self.kl(block, form) for block, form in layout.items())

    def options(self, by: str) -> list[Choices]:
        """The knapsack's items, a block each, in the order of `forms`."""
        blocks = self.model.blocks
        return [
            Choices(weights, tuple(self.kl(block.name, form) for form in self.forms))
            for block, weights in zip(blocks, weights_of(self.model, self.forms, by), strict=True)
        ]

    def solve(self, by: str, room: int) -> Layout | None:
        """The best layout within a room, or None."""
        picked = solve(self.options(by), room)
        if picked is None:
            return None
        blocks = self.model.blocks
        return {b.name: self.forms[at] for b, at in zip(blocks, picked, strict=True)}


def weights_of(model: CostModel, forms: Sequence[str], by: str) -> list[tuple[int, ...]]:
    """What each block takes of the budget in each format: bytes, or ticks of time."""
    if by == BYTES:
        return [tuple(block.nbytes(form) for form in forms) for block in model.blocks]
    return [tuple(model.ticks(block, form) for form in forms) for block in model.blocks]


def room(model: CostModel, budget: Budget) -> int:
    """What a budget leaves for the blocks, in bytes or ticks."""
    if budget.kind == BYTES:
        return math.floor(budget.limit) - model.fixed_bytes
    return math.floor(model.bf16_ticks / budget.limit) - model.fixed_ticks


def check_budget(model: CostModel, schemes: Sequence[str], budget: Budget) -> None:
    """Refuses a budget that no layout meets.

    Raises:
        InputError: It cannot be met with these schemes.
    """
    least = sum(map(min, weights_of(model, (BF16, *schemes), budget.kind)))
    if least <= room(model, budget):
        return
    if budget.kind == BYTES:
        size = least + model.fixed_bytes
        fix = f"the smallest possible is {size:,} bytes ({size / 1e9:.4g} GB)"
    else:
        most = model.bf16_ticks / (least + model.fixed_ticks)
        fix = f"the fastest possible is an estimated {math.floor(1000 * most) / 1000:g}"
    raise InputError(
        f"no layout of {', '.join(schemes)} meets {budget.given}.",
        fix=f"{fix}: change the budget, or allow more --schemes.",
    )


def search(costs: Costs, budget: Budget) -> Layout:
    """The layout within the budget that has the least predicted KL; the lightest of equals.

    Raises:
        InputError: No layout meets the budget, or only one with infinite damage.
    """
    check_budget(costs.model, costs.schemes, budget)
    layout = costs.solve(budget.kind, room(costs.model, budget))
    if layout is None:
        raise InputError(
            f"every layout that meets {budget.given} has infinite damage.",
            fix="change the budget, or allow more --schemes.",
        )
    return layout


def front(costs: Costs) -> tuple[FrontPoint, ...]:
    """Least predicted KL over size and over estimated speed, from the coarsest layout to BF16."""
    points = []
    for by in (BYTES, SPEED):
        items = costs.options(by)
        low = sum(min(item.weights) for item in items)
        high = sum(item.weights[0] for item in items)
        seen: list[Layout] = []
        for step in range(_POINTS + 1):
            layout = costs.solve(by, low + (high - low) * step // _POINTS)
            if layout is None or layout in seen:
                continue
            seen.append(layout)
            points.append(
                FrontPoint(
                    by=by,
                    nbytes=costs.model.nbytes(layout),
                    speedup=costs.model.speedup(layout),
                    kl=costs.total_kl(layout),
                )
            )
    return tuple(points)


def mark_front(layouts: Sequence[LayoutResult]) -> tuple[LayoutResult, ...]:
    """Marks the Pareto front of the measured layouts over size, estimated speed and KL."""

    def kl(layout: LayoutResult) -> float | None:
        return None if layout.measured is None else layout.measured.kl.estimate

    points = [
        (layout.nbytes, -layout.speedup, value)
        for layout in layouts
        if (value := kl(layout)) is not None
    ]

    def beaten(point: tuple[float, ...]) -> bool:
        return any(
            other != point and all(a <= b for a, b in zip(other, point, strict=True))
            for other in points
        )

    return tuple(
        replace(layout, on_front=not beaten((layout.nbytes, -layout.speedup, value)))
        if (value := kl(layout)) is not None
        else layout
        for layout in layouts
    )
