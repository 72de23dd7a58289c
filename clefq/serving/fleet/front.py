"""From a plan to a running server: the one way in which engines and HTTP are put together."""

from __future__ import annotations

import socket
from collections.abc import Callable

from clefq.serving.fleet.assembly import Plan
from clefq.serving.fleet.fleet import Fleet
from clefq.serving.fleet.server import FrontServer, url_of
from clefq.serving.http.app import create_app
from clefq.serving.http.observation import access_log_to
from clefq.serving.http.settings import ServerSettings
from clefq.serving.prompts import PromptMaker


async def run_server(
    plan: Plan,
    settings: ServerSettings,
    listener: socket.socket,
    on_ready: Callable[[Fleet, str], None],
    log: Callable[[str], None],
) -> int:
    """Serves until told to stop; gives the exit code.

    Args:
        plan: From `plan_fleet`.
        settings: Of the HTTP side.
        listener: From `listen`; closed at the end.
        on_ready: Called once every engine is warm, with the fleet and the server's base URL.
        log: Called with one line per event that an operator wants to see.

    Raises:
        ClefqError: The engines could not be started.
    """
    access_log_to()
    fleet, start = plan.fleet(log), plan.spec.start
    url = url_of(listener)
    prompts = PromptMaker(start.folder, start.settings.max_images)
    app = create_app(fleet, prompts, settings, on_failure=lambda error: server.fail(error))
    server = FrontServer(
        app, fleet, lambda: on_ready(fleet, url), log, grace=plan.spec.timeouts.request
    )
    return await server.run(listener)
