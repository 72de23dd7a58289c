"""The whole server in a process of its own, over HTTP, with fake engines behind it."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip("uvicorn")
pytest.importorskip("fastapi")

from clefq.errors import InputError
from clefq.serving.fleet.server import Address, listen, url_of

ROOT = Path(__file__).parents[3]


def body(number: int = 0) -> dict[str, Any]:
    return {
        "model": "nano",
        "state": f"number {number}",
        "questions": {"late": {"type": "noul", "instructions": f"Is it {number}?"}},
    }


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Server:
    """A running server process."""

    def __init__(self, *fakes: dict[str, Any]) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tests.serving.fleet.fake_server",
                str(self.port),
                *map(json.dumps, fakes),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=ROOT,
        )

    def health(self) -> int:
        return httpx.get(f"{self.url}/health").status_code

    def until(self, status: int, seconds: float = 20) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            try:
                if self.health() == status:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.02)
        raise AssertionError(f"/health never said {status}")

    def gauge(self, name: str) -> float:
        text = httpx.get(f"{self.url}/metrics").text
        found = re.search(rf"^clefq_{name} ([\d.]+)$", text, re.MULTILINE)
        assert found is not None, text
        return float(found[1])

    def end(self, seconds: float = 20) -> tuple[int, str]:
        output, _ = self.process.communicate(timeout=seconds)
        return self.process.returncode, output


@contextmanager
def serving(*fakes: dict[str, Any]) -> Iterator[Server]:
    server = Server(*fakes)
    try:
        yield server
    finally:
        if server.process.poll() is None:
            server.process.kill()
        server.process.communicate()


async def ask_all(server: Server, count: int, after: Any) -> list[httpx.Response | Exception]:
    """Sends `count` requests at once and calls `after` when the server has them all."""
    limits = httpx.Limits(max_connections=count)
    async with httpx.AsyncClient(base_url=server.url, limits=limits, timeout=30) as client:
        tasks = [
            asyncio.create_task(client.post("/v1/systemone", json=body(n))) for n in range(count)
        ]
        end = time.monotonic() + 10
        while await asyncio.to_thread(server.gauge, 'in_flight{engine="0"}') < count:
            assert time.monotonic() < end
        await asyncio.to_thread(after)
        done: list[Any] = await asyncio.gather(*tasks, return_exceptions=True)
        return done


def test_a_signal_lets_accepted_requests_finish_and_refuses_new_ones() -> None:
    refused: list[int] = []

    with serving({"delay": 1.5}) as server:
        server.until(200)

        def after() -> None:
            server.process.send_signal(signal.SIGTERM)
            server.until(503)
            refused.append(httpx.post(f"{server.url}/v1/systemone", json=body()).status_code)

        answers = asyncio.run(ask_all(server, 12, after))
        assert [one.status_code for one in answers] == [200] * 12  # type: ignore[union-attr]
        assert refused == [503]
        code, output = server.end()
    assert code == 0, output
    assert "stopping: 12 in flight" in output


def test_a_second_signal_stops_at_once() -> None:
    with serving({"delay": 60}) as server:
        server.until(200)

        def after() -> None:
            server.process.send_signal(signal.SIGINT)
            server.until(503)
            server.process.send_signal(signal.SIGINT)

        begun = time.monotonic()
        answers = asyncio.run(ask_all(server, 3, after))
        assert all(
            isinstance(one, httpx.TransportError) or one.status_code == 503 for one in answers
        )
        code, output = server.end()
    assert time.monotonic() - begun < 10
    assert code == 1, output
    assert "stopping at once" in output


def test_health_says_503_until_the_engines_are_warm() -> None:
    with serving({"load": 1.5}) as server:
        server.until(503)
        answer = httpx.post(f"{server.url}/v1/systemone", json=body())
        assert answer.status_code == 503
        assert "retry-after" in answer.headers
        server.until(200)
        answer = httpx.post(f"{server.url}/v1/systemone", json=body())
        assert answer.status_code == 200
        assert set(answer.json()["answers"]) == {"late"}
        timing = answer.headers["server-timing"]
        assert all(f"{stage};dur=" in timing for stage in ("encode", "queue", "engine", "answer"))


def test_a_signal_while_it_loads_ends_it() -> None:
    with serving({"load": 60}) as server:
        server.until(503)
        server.process.terminate()
        code, output = server.end(10)
    assert code == 0, output


def test_an_engine_that_does_not_load_ends_the_server_with_one_line() -> None:
    with serving({}, {"fail": "this GPU is too small."}) as server:
        code, output = server.end()
    assert code == 2, output
    assert output.splitlines()[-1] == "error: engine 1: this GPU is too small. Fix: try less"


def test_a_checkpoint_that_lacks_what_requests_need(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_SERVER", "no processor")
    with serving({"load": 30}) as server:
        code, output = server.end()
    assert code == 2, output
    assert "error: /nowhere has no processor_config.json" in output


def test_no_engine_outlives_a_killed_server(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    with serving({"mark": str(mark), "orphan": True}) as server:
        server.until(200)
        text = mark.read_text()
        pids = [int(text.split(word)[1].split()[0]) for word in ("start ", "child ")]
        server.process.kill()
        server.process.wait()
        end = time.monotonic() + 10
        while any(running(pid) for pid in pids):
            assert time.monotonic() < end, "an engine is left"
            time.sleep(0.05)


def running(pid: int) -> bool:
    """Whether a process runs; a zombie that nobody has reaped does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def test_an_engine_dies_under_load_and_no_client_notices() -> None:
    with serving({"delay": 0.5}, {"delay": 0.5}) as server:
        server.until(200)
        (victim, *_) = engine_pids(server.process.pid)

        def after() -> None:
            os.kill(victim, signal.SIGKILL)

        async def both() -> list[httpx.Response | Exception]:
            return await ask_all(server, 1, after)

        answers = asyncio.run(both())
        assert [one.status_code for one in answers] == [200]  # type: ignore[union-attr]
        end = time.monotonic() + 15
        while server.gauge("engine_restarts_total") < 1 or server.gauge("engines_alive") < 2:
            assert time.monotonic() < end
            time.sleep(0.1)


def engine_pids(parent: int) -> list[int]:
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return sorted(map(int, children))


def test_a_port_that_is_taken() -> None:
    first = listen(Address("127.0.0.1", 0))
    port = first.getsockname()[1]
    with pytest.raises(InputError, match=f"cannot listen on 127.0.0.1:{port}: address already"):
        listen(Address("127.0.0.1", port))
    first.close()
    listen(Address("127.0.0.1", port)).close()


@pytest.mark.parametrize(
    ("host", "port"), [("no.such.host.invalid", 0), ("127.0.0.1", 70_000), ("203.0.113.9", 0)]
)
def test_a_place_that_is_none(host: str, port: int) -> None:
    with pytest.raises(InputError, match="cannot listen on"):
        listen(Address(host, port))


def test_urls() -> None:
    listener = listen(Address("127.0.0.1", 0))
    assert url_of(listener) == f"http://127.0.0.1:{listener.getsockname()[1]}"
    listener.close()
