"""What a stranger may do to a connection: attacks over real sockets, in short."""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from clefq.serving.http.app import create_app
from clefq.serving.http.connection import ACCEPTED_AT_ONCE, most_connections, no_delay
from clefq.serving.http.settings import ConnectionLimits, ServerSettings
from clefq.serving.prompts import PromptMaker
from tests.serving.http.client import ASK, BODY, listening
from tests.serving.http.fake import FakeBackend

LIMITS = ConnectionLimits(
    max_connections=20,
    max_headers=40,
    max_header_bytes=8192,
    header_seconds=0.4,
    idle_seconds=1.0,
    send_seconds=0.5,
)
BYTES = json.dumps(BODY).encode()
HEAD = f"POST {ASK} HTTP/1.1\r\nhost: t\r\ncontent-type: application/json\r\n"
WHOLE = f"{HEAD}content-length: {len(BYTES)}\r\n".encode()


@pytest.fixture(scope="module")
def port(prompts: PromptMaker) -> Iterator[int]:
    settings = ServerSettings(
        connections=LIMITS, body_seconds=20.0, max_pending=4, max_reading=8, access_log=False
    )
    with listening(create_app(FakeBackend(), prompts, settings)) as port:
        yield port


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=10)


def read_all(connection: socket.socket) -> bytes:
    """What comes until the server closes."""
    answer = b""
    try:
        while piece := connection.recv(65536):
            answer += piece
    except ConnectionResetError:
        pass
    return answer


def exchange(port: int, *pieces: bytes) -> bytes:
    with connect(port) as connection:
        for piece in pieces:
            connection.sendall(piece)
        return read_all(connection)


def error_type(answer: bytes) -> str:
    value = json.loads(answer.partition(b"\r\n\r\n")[2])
    kind: str = value["error"]["type"]
    return kind


def metric(port: int, line: str) -> float:
    for text in httpx.get(f"http://127.0.0.1:{port}/metrics").text.splitlines():
        if text.startswith(f"{line} "):
            return float(text.split()[-1])
    return 0.0


