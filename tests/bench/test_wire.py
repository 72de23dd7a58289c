"""The load client over real sockets: bodies in every framing, and every way to fail."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from clefq.bench import wire
from clefq.bench.wire import Reply, ServerAddress, WireError
from clefq.errors import InputError

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def talk(raw: list[bytes | None], times: int = 1, timeout: float = 5.0) -> list[Reply | str]:
    """What the client makes of a server that sends these bytes, one entry per request."""
    opened = []
    handlers = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        opened.append(1)
        handlers.append(asyncio.current_task())
        try:
            while await reader.readuntil(b"END"):
                answer = raw.pop(0)
                if answer is None:
                    break
                writer.write(answer)
                if b"\r\nconnection: close" in answer or b"HTTP/1.0" in answer:
                    break
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()

    async def main() -> list[Reply | str]:
        server = await asyncio.start_server(handle, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        address = ServerAddress(f"http://127.0.0.1:{port}")
        found: list[Reply | str] = []
        async with address.session(1) as session:
            for _ in range(times):
                try:
                    found.append(await address.ask(session, b"question END", timeout))
                except WireError as error:
                    found.append(str(error))
        server.close()
        await asyncio.gather(*handlers)
        found.append(str(len(opened)))
        return found

    return asyncio.run(main())


OK = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello"


def test_one_connection_serves_many_requests() -> None:
    *replies, opened = talk([OK, OK, OK], 3)
    assert [reply.body for reply in replies] == [b"hello"] * 3
    assert opened == "1"


@pytest.mark.parametrize(
    "raw",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-A: 1\r\n\r\nhello",
        b"HTTP/1.1 200\r\ncontent-length:5\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n2\r\nhe\r\n3;a\r\nllo\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nA: b\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nhello",
        b"HTTP/1.0 200 OK\r\n\r\nhello",
    ],
)
def test_bodies_in_every_framing(raw: bytes) -> None:
    first, second, _ = talk([raw, OK], 2)
    assert isinstance(first, Reply)
    assert (first.status, first.body) == (200, b"hello")
    # nothing of the first response is left for the second
    assert isinstance(second, Reply)
    assert second.body == b"hello"


def test_headers_are_read_whatever_their_case() -> None:
    raw = b"HTTP/1.1 429 Slow\r\nRETRY-after: 3\r\ncontent-length: 0\r\n\r\n"
    reply, _ = talk([raw])
    assert isinstance(reply, Reply)
    assert reply.status == 429
    assert reply.headers["retry-after"] == "3"


@pytest.mark.parametrize(
    ("raw", "word"),
    [
        (None, "closed"),
        (b"HTTP/1.0 200 OK\r\ncontent-length: 50\r\n\r\nhello", "closed"),
        (b"SSH-2.0 hello\r\n\r\n", "malformed"),
        (b"HTTP/1.1 huge OK\r\n\r\n", "malformed"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: many\r\n\r\n", "malformed"),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n\r\n", "malformed"),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\nabc\r\n", "malformed"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhell", "timeout"),
    ],
)
def test_failures_have_names_and_the_next_request_a_fresh_connection(
    raw: bytes | None, word: str
) -> None:
    first, second, opened = talk([raw, OK], 2, 0.2)
    assert first == word
    assert isinstance(second, Reply)
    assert opened == "2"


def test_an_idle_connection_is_not_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "_IDLE", 0.0)
    *_, opened = talk([OK, OK], 2)
    assert opened == "2"


def test_nobody_listens() -> None:
    async def main() -> None:
        address = ServerAddress("http://127.0.0.1:1")
        async with address.session(1) as session:
            await address.ask(session, b"x", 5)

    with pytest.raises(WireError, match="unreachable"):
        asyncio.run(main())


@pytest.mark.parametrize(
    ("url", "base"),
    [
        ("http://a:8000", "http://a:8000"),
        ("http://a:8000/", "http://a:8000"),
        ("http://a/v1/systemone", "http://a"),
        ("https://api.example/clef", "https://api.example/clef"),
        ("http://[::1]:9", "http://[::1]:9"),
    ],
)
def test_addresses(url: str, base: str) -> None:
    assert ServerAddress.parse(url, "secret") == ServerAddress(base, "secret")


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://a", "http://", "http://a:port", ""])
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(InputError, match="no http address"):
        ServerAddress.parse(url)


def test_what_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Body and token as given, no compression asked for, whatever proxy the environment names."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    heads: list[bytes] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"END"))
        writer.write(b"HTTP/1.1 307 Elsewhere\r\nlocation: /b\r\ncontent-length: 0\r\n\r\n")
        writer.close()

    async def main() -> Reply:
        server = await asyncio.start_server(handle, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        address = ServerAddress(f"http://127.0.0.1:{port}/x", "secret")
        async with server, address.session(1) as session:
            return await address.ask(session, b"question END", 5)

    assert asyncio.run(main()).status == 307  # no redirect is followed
    (whole,) = heads
    head, _, body = whole.partition(b"\r\n\r\n")
    assert body == b"question END"
    assert head.splitlines()[0] == b"POST /x/v1/systemone HTTP/1.1"
    for line in (b"Authorization: Bearer secret", b"Accept-Encoding: identity"):
        assert line in head.splitlines()
