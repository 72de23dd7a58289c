"""Scale out over a Ray cluster: one engine per replica, as many replicas as the load asks for.

    pip install 'ray[serve]'                        # into the environment that has vLLM
    CLEFQ_MODEL=/models/fp8 serve run deploy.ray_serve:app

Every replica is a whole `clefq serve` without its port: the same routes, limits and errors, its
own engine, restarted by itself where it dies. Ray's proxy takes the requests and spreads them,
and starts a replica on another node where one is lost. `/metrics` is that of whichever replica
answers; Ray has its own for the cluster.

Settings are environment variables: CLEFQ_MODEL, CLEFQ_GPUS (per replica, default 1; 0 runs on
CPUs), CLEFQ_REPLICAS_MIN, CLEFQ_REPLICAS_MAX, CLEFQ_MAX_LENGTH, CLEFQ_MAX_IMAGES.
"""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from ray import serve

GPUS = int(os.environ.get("CLEFQ_GPUS", "1"))
# Requests that a replica holds at a time, running and waiting; Ray sends no more than this.
ONGOING = 128


def build() -> Any:
    """The app of one replica, called inside it; its start-up waits until the engine is warm."""
    from clefq.names.hub import resolve_model
    from clefq.serving.fleet.assembly import Engines, plan_fleet
    from clefq.serving.http.app import create_app
    from clefq.serving.http.settings import ServerSettings
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
    plan = plan_fleet(Engines(folder, name, settings=settings), os.environ)
    fleet = plan.fleet(logging.getLogger("ray.serve").info)
    prompts = PromptMaker(folder, settings.max_images)
    app = create_app(fleet, prompts, ServerSettings(max_pending=ONGOING))
    inner = app.router.lifespan_context

    @asynccontextmanager
    async def lifespan(scope: Any) -> AsyncIterator[Any]:
        async with inner(scope) as state:
            await fleet.start()  # the start that the app has begun: a replica is ready when warm
            yield state

    app.router.lifespan_context = lifespan
    return app


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
