"""The front process: HTTP server, engines and signals, from the first line to exit code 0."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import signal
import socket
import ssl
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import uvicorn

from clefq.errors import InputError
from clefq.serving.fleet.fleet import Fleet
from clefq.serving.http.connection import ACCEPTED_AT_ONCE, Connections
from clefq.serving.http.settings import ConnectionLimits

FORCED = 1
# After the last answer: time for responses to reach their clients before the listener closes.
_LINGER_SECONDS = 0.1
# For a client to say hello, and to say goodbye, which nobody has to wait for.
_TLS_DEADLINES = {"ssl_handshake_timeout": 10.0, "ssl_shutdown_timeout": 1.0}


@dataclass(frozen=True, slots=True)
class Address:
    """Where to listen.

    Attributes:
        host: Name or address of an interface.
        port: 0 lets the system choose.
    """

    host: str
    port: int


def listen(address: Address) -> socket.socket:
    """Takes the port before anything is loaded, so that a taken one shows at once.

    Raises:
        InputError: Taken, not allowed, or no such interface.
    """
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((address.host, address.port))
        # taken now, not when uvicorn listens: two servers must not both load a model for one port
        listener.listen(ACCEPTED_AT_ONCE)
    except (OSError, OverflowError) as error:
        listener.close()
        raise InputError(
            f"cannot listen on {address.host}:{address.port}: {_reason(error)}.",
            fix="choose another --port (0 for any free one) or --host.",
        ) from error
    return listener


def url_of(listener: socket.socket, *, tls: bool = False) -> str:
    """The base URL of a listening socket."""
    host, port = listener.getsockname()[:2]
    scheme = "https" if tls else "http"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


@dataclass(frozen=True, slots=True)
class Certificate:
    """What a server that speaks TLS shows.

    Attributes:
        certificate: PEM file, its chain below it.
        key: PEM file.
    """

    certificate: Path
    key: Path

    def __post_init__(self) -> None:
        """Raises `InputError` where the two cannot be used, before anything is loaded."""
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(
                self.certificate, self.key, password=_no_password
            )
        except (OSError, ValueError) as error:
            raise InputError(
                f"--ssl-certfile {self.certificate} and --ssl-keyfile {self.key} cannot be used: "
                f"{_reason(error)}.",
                fix="give PEM files that belong together; the key without a password.",
            ) from error


def _no_password() -> str:
    raise ValueError("the key asks for a password")


def _nothing(*_: object) -> None:
    pass


@dataclass(frozen=True, slots=True)
class Transport:
    """What carries HTTP.

    Attributes:
        connections: What a connection may do; by default refusals are not reported.
        certificate: For TLS; plain HTTP when None.
    """

    connections: Connections = field(
        default_factory=lambda: Connections(ConnectionLimits(), _nothing)
    )
    certificate: Certificate | None = None


class FrontServer:
    """Serves an application until it is told to stop.

    Args:
        app: The ASGI application; it refuses requests by itself unless the fleet is ready.
        fleet: The engines behind it.
        on_ready: Called once, when the engines are warm.
        log: Called with one line per event.
        grace: Most seconds that accepted requests get after the first signal.
        transport: What carries HTTP.

    Attributes:
        fleet: The engines behind it; others may take their place.
        on_hangup: Called at SIGHUP.

    Made on the running event loop.
    """

    def __init__(
        self,
        app: Any,
        fleet: Fleet,
        on_ready: Callable[[], None],
        log: Callable[[str], None],
        *,
        grace: float,
        transport: Transport | None = None,
    ) -> None:
        transport = transport or Transport()
        certificate = transport.certificate
        self.on_hangup: Callable[[], None] = _nothing
        self.fleet = fleet
        self._on_ready = on_ready
        self._log = log
        self._grace = grace
        self._stop = asyncio.Event()
        self._force = asyncio.Event()
        self._failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._http = _Http(
            uvicorn.Config(
                app,
                lifespan="on",
                log_config=None,
                access_log=False,
                server_header=False,
                date_header=True,
                backlog=ACCEPTED_AT_ONCE,
                http=transport.connections.protocol,  # type: ignore[arg-type]  # called as a class would be
                ws="none",
                ssl_certfile=None if certificate is None else certificate.certificate,
                ssl_keyfile=None if certificate is None else str(certificate.key),
                # for requests whose body has not arrived; those in the engines have deadlines
                timeout_graceful_shutdown=math.ceil(grace),
            )
        )

    def fail(self, error: BaseException) -> None:
        """Ends the server with an error; what `create_app` calls `on_failure`."""
        if not self._failed.done():
            self._failed.set_exception(error)

    async def run(self, listener: socket.socket) -> int:
        """Runs to the end; gives the exit code.

        Args:
            listener: From `listen`; closed at the end.

        Raises:
            ClefqError: The engines could not be started, or what `fail` was given.
        """
        loop = asyncio.get_running_loop()
        for signum in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(signum, self._on_signal)
        loop.add_signal_handler(signal.SIGHUP, lambda: self.on_hangup())
        http = asyncio.create_task(self._http.serve(sockets=[listener]))
        life = asyncio.create_task(self._live())
        force = asyncio.create_task(self._force.wait())
        try:
            await asyncio.wait(
                (life, http, force, self._failed), return_when=asyncio.FIRST_COMPLETED
            )
            for task in (self._failed, life):
                if task.done():
                    task.result()  # raises what went wrong
            self._http.should_exit = True
            self._http.force_exit = self._force.is_set()
            await asyncio.wait((http, force), return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._http.should_exit = True
            self._http.force_exit = self._force.is_set() or not life.done()
            life.cancel()
            force.cancel()
            await self.fleet.close()
            self._failed.cancel()
            await asyncio.gather(http, life, force, self._failed, return_exceptions=True)
        self._log("stopped.")
        return FORCED if self._force.is_set() else 0

    async def _live(self) -> None:
        """Ends once the server has been told to stop and every accepted request is answered."""
        starting = asyncio.create_task(self.fleet.start())
        stop = asyncio.create_task(self._stop.wait())
        await asyncio.wait((starting, stop), return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            starting.cancel()
            self.fleet.begin_drain()
            return
        starting.result()
        self._on_ready()
        await stop
        self.fleet.begin_drain()
        waiting = self.fleet.in_flight
        self._log(f"stopping: {waiting} in flight, no new requests; again to stop at once.")
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.fleet.idle(), self._grace)
        await asyncio.sleep(_LINGER_SECONDS)

    def _on_signal(self) -> None:
        if self._stop.is_set():
            self._log("stopping at once.")
            self._force.set()
        self._stop.set()


class _Http(uvicorn.Server):
    """Uvicorn without its own signal handling, and with deadlines for TLS."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        if self.config.ssl is None:
            await super().startup(sockets)
            return
        loop = asyncio.get_running_loop()
        create: Any = loop.create_server

        def hurried(*args: Any, **options: Any) -> Any:
            return create(*args, **options, **_TLS_DEADLINES)

        loop.create_server = hurried  # type: ignore[method-assign]  # uvicorn passes no deadline
        try:
            await super().startup(sockets)
        finally:
            loop.create_server = create  # type: ignore[method-assign]

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def leave(code: int) -> NoReturn:
    """Ends the process at once.

    Everything has been answered and closed by then, or a second signal has asked for an end: an
    interpreter that ends by itself first waits for every thread that still reads a request.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror[0].lower() + error.strerror[1:]
    return str(error).rstrip(".")
