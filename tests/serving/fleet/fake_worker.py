"""An engine's process without an engine: it answers, is slow, hangs or dies as it is told.

Its behaviour comes from the environment variable FAKE (a JSON object): `delay` seconds per
answer, `die_on` a token id that ends it by SIGKILL, `hang_on` one that it never answers,
`refuse_on`, `fail` a message instead of loading, `crash` an exception while loading, `orphan` to
leave a child behind, `mark` a file that gets a line per start and per abort, `starts` how many
starts fail, from the second one on.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np

from clefq.errors import ClefqError
from clefq.serving.fleet.fingerprint import check_unchanged
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
from clefq.serving.fleet.worker import end_group, end_with

FAKE = json.loads(os.environ.get("FAKE", "{}"))
MARK = Path(FAKE["mark"]) if "mark" in FAKE else None


def mark(text: str) -> None:
    if MARK is not None:
        with MARK.open("a") as file:
            file.write(text + "\n")


def logits(token_ids: tuple[int, ...], options: int) -> np.ndarray:
    """What this engine answers: the prompt's own token ids, so that a swapped answer shows."""
    return np.resize(np.asarray(token_ids, dtype=np.float32), options)


async def answer(channel: Channel, ask: EngineAsk) -> None:
    if FAKE.get("die_on") in ask.token_ids:
        os.kill(os.getpid(), signal.SIGKILL)
    if FAKE.get("hang_on") in ask.token_ids:
        await asyncio.sleep(3600)
    await asyncio.sleep(FAKE.get("delay", 0))
    if FAKE.get("refuse_on") in ask.token_ids:
        channel.send(EngineAnswer(ask.number, b"", ask.tokens, refused="not today"))
        return
    flat = logits(ask.token_ids, ask.options)
    channel.send(EngineAnswer(ask.number, flat.tobytes(), ask.tokens))


async def main(end: socket.socket) -> int:
    channel = await Channel.over(end)
    start = await channel.receive()
    assert isinstance(start, Start)
    mark(f"start {os.getpid()} {os.environ.get('CUDA_VISIBLE_DEVICES', '')}")
    starts = 0 if MARK is None else MARK.read_text().count("start")
    if "crash" in FAKE:
        print("a line before", flush=True)
        raise RuntimeError(FAKE["crash"])
    try:
        check_unchanged(start)
    except ClefqError as error:
        channel.send(Failed(error.message, error.fix))
        await channel.flush()
        return 1
    if "fail" in FAKE or 1 < starts <= 1 + FAKE.get("starts", 0):
        channel.send(Failed(FAKE.get("fail", "not yet"), "try less"))
        await channel.flush()
        return 1
    if "orphan" in FAKE:
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        mark(f"child {child.pid}")
    await asyncio.sleep(FAKE.get("load", 0))
    channel.send(Ready("9.9", "real", "bf16", "fake"))
    tasks: dict[int, asyncio.Task[None]] = {}
    while (message := await channel.receive()) is not None:
        if isinstance(message, Stop):
            if FAKE.get("stubborn"):
                continue
            print("taken apart", flush=True)
            return 0
        if isinstance(message, EngineAsk):
            tasks[message.number] = asyncio.create_task(answer(channel, message))
        if isinstance(message, Abort):
            mark("abort")
            tasks[message.number].cancel()
    end_group()
    return 1


if __name__ == "__main__":
    connection, lifeline = map(int, sys.argv[1:])
    end_with(lifeline)
    sys.exit(asyncio.run(main(socket.socket(fileno=connection))))
