from __future__ import annotations

import itertools
import random

from hypothesis import given, settings
from hypothesis import strategies as st

from clefq.sensitivity.knapsack import Choices, solve

DAMAGES = st.one_of(
    st.floats(0, 10), st.sampled_from([0.0, 0.1, 0.2, 0.3, float("inf")]), st.just(1e-9)
)


@st.composite
def options(draw: st.DrawFn) -> Choices:
    count = draw(st.integers(1, 4))
    weights = draw(st.lists(st.integers(0, 15), min_size=count, max_size=count))
    damages = draw(st.lists(DAMAGES, min_size=count, max_size=count))
    damages[draw(st.integers(0, count - 1))] = draw(st.floats(0, 10))  # one is allowed
    return Choices(tuple(weights), tuple(damages))


def cost(blocks: list[Choices], picked: tuple[int, ...]) -> tuple[float, int]:
    pairs = list(zip(blocks, picked, strict=True))
    return sum(b.damages[at] for b, at in pairs), sum(b.weights[at] for b, at in pairs)


def brute_force(blocks: list[Choices], budget: int) -> tuple[float, int] | None:
    """The least damage of every choice that fits."""
    every = itertools.product(*(range(len(block.weights)) for block in blocks))
    found = [cost(blocks, picked) for picked in every]
    fits = [pair for pair in found if pair[1] <= budget and pair[0] < float("inf")]
    return min(fits, default=None)


@settings(deadline=None, max_examples=150)
@given(st.lists(options(), min_size=1, max_size=5), st.integers(-1, 60))
def test_no_choice_that_fits_does_less_damage(blocks: list[Choices], budget: int) -> None:
    best = brute_force(blocks, budget)
    picked = solve(blocks, budget)
    if best is None:
        assert picked is None
        return
    assert picked is not None
    damage, weight = cost(blocks, picked)
    assert weight <= budget
    assert abs(damage - best[0]) <= 1e-9 * (1 + best[0])


def test_of_equal_damages_the_lightest() -> None:
    assert solve([Choices((5, 3, 4), (1.0, 1.0, 1.0))], 9) == (1,)


def test_a_large_model_is_solved_exactly_in_little_time() -> None:
    """128 blocks of 4 formats: no better choice by exchanging two blocks' formats."""
    rng = random.Random(0)
    blocks = []
    for _ in range(128):
        size, harm = rng.choice([1000, 1700, 2600]), rng.lognormvariate(0, 1)
        damages = (0.0, harm, 10 * harm * rng.uniform(0.7, 1.4), 20 * harm * rng.uniform(0.7, 1.4))
        blocks.append(Choices((16 * size, 8 * size, 4 * size + 62, 4 * size + 66), damages))
    budget = sum(block.weights[1] for block in blocks) * 3 // 4
    picked = solve(blocks, budget)
    assert picked is not None
    _, weight = cost(blocks, picked)
    assert weight <= budget
    for first, second in itertools.combinations(range(len(blocks)), 2):
        for a, b in itertools.product(range(4), repeat=2):
            changes = ((first, a), (second, b))
            lighter = sum(
                blocks[i].weights[new] - blocks[i].weights[picked[i]] for i, new in changes
            )
            better = sum(
                blocks[i].damages[new] - blocks[i].damages[picked[i]] for i, new in changes
            )
            assert weight + lighter > budget or better >= -1e-9
