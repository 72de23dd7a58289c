"""The operating characteristic: how likely a set passes a gate at a true loss."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from clefq.parity.gates.operating import Shape, chances
from clefq.parity.gates.schema import Gate

ACCURACY = Gate("accuracy", "accuracy_delta", "at_least", margin=0.02)
AGREEMENT = Gate("agreement", "agreement", "at_least", bound=0.98)
ONES = Shape(np.ones(1000), 0.0, 0.0)


@pytest.mark.parametrize("gate", [ACCURACY, AGREEMENT])
@pytest.mark.parametrize("shape", [ONES, Shape(np.resize([1.0, 7.0, 3.0], 300), 0.3, 0.01)])
def test_chances_fall_with_the_loss_and_are_small_at_the_limit(gate: Gate, shape: Shape) -> None:
    found = chances(gate, shape, (0.0, 0.005, 0.01, 0.015, 0.02, 0.03), key=1)
    assert found == sorted(found, reverse=True)
    assert found[4] <= 0.07  # 2.5% and three standard errors of a hundred trials
    assert found[5] <= 0.02


def test_a_thousand_single_questions_pass_as_often_as_the_binomial_says() -> None:
    """Clopper and Pearson at 97.5% allow 11 changed answers of 1,000; at 1% P(X ≤ 11) = 0.70."""
    (found,) = chances(AGREEMENT, ONES, (0.01,), key=2)
    assert found == pytest.approx(0.70, abs=0.15)


def test_a_set_that_is_too_small_never_passes() -> None:
    assert chances(replace(AGREEMENT, min_n=2000), ONES, (0.0, 0.01), key=1) == [0.0, 0.0]
    assert chances(AGREEMENT, Shape(np.ones(50), 0.0, 0.0), (0.0,), key=1) == [0.0]


def test_more_questions_help() -> None:
    shapes = (Shape(np.full(records, 4.0), 0.2, 0.0) for records in (200, 2000))
    few, many = (chances(AGREEMENT, shape, (0.005,), 3)[0] for shape in shapes)
    assert few < 0.5 < many


def test_the_same_key_gives_the_same_numbers() -> None:
    losses = (0.005, 0.01)
    assert chances(ACCURACY, ONES, losses, 5) == chances(ACCURACY, ONES, losses, 5)
