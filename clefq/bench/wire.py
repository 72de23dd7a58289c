"""One request to a server under load, through aiohttp: whole replies, and failures as one word."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

import aiohttp
from aiohttp.http_exceptions import TransferEncodingError

from clefq.engines.http_client import PATH
from clefq.errors import InputError

# Servers close idle connections after a few seconds (uvicorn: 5): a request must not meet that.
_IDLE = 2.0


class WireError(Exception):
    """A request without a response; the message is one word for the table."""


@dataclass(frozen=True, slots=True)
class Reply:
    """One response.

    Attributes:
        status: HTTP status.
        headers: Names in any case.
        body: The whole body, decoded from chunks where it came in chunks.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """Where a server listens.

    Attributes:
        base: The URL without the SystemOne route.
        key: Bearer token, or None.
    """

    base: str
    key: str | None = None

    @classmethod
    def parse(cls, url: str, key: str | None = None) -> ServerAddress:
        """Reads a base URL, with or without `/v1/systemone`.

        Raises:
            InputError: Not an http or https address.
        """
        fix = "give http://HOST:PORT."
        base = url.rstrip("/").removesuffix(PATH)
        try:
            parts = urlsplit(base)
            _ = parts.port
        except ValueError as error:
            raise InputError(f"{url!r} is no http address: {error}.", fix=fix) from error
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InputError(f"{url!r} is no http address.", fix=fix)
        return cls(base, key)

    def session(self, connections: int) -> aiohttp.ClientSession:
        """A client with at most that many connections; opened inside an event loop.

        It follows no redirect, repeats nothing, keeps no cookies, asks for no compression and
        uses no proxy: what is measured is the server.
        """
        headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
        if self.key:
            headers["Authorization"] = f"Bearer {self.key}"
        return aiohttp.ClientSession(
            headers=headers,
            connector=aiohttp.TCPConnector(limit=connections, keepalive_timeout=_IDLE),
            cookie_jar=aiohttp.DummyCookieJar(),
        )

    async def ask(self, session: aiohttp.ClientSession, body: bytes, timeout: float) -> Reply:
        """Sends a request and reads its response.

        Args:
            session: Of `session`.
            body: The request's JSON.
            timeout: Seconds for connecting, sending and reading together.

        Raises:
            WireError: `unreachable`, `timeout`, `closed` (before the response was whole) or
                `malformed`.
        """
        try:
            async with (
                asyncio.timeout(timeout),
                session.post(self.base + PATH, data=body, allow_redirects=False) as response,
            ):
                return Reply(response.status, response.headers, await response.read())
        except TimeoutError as error:
            raise WireError("timeout") from error
        except aiohttp.ClientConnectorError as error:
            raise WireError("unreachable") from error
        except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError) as error:
            raise WireError("closed") from error
        except aiohttp.ClientPayloadError as error:
            # a body cut short, or framed wrongly
            framing = isinstance(error.__cause__, TransferEncodingError)
            raise WireError("malformed" if framing else "closed") from error
        except aiohttp.ClientError as error:
            raise WireError("malformed") from error
