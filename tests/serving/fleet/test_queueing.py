"""Who gets the next prompt."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from clefq.serving.fleet.queueing import EngineLoad, Room, least_loaded, restart_delay
from clefq.serving.settings import ServeSettings

LOADS = st.lists(
    st.none() | st.builds(EngineLoad, st.integers(0, 400), st.integers(0, 5)),
    min_size=0,
    max_size=5,
)


@given(LOADS, st.integers(1, 300))
def test_the_chosen_engine_has_room_and_no_other_has_less_to_do(
    loads: list[EngineLoad | None], tokens: int
) -> None:
    room = Room(tokens=300, requests=4)
    free = {
        number: load
        for number, load in enumerate(loads)
        if load is not None
        and (load.requests == 0 or (load.requests < 4 and load.tokens + tokens <= 300))
    }
    chosen = least_loaded(loads, tokens, room)
    if chosen is None:
        assert not free
    else:
        best = min((load.tokens, load.requests) for load in free.values())
        assert (free[chosen].tokens, free[chosen].requests) == best


def test_an_idle_engine_takes_any_prompt() -> None:
    assert least_loaded([None, EngineLoad(0, 0)], 10_000, Room(10, 1)) == 1
    assert least_loaded([EngineLoad(1, 1)], 10_000, Room(10, 2)) is None
    assert least_loaded([], 1, Room(10, 1)) is None


def test_room_covers_several_steps() -> None:
    assert Room.of(ServeSettings(step_tokens=100, max_requests=8)) == Room(400, 32)


def test_restarts_come_later_and_later() -> None:
    assert [restart_delay(n) for n in range(1, 9)] == [1, 2, 4, 8, 16, 32, 60, 60]
    assert restart_delay(10_000) == 60
