"""How much the load generator of `clefq bench server` can do: its own ceiling.

    python benchmarks/load_generator.py [--seconds 4]

A server in a process of its own answers every request at once with the same bytes; nothing else
is in the way. Where the generator uses most of a core, it would be measuring itself. The last
rows do the same with httpx, the usual client: one with a pool, as it is meant to be used.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from clefq.bench import workload
from clefq.bench.load import Load, LoadSpec, Target, run_load
from clefq.bench.load_report import row_of
from clefq.bench.replies import ReplyChecker
from clefq.bench.wire import ServerAddress
from clefq.clef.answers import answer
from clefq.clef.encoding import PromptTokenizer
from clefq.engines.http_engine import request_body
from clefq.nano import WEIGHTS

LOADS = (Load(clients=1), Load(clients=8), Load(clients=64), Load(rate=200.0), Load(rate=1000.0))


class Server(asyncio.Protocol):
    """Answers every whole request with the same bytes."""

    reply = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport
        self.waiting = b""

    def data_received(self, data: bytes) -> None:
        self.waiting += data
        while (end := self.waiting.find(b"\r\n\r\n")) >= 0:
            head = self.waiting[:end].lower()
            length = int(head.partition(b"content-length:")[2].partition(b"\r\n")[0])
            if len(self.waiting) < end + 4 + length:
                return
            self.waiting = self.waiting[end + 4 + length :]
            self.transport.write(self.reply)


def serve(reply: bytes, send: Any) -> None:
    async def main() -> None:
        Server.reply = reply
        server = await asyncio.get_running_loop().create_server(Server, "127.0.0.1", 0)
        send.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(main())


def with_httpx(url: str, body: bytes, clients: int, seconds: float) -> tuple[float, float]:
    """Requests per second and CPU milliseconds per request."""
    import httpx

    async def main() -> int:
        count = 0
        limits = httpx.Limits(max_connections=clients)
        async with httpx.AsyncClient(base_url=url, limits=limits) as client:
            end = time.perf_counter() + seconds

            async def one() -> None:
                nonlocal count
                while time.perf_counter() < end:
                    reply = await client.post("/v1/systemone", content=body)
                    reply.json()
                    count += 1

            await asyncio.gather(*(one() for _ in range(clients)))
        return count

    started, cpu = time.perf_counter(), time.process_time()
    count = asyncio.run(main())
    used = time.process_time() - cpu
    return count / (time.perf_counter() - started), 1e3 * used / count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=4.0)
    options = parser.parse_args()
    (record,) = workload.records(PromptTokenizer.from_folder(WEIGHTS), ["1000"], 1)
    even = {q.id: dict.fromkeys(q.option_ids, 1 / len(q.option_ids)) for q in record.questions}
    answers = {q.id: answer(q, even[q.id], None) for q in record.questions}
    usage = {"input_tokens": 1000, "output_tokens": 0}
    data = json.dumps({"model": "clef", "answers": answers, "usage": usage}).encode()
    head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(data)}"
    context = multiprocessing.get_context("spawn")
    receive, send = context.Pipe(duplex=False)
    server = context.Process(target=serve, args=(f"{head}\r\n\r\n".encode() + data, send))
    server.start()
    url = f"http://127.0.0.1:{receive.recv()}"
    body = json.dumps(request_body(record, "clef", Path())).encode()
    address = ServerAddress.parse(url)
    target = Target(address, [body], ReplyChecker([record]))
    print("| generator | load | requests/s | CPU ms per request | p50 ms | p99 ms |")
    print("|---|---|---:|---:|---:|---:|")
    try:
        for load in LOADS:
            row = row_of(run_load(target, load, LoadSpec(options.seconds, 0.5)))
            assert row.latency is not None
            assert not row.wrong
            print(
                f"| clefq bench server | {row.load} | {row.requests_per_second:,.0f} "
                f"| {1e3 * row.generator_busy / row.requests_per_second:.3f} "
                f"| {1e3 * row.latency.median:.2f} | {1e3 * row.latency.p99:.1f} |",
                flush=True,
            )
        for clients in (1, 8, 64):
            rate, cpu = with_httpx(url, body, clients, options.seconds)
            print(f"| httpx | {Load(clients=clients).name} | {rate:,.0f} | {cpu:.3f} | – | – |")
    finally:
        server.terminate()


if __name__ == "__main__":
    main()
