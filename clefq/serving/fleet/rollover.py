"""A change of model without a gap: start the new engines, switch, let the old ones finish.

Asked for by `POST /reload` on a port of its own, which listens on the loopback interface alone.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from clefq.errors import ClefqError, InputError
from clefq.serving.fleet.assembly import FleetPlan
from clefq.serving.fleet.fleet import Fleet
from clefq.serving.fleet.server import FrontServer
from clefq.serving.http.service import ServedModel, Service
from clefq.serving.prompts import PromptMaker

RELOAD = "/reload"
GUARD = "x-clefq-admin"
"""A header that the request must have: a web page cannot send it to another origin unasked."""
# What a second set of engines takes beyond the first one's memory: it loads beside it.
_SLACK = 1.2


class Rollover:
    """Changes the model of a running server.

    Args:
        service: Gets the new model.
        server: Watches the new engines from then on.
        replan: Plans anew from the folder's contents.
        log: Called with one line per event.
    """

    def __init__(
        self,
        service: Service,
        server: FrontServer,
        replan: Callable[[], FleetPlan],
        log: Callable[[str], None],
    ) -> None:
        self._service = service
        self._server = server
        self._replan = replan
        self._log = log
        self._busy = False
        self._new: Fleet | None = None
        self._draining: set[asyncio.Task[None]] = set()

    async def change(self) -> Fleet:
        """Starts engines with what the folder holds now, and switches to them.

        Raises:
            InputError: A change is under way, or two sets of engines do not fit.
            ClefqError: The new engines could not be started; the old ones go on.
        """
        if self._busy:
            raise InputError("a change of model is under way.", fix="wait for it.")
        self._busy = True
        try:
            return await self._change()
        finally:
            self._busy = False

    async def close(self) -> None:
        """Ends engines that were about to take over, and those that took their leave."""
        for task in self._draining:
            task.cancel()
        if self._new is not None:
            await self._new.close()

    async def _change(self) -> Fleet:
        old = self._server.fleet
        plan = await asyncio.to_thread(self._replan)
        check_room(plan, old)
        new = self._new = plan.fleet(self._log, lambda error: self._give_up(new, error))
        self._log("another model: starting its engines beside the old ones.")
        try:
            await new.start()
            model = ServedModel(new, await asyncio.to_thread(self._prompts, plan))
            await self._service.warm_model(model)
        except BaseException:
            await new.close()
            self._new = None
            raise
        before, self._service.model = self._service.model, model
        self._server.fleet = new
        self._new = None
        self._log(f"another model answers from now on: {new.info.scheme}, {new.info.sha256}.")
        task = asyncio.create_task(self._retire(before, old))
        self._draining.add(task)
        task.add_done_callback(self._draining.discard)
        return new

    async def _retire(self, model: ServedModel, fleet: Fleet) -> None:
        """Ends engines once all that was asked of them is answered, what is still read included."""
        await self._service.released(model)
        await fleet.drain()

    def _prompts(self, plan: FleetPlan) -> PromptMaker:
        start = plan.spec.start
        escape = self._service.settings.escape_special_tokens
        return PromptMaker(start.folder, start.settings.max_images, escape_special_tokens=escape)

    def _give_up(self, fleet: Fleet, error: BaseException) -> None:
        if self._server.fleet is fleet:
            self._server.fail(error)


def check_room(plan: FleetPlan, running: Fleet) -> None:
    """Refuses a second set of engines where there is no memory for it.

    Raises:
        InputError: There is not; nothing has been started.
    """
    share = plan.spec.start.settings.gpu_memory
    if any(place.startswith("GPU") for place in plan.places):
        if 2 * share > 1:
            raise InputError(
                f"two engines do not fit on a GPU: each takes {share:g} of its memory.",
                fix="start with --gpu-memory 0.45, or bring a second server up behind a proxy.",
            )
        return
    gauges = running.gauges()
    held = sum(v for name, v in gauges.items() if name.startswith("engine_memory_bytes"))
    free = available_bytes()
    if held * _SLACK > free:
        raise InputError(
            f"a second set of engines does not fit: the first holds {held / 2**30:.1f} GiB, "
            f"{free / 2**30:.1f} GiB are free.",
            fix="bring a second server up elsewhere, behind a proxy.",
        )


def available_bytes(file: Path = Path("/proc/meminfo")) -> int:
    """Memory that programs can still take."""
    line = next(one for one in file.read_text().splitlines() if one.startswith("MemAvailable"))
    return int(line.split()[1]) * 1024


def admin_app(rollover: Rollover) -> Starlette:
    """`POST /reload`, and nothing else."""

    async def reload(request: Request) -> Response:
        if GUARD not in request.headers:
            return _error(403, f"the request needs a header {GUARD}, of any value")
        try:
            fleet = await rollover.change()
        except InputError as error:
            return _error(409, str(error))
        except ClefqError as error:
            return _error(503, f"the old model goes on: {error}")
        info = fleet.info
        return JSONResponse({"model": info.names[0], "scheme": info.scheme, "sha256": info.sha256})

    return Starlette(routes=[Route(RELOAD, reload, methods=["POST"])])


class AdminServer(uvicorn.Server):
    """Serves `admin_app` beside the main server, without signals of its own.

    Args:
        rollover: What it asks.
    """

    def __init__(self, rollover: Rollover) -> None:
        config = uvicorn.Config(
            admin_app(rollover),
            log_config=None,
            access_log=False,
            lifespan="off",
            ws="none",
            http="h11",
            limit_concurrency=8,
            timeout_graceful_shutdown=1,
        )
        super().__init__(config)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are the main server's."""
        yield


def _error(status: int, message: str) -> Response:
    return JSONResponse({"error": {"type": "not_reloaded", "message": message}}, status)
