"""What the HTTP layer needs of the engines behind it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from clefq.serving.runtime import Prompt

State = Literal["starting", "ready", "draining"]


@dataclass(frozen=True, slots=True)
class Scores:
    """What an engine returned for one prompt.

    Attributes:
        flat: Logits [options of the record, in prompt order], float32; empty where the engine
            refused the layout.
        input_tokens: Length of the prompt as run, image placeholders expanded.
        queue_seconds: Time from `Backend.score` being called until an engine had the prompt, plus
            the engine's own waiting time where it is known.
        engine_seconds: Time from then until the logits were there.
    """

    flat: NDArray[np.float32]
    input_tokens: int
    queue_seconds: float
    engine_seconds: float


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """What a server runs; what `/v1/models` says of it.

    Attributes:
        names: Model names that requests may use; the first is the one that is reported.
        created: Unix time, seconds, of the checkpoint or of the server's start.
        engine: For example `vllm`.
        engine_version: Its version.
        kernels: `real`, or `simulated` where a format has no kernel on this machine; `unknown`
            where vLLM's own server runs the engine.
        arithmetic: As executed: `bf16`, `w8a16`, `w8a8`, `w4a16`, `w4a4` or `unknown`.
        dtype: Of the activations, for example `bfloat16`.
        device: For example `NVIDIA H200`.
        scheme: Of the checkpoint, for example `nvfp4`.
        max_length: Token limit of a prompt, image tokens included.
        max_images: Most images of a request that the engines were started for.
        sha256: Of the checkpoint, as predictions files state it; None where it is not known yet.
    """

    names: tuple[str, ...]
    created: int
    engine: str
    engine_version: str
    kernels: str
    arithmetic: str
    dtype: str
    device: str
    scheme: str
    max_length: int
    max_images: int
    sha256: str | None = None


class EngineDown(Exception):
    """No engine could answer, also not on the retry; the request is answered 503."""


class Backend(Protocol):
    """One or more engines of the same checkpoint. Every method runs on the event loop."""

    @property
    def info(self) -> ServerInfo:
        """What the engines run; known as soon as the state is `ready`, fixed from then on."""
        ...

    @property
    def state(self) -> State:
        """`ready` once an engine is warm; `draining` from `drain` on."""
        ...

    async def score(self, prompt: Prompt, request_id: str) -> Scores:
        """Runs one prompt.

        Args:
            prompt: Within `info.max_length` tokens and `info.max_images` images.
            request_id: Of the HTTP request, for logs; need not be unique.

        Raises:
            EngineDown: No engine could answer.
            asyncio.CancelledError: The client went away; the engine's work is aborted.
        """
        ...

    async def start(self) -> None:
        """Starts the engines and warms them; `state` becomes `ready`. Called once, at start-up.

        Raises:
            ClefqError: No engine could be started.
        """
        ...

    async def drain(self) -> None:
        """Stops taking requests, waits for those in flight, and closes the engines. Idempotent."""
        ...

    def gauges(self) -> Mapping[str, float]:
        """Numbers of this moment for `/metrics`.

        Keys are `[a-z_]+`, optionally followed by one label value: `name{value}`. Keys used:
        `engines`, `engines_alive`, `engine_restarts` (counted up), `in_flight{N}` and
        `waiting{N}` for engine number N. Unknown keys are exported as they are.
        """
        ...
