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
# What a client is told before anything has been answered.
_UNKNOWN = 5
# Seconds that a body has before it may have to make way for another one.
_PATIENCE = 2.0


class Admission:
    """Counts requests in hand and the memory that they hold.

    A request has a place from the moment that its body is there. Bodies that are still arriving
    have places of their own, and half of the memory: the one that has been at it longest makes
    way for a new one.

    Args:
        max_pending: Requests at a time.
        max_bytes: Bytes of their bodies and decoded images; a single request is let through
            whatever it takes, since it has limits of its own.
        max_reading: Bodies that are read at a time.
        clock: Seconds, monotonic.
    """

    def __init__(
        self,
        max_pending: int,
        max_bytes: int,
        clock: Callable[[], float] = time.monotonic,
        max_reading: int = 1024,
    ) -> None:
        self._max_pending = max_pending
        self._max_bytes = max_bytes
        self._max_reading = max_reading
        self._clock = clock
        self._lock = Lock()
        self._pending = 0
        self._bytes = 0
        self._reading: dict[Ticket, float] = {}
        self._reading_bytes = 0
        self._finished: deque[float] = deque()

    @property
    def pending(self) -> int:
        """Requests in hand whose body is there."""
        return self._pending

    @property
    def reading(self) -> int:
        """Bodies that are arriving."""
        return len(self._reading)

    @property
    def pending_bytes(self) -> int:
        """Bytes that all of them hold."""
        return self._bytes

    def read(self, give_up: Callable[[], None]) -> Ticket:
        """A place for a body that begins to arrive; the ticket is a context manager.

        Args:
            give_up: Called where it has to make way for another one; must not block.

        Raises:
            ApiError: Too many are arriving, none of them for long.
        """
        with self._lock:
            if len(self._reading) >= self._max_reading and not self._evict():
                raise self._refusal("too many bodies are arriving")
            ticket = Ticket(self, give_up)
            self._reading[ticket] = self._clock()
        return ticket

    def enter(self) -> Ticket:
        """A place for a request that has arrived.

        Raises:
            ApiError: Too many are in hand.
        """
        ticket = self.read(lambda: None)
        try:
            ticket.enter()
        except ApiError:
            ticket.leave()
            raise
        return ticket

    def retry_after(self) -> int:
        """Whole seconds after which the requests in hand should be done, from 1 to 60."""
        self._forget()
        if len(self._finished) < 2:
            return _UNKNOWN if self._pending else _SOONEST
        rate = len(self._finished) / max(1.0, self._clock() - self._finished[0])
        return min(_LATEST, max(_SOONEST, math.ceil(self._pending / rate)))

    def _enter(self, ticket: Ticket) -> None:
        with self._lock:
            if self._pending >= self._max_pending:
                raise self._refusal("too many requests are waiting")
            self._pending += 1
            self._stop_reading(ticket)

    def _charge(self, ticket: Ticket, count: int) -> None:
        with self._lock:
            reading = ticket in self._reading
            most = self._max_bytes // 2 if reading else self._max_bytes
            held = self._reading_bytes if reading else self._bytes
            alone = self._pending <= 1 and len(self._reading) <= reading
            if held + count > most and not alone and not (reading and self._evict(ticket)):
                raise self._refusal("the waiting requests hold too much memory")
            self._bytes += count
            self._reading_bytes += count if reading else 0
            ticket.held += count

    def _release(self, ticket: Ticket, count: int) -> None:
        with self._lock:
            self._bytes -= count
            ticket.held -= count

    def _leave(self, ticket: Ticket) -> None:
        with self._lock:
            if ticket in self._reading:
                self._stop_reading(ticket)
            elif ticket.entered:
                self._pending -= 1
            self._bytes -= ticket.held
            ticket.held = 0
            if ticket.answered:
                self._finished.append(self._clock())
            self._forget()

    def _stop_reading(self, ticket: Ticket) -> None:
        if self._reading.pop(ticket, None) is not None:
            self._reading_bytes -= ticket.held

    def _evict(self, but: Ticket | None = None) -> bool:
        """Gives the oldest place for a body to somebody else, if it was held for long enough."""
        for ticket, since in self._reading.items():
            if ticket is but:
                continue
            if self._clock() - since < _PATIENCE:
                return False
            # its bytes are given back when it leaves; it must not be counted, nor asked, again
            self._stop_reading(ticket)
            ticket.give_up()
            return True
        return False

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
    """A place that was taken; leaving its `with` block gives back what it held.

    Attributes:
        give_up: See `Admission.read`.
        held: Bytes charged.
        entered: Whether its body is there.
        answered: Set by the caller: whether it came to an answer.
    """

    def __init__(self, admission: Admission, give_up: Callable[[], None]) -> None:
        self._admission = admission
        self.give_up = give_up
        self.held = 0
        self.entered = False
        self.answered = False

    def enter(self) -> None:
        """The body is there: takes the place of a request.

        Raises:
            ApiError: Too many are in hand.
        """
        self._admission._enter(self)
        self.entered = True

    def charge(self, count: int) -> None:
        """Counts memory that the request is about to take; from any thread.

        Raises:
            ApiError: The requests in hand hold too much already.
        """
        self._admission._charge(self, count)

    def release(self, count: int) -> None:
        """Gives back a part of what was charged; from any thread."""
        self._admission._release(self, count)

    def leave(self) -> None:
        """Gives back the place and what it held."""
        self._admission._leave(self)

    def __enter__(self) -> Ticket:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.leave()
