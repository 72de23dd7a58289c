"""The process of one engine: `python -m clefq.serving.fleet.worker SOCKET LIFELINE`.

It holds one vLLM `AsyncLLM`, whose core is a child of this process. It ends when it is told to,
when its engine dies (the front process starts another), and, together with all of its children,
when the front process is gone, whatever the reason.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from clefq.errors import ClefqError
from clefq.serving.fleet.client import encode
from clefq.serving.fleet.fingerprint import check_unchanged
from clefq.serving.fleet.warmup import warmup_prompts
from clefq.serving.fleet.wire import (
    Abort,
    Channel,
    EngineAnswer,
    EngineAsk,
    Failed,
    Ready,
    Start,
    Stop,
)

# Imported by vLLM in its own processes, and asked there by name.
EXTENSION = "clefq.serving.fleet.inspection.Inspection"
METHOD = "clefq_kernels"
_HEALTH_SECONDS = 0.25


class Worker:
    """Serves one connection.

    Args:
        channel: To the front process.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._engine: Any = None
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._loaded = 0.0

    async def run(self) -> int:
        """Loads, warms, serves; gives the exit code."""
        start = await self._channel.receive()
        if not isinstance(start, Start):
            return 1
        begun = time.monotonic()
        try:
            check_unchanged(start)
            self._engine, facts = await _load(start)
            check_unchanged(start)  # it may have been replaced meanwhile
            self._loaded = time.monotonic()
            cpu = facts["device"] == "cpu"
            for group in warmup_prompts(start.folder, start.settings, cpu=cpu):
                _check_finite(
                    await asyncio.gather(*(self._encode(ask) for ask in group)), start.folder
                )
            facts["load_seconds"] = self._loaded - begun
            facts["warm_seconds"] = time.monotonic() - self._loaded
            self._channel.send(Ready(**facts))
            return await self._serve()
        except ClefqError as error:
            self._channel.send(Failed(error.message, error.fix))
        except Exception as error:  # whatever vLLM raises while it loads
            logging.getLogger("vllm.clefq").exception("clefq: the engine cannot be used")
            if not _about_the_core(error):
                self._channel.send(Failed(f"vLLM could not load {start.folder}: {_line(error)}"))
        finally:
            await self._channel.flush()
        return 1

    async def _serve(self) -> int:
        health = asyncio.create_task(self._until_dead())
        requests = asyncio.create_task(self._listen())
        done, _ = await asyncio.wait((health, requests), return_when=asyncio.FIRST_COMPLETED)
        for task in (health, requests):
            task.cancel()
        if health in done:
            self._channel.send(Failed("its vLLM core died."))
            return 1
        # nothing is in flight any more; the core would take five seconds to come to an end
        await asyncio.to_thread(self._engine.shutdown, 1.0)
        return 0

    async def _listen(self) -> None:
        while True:
            message = await self._channel.receive()
            if isinstance(message, Stop):
                return
            if message is None:
                end_group()
            if isinstance(message, EngineAsk):
                self._tasks[message.number] = asyncio.create_task(self._answer(message))
            elif isinstance(message, Abort) and message.number in self._tasks:
                self._tasks[message.number].cancel()

    async def _until_dead(self) -> None:
        while not self._engine.errored:
            await asyncio.sleep(_HEALTH_SECONDS)

    async def _answer(self, ask: EngineAsk) -> None:
        try:
            flat, tokens = await self._encode(ask)
            self._channel.send(EngineAnswer(ask.number, flat.tobytes(), tokens))
        except Exception as error:  # of this request, or the engine is dead and `_serve` ends
            if not self._engine.errored:
                self._channel.send(EngineAnswer(ask.number, b"", ask.tokens, refused=_line(error)))
        finally:
            del self._tasks[ask.number]

    async def _encode(self, ask: EngineAsk) -> Any:
        from PIL import Image

        images = [Image.frombytes("RGB", image.size, image.data) for image in ask.images]
        return await encode(self._engine, ask.token_ids, ask.layout, images, f"clefq-{ask.number}")


async def _load(start: Start) -> tuple[Any, dict[str, Any]]:
    """Loads the engine; this holds up the event loop, which has nothing else to do yet."""
    _prepare(start.verbose)
    import vllm
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.platforms import current_platform
    from vllm.v1.engine.async_llm import AsyncLLM

    from clefq.serving.arithmetic import summarize
    from clefq.serving.plugin import register
    from clefq.serving.settings import engine_arguments

    register()
    on_cpu = bool(current_platform.is_cpu())
    if on_cpu:
        # the core then runs the model itself, in place of one more process that loads vLLM
        os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    arguments = engine_arguments(start.folder, start.settings, cpu=on_cpu)
    # pictures of requests hardly ever repeat; vLLM would keep 4 GiB of them, in two processes
    arguments |= {"worker_extension_cls": EXTENSION, "mm_processor_cache_gb": 0}
    engine = AsyncLLM.from_engine_args(AsyncEngineArgs(**arguments))
    kernels = (await engine.collective_rpc(METHOD))[0]
    ran = summarize(kernels)
    return engine, {
        "engine_version": str(vllm.__version__),
        "kernels": ran.kernels,
        "arithmetic": ran.arithmetic,
        "device": "cpu" if on_cpu else str(current_platform.get_device_name()),
        "detail": ran.detail,
    }


def _prepare(verbose: bool) -> None:
    """Set before vLLM is imported; what the user has set stays."""
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    # this process has threads and a running loop, which a fork would copy in any state
    os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "INFO" if verbose else "ERROR")


def _line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if len(lines) > 1 and "validation error" in lines[0]:  # pydantic says what is wrong below
        lines[0] = " ".join(line for line in lines[1:] if not line.startswith("For further"))
        lines[0] = lines[0].partition(" [type=")[0]
    return (lines[0] if lines else repr(error))[:300]


def _about_the_core(error: Exception) -> bool:
    """Whether the reason stands in the output of the core, which the front process has seen."""
    return "root cause" in str(error)


def _check_finite(answers: Sequence[tuple[Any, int]], folder: Path) -> None:
    """A model that answers nothing but NaN is not ready, however well it loads."""
    import numpy as np

    if answers and not any(np.isfinite(flat).all() for flat, _ in answers):
        raise ClefqError(
            f"{folder} answers with logits that are not finite.",
            fix="`clefq audit` shows a damaged checkpoint; download or make it again.",
        )


def end_group() -> None:
    """Ends this process and all of its descendants: there is nobody to answer to."""
    os.killpg(0, signal.SIGKILL)


def end_with(lifeline: int) -> None:
    """Ends this process and its children once the other end of a pipe is closed."""

    def watch() -> None:
        os.read(lifeline, 1)
        end_group()

    threading.Thread(target=watch, name="lifeline", daemon=True).start()


async def _main(end: socket.socket) -> int:
    channel = await Channel.over(end)
    try:
        return await Worker(channel).run()
    finally:
        channel.close()


def main(arguments: list[str]) -> int:
    """Runs the worker on the two file descriptors that it is given."""
    connection, lifeline = map(int, arguments)
    end_with(lifeline)
    # The core, which is forked where vLLM does so, must not keep the connection open
    os.set_inheritable(connection, False)
    return asyncio.run(_main(socket.socket(fileno=connection)))


def command() -> tuple[str, ...]:
    """The command line of a worker, without its two file descriptors."""
    return (sys.executable, "-m", "clefq.serving.fleet.worker")


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    # vLLM's destructors fail when the interpreter is on its way out
    os._exit(code)
