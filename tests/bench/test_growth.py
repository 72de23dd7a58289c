import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clefq.bench.growth import exponent

SIZES = [1, 2, 4, 8, 16]


@given(st.floats(0, 3), st.floats(1e-6, 1e6))
def test_an_exact_power_law_gives_its_exponent(power: float, scale: float) -> None:
    found = exponent(SIZES, [scale * size**power for size in SIZES])
    assert found.value == pytest.approx(power, abs=1e-9)
    assert found.last == pytest.approx(power, abs=1e-9)
    assert found.error < 1e-7


@given(st.lists(st.floats(1e-3, 1e3), min_size=5, max_size=5))
def test_slope_and_error_are_numpys(costs: list[float]) -> None:
    found = exponent(SIZES, costs)
    (slope, _), covariance = np.polyfit(np.log(SIZES), np.log(costs), 1, cov=True)
    assert found.value == pytest.approx(slope, abs=1e-9)
    assert found.error == pytest.approx(np.sqrt(covariance[0, 0]), abs=1e-9)


def test_a_quadratic_part_shows_in_the_last_doubling_first() -> None:
    costs = [size + size**2 / 8 for size in SIZES]
    found = exponent(SIZES, costs)
    assert 1.2 < found.value < found.last < 2


def test_two_points_have_no_error() -> None:
    assert exponent([1, 2], [3, 6]).error == float("inf")


@pytest.mark.parametrize(
    ("sizes", "costs"), [([1], [1]), ([1, 2], [1]), ([2, 1], [1, 1]), ([1, 2], [0, 1]),
                         ([1, 2], [1, float("nan")]), ([0, 1], [1, 1])],
)  # fmt: skip
def test_what_has_no_exponent_is_refused(sizes: list[float], costs: list[float]) -> None:
    with pytest.raises(ValueError, match=r"increase|positive"):
        exponent(sizes, costs)
