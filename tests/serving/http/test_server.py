"""Over real sockets: bodies that break off or never end, clients that leave, a loop that stays
responsive, and the http engine of `clefq predict` from end to end."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from clefq.clef.answers import log_softmax
from clefq.clef.records import Record, parse_record
from clefq.engines.base import EngineSpec
from clefq.engines.http_apis import APIS, fault_of
from clefq.engines.http_engine import HttpEngine, HttpOptions
from clefq.engines.http_prompts import mark_cut
from clefq.serving.http.app import create_app
from clefq.serving.http.settings import Limits, ServerSettings
from clefq.serving.layout import split_flat
from clefq.serving.prompts import PromptMaker
from tests.clef.generate import record
from tests.serving.http.client import ASK, BODY, listening
from tests.serving.http.fake import NAMES, FakeBackend, logits_of

HEAD = f"POST {ASK} HTTP/1.1\r\nhost: t\r\ncontent-type: application/json\r\n"


class Running:
    """A listening server and its backend."""

    def __init__(self, port: int, backend: FakeBackend, app: Any) -> None:
        self.port = port
        self.backend = backend
        self.app = app
        self.url = f"http://127.0.0.1:{port}"

    def healthy(self) -> bool:
        return httpx.get(f"{self.url}/health").status_code == 200

    def metric(self, line: str) -> float:
        for text in httpx.get(f"{self.url}/metrics").text.splitlines():
            if text.startswith(f"{line} "):
                return float(text.split()[-1])
        return 0.0


@contextmanager
def serving(prompts: PromptMaker, settings: ServerSettings) -> Iterator[Running]:
    backend = FakeBackend(max_length=200_000)
    app = create_app(backend, prompts, settings)
    with listening(app) as port:
        running = Running(port, backend, app)
        for _ in range(500):
            if running.healthy():
                break
            time.sleep(0.02)
        yield running


@pytest.fixture(scope="module")
def server(prompts: PromptMaker) -> Iterator[Running]:
    limits = Limits(max_body_bytes=200_000)
    with serving(prompts, ServerSettings(limits=limits, body_seconds=0.5, access_log=False)) as it:
        yield it


def exchange(port: int, *pieces: bytes, pause: float = 0.0) -> bytes:
    """Sends pieces as they are; returns all that comes back until the server closes."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        for piece in pieces:
            try:
                connection.sendall(piece)
            except (BrokenPipeError, ConnectionResetError):
                break
            time.sleep(pause)
        answer = b""
        try:
            while piece := connection.recv(65536):
                answer += piece
        except (ConnectionResetError, TimeoutError):
            pass
        return answer


def chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def test_a_chunked_body_is_read_to_its_end(server: Running) -> None:
    body = json.dumps(BODY).encode()
    head = f"{HEAD}transfer-encoding: chunked\r\nconnection: close\r\n\r\n".encode()
    answer = exchange(server.port, head, chunk(body[:50]), chunk(body[50:]) + b"0\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200")
    assert b'"answers":' in answer


def test_an_endless_chunked_body_is_stopped_while_it_is_read(server: Running) -> None:
    head = f"{HEAD}transfer-encoding: chunked\r\n\r\n".encode()
    pieces = [chunk(b"x" * 50_000)] * 6  # and no end
    answer = exchange(server.port, head, *pieces, pause=0.01)
    assert answer.startswith(b"HTTP/1.1 413")
    assert b"connection: close" in answer
    assert server.healthy()


def test_a_refused_client_may_finish_sending_and_reads_why(server: Running) -> None:
    """Closed with unread bytes, its connection would be reset and the answer lost."""
    body = b"x" * 3_000_000
    with httpx.Client(base_url=server.url) as client:
        for headers, status in (
            ({"content-type": "text/plain"}, 415),
            ({"content-type": "application/json"}, 413),
            ({"content-type": "application/json", "x-clefq-dialect": "other"}, 400),
        ):
            for _ in range(5):
                response = client.post(ASK, content=body, headers=headers)
                assert response.status_code == status
                assert "connection" not in response.headers
        assert client.post("/nothing", content=body).status_code == 404


def test_a_client_that_asks_first_sends_nothing(server: Running) -> None:
    head = f"{HEAD}content-length: 999999\r\nexpect: 100-continue\r\n\r\n".encode()
    answer = exchange(server.port, head)
    assert answer.startswith(b"HTTP/1.1 413")
    assert b"connection: close" in answer


def test_an_announced_length_is_refused_before_a_byte_of_body(server: Running) -> None:
    answer = exchange(server.port, f"{HEAD}content-length: 999999999\r\n\r\n".encode())
    assert answer.startswith(b"HTTP/1.1 413")
    assert b"body_too_large" in answer


def test_a_body_that_stops_arriving_times_out(server: Running) -> None:
    start = time.monotonic()
    answer = exchange(server.port, f"{HEAD}content-length: 1000\r\n\r\n".encode(), b'{"state":')
    assert answer.startswith(b"HTTP/1.1 408")
    assert time.monotonic() - start < 5


def test_a_truncated_body_leaves_no_trace(server: Running) -> None:
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(f"{HEAD}content-length: 1000\r\n\r\n".encode() + b'{"state":')
    for _ in range(100):
        if server.metric('clefq_requests_total{route="/v1/systemone",status="499"}') == 1:
            break
        time.sleep(0.02)
    assert server.metric('clefq_requests_total{route="/v1/systemone",status="499"}') == 1
    assert server.metric("clefq_pending_requests") == 0
    assert server.metric("clefq_pending_bytes") == 0


