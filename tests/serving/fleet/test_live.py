"""`clefq serve nano` as a user starts it: the README's example, death and end under load."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

pytestmark = pytest.mark.serve
pytest.importorskip("vllm")

import clefq.nano  # noqa: E402
from clefq.clef.records import Record  # noqa: E402
from clefq.engines.base import EngineSpec  # noqa: E402
from clefq.engines.http_apis import request_body  # noqa: E402
from clefq.engines.http_engine import HttpEngine  # noqa: E402
from clefq.engines.http_prompts import count_prompts  # noqa: E402
from clefq.engines.transformers_engine import TransformersEngine  # noqa: E402
from clefq.store.sets import open_set  # noqa: E402
from tests.serving.fleet.test_server import free_port, running  # noqa: E402

NANO = Path(clefq.nano.__file__).parent
EVAL = NANO / "sets" / "nano-eval"
ROOT = Path(__file__).parents[3]
TOLERANCE = 0.02
_BLOCK = re.MULTILINE | re.DOTALL

Expected = dict[str, dict[str, np.ndarray]]


class Live:
    """A server, and what its records' answers must be."""

    def __init__(self, *options: str) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        command = [sys.executable, "-m", "clefq.cli.main", "serve", "nano", "--json"]
        self.process = subprocess.Popen(
            [*command, "--no-access-log", "--port", str(self.port), *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        assert self.process.stdout is not None
        self.facts: dict[str, Any] = {}
        while self.facts.get("event") != "ready":
            line = self.process.stdout.readline()
            if not line:
                raise AssertionError(self.process.communicate()[1])
            self.facts = json.loads(line)

    def gauge(self, name: str) -> float:
        text = httpx.get(f"{self.url}/metrics").text
        return sum(
            float(value)
            for value in re.findall(rf"^clefq_{name}(?:{{.*}})? ([\d.]+)$", text, re.MULTILINE)
        )

    def core(self) -> int:
        """Process id of the first engine's core: the child of its process that runs the model."""
        worker = self.facts["engines"][0]["pid"]
        children = Path(f"/proc/{worker}/task/{worker}/children").read_text().split()
        return max(map(int, children), key=lambda pid: resident(pid))

    def end(self, seconds: float = 60) -> str:
        return "".join(self.process.communicate(timeout=seconds))


def resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1])


@pytest.fixture(scope="module")
def records() -> list[Record]:
    """Short ones, so that a machine with one core gets through them."""
    chosen = [one for one in open_set(EVAL).records() if not one.images]
    return sorted(chosen, key=lambda one: len(json.dumps(one.state)))[:48]


@pytest.fixture(scope="module")
def expected(records: list[Record]) -> Expected:
    """What the reference implementation answers."""
    engine = TransformersEngine(NANO / "weights", EngineSpec(max_length=4096, threads=1))
    try:
        return {
            result.record_id: {name: np.exp(v) for name, v in result.logprobs.items()}
            for group in engine.predict(records)
            for result in group
        }
    finally:
        engine.close()


@pytest.fixture(scope="module")
def live(expected: Expected) -> Iterator[Live]:
    server = Live("--max-length", "4096", "--max-images", "1", "--threads", "1")
    yield server
    if server.process.poll() is None:
        server.process.kill()
        server.process.communicate()


async def ask(client: httpx.AsyncClient, record: Record, expected: Expected) -> int:
    """Asks about one record and checks that the answer is its own; gives the status."""
    reply = await client.post(
        "/v1/systemone",
        json=request_body(record, "nano", EVAL),
        headers={"x-clefq-precision": "full", "x-request-id": record.id},
    )
    assert reply.headers["x-request-id"] == record.id
    if reply.status_code != 200:
        return reply.status_code
    answers = reply.json()["answers"]
    assert list(answers) == [question.id for question in record.questions]
    for question in record.questions:
        wanted = expected[record.id][question.id]
        answer = answers[question.id]
        if question.type == "noul":
            given = [answer["noul"], 1 - answer["noul"]]
        else:
            given = [answer["probabilities"][option] for option in question.option_ids]
        assert float(np.abs(np.array(given) - wanted).max()) < TOLERANCE
    return reply.status_code


async def clients(
    live: Live,
    records: list[Record],
    expected: Expected,
    until: Any,
    count: int = 32,
    statuses: list[int] | None = None,
) -> list[int]:
    """`count` clients ask one record after the other until `until`, a coroutine, is done."""
    statuses = [] if statuses is None else statuses
    over = asyncio.ensure_future(until)

    async def one(turn: int) -> None:
        while not over.done():
            try:
                statuses.append(await ask(http, records[turn % len(records)], expected))
            except (httpx.ConnectError, httpx.ReadError):
                # the port is closed, or was while the connection waited to be accepted
                statuses.append(0)
                await asyncio.sleep(0.1)
            turn += 1

    # a connection each: one that is kept open may be closed just as the next request is sent
    limits = httpx.Limits(max_connections=count, max_keepalive_connections=0)
    async with httpx.AsyncClient(base_url=live.url, limits=limits, timeout=120) as http:
        await asyncio.gather(*(one(number) for number in range(count)))
    over.result()
    return statuses


