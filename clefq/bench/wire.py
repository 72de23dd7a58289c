"""A small HTTP/1.1 client for load: one request at a time over one connection.

A general client costs a millisecond of CPU per request, and far more where its pool holds many
connections: as much as the server that it should measure. This one writes bytes that were
prepared beforehand and reads status, headers and body, nothing else: no redirects, no proxies, no
cookies, no retries. What it cannot read is an error that is counted.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from clefq.engines.http_client import PATH
from clefq.errors import InputError

# Servers close idle connections after a few seconds (uvicorn: 5): a request must not meet that.
_IDLE = 2.0
_LIMIT = 1 << 20  # bytes of headers, or of one chunk's first line


class WireError(Exception):
    """A request without a response; the message is one word for the table."""


@dataclass(frozen=True, slots=True)
class Reply:
    """One response.

    Attributes:
        status: HTTP status.
        headers: Names in lower case; of repeated ones the last.
        body: Decoded from chunks where it came in chunks.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """Where a server listens.

    Attributes:
        host: Name or IP address.
        port: TCP port.
        tls: Whether to speak TLS.
        path: Path of the SystemOne route, with what precedes it.
        base: The URL without that route.
    """

    host: str
    port: int
    tls: bool
    path: str
    base: str

    @classmethod
    def parse(cls, url: str) -> ServerAddress:
        """Reads a base URL, with or without `/v1/systemone`.

        Raises:
            InputError: Not an http or https address.
        """
        base = url.rstrip("/").removesuffix(PATH)
        fix = "give http://HOST:PORT."
        try:
            parts = urlsplit(base)
            port = parts.port
        except ValueError as error:
            raise InputError(f"{url!r} is no http address: {error}.", fix=fix) from error
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InputError(f"{url!r} is no http address.", fix=fix)
        tls = parts.scheme == "https"
        return cls(parts.hostname, port or (443 if tls else 80), tls, parts.path + PATH, base)

    def request(self, body: bytes, key: str | None) -> bytes:
        """The bytes of a whole request."""
        default = 443 if self.tls else 80
        name = f"[{self.host}]" if ":" in self.host else self.host
        lines = [
            f"POST {self.path} HTTP/1.1",
            f"Host: {name}" if self.port == default else f"Host: {name}:{self.port}",
            "Content-Type: application/json",
            f"Content-Length: {len(body)}",
        ]
        if key:
            lines.append(f"Authorization: Bearer {key}")
        return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


class ClientConnection:
    """One connection, opened when it is first needed and again after it was closed.

    Args:
        address: The server.
    """

    def __init__(self, address: ServerAddress) -> None:
        self._address = address
        self._tls = ssl.create_default_context() if address.tls else None
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._used = 0.0

    async def exchange(self, request: bytes, timeout: float) -> Reply:
        """Sends a request and reads its response.

        Args:
            request: Bytes of `ServerAddress.request`.
            timeout: Seconds for connecting, sending and reading together.

        Raises:
            WireError: `unreachable`, `timeout`, `closed` (before the response was whole) or
                `malformed`.
        """
        whole = False
        try:
            async with asyncio.timeout(timeout):
                reader, writer = await self._open()
                writer.write(request)
                await writer.drain()
                reply, keep = await _read_reply(reader)
            whole = keep
        except TimeoutError as error:
            raise WireError("timeout") from error
        except (OSError, asyncio.IncompleteReadError) as error:
            raise WireError("closed") from error
        except (ValueError, asyncio.LimitOverrunError) as error:
            raise WireError("malformed") from error
        finally:
            if not whole:
                self.close()
        self._used = time.monotonic()
        return reply

    def close(self) -> None:
        """Closes the connection; harmless when it is closed."""
        if self._writer is not None:
            self._writer.close()
        self._reader = self._writer = None

    async def _open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._reader is not None and (
            self._reader.at_eof() or time.monotonic() - self._used > _IDLE
        ):
            self.close()
        if self._reader is None or self._writer is None:
            at = self._address
            try:
                self._reader, self._writer = await asyncio.open_connection(
                    at.host, at.port, ssl=self._tls, limit=_LIMIT
                )
            except TimeoutError:
                raise
            except OSError as error:
                raise WireError("unreachable") from error
        return self._reader, self._writer


async def _read_reply(reader: asyncio.StreamReader) -> tuple[Reply, bool]:
    """A response, and whether the connection may be used again."""
    status = 100
    while status < 200:  # interim responses carry nothing
        head = (await reader.readuntil(b"\r\n\r\n"))[:-4].decode("latin-1").split("\r\n")
        version, _, rest = head[0].partition(" ")
        if not version.startswith("HTTP/1."):
            raise ValueError(head[0])
        status = int(rest[:3])
    headers: dict[str, str] = {}
    for line in head[1:]:
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    keep = version == "HTTP/1.1" and headers.get("connection", "").lower() != "close"
    if "chunked" in headers.get("transfer-encoding", "").lower():
        return Reply(status, headers, await _read_chunks(reader)), keep
    if "content-length" in headers:
        body = await reader.readexactly(int(headers["content-length"]))
        return Reply(status, headers, body), keep
    if status in (204, 304):
        return Reply(status, headers, b""), keep
    return Reply(status, headers, await reader.read()), False


async def _read_chunks(reader: asyncio.StreamReader) -> bytes:
    parts = []
    while size := int((await reader.readuntil(b"\r\n")).partition(b";")[0], 16):
        parts.append(await reader.readexactly(size))
        if await reader.readexactly(2) != b"\r\n":
            raise ValueError("chunk without end")
    while await reader.readuntil(b"\r\n") != b"\r\n":  # trailers
        pass
    return b"".join(parts)
