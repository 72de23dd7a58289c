"""Which candidate to take: shown losses first, then size, then speed; none where nothing tells."""

import pytest

from clefq.parity.gates.choosing import Duel, choose, duels
from tests.parity.synthetic import Dial, make_world, predictions

BOTH = {"a": "pass", "b": "pass"}


def duel(lower: float, upper: float) -> Duel:
    return Duel("a", "b", (lower + upper) / 2, lower, upper, 3, 2, 9, 400)


@pytest.mark.parametrize(
    ("words", "pair", "sizes", "speeds", "taken", "why"),
    [
        ({"a": "fail", "b": "inconclusive"}, duel(-1, 1), {}, {}, None, "no candidate passes"),
        ({"a": "pass", "b": "fail"}, duel(-0.2, -0.1), {}, {}, "a", "alone passes"),
        (BOTH, duel(-0.05, -0.01), {"a": 1, "b": 9}, {}, "b", "a is shown to be less accurate"),
        (BOTH, duel(0.01, 0.05), {"a": 9, "b": 1}, {}, "a", "b is shown to be less accurate"),
        (BOTH, duel(-0.01, 0.01), {"a": 100, "b": 110}, {}, "a", "the smallest"),
        (BOTH, duel(-0.01, 0.01), {"a": 100, "b": 101}, {"a": 5, "b": 9}, "b", "the fastest"),
        (BOTH, duel(-0.01, 0.01), {"a": 100, "b": 101}, {"a": 5}, None, "no difference"),
        (BOTH, duel(-0.01, 0.01), {"a": 100}, {}, None, "no difference"),
    ],
)
def test_the_choice(
    words: dict, pair: Duel, sizes: dict, speeds: dict, taken: str | None, why: str
) -> None:
    found = choose(words, (pair,), sizes, speeds)
    assert found.recommended == taken and why in found.reason


def test_pairs_are_first_minus_second_and_hold_at_once() -> None:
    world = make_world(200)
    good, bad = predictions(world, "fp8"), predictions(world, "nvfp4", Dial(swap=0.3))
    (pair,) = duels([good, bad], "c" * 64)
    assert pair.lower is not None and pair.lower > 0  # the first is better: a positive difference
    assert pair.estimate == pytest.approx((pair.gained - pair.lost) / pair.n_questions)
    assert "fp8 − nvfp4: accuracy +" in pair.text
    third = predictions(world, "w", Dial(noise=0.1))
    wider = duels([good, bad, third], "c" * 64)
    assert len(wider) == 3 and wider[0].estimate == pair.estimate
    assert wider[0].lower is not None and wider[0].lower < pair.lower