async def later(seconds: float, action: Any, *arguments: Any) -> None:
    await asyncio.sleep(seconds)
    action(*arguments)


def test_the_curl_examples(live: Live) -> None:
    """Those of README and guide, as they stand but for the port."""
    texts = [(ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "docs/server.md")]
    blocks = [block for text in texts for block in re.findall(r"^```bash\n(.*?)^```", text, _BLOCK)]
    commands = [block for block in blocks if block.startswith("curl ") and "/v1/systemone" in block]
    assert commands
    for command in commands:
        moved = re.sub(r"(localhost|127\.0\.0\.1):8000", f"127.0.0.1:{live.port}", command)
        done = subprocess.run(moved, shell=True, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        reply = json.loads(done.stdout)
        assert reply["usage"]["output_tokens"] == 0
        assert reply["answers"]


def test_predict_asks_it_and_counts_as_it_does(
    live: Live, records: list[Record], expected: Expected
) -> None:
    engine = HttpEngine(live.url, "nano", EngineSpec(concurrency=4))
    try:
        found = {r.record_id: r for group in engine.predict(records[:8]) for r in group}
    finally:
        engine.close()
    assert (engine.info.api, engine.info.arithmetic) == ("systemone", "bf16")
    counted = count_prompts(records[:8], NANO / "weights")
    assert counted == {key: result.input_tokens for key, result in found.items()}
    for key, result in found.items():
        for name, wanted in expected[key].items():
            assert float(np.abs(np.exp(result.logprobs[name]) - wanted).max()) < TOLERANCE


def test_what_runs_is_stated(live: Live) -> None:
    facts = live.facts
    assert (facts["event"], facts["url"], facts["dp"]) == ("ready", live.url, 1)
    assert (facts["kernels"], facts["arithmetic"], facts["device"]) == ("real", "bf16", "cpu")
    assert facts["names"][0] == "nano"
    assert {"clef", "jev-latest"} <= set(facts["names"])


def test_a_killed_core_costs_nobody_an_answer(
    live: Live, records: list[Record], expected: Expected
) -> None:
    core = live.core()

    async def until() -> None:
        await later(2, os.kill, core, signal.SIGKILL)
        while not await asyncio.to_thread(live.gauge, "engine_restarts_total"):
            await asyncio.sleep(0.2)
        while not await asyncio.to_thread(live.gauge, "engines_alive"):
            await asyncio.sleep(0.2)
        await asyncio.sleep(1)

    statuses = asyncio.run(clients(live, records, expected, until()))
    # 503 for those that came while there was no engine; no accepted one was lost or swapped
    assert set(statuses) <= {200, 503}
    assert statuses.count(200) > 32
    assert statuses[-1] == 200
    assert live.gauge("prompts_retried_total") > 0
    assert live.gauge("prompts_unanswered_total") == 0
    assert not running(core)


def test_a_signal_finishes_what_was_accepted(
    live: Live, records: list[Record], expected: Expected
) -> None:
    pids = descendants(live.process.pid)
    assert len(pids) >= 2

    statuses: list[int] = []
    before: list[int] = []

    async def until() -> None:
        await asyncio.sleep(2)
        before.extend(statuses)
        live.process.terminate()
        while live.process.poll() is None:
            await asyncio.sleep(0.1)

    asyncio.run(clients(live, records, expected, until(), statuses=statuses))
    assert set(before) == {200}
    assert set(statuses) <= {0, 200, 503}
    errors = live.end()
    assert live.process.returncode == 0, errors
    accepted = re.search(r"stopping: (\d+) in flight", errors)
    assert accepted is not None
    assert int(accepted[1]) > 0
    assert statuses[len(before) :].count(200) >= int(accepted[1])
    assert [pid for pid in pids if running(pid)] == []


def descendants(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [found for child in map(int, children) for found in (child, *descendants(child))]


def test_load_on_two_engines(records: list[Record], expected: Expected) -> None:
    """Long: for `make test-serve` by hand. 64 clients for a minute, one core killed meanwhile."""
    server = Live("--dp", "2", "--max-length", "4096", "--max-images", "0", "--threads", "1")
    try:
        core = server.core()

        async def until() -> None:
            await later(20, os.kill, core, signal.SIGKILL)
            await asyncio.sleep(40)

        statuses = asyncio.run(clients(server, records, expected, until(), 64))
        # the other engine takes over at once
        assert set(statuses) == {200}
        assert server.gauge("engine_restarts_total") == 1
        front = resident(server.process.pid)
        asyncio.run(clients(server, records, expected, asyncio.sleep(20), 64))
        assert resident(server.process.pid) < 1.1 * front
        # not even SIGKILL leaves an engine behind
        pids = descendants(server.process.pid)
        server.process.kill()
        server.end()
        end = time.monotonic() + 15
        while left := [pid for pid in pids if running(pid)]:
            assert time.monotonic() < end, left
            time.sleep(0.1)
    finally:
        if server.process.poll() is None:
            server.process.kill()
            server.process.communicate()
