"""One client's connection: what it may send, how slowly, and how long it may hold a descriptor.

The protocol is uvicorn's over h11: unlike httptools, h11 delivers the body of a request that asks
for an upgrade (RFC 9110 §7.8 lets a server ignore it; Java's client asks for HTTP/2 by default)
and bounds a head that never ends.
"""

from __future__ import annotations

import asyncio
import resource
import socket
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from clefq.serving.http.answers import encode_json
from clefq.serving.http.errors import (
    BAD_HTTP,
    HEAD_TOO_LARGE,
    HEAD_TOO_SLOW,
    TOO_MANY_CONNECTIONS,
    ApiError,
    ErrorKind,
)
from clefq.serving.http.logs import Sparing
from clefq.serving.http.observation import request_id, write_entry
from clefq.serving.http.settings import ConnectionLimits, Dialect

if TYPE_CHECKING:
    from clefq.serving.http.service import Service

# Descriptors that engines, files and the interpreter take beside the clients'.
_RESERVED = 128
ACCEPTED_AT_ONCE = 512
"""Connections that asyncio accepts in one go, before the first can be refused."""
_AGAIN_SECONDS = "5"


@dataclass(frozen=True, slots=True)
class Refusal:
    """A connection that was ended before there was a request.

    Attributes:
        id: Of the answer, where there was one.
        client: Address, or None.
        status: Answered.
        error: Its type.
        message: One line.
    """

    id: str
    client: str | None
    status: int
    error: str
    message: str


@dataclass(slots=True)
class Connections:
    """What the connections of one server share.

    Attributes:
        limits: Of each and of all.
        report: Called for each that is refused.
        dialect: Of refusals.
        idle: Connections without a request, the longest idle first.
    """

    limits: ConnectionLimits
    report: Callable[[Refusal], None]
    dialect: Dialect = "release"
    idle: dict[Connection, None] = field(default_factory=dict)

    def protocol(self, **given: Any) -> Connection:
        """What uvicorn calls for each connection."""
        return Connection(self, **given)

    def make_room(self) -> bool:
        """Closes the connection that has been idle longest; False where every one is at work."""
        for connection in self.idle:
            connection.end()
            return True
        return False