def test_a_client_that_leaves_takes_its_prompt_along(server: Running) -> None:
    server.backend.seconds = 30
    try:
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(server.url + ASK, json=BODY, timeout=0.5)
        for _ in range(100):
            if server.backend.cancelled:
                break
            time.sleep(0.02)
        assert server.backend.cancelled == 1
        assert server.metric("clefq_pending_requests") == 0
    finally:
        server.backend.seconds = 0.0


def test_a_connection_can_be_used_again_after_an_error(server: Running) -> None:
    with httpx.Client(base_url=server.url) as client:
        assert client.post(ASK, content=b"{").status_code == 400
        assert client.post(ASK, json={**BODY, "model": "x"}).status_code == 404
        assert client.post(ASK, json=BODY).status_code == 200


def test_answers_are_not_swapped(server: Running) -> None:
    """Each answer is checked against its own request."""
    expected: dict[int, Any] = {}

    async def ask() -> list[httpx.Response]:
        async with httpx.AsyncClient(base_url=server.url, timeout=60) as client:
            bodies = []
            for seed in range(40):
                name = f"question {seed}"
                question = {"type": "choice", "criteria": {f"{seed}-{i}": None for i in range(9)}}
                bodies.append({"state": seed, "questions": {name: question}})
            expected.update(enumerate(bodies))
            return await asyncio.gather(*(client.post(ASK, json=body) for body in bodies))

    for number, response in enumerate(asyncio.run(ask())):
        answers = response.json()["answers"]
        (name, question), = expected[number]["questions"].items()  # fmt: skip
        assert list(answers) == [name]
        assert list(answers[name]["probabilities"]) == list(question["criteria"])


def test_the_loop_answers_while_a_large_body_is_worked_on(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A body whose encoding takes long: /health does not wait for it, nor the loop's own clock."""
    service = server.app.state.clefq_service
    prepare = service._prepare
    working = threading.Event()

    def slow(*args: Any) -> Any:
        working.set()
        end = time.perf_counter() + 1.0
        while time.perf_counter() < end:  # busy, as tokenizing is, not asleep
            sum(range(1000))
        return prepare(*args)

    monkeypatch.setattr(service, "_prepare", slow)
    asking = threading.Thread(target=httpx.post, args=(server.url + ASK,), kwargs={"json": BODY})
    asking.start()
    assert working.wait(5)
    waits = []
    with httpx.Client(base_url=server.url) as client:
        while asking.is_alive() and len(waits) < 20:
            start = time.perf_counter()
            assert client.get("/health").status_code == 200
            waits.append(time.perf_counter() - start)
    asking.join()
    assert len(waits) >= 5
    assert sorted(waits)[len(waits) // 2] < 0.2


def test_nothing_is_worked_on_in_the_loop(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading JSON, decoding, tokenizing and answering each run in a thread of the pool."""
    from clefq.serving.http import service as module

    threads: dict[str, str] = {}

    def spy(name: str) -> None:
        original = getattr(module, name)

        def wrapper(*args: Any) -> Any:
            threads[name] = threading.current_thread().name
            return original(*args)

        monkeypatch.setattr(module, name, wrapper)

    for name in ("parse_ask", "read_pictures", "decompress", "response_body", "encode_json"):
        spy(name)
    service = server.app.state.clefq_service
    prompt = service.model.prompts.sized_prompt

    def encode(*args: Any) -> Any:
        threads["prompt"] = threading.current_thread().name
        return prompt(*args)

    monkeypatch.setattr(service.model.prompts, "sized_prompt", encode)
    assert httpx.post(server.url + ASK, json=BODY).status_code == 200
    assert len(threads) == 6
    assert all(name.startswith("clefq-http") for name in threads.values())


@pytest.mark.parametrize(("dialect", "api"), [("release", "systemone"), ("typesafe", "typesafe")])
def test_predict_understands_the_server_in_both_dialects(
    prompts: PromptMaker, dialect: Any, api: str
) -> None:
    records = [parse_record(record(seed), f"r{seed}") for seed in range(1, 60)]
    records = [item for item in records if all(len(q.option_ids) <= 10 for q in item.questions)]
    taken = [item for item in records if fault_of(APIS[api], item, Path()) is None]
    assert len(taken) > 3
    with serving(prompts, ServerSettings(dialect=dialect, access_log=False)) as server:
        engine = HttpEngine(server.url, NAMES[1], EngineSpec(), HttpOptions(api))
        try:
            assert engine.warnings == ()
            assert engine.info.api == api
            assert (engine.info.kernels, engine.info.arithmetic) == ("simulated", "w4a4")
            assert (engine.info.engine_version, engine.info.device) == ("1.2.3", "none")
            results = {r.record_id: r for group in engine.predict(records, Path()) for r in group}
        finally:
            engine.close()
    asked = {prompt.encoded.token_ids: prompt for prompt in server.backend.prompts}
    counted = {item.id: len(_ids(prompts, item)) for item in taken}
    marked, how = mark_cut(taken, [results[item.id] for item in taken], counted)
    assert how == "counted"
    assert all(result.truncated_tokens == 0 for result in marked)  # it counts as we do
    for item in taken:
        result = results[item.id]
        assert not result.errors
        prompt = asked[_ids(prompts, item)]
        for name, logits in split_flat(logits_of(prompt), prompt.encoded).items():
            np.testing.assert_allclose(result.logprobs[name], log_softmax(logits), atol=1e-9)


def _ids(prompts: PromptMaker, item: Record) -> tuple[int, ...]:
    from clefq.clef.encoding import EncodeSpec

    return prompts.prompt(item, (), EncodeSpec(200_000)).encoded.token_ids
