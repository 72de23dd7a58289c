import math
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clefq.bench.timing import one_by_one, peak_memory, summary, take_turns

SECONDS = st.lists(st.floats(0, 1e6), min_size=1, max_size=300)


@given(SECONDS)
def test_percentiles_are_numpys_inverted_cdf(values: list[float]) -> None:
    got = summary(values)
    for share, value in ((0.95, got.p95), (0.99, got.p99)):
        wanted = sorted(values)[max(0, math.ceil(round(share * len(values), 9)) - 1)]
        assert value == wanted
        # no value that nobody waited, and at least that share is not above it
        assert np.mean(np.asarray(values) <= value) >= share
    assert got.median == np.median(values)
    assert got.largest == max(values)
    assert got.mean == pytest.approx(np.mean(values))
    assert got.count == len(values)


def test_twenty_values_have_a_95th_percentile_below_their_largest() -> None:
    got = summary(range(1, 21))
    assert (got.median, got.p95, got.p99) == (10.5, 19, 20)
    assert summary(range(1, 101)).p99 == 99


@pytest.mark.parametrize("values", [[], [1.0, math.nan], [math.inf]])
def test_no_number_is_an_error(values: list[float]) -> None:
    with pytest.raises(ValueError, match="finite"):
        summary(values)


def test_each_item_is_timed_alone_after_the_warm_up() -> None:
    calls: list[int] = []

    def work(item: int) -> None:
        calls.append(item)
        time.sleep(0.3 if item == 2 else 0)

    seconds = one_by_one(work, [1, 2, 3], warmup=2)
    assert calls == [1, 2, 1, 2, 3]
    assert seconds[1] >= 0.3 > max(seconds[0], seconds[2])


def test_works_take_turns_and_every_second_round_goes_backwards() -> None:
    order: list[str] = []
    turns = take_turns({"a": lambda: order.append("a"), "b": lambda: order.append("b") or 7}, 3)
    assert order == ["a", "b", "b", "a", "a", "b"]
    assert turns["b"].result == 7
    assert len(turns["a"].seconds) == len(turns["a"].cpu) == 3


def test_sleeping_takes_wall_time_and_no_cpu() -> None:
    turns = take_turns({"sleep": lambda: time.sleep(0.05)}, 2)["sleep"]
    assert turns.best >= 0.05
    assert turns.median >= turns.best
    assert turns.median_cpu < 0.04


def test_peak_memory_keeps_what_was_freed() -> None:
    before = peak_memory()
    block = np.ones(32 << 20, np.uint8)
    del block
    after = peak_memory()
    assert before > 10 << 20
    assert after >= before
    assert after - before < 200 << 20