def test_the_second_request_of_a_connection_costs_no_more_than_the_first(port: int) -> None:
    """Without TCP_NODELAY each one but the first waits 40 ms for an acknowledgement."""
    with httpx.Client(base_url=f"http://127.0.0.1:{port}") as client:
        took = []
        for _ in range(12):
            begun = time.perf_counter()
            assert client.get("/livez").status_code == 200
            took.append(time.perf_counter() - begun)
    assert sorted(took[1:])[len(took) // 2] < 0.02


def test_small_answers_are_sent_at_once() -> None:
    async def check() -> int:
        made: list[asyncio.BaseTransport] = []

        class Protocol(asyncio.Protocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                no_delay(transport)
                made.append(transport)

        loop = asyncio.get_running_loop()
        # as a listener from elsewhere: its protocol is 0, for which asyncio does nothing
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listener.bind(("127.0.0.1", 0))
        server = await loop.create_server(Protocol, sock=listener)
        _, writer = await asyncio.open_connection(*listener.getsockname())
        while not made:
            await asyncio.sleep(0.01)
        end = made[0].get_extra_info("socket")
        value: int = end.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        writer.close()
        made[0].close()  # type: ignore[attr-defined]
        server.close()
        return value

    assert asyncio.run(check()) == 1


@pytest.mark.parametrize("upgrade", ["h2c", "websocket", "TLS/1.3"])
def test_an_upgrade_is_ignored_and_the_body_is_read(port: int, upgrade: str) -> None:
    head = b"connection: upgrade, http2-settings\r\nhttp2-settings: AAMAAABk\r\n"
    asked = WHOLE + head + f"upgrade: {upgrade}\r\n\r\n".encode() + BYTES
    with connect(port) as connection:
        for _ in range(2):  # and the connection goes on
            connection.sendall(asked)
            answer = b""
            while not answer.endswith(b"}}"):
                answer += connection.recv(65536)
            assert answer.startswith(b"HTTP/1.1 200"), answer


JAVA = """
import java.net.URI;
import java.net.http.*;
public class Ask {
  public static void main(String[] given) throws Exception {
    HttpClient client = HttpClient.newHttpClient();
    for (int i = 0; i < 3; i++) {
      HttpRequest request = HttpRequest.newBuilder(URI.create(given[0]))
          .header("content-type", "application/json")
          .POST(HttpRequest.BodyPublishers.ofString(given[1])).build();
      System.out.println(client.send(request, HttpResponse.BodyHandlers.ofString()).statusCode());
    }
  }
}
"""


@pytest.mark.skipif(shutil.which("javac") is None, reason="no JDK here")
def test_javas_own_client_asks_for_h2c_and_is_answered(port: int, tmp_path: Path) -> None:
    (tmp_path / "Ask.java").write_text(JAVA)
    url = f"http://127.0.0.1:{port}{ASK}"
    command = ["java", "-Xshare:auto", str(tmp_path / "Ask.java"), url, BYTES.decode()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.split() == ["200"] * 3, done.stderr


def test_a_head_that_does_not_end_is_ended(port: int) -> None:
    begun = time.monotonic()
    answer = exchange(port, f"POST {ASK} HTTP/1.1\r\nhost: t\r\nx-slow: ".encode())
    assert answer.startswith(b"HTTP/1.1 408")
    assert error_type(answer) == "request_timeout"
    assert time.monotonic() - begun < 3


def test_a_head_that_drips_gets_no_longer(port: int) -> None:
    with connect(port) as connection:
        begun = time.monotonic()
        answer = b""
        connection.settimeout(0.1)
        while not answer and time.monotonic() - begun < 5:
            try:
                connection.sendall(b"x")
                answer = connection.recv(4096)
            except TimeoutError:
                continue
            except OSError:
                break
        assert time.monotonic() - begun < 3


@pytest.mark.parametrize(
    ("head", "why"),
    [
        (b"x-long: " + b"a" * 400_000, "too long"),
        (b"\r\n".join(b"x-%d: 1" % number for number in range(60)), "more than 40 headers"),
        (b"\r\n".join(b"x-%d: %s" % (n, b"a" * 400) for n in range(30)), "more than 8192 bytes"),
    ],
)
def test_a_head_that_is_too_large_is_refused(port: int, head: bytes, why: str) -> None:
    before = metric(port, 'clefq_connections_refused_total{type="head_too_large"}')
    answer = exchange(port, b"GET /livez HTTP/1.1\r\nhost: t\r\n" + head + b"\r\n\r\n")
    # a client that still sends may see its connection reset instead
    if answer:
        assert answer.startswith(b"HTTP/1.1 431"), answer
        assert why in answer.decode()
        assert b"connection: close" in answer.lower()
    after = metric(port, 'clefq_connections_refused_total{type="head_too_large"}')
    assert after == before + 1


@pytest.mark.parametrize(
    "raw",
    [b"NONSENSE\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00", b"GET / HTTP/1.1\r\n\r\n",
     b"GET /livez HTTP/1.1\r\nhost: t\r\nhost: u\r\n\r\n",
     WHOLE + b"transfer-encoding: chunked\r\ncontent-length: 5\r\n\r\nzz\r\n"],
)  # fmt: skip
def test_what_is_not_http_is_refused_in_our_words(port: int, raw: bytes) -> None:
    answer = exchange(port, raw + b"\r\n")
    assert answer.startswith(b"HTTP/1.1 400"), answer
    assert error_type(answer) == "bad_http"
    assert b"x-request-id: " in answer


def test_a_broken_chunk_ends_the_request_and_takes_no_place(port: int) -> None:
    head = f"{HEAD}transfer-encoding: chunked\r\n\r\n".encode()
    with connect(port) as connection:
        connection.sendall(head + b'5\r\n{"sta\r\n')
        time.sleep(0.1)
        connection.sendall(b"zz\r\n")
        answer = read_all(connection)
    assert answer.startswith(b"HTTP/1.1 400")
    assert metric(port, "clefq_reading_requests") == 0


@pytest.mark.parametrize("first", [b"", b"GET /livez HTTP/1.1\r\nhost: t\r\n\r\n"])
def test_an_idle_connection_is_closed(port: int, first: bytes) -> None:
    begun = time.monotonic()
    answer = exchange(port, first)
    assert bool(answer) == bool(first)
    assert time.monotonic() - begun < 4


def test_an_unread_body_of_an_answered_request_is_not_waited_for(port: int) -> None:
    with connect(port) as connection:
        connection.sendall(b"GET /livez HTTP/1.1\r\nhost: t\r\ncontent-length: 1000\r\n\r\n")
        begun = time.monotonic()
        ended = False
        while not ended and time.monotonic() - begun < 5:
            try:
                connection.sendall(b"x")
                time.sleep(0.05)
            except OSError:
                ended = True
    assert ended


def test_a_client_that_does_not_read_is_ended(port: int) -> None:
    with connect(port) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        one = b"GET /openapi.json HTTP/1.1\r\nhost: t\r\n\r\n"
        begun = time.monotonic()
        ended = False
        while not ended and time.monotonic() - begun < 10:
            try:
                connection.sendall(one * 20)
                time.sleep(0.05)
            except OSError:
                ended = True
        assert ended


def test_idle_connections_make_way_for_new_ones(port: int) -> None:
    with ExitStack() as stack:
        for _ in range(60):  # three times as many as there may be
            stack.enter_context(connect(port))
        answer = exchange(port, WHOLE + b"connection: close\r\n\r\n" + BYTES)
        assert answer.startswith(b"HTTP/1.1 200"), answer


def test_slow_bodies_take_nobodys_place(port: int) -> None:
    """The attack of 500 connections that send a byte each, with 4 places and 12 of them."""
    with ExitStack() as stack:
        for _ in range(12):
            slow = stack.enter_context(connect(port))
            slow.sendall(f"{HEAD}content-length: 100000\r\n\r\n{{".encode())
        time.sleep(0.2)
        statuses = set()
        for _ in range(40):
            answer = exchange(port, WHOLE + b"connection: close\r\n\r\n" + BYTES)
            statuses.add(answer[9:12])
            if answer[9:12] == b"200":
                break
            time.sleep(0.1)  # the slow ones have had their two seconds before long
        assert b"200" in statuses
        assert statuses <= {b"200", b"429"}


def test_connections_leave_descriptors_for_the_rest() -> None:
    assert most_connections(4096, 1 << 20) == 4096
    assert most_connections(4096, 4096) == 4096 - ACCEPTED_AT_ONCE - 128
    assert most_connections(4096, 256) == 1


def test_head_answers_where_get_does(port: int) -> None:
    with httpx.Client(base_url=f"http://127.0.0.1:{port}") as client:
        for path in ("/livez", "/readyz", "/health", "/metrics", "/v1/models", "/docs"):
            response: Any = client.head(path)
            assert (response.status_code, response.content) == (200, b""), path
        assert client.get("/").headers["location"] == "docs"
        assert client.head(ASK).status_code == 405
