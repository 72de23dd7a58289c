"""`POST /v1/systemone` inside vLLM's own server: the `vllm.endpoint_plugins` entry point.

vLLM loads it where `VLLM_PLUGINS` names `clefq` (0.28 and newer). The route is the one of
`clefq serve`, with its limits, dialects and errors; models, health, metrics and API keys are
vLLM's, and so is what happens when the engine dies.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from clefq.serving.fleet.client import encode
from clefq.serving.http.backend import EngineDown, Scores, ServerInfo, State
from clefq.serving.layout import ARCHITECTURE, TASK, schema_layout

if TYPE_CHECKING:
    from clefq.serving.runtime import Prompt


class SystemOneEndpoint:
    """What vLLM asks of an endpoint plugin."""

    name = "clefq"
    required_tasks = (TASK,)

    def attach_router(self, app: Any) -> None:
        """Adds the route; until `init_state` it answers 503."""
        from clefq.serving.http.routes import systemone_router
        from clefq.serving.http.settings import Limits

        app.include_router(systemone_router(Limits()))

    async def init_state(self, engine_client: Any, state: Any, args: Any) -> None:
        """Connects the route to the engine.

        Args:
            engine_client: vLLM's; None on a server that only renders.
            state: The app's.
            args: vLLM's command line.
        """
        if engine_client is None or not serves_clef(engine_client.model_config):
            return
        from prometheus_client import REGISTRY

        from clefq.names.hub import resolve_model
        from clefq.serving.http.logs import log_to
        from clefq.serving.http.routes import STATE_KEY
        from clefq.serving.http.service import Service
        from clefq.serving.http.settings import ServerSettings
        from clefq.serving.prompts import PromptMaker

        config = engine_client.model_config
        revision = f"@{config.revision}" if config.revision else ""
        source = str(config.model)
        folder = await asyncio.to_thread(
            resolve_model, source if Path(source).is_dir() else source + revision
        )
        backend = ClientBackend(engine_client, folder, args)
        prompts = PromptMaker(folder, backend.info.max_images)
        log_to("json", guest=True)
        # on vLLM's own /metrics
        service = Service(backend, prompts, ServerSettings(), REGISTRY)
        await service.warm()
        setattr(state, STATE_KEY, service)


def serves_clef(model_config: Any) -> bool:
    """Whether vLLM runs our model, and not another one that classifies tokens."""
    named = getattr(model_config.hf_config, "architectures", None) or ()
    return ARCHITECTURE in named


class ClientBackend:
    """Implements `clefq.serving.http.backend.Backend` over the engine of vLLM's server.

    Args:
        client: vLLM's `EngineClient`.
        folder: The checkpoint.
        args: vLLM's command line.
    """

    def __init__(self, client: Any, folder: Path, args: Any) -> None:
        self._client = client
        self._numbers = itertools.count(1)
        self._in_flight = 0
        self._info = _info(client, folder, args)

    @property
    def info(self) -> ServerInfo:
        """See `Backend.info`."""
        return self._info

    @property
    def state(self) -> State:
        """`ready`: vLLM opens its port once the engine is loaded, and ends when it dies."""
        return "ready"

    async def score(self, prompt: Prompt, request_id: str) -> Scores:
        """See `Backend.score`."""
        encoded = prompt.encoded
        ids = encoded.token_ids if prompt.engine_ids is None else prompt.engine_ids
        number = f"systemone-{next(self._numbers)}"
        begun = time.perf_counter()
        self._in_flight += 1
        try:
            flat, tokens = await encode(
                self._client, ids, schema_layout(encoded), prompt.images, number
            )
        except Exception as error:  # of this request, or the engine is dead
            if self._client.errored:
                raise EngineDown("the engine died") from error
            flat, tokens = np.empty(0, dtype=np.float32), len(encoded.token_ids)
        finally:
            self._in_flight -= 1
        return Scores(flat, tokens, 0.0, time.perf_counter() - begun)

    async def start(self) -> None:
        """Nothing: vLLM has started the engine."""

    async def drain(self) -> None:
        """Nothing: vLLM stops the engine."""

    def gauges(self) -> Mapping[str, float]:
        """See `Backend.gauges`."""
        return {"engines": 1, "engines_alive": 1, "in_flight{0}": self._in_flight}


def _info(client: Any, folder: Path, args: Any) -> ServerInfo:
    import vllm

    from clefq.clef.checkpoint import open_checkpoint, scheme_of
    from clefq.serving.http.names import model_names

    config = client.model_config
    images = getattr(config, "multimodal_config", None)
    most = 0 if images is None else int(images.get_limit_per_prompt("image"))
    named = getattr(args, "served_model_name", None) or ()
    return ServerInfo(
        names=model_names(folder, tuple(named)),
        created=int(time.time()),
        engine="vllm",
        engine_version=str(vllm.__version__),
        kernels="unknown",  # nobody asks here: /v1/models is vLLM's
        arithmetic="unknown",
        dtype=str(config.dtype).removeprefix("torch."),
        device="unknown",
        scheme=scheme_of(open_checkpoint(folder)),
        # vLLM keeps a place for a generated token
        max_length=int(config.max_model_len) - 1,
        max_images=most,
    )
