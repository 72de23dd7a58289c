"""Messages between the front process and an engine's process.

One local socket per engine carries length-prefixed pickles, pixels beside them. Both ends are
clefq, started by the same command: nothing that comes from a client is ever unpickled.
"""

from __future__ import annotations

import asyncio
import pickle
import socket
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clefq.serving.layout import schema_layout
from clefq.serving.settings import ServeSettings

if TYPE_CHECKING:
    from clefq.serving.runtime import Prompt

_LENGTH = struct.Struct("!Q")
_HEAD = struct.Struct("!QI")


@dataclass(frozen=True, slots=True)
class Start:
    """To the engine, once: what to load.

    Attributes:
        folder: The checkpoint.
        settings: How to run it.
        verbose: Keep vLLM's own log.
        fingerprint: Of the folder at the server's start; None is not checked.
        sha256: Of the checkpoint at the server's start, once it is known.
    """

    folder: Path
    settings: ServeSettings
    verbose: bool = False
    fingerprint: str | None = None
    sha256: str | None = None


@dataclass(frozen=True, slots=True)
class Pixels:
    """One upright RGB image.

    Attributes:
        size: Width and height.
        data: Rows of bytes, three per pixel.
    """

    size: tuple[int, int]
    data: bytes

    def __reduce__(self) -> tuple[Any, ...]:
        """Travels beside the pickle: four photographs are 300 MB, which nobody should copy."""
        return (Pixels, (self.size, pickle.PickleBuffer(self.data)))


@dataclass(frozen=True, slots=True)
class EngineAsk:
    """To the engine: one prompt.

    Attributes:
        number: Unique within the front process.
        token_ids: For vLLM: one pad token per image.
        layout: `PoolingParams.extra_kwargs`.
        images: In prompt order.
        tokens: Length of the prompt as it will run, placeholders expanded.
        options: How many logits are expected.
    """

    number: int
    token_ids: tuple[int, ...]
    layout: dict[str, Any]
    images: tuple[Pixels, ...]
    tokens: int
    options: int

    @classmethod
    def of(cls, number: int, prompt: Prompt) -> EngineAsk:
        """The message for a prompt."""
        encoded = prompt.encoded
        return cls(
            number=number,
            token_ids=encoded.token_ids if prompt.engine_ids is None else prompt.engine_ids,
            layout=schema_layout(encoded),
            images=tuple(Pixels(image.size, image.tobytes()) for image in prompt.images),
            tokens=len(encoded.token_ids),
            options=sum(len(question.option_spans) for question in encoded.questions),
        )


@dataclass(frozen=True, slots=True)
class Abort:
    """To the engine: nobody waits for this prompt any more."""

    number: int


@dataclass(frozen=True, slots=True)
class Stop:
    """To the engine: free everything and exit."""


@dataclass(frozen=True, slots=True)
class Ready:
    """From the engine: loaded and warm.

    Attributes:
        engine_version: vLLM's.
        kernels: `real` or `simulated`.
        arithmetic: As executed.
        device: Name of the accelerator, or `cpu`.
        detail: Kernel names with their number of layers.
        load_seconds: From the process's start until loaded.
        warm_seconds: Spent on the warm-up prompts.
    """

    engine_version: str
    kernels: str
    arithmetic: str
    device: str
    detail: str = ""
    load_seconds: float = 0.0
    warm_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Failed:
    """From the engine, its last message: it cannot go on.

    Attributes:
        message: One line.
        fix: One line, or None.
    """

    message: str
    fix: str | None = None


@dataclass(frozen=True, slots=True)
class EngineAnswer:
    """From the engine: the logits of one prompt.

    Attributes:
        number: As asked.
        flat: float32 logits as bytes; empty where the engine refused the prompt.
        input_tokens: Length of the prompt as run.
        refused: Why it was refused, or None.
    """

    number: int
    flat: bytes
    input_tokens: int
    refused: str | None = None


Message = Start | EngineAsk | Abort | Stop | Ready | Failed | EngineAnswer


class Channel:
    """One end of the socket, on the event loop.

    Args:
        reader: Of the connection.
        writer: Of the connection.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def over(cls, end: socket.socket) -> Channel:
        """Wraps one end of a socket pair, which it then owns."""
        end.setblocking(False)
        return cls(*await asyncio.open_connection(sock=end))

    def send(self, message: Message) -> None:
        """Queues a message; never waits. A closed connection swallows it."""
        if self._writer.is_closing():
            return
        beside: list[pickle.PickleBuffer] = []
        body = pickle.dumps(message, protocol=5, buffer_callback=beside.append)
        self._writer.write(_HEAD.pack(len(body), len(beside)) + body)
        for buffer in beside:
            raw = buffer.raw()
            self._writer.write(_LENGTH.pack(raw.nbytes))
            self._writer.write(raw)

    async def flush(self) -> None:
        """Waits until the other side has taken most of what was sent."""
        await self._writer.drain()

    async def receive(self) -> Message | None:
        """The next message, or None once the other end is closed."""
        try:
            size, count = _HEAD.unpack(await self._reader.readexactly(_HEAD.size))
            body = await self._reader.readexactly(size)
            beside = [await self._buffer() for _ in range(count)]
        except (asyncio.IncompleteReadError, ConnectionError, OSError):
            return None
        message: Message = pickle.loads(body, buffers=beside)
        return message

    async def _buffer(self) -> bytes:
        (size,) = _LENGTH.unpack(await self._reader.readexactly(_LENGTH.size))
        return await self._reader.readexactly(size)

    def close(self) -> None:
        """Closes the connection; harmless when called twice."""
        self._writer.close()
