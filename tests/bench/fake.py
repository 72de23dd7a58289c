"""A SystemOne server of the tests' own, in a thread: right, slow, swapped, dead, as told."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from clefq.clef.answers import answer
from clefq.clef.records import Record, parse_record


def truth(record: Record) -> dict[str, dict[str, float]]:
    """Fixed probabilities of a record: drawn by its state, so that no two records share them."""
    seed = [ord(c) for c in json.dumps(record.state, sort_keys=True)]
    draw = np.random.default_rng(seed)
    return {
        q.id: dict(zip(q.option_ids, draw.dirichlet(np.ones(len(q.option_ids))), strict=True))
        for q in record.questions
    }


@dataclass
class Fake:
    """What the server does.

    Attributes:
        delay: Seconds before it answers, one request at a time where `serial`.
        serial: Requests queue up, as they do for an engine.
        status: Number of a request, from 0, to its status; `drop` closes the connection, `hang`
            never answers, `garbage` is not HTTP.
        headers: Extra headers of an answer by status.
        spoil: Changes an answer; gets the number of the request.
        chunked: Send bodies in chunks.
        close: Send `connection: close`.
        requests: Decoded bodies seen so far.
        seen: Headers seen so far.
        connections: Connections accepted so far.
    """

    delay: float = 0.0
    serial: bool = False
    status: Callable[[int], int | str] = lambda _: 200
    headers: dict[int, str] = field(default_factory=dict)
    spoil: Callable[[int, dict[str, Any]], Any] = lambda _, body: body
    chunked: bool = False
    close: bool = False
    requests: list[dict[str, Any]] = field(default_factory=list)
    seen: list[bytes] = field(default_factory=list)
    connections: int = 0
    busy: Any = None

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while await self.one(reader, writer):
                pass
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        if head.startswith(b"get"):
            return self.send(writer, 200, {"object": "list", "data": [{"id": "fake-clef"}]})
        length = int(head.partition(b"content-length:")[2].split(b"\r\n")[0])
        body = json.loads(await reader.readexactly(length))
        number = len(self.requests)
        self.requests.append(body)
        self.seen.append(head)
        await self.work()
        status = self.status(number)
        if status == "hang":
            await asyncio.sleep(30)
        if status == "garbage":
            writer.write(b"SSH-2.0-hello\r\n\r\n")
        if not isinstance(status, int):
            return False
        if status != 200:
            return self.send(writer, status, {"error": {"message": f"mood {status}"}})
        record = parse_record({"id": "x", "cohort": "x", "state": body["state"],
                               "questions": body["questions"]}, "request")  # fmt: skip
        held = truth(record)
        reply = {
            "model": body["model"],
            "answers": {q.id: answer(q, held[q.id]) for q in record.questions},
            "usage": {"input_tokens": 100, "output_tokens": 0},
        }
        return self.send(writer, 200, self.spoil(number, reply))

    async def work(self) -> None:
        if not self.serial:
            await asyncio.sleep(self.delay)
            return
        if self.busy is None:
            self.busy = asyncio.Lock()
        async with self.busy:
            await asyncio.sleep(self.delay)

    def send(self, writer: asyncio.StreamWriter, status: int, value: Any) -> bool:
        data = json.dumps(value).encode()
        lines = [f"HTTP/1.1 {status} X", "Server: fake/1"]
        lines += [self.headers[status]] if status in self.headers else []
        lines += ["Connection: close"] if self.close else []
        if self.chunked:
            lines.append("Transfer-Encoding: chunked")
            parts = [data[i : i + 7] for i in range(0, len(data), 7)]
            data = b"".join(b"%x;x=y\r\n%s\r\n" % (len(p), p) for p in parts) + b"0\r\nA: b\r\n\r\n"
        else:
            lines.append(f"Content-Length: {len(data)}")
        writer.write("\r\n".join([*lines, "", ""]).encode() + data)
        return not self.close


@contextmanager
def serving(fake: Fake) -> Iterator[str]:
    """Runs the server; yields its base URL."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    async def start() -> asyncio.Server:
        return await asyncio.start_server(fake.handle, "127.0.0.1", 0)

    server = asyncio.run_coroutine_threadsafe(start(), loop).result(10)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:

        async def stop() -> None:
            server.close()
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(stop(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()