class Connection(H11Protocol):
    """One connection.

    Args:
        shared: With the server's other connections.
        given: What uvicorn gives.
    """

    def __init__(self, shared: Connections, **given: Any) -> None:
        super().__init__(**given)
        limits = shared.limits
        self._shared = shared
        self._limits = limits
        self._head: asyncio.TimerHandle | None = None
        self._sending: asyncio.TimerHandle | None = None
        self.timeout_keep_alive = limits.idle_seconds  # type: ignore[assignment]  # any number
        self.conn: _Bounded = _Bounded(limits)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Takes a client on, or closes another one's idle connection for it."""
        super().connection_made(transport)
        no_delay(transport)
        crowded = len(self.connections) > self._limits.max_connections
        if crowded and not self._shared.make_room():
            self._refuse(TOO_MANY_CONNECTIONS, "too many connections are at work")
            return
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forgets the client."""
        super().connection_lost(exc)
        self._unset_keepalive_if_required()
        self._shared.idle.pop(self, None)
        for timer in (self._head, self._sending):
            if timer is not None:
                timer.cancel()

    def data_received(self, data: bytes) -> None:
        """Reads; a head that has begun has to end in time."""
        self._shared.idle.pop(self, None)
        super().data_received(data)
        if self.transport.is_closing():
            return
        waiting = self.conn.their_state is h11.IDLE
        # what is left of a body whose request has been answered
        leftover = self.conn.their_state is h11.SEND_BODY and self.conn.our_state is h11.DONE
        if not (waiting or leftover):
            self._stop_head_timer()
        elif self.conn.trailing_data[0] or leftover:
            self._start_head_timer()
        elif self._head is None and self.timeout_keep_alive_task is None:
            self._wait()

    def on_response_complete(self) -> None:
        """Waits for the next request, and not for long for what is left of this one."""
        super().on_response_complete()
        if self.transport.is_closing():
            return
        if self.conn.their_state is h11.SEND_BODY:
            self._start_head_timer()
        elif self.cycle is None or self.cycle.response_complete:
            self._shared.idle[self] = None

    def pause_writing(self) -> None:
        """The client does not read: it has to, before long."""
        super().pause_writing()
        self._sending = self.loop.call_later(self._limits.send_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        """The client reads again."""
        super().resume_writing()
        if self._sending is not None:
            self._sending.cancel()
            self._sending = None

    def timeout_keep_alive_handler(self) -> None:
        """Ends an idle connection, also where its last answer was never read."""
        self.end()

    def end(self) -> None:
        """Closes the connection; what was not read by now is lost."""
        self._shared.idle.pop(self, None)
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        elif not self.transport.is_closing():
            self.transport.close()

    def send_400_response(self, msg: str) -> None:
        """Refuses what is not HTTP, in the form of every other error."""
        fault = self.conn.fault
        large = fault is not None and fault.error_status_hint == 431
        kind = HEAD_TOO_LARGE if large else BAD_HTTP
        self._refuse(kind, f"not a sound HTTP request: {fault}" if fault else msg)

    def _should_upgrade(self) -> bool:
        return False

    def _refuse(self, kind: ErrorKind, message: str) -> None:
        error = ApiError.of(kind, message)
        status = error.status(self._shared.dialect)
        number = request_id(None)
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            body = encode_json(error.body(self._shared.dialect))
            headers = [
                ("content-type", "application/json"),
                ("content-length", str(len(body))),
                ("x-request-id", number),
                ("connection", "close"),
                *([("retry-after", _AGAIN_SECONDS)] if status == 503 else []),
            ]
            head = h11.Response(
                status_code=status, headers=headers, reason=HTTPStatus(status).phrase.encode()
            )
            for event in (head, h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self.end_after_answer()
        client = self.client[0] if self.client else None
        self._shared.report(Refusal(number, client, status, kind.type, message))

    def end_after_answer(self) -> None:
        """Closes once the answer is out, and at the latest when a client has had time to read."""
        self._shared.idle.pop(self, None)
        self.transport.close()
        self._sending = self.loop.call_later(self._limits.send_seconds, self.transport.abort)

    def _wait(self) -> None:
        self._shared.idle[self] = None
        self._unset_keepalive_if_required()
        self.timeout_keep_alive_task = self.loop.call_later(
            self._limits.idle_seconds, self.timeout_keep_alive_handler
        )

    def _start_head_timer(self) -> None:
        if self._head is None:
            self._head = self.loop.call_later(self._limits.header_seconds, self._late)

    def _stop_head_timer(self) -> None:
        if self._head is not None:
            self._head.cancel()
            self._head = None

    def _late(self) -> None:
        self._head = None
        if self.transport.is_closing():
            return
        if self.conn.their_state is h11.SEND_BODY:
            self.end()
        else:
            seconds = self._limits.header_seconds
            self._refuse(HEAD_TOO_SLOW, f"the head did not arrive within {seconds:g} seconds")


class _Bounded(h11.Connection):
    """h11's connection with limits on a head that has arrived whole.

    Attributes:
        fault: What was wrong with what the client sent.
    """

    def __init__(self, limits: ConnectionLimits) -> None:
        super().__init__(h11.SERVER, limits.max_header_bytes)
        self._limits = limits
        self.fault: h11.RemoteProtocolError | None = None

    def next_event(self) -> Any:
        try:
            event = super().next_event()
            if isinstance(event, h11.Request):
                self._check(event)
        except h11.RemoteProtocolError as error:
            self.fault = error
            raise
        return event

    def _check(self, event: h11.Request) -> None:
        headers = event.headers
        if len(headers) > self._limits.max_headers:
            raise h11.RemoteProtocolError(f"more than {self._limits.max_headers} headers", 431)
        size = len(event.target) + sum(len(name) + len(value) for name, value in headers)
        if size > self._limits.max_header_bytes:
            most = self._limits.max_header_bytes
            raise h11.RemoteProtocolError(f"a head of more than {most} bytes", 431)


def connections_of(service: Service, log_refusals: bool = True) -> Connections:
    """Connections of a service: their number fits the descriptors that this process may open.

    Args:
        service: Counts and logs what is refused.
        log_refusals: Write them to the access log, a few at a time.
    """
    limits = service.settings.connections
    most = most_connections(limits.max_connections, raise_descriptor_limit())
    sparing = Sparing()

    def report(refusal: Refusal) -> None:
        service.metrics.refused(refusal.error)
        if log_refusals and sparing.let_through(refusal.error):
            write_entry(asdict(refusal))

    limits = replace(limits, max_connections=most)
    return Connections(limits, report, service.settings.dialect)


def no_delay(transport: asyncio.BaseTransport) -> None:
    """Sends a small answer at once.

    asyncio asks for this only where the listening socket names its protocol; without it the body
    waits for the client to acknowledge the head, which takes 40 ms.
    """
    connection = transport.get_extra_info("socket")
    if connection is not None and connection.family in (socket.AF_INET, socket.AF_INET6):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def raise_descriptor_limit() -> int:
    """Lets this process open as many files as it may; gives that number."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard if hard != resource.RLIM_INFINITY else 1 << 20


def most_connections(wanted: int, descriptors: int) -> int:
    """Connections that leave descriptors for everything else, at least one."""
    return max(1, min(wanted, descriptors - ACCEPTED_AT_ONCE - _RESERVED))
