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
    assert caught.value.headers["retry-after"] == "1"
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
    for _ in range(40):  # two a second over the window
        with admission.enter() as ticket:
            ticket.answered = True
    waiting = [admission.enter() for _ in range(10)]
    assert admission.retry_after() == 5
    waiting += [admission.enter() for _ in range(900)]
    assert admission.retry_after() == 60
    clock.now = 100.0  # nothing was answered for long: no rate to go by
    assert admission.retry_after() == 1
    for ticket in waiting:
        with ticket:
            pass
    assert admission.pending == 0


def test_errors_do_not_count_as_answers() -> None:
    admission = Admission(1000, 1, Clock())
    for _ in range(40):
        with admission.enter():
            pass
    _held = [admission.enter() for _ in range(10)]
    assert admission.retry_after() == 1
