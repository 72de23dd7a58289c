"""A backend without engines: logits that follow from the prompt's text, never from a model."""

from __future__ import annotations

import asyncio
import hashlib
from collections import deque
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from clefq.serving.http.backend import Scores, ServerInfo, State
from clefq.serving.runtime import Prompt

Span = tuple[int, int]

NAMES = ("my-clef", "nano", "clef", "jev-latest")


def logits_from(ids: Sequence[int], spans: Iterable[tuple[Span, Iterable[Span]]]) -> np.ndarray:
    """Made-up logits, float32 [options]: a hash of the option's and its question's tokens.

    Args:
        ids: The prompt.
        spans: Per question, where its instructions and its options stand.
    """
    values = []
    for question, options in spans:
        for start, end in options:
            seed = repr((tuple(ids[slice(*question)]), tuple(ids[start:end]))).encode()
            number = int.from_bytes(hashlib.sha256(seed).digest()[:8], "little")
            values.append(8 * number / 2**64 - 4)
    return np.array(values, dtype=np.float32)


def logits_of(prompt: Prompt) -> np.ndarray:
    """The logits that the fake backend returns for a prompt."""
    encoded = prompt.encoded
    return logits_from(encoded.token_ids, [(q.span, q.option_spans) for q in encoded.questions])


class FakeBackend:
    """See `clefq.serving.http.backend.Backend`.

    Attributes:
        seconds: How long a prompt takes.
        failure: Raised by `score`, where not None.
        flat: Returned by `score` in place of made-up logits, where not None.
        prompts: The last 200 that were asked for.
        cancelled: Prompts whose client went away.
    """

    def __init__(self, *, max_length: int = 16384, max_images: int = 4) -> None:
        self.info = ServerInfo(
            names=NAMES,
            created=1_790_000_000,
            engine="fake",
            engine_version="1.2.3",
            kernels="simulated",
            arithmetic="w4a4",
            dtype="bfloat16",
            device="none",
            scheme="nvfp4",
            max_length=max_length,
            max_images=max_images,
        )
        self.state: State = "ready"
        self.seconds = 0.0
        self.failure: Exception | None = None
        self.flat: np.ndarray | None = None
        self.prompts: deque[Prompt] = deque(maxlen=200)
        self.cancelled = 0
        self.started = 0
        self.drained = 0

    async def score(self, prompt: Prompt, request_id: str) -> Scores:
        self.prompts.append(prompt)
        try:
            await asyncio.sleep(self.seconds)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if self.failure is not None:
            raise self.failure
        flat = logits_of(prompt) if self.flat is None else self.flat
        return Scores(flat, len(prompt.encoded.token_ids), 0.001, self.seconds)

    async def start(self) -> None:
        self.started += 1
        self.state = "ready"

    async def drain(self) -> None:
        self.drained += 1
        self.state = "draining"

    def gauges(self) -> Mapping[str, float]:
        return {"engines": 1, "engines_alive": 1, "engine_restarts": 2, "in_flight{0}": 3}
