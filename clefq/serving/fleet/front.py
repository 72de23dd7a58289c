"""From a plan to a running server: the one way in which engines and HTTP are put together."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from clefq.errors import InputError
from clefq.serving.fleet.assembly import FleetPlan
from clefq.serving.fleet.fleet import Fleet
from clefq.serving.fleet.rollover import AdminServer, Rollover
from clefq.serving.fleet.server import Certificate, FrontServer, Transport, url_of
from clefq.serving.http.app import create_app, service_of
from clefq.serving.http.connection import connections_of
from clefq.serving.http.settings import ServerSettings
from clefq.serving.http.tokens import Token, tokens_from
from clefq.serving.prompts import PromptMaker

if TYPE_CHECKING:
    from clefq.serving.http.service import Service


@dataclass(frozen=True, slots=True)
class Door:
    """How a server is reached.

    Attributes:
        listener: From `listen`; closed at the end.
        certificate: For TLS; plain HTTP when None.
        token_file: Read again at SIGHUP; None where there is none.
        further_tokens: Those that do not come from it, kept then.
        admin: Listens on the loopback interface for `POST /reload`; None for no such port.
        replan: Plans anew for it, from what the folder holds then.
    """

    listener: socket.socket
    certificate: Certificate | None = None
    token_file: Path | None = None
    further_tokens: tuple[Token, ...] = ()
    admin: socket.socket | None = None
    replan: Callable[[], FleetPlan] | None = None


async def run_server(
    plan: FleetPlan,
    settings: ServerSettings,
    door: Door,
    on_ready: Callable[[Fleet, str], None],
    log: Callable[[str], None],
) -> int:
    """Serves until told to stop; gives the exit code.

    Args:
        plan: From `plan_fleet`.
        settings: Of the HTTP side.
        door: How it is reached.
        on_ready: Called once every engine is warm, with the fleet and the server's base URL.
        log: Called with one line per event that an operator wants to see.

    Raises:
        ClefqError: The engines could not be started, or did not come back.
    """
    fleet = plan.fleet(log, on_give_up=lambda error: give_up(error))
    start = plan.spec.start
    url = url_of(door.listener, tls=door.certificate is not None)
    prompts = PromptMaker(
        start.folder,
        start.settings.max_images,
        escape_special_tokens=settings.escape_special_tokens,
    )
    app = create_app(fleet, prompts, settings, on_failure=lambda error: server.fail(error))
    service = service_of(app)
    server = FrontServer(
        app,
        fleet,
        lambda: on_ready(fleet, url),
        log,
        grace=plan.spec.timeouts.request,
        transport=Transport(connections_of(service, settings.access_log), door.certificate),
    )

    def give_up(error: BaseException) -> None:
        if server.fleet is fleet:  # another model may answer by now
            server.fail(error)

    server.on_hangup = lambda: _reload_tokens(service, door, log)
    if door.admin is None or door.replan is None:
        return await server.run(door.listener)
    rollover = Rollover(service, server, door.replan, log)
    admin = AdminServer(rollover)
    serving = asyncio.create_task(admin.serve([door.admin]))
    try:
        return await server.run(door.listener)
    finally:
        admin.should_exit = admin.force_exit = True
        await rollover.close()
        await asyncio.gather(serving, return_exceptions=True)


def _reload_tokens(service: Service, door: Door, log: Callable[[str], None]) -> None:
    """Reads the token file again; where it cannot be used, the tokens stay as they are."""
    if door.token_file is None:
        log("SIGHUP: there is no --token-file to read again.")
        return
    try:
        read = tokens_from((), None, door.token_file)
    except InputError as error:
        log(f"SIGHUP: the tokens stay as they were: {error}")
        return
    tokens = tuple({one.secret: one for one in (*read, *door.further_tokens)}.values())
    service.clients.replace(tokens)
    log(f"SIGHUP: {len(tokens)} tokens from now on.")
