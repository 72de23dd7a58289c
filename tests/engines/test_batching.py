"""Batch plans: complete, bounded, and stable when a prefix is left out."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from clefq.engines.batching import MAX_RECORDS, plan_batches

LENGTHS = st.lists(st.integers(1, 9000), max_size=200)
BUDGET = st.integers(1, 20000)


@given(LENGTHS, BUDGET)
def test_every_prompt_once_within_the_budget(lengths: list[int], budget: int) -> None:
    batches = plan_batches(lengths, budget)
    assert sorted(index for batch in batches for index in batch) == list(range(len(lengths)))
    for batch in batches:
        longest = max(lengths[index] for index in batch)
        assert len(batch) == 1 or len(batch) * longest <= budget
        assert len(batch) <= MAX_RECORDS
    heads = [lengths[batch[0]] for batch in batches]
    assert heads == sorted(heads, reverse=True)


@given(LENGTHS, BUDGET, st.integers(0, 5))
def test_leaving_out_finished_batches_keeps_the_rest(
    lengths: list[int], budget: int, done: int
) -> None:
    batches = plan_batches(lengths, budget)
    finished = {index for batch in batches[:done] for index in batch}
    left = [index for index in range(len(lengths)) if index not in finished]
    again = plan_batches([lengths[index] for index in left], budget)
    assert [[left[place] for place in batch] for batch in again] == batches[done:]


def test_nothing_plans_nothing() -> None:
    assert plan_batches([], 100) == []
