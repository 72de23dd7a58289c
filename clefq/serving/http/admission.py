"""How much a server takes on at a time, and when a refused client should come back."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from threading import Lock
from types import TracebackType

from clefq.serving.http.errors import OVERLOADED, ApiError

# Seconds that the rate of answers is taken over, and the least and most that a client is told.
_WINDOW = 20.0
_SOONEST, _LATEST = 1, 60


class Admission:
    """Counts requests in hand and the memory that they hold.

    Args:
        max_pending: Requests at a time.
        max_bytes: Bytes of their bodies and decoded images; a single request is let through
            whatever it takes, since it has limits of its own.
        clock: Seconds, monotonic.
    """

    def __init__(
        self, max_pending: int, max_bytes: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._max_pending = max_pending
        self._max_bytes = max_bytes
        self._clock = clock
        self._lock = Lock()
        self._pending = 0
        self._bytes = 0
        self._finished: deque[float] = deque()

    @property
    def pending(self) -> int:
        """Requests in hand."""
        return self._pending

    @property
    def pending_bytes(self) -> int:
        """Bytes that they hold."""
        return self._bytes

    def enter(self) -> Ticket:
        """Takes a request on; the ticket is a context manager.

        Raises:
            ApiError: Too many are in hand.
        """
        with self._lock:
            if self._pending >= self._max_pending:
                raise self._refusal("too many requests are waiting")
            self._pending += 1
        return Ticket(self)

    def retry_after(self) -> int:
        """Whole seconds after which the requests in hand should be done, from 1 to 60."""
        self._forget()
        rate = len(self._finished) / _WINDOW
        if not rate:
            return _SOONEST
        return min(_LATEST, max(_SOONEST, math.ceil(self._pending / rate)))

    def _charge(self, count: int) -> None:
        with self._lock:
            if self._bytes + count > self._max_bytes and self._pending > 1:
                raise self._refusal("the waiting requests hold too much memory")
            self._bytes += count

    def _leave(self, count: int, answered: bool) -> None:
        with self._lock:
            self._pending -= 1
            self._bytes -= count
            if answered:
                self._finished.append(self._clock())
            self._forget()

    def _forget(self) -> None:
        oldest = self._clock() - _WINDOW
        while self._finished and self._finished[0] < oldest:
            self._finished.popleft()

    def _refusal(self, why: str) -> ApiError:
        seconds = self.retry_after()
        return ApiError.of(
            OVERLOADED,
            f"{why}; try again in {seconds} s",
            headers={"retry-after": str(seconds)},
        )


class Ticket:
    """A request that was taken on; leaving its `with` block gives back what it held."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self._bytes = 0
        self.answered = False

    def charge(self, count: int) -> None:
        """Counts memory that the request is about to take; from any thread.

        Raises:
            ApiError: The requests in hand hold too much already.
        """
        self._admission._charge(count)
        self._bytes += count

    def __enter__(self) -> Ticket:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._admission._leave(self._bytes, self.answered)
