"""Scale out over a Ray cluster: one engine per replica, as many replicas as the load asks for.

    pip install 'ray[serve]'                        # into the environment that has vLLM
    CLEFQ_MODEL=/models/fp8 serve run deploy.ray_serve:app

Every replica is a whole `clefq serve` without its port: the same routes, limits and errors, its
own engine, restarted by itself where it dies. Ray's proxy takes the requests and spreads them,
and starts a replica on another node where one is lost. `/metrics` is that of whichever replica
answers; Ray has its own for the cluster.

Settings are environment variables: CLEFQ_MODEL, CLEFQ_GPUS (per replica, default 1; 0 runs on
CPUs), CLEFQ_REPLICAS_MIN, CLEFQ_REPLICAS_MAX, CLEFQ_MAX_LENGTH, CLEFQ_MAX_IMAGES; and as options of
`clefq serve` are called: CLEFQ_SERVE_TOKEN, CLEFQ_TOKEN_FILE, CLEFQ_DIALECT, CLEFQ_LIMITS
(`max_questions=32 max_options=50`), CLEFQ_REQUEST_TIMEOUT, CLEFQ_ENGINE_TIMEOUT,
CLEFQ_TRUNCATE_STATE=1, CLEFQ_ESCAPE_SPECIAL_TOKENS=1. Connections are Ray's proxy's: put one in
front that bounds them.
"""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from ray import serve

GPUS = int(os.environ.get("CLEFQ_GPUS", "1"))
# Requests that a replica holds at a time, running and waiting; Ray sends no more than this.
ONGOING = 128


def build() -> Any:
    """The app of one replica, called inside it; its start-up waits until the engine is warm."""
    from clefq.names.hub import resolve_model
    from clefq.serving.fleet.assembly import Engines, plan_fleet
    from clefq.serving.fleet.spec import Timeouts
    from clefq.serving.http.app import create_app
    from clefq.serving.http.logs import log_to
    from clefq.serving.prompts import PromptMaker
    from clefq.serving.settings import ServeSettings

    model = os.environ["CLEFQ_MODEL"]
    folder = resolve_model(model)
    settings = ServeSettings(
        max_length=int(os.environ.get("CLEFQ_MAX_LENGTH", "16384")),
        max_images=int(os.environ.get("CLEFQ_MAX_IMAGES", "4")),
        tensor_parallel=max(1, GPUS),
        cpu_threads=None if GPUS else 1,
    )
    name = model.rstrip("/").rpartition("/")[2].partition("@")[0]
    # Ray sets CUDA_VISIBLE_DEVICES to the GPUs of this replica
    server = server_settings()
    timeouts = Timeouts(
        request=server.answer_seconds, stall=float(os.environ.get("CLEFQ_ENGINE_TIMEOUT", "60"))
    )
    plan = plan_fleet(Engines(folder, name, settings=settings, timeouts=timeouts), os.environ)
    log_to("json", guest=True)
    # a replica whose engine does not come back ends, and Ray starts another one
    fleet = plan.fleet(logging.getLogger("ray.serve").info, on_give_up=lambda _: os._exit(1))
    prompts = PromptMaker(
        folder, settings.max_images, escape_special_tokens=server.escape_special_tokens
    )
    app = create_app(fleet, prompts, server)
    app.add_middleware(OneRequestId)
    inner = app.router.lifespan_context

    @asynccontextmanager
    async def lifespan(scope: Any) -> AsyncIterator[Any]:
        async with inner(scope) as state:
            await fleet.start()  # the start that the app has begun: a replica is ready when warm
            yield state

    app.router.lifespan_context = lifespan
    return app


def server_settings() -> Any:
    """What the environment says of the HTTP side."""
    from clefq.serving.http.settings import ServerSettings, limits_from
    from clefq.serving.http.tokens import tokens_from

    given = os.environ
    file = given.get("CLEFQ_TOKEN_FILE")
    images = given.get("CLEFQ_MAX_IMAGES", "4")
    return ServerSettings(
        dialect=given.get("CLEFQ_DIALECT", "release"),
        truncate_state=given.get("CLEFQ_TRUNCATE_STATE") == "1",
        escape_special_tokens=given.get("CLEFQ_ESCAPE_SPECIAL_TOKENS") == "1",
        limits=limits_from([f"max_images={images}", *given.get("CLEFQ_LIMITS", "").split()]),
        bearer_tokens=tokens_from((), given.get("CLEFQ_SERVE_TOKEN"), Path(file) if file else None),
        answer_seconds=float(given.get("CLEFQ_REQUEST_TIMEOUT", "180")),
        max_pending=ONGOING,
    )


class OneRequestId:
    """Ray's proxy states the request's id by itself: ours is the same, and is not stated twice."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answers one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        names = {name for name, _ in scope["headers"]}
        ray_id = getattr(serve.context._get_serve_request_context(), "request_id", "")
        if ray_id and b"x-request-id" not in names:
            scope = {**scope, "headers": [*scope["headers"], (b"x-request-id", ray_id.encode())]}

        async def send_once(message: Any) -> None:
            if message["type"] == "http.response.start":
                kept = [pair for pair in message["headers"] if pair[0] != b"x-request-id"]
                message = {**message, "headers": kept}
            await send(message)

        await self.app(scope, receive, send_once)


app = serve.deployment(
    serve.ingress(build)(),
    name="clefq",
    ray_actor_options={"num_gpus": GPUS, "num_cpus": 1},
    max_ongoing_requests=ONGOING,
    autoscaling_config={
        "min_replicas": int(os.environ.get("CLEFQ_REPLICAS_MIN", "1")),
        "max_replicas": int(os.environ.get("CLEFQ_REPLICAS_MAX", "4")),
        "target_ongoing_requests": 48,
        "downscale_delay_s": 600,
    },
    graceful_shutdown_timeout_s=180,
).bind()
