"""Stratified order: proportional in every prefix, nested, and the same on every machine."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clefq.data.hashed import HashedChoices
from clefq.data.sampling import length_stratum, sample_key, stratified_order
from clefq.plain_files import stable_order

pools = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3)), min_size=1, max_size=120)


def order_of(pool: list[tuple[int, int]], depth: int = 2, **options: str) -> list[int]:
    keys = np.array([sample_key("s", str(i)) for i in range(len(pool))], dtype=np.uint64)
    strata = [np.array([entry[d] for entry in pool], dtype=np.int64) for d in range(depth)]
    return stratified_order(keys, strata, **options).tolist()  # type: ignore[arg-type]


@given(pools)
@settings(max_examples=80, deadline=None)
def test_is_a_permutation(pool: list[tuple[int, int]]) -> None:
    assert sorted(order_of(pool)) == list(range(len(pool)))
    assert sorted(order_of(pool, allocate="equal")) == list(range(len(pool)))


@given(pools)
@settings(max_examples=80, deadline=None)
def test_every_prefix_keeps_the_first_dimension_in_proportion(pool: list[tuple[int, int]]) -> None:
    order = order_of(pool)
    sizes = Counter(entry[0] for entry in pool)
    seen: Counter[int] = Counter()
    for taken, index in enumerate(order, start=1):
        seen[pool[index][0]] += 1
        for stratum, size in sizes.items():
            # each stratum may be ahead or behind by one record, plus its share of the others'
            slack = 1 + len(sizes) * size / len(pool)
            assert abs(seen[stratum] - taken * size / len(pool)) <= slack + 1e-9


@given(pools)
@settings(max_examples=80, deadline=None)
def test_second_dimension_is_in_proportion_within_the_first(pool: list[tuple[int, int]]) -> None:
    order = order_of(pool)
    for first in {entry[0] for entry in pool}:
        inner = [pool[index][1] for index in order if pool[index][0] == first]
        sizes = Counter(inner)
        seen: Counter[int] = Counter()
        for taken, value in enumerate(inner, start=1):
            seen[value] += 1
            for stratum, size in sizes.items():
                slack = 1 + len(sizes) * size / len(inner)
                assert abs(seen[stratum] - taken * size / len(inner)) <= slack + 1e-9


@given(pools, st.integers(1, 120))
@settings(max_examples=80, deadline=None)
def test_equal_takes_as_many_of_each_as_there_are(pool: list[tuple[int, int]], count: int) -> None:
    taken = Counter(pool[index][0] for index in order_of(pool, allocate="equal")[:count])
    sizes = Counter(entry[0] for entry in pool)
    most = max(taken.values())
    for stratum, size in sizes.items():
        assert taken[stratum] >= min(size, most - 1)


def test_no_strata_is_the_order_of_the_keys() -> None:
    pool = [(0, 0)] * 50
    keys = [sample_key("s", str(i)) for i in range(50)]
    assert order_of(pool, depth=0) == sorted(range(50), key=keys.__getitem__)


def test_empty_pool() -> None:
    assert stratified_order(np.zeros(0, np.uint64), [np.zeros(0, np.int64)]).tolist() == []


def test_the_seed_decides_and_nothing_else() -> None:
    one = [sample_key("a", str(i)) for i in range(5)]
    assert one == [sample_key("a", str(i)) for i in range(5)]
    assert one != [sample_key("b", str(i)) for i in range(5)]


def test_golden_order() -> None:
    """Pins the order: a change of it would change every set that was ever built."""
    pool = [(i % 3, i % 2) for i in range(12)]
    assert order_of(pool) == GOLDEN
    assert sample_key("clefq-1", "banking77-test-00001") == 12156873879106403494
    assert stable_order("abcdef", "salt") == ["e", "b", "a", "c", "d", "f"]


GOLDEN = [4, 11, 6, 7, 8, 3, 10, 5, 0, 1, 2, 9]


def test_length_bands_double() -> None:
    assert length_stratum(1023) + 1 == length_stratum(1024) == length_stratum(2047)


def test_hashed_choices_are_even() -> None:
    draw = HashedChoices("key")
    counts = Counter(draw.below(6) for _ in range(6000))
    assert min(counts.values()) > 850
    assert set(counts) == set(range(6))
    assert sorted(draw.shuffled(range(9))) == list(range(9))
    assert {draw.between(2, 3) for _ in range(40)} == {2, 3}


@pytest.mark.parametrize("allocate", ["proportional", "equal"])
def test_a_smaller_set_is_a_prefix(allocate: str) -> None:
    pool = [(i % 7, i % 3) for i in range(200)]
    order = order_of(pool, allocate=allocate)
    assert order[:20] == order_of(pool, allocate=allocate)[:20]
    assert len({pool[i][0] for i in order[:7]}) == 7
