from __future__ import annotations

import pytest

from clefq.serving.http.admission import Admission
from clefq.serving.http.errors import ApiError


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_the_next_request_beyond_the_limit_is_refused_until_one_leaves() -> None:
    admission = Admission(2, 100)
    first, second = admission.enter(), admission.enter()
    with pytest.raises(ApiError) as caught:
        admission.enter()
    assert caught.value.kind.status == 429
    assert caught.value.headers["retry-after"] == "5"  # nothing to go by yet
    with first:
        pass
    with second, admission.enter():
        assert admission.pending == 2
    assert admission.pending == 0


def test_memory_is_given_back_whatever_happened() -> None:
    admission = Admission(10, 100)
    with admission.enter() as one, admission.enter() as two:
        one.charge(90)
        with pytest.raises(ApiError) as caught:
            two.charge(11)
        assert caught.value.kind.status == 429
        two.charge(10)
        assert admission.pending_bytes == 100
    with pytest.raises(KeyError), admission.enter() as ticket:
        ticket.charge(10**9)  # alone, it may take what it takes
        raise KeyError
    assert (admission.pending, admission.pending_bytes) == (0, 0)


def test_retry_after_follows_the_rate_of_answers() -> None:
    clock = Clock()
    admission = Admission(1000, 1, clock)
    for _ in range(40):  # two a second
        clock.now += 0.5
        with admission.enter() as ticket:
            ticket.answered = True
    waiting = [admission.enter() for _ in range(10)]
    assert admission.retry_after() == 5
    waiting += [admission.enter() for _ in range(900)]
    assert admission.retry_after() == 60
    clock.now = 100.0  # nothing was answered for long: no rate to go by
    assert admission.retry_after() == 5
    for ticket in waiting:
        with ticket:
            pass
    assert admission.pending == 0
    assert admission.retry_after() == 1


def test_bodies_that_arrive_take_no_place_and_make_way_for_others() -> None:
    clock = Clock()
    admission = Admission(1, 100, clock, max_reading=3)
    hurried: list[int] = []
    slow = [admission.read(lambda number=number: hurried.append(number)) for number in range(3)]
    with pytest.raises(ApiError) as caught:  # none of them has had its time
        admission.read(lambda: None)
    assert caught.value.kind.status == 429
    clock.now = 3.0
    late = admission.read(lambda: None)
    assert (hurried, admission.reading, admission.pending) == ([0], 3, 0)
    late.enter()
    assert (admission.reading, admission.pending) == (2, 1)
    for ticket in (*slow, late):
        ticket.leave()
    assert (admission.reading, admission.pending, admission.pending_bytes) == (0, 0, 0)


def test_bodies_that_arrive_get_half_of_the_memory() -> None:
    clock = Clock()
    admission = Admission(5, 100, clock)
    hurried: list[str] = []
    slow = admission.read(lambda: hurried.append("slow"))
    slow.charge(45)
    ready = admission.enter()
    ready.charge(20)
    with pytest.raises(ApiError):
        admission.read(lambda: None).charge(10)
    clock.now = 3.0
    admission.read(lambda: None).charge(10)
    assert hurried == ["slow"]
    slow.leave()
    assert admission.pending_bytes == 30
    ready.release(20)
    assert (ready.held, admission.pending_bytes) == (0, 10)


def test_errors_do_not_count_as_answers() -> None:
    admission = Admission(1000, 1, Clock())
    for _ in range(40):
        with admission.enter():
            pass
    _held = [admission.enter() for _ in range(10)]
    assert admission.retry_after() == 5
