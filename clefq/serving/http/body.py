"""A request's bytes: read with a limit and a deadline, decompressed with a limit."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from starlette.requests import ClientDisconnect

from clefq.serving.http.errors import (
    BODY_TOO_LARGE,
    INVALID_HEADER,
    INVALID_JSON,
    TOO_SLOW,
    WRONG_MEDIA,
    ApiError,
)
from clefq.serving.http.multipart import boundary_of

if TYPE_CHECKING:
    from starlette.datastructures import Headers
    from starlette.types import Receive

_GZIP_WINDOW = 31


@dataclass(frozen=True, slots=True)
class BodyForm:
    """How a body is written.

    Attributes:
        encoding: `identity`, `gzip` or `zstd`.
        boundary: Of a multipart body; None for JSON.
    """

    encoding: str = "identity"
    boundary: bytes | None = None


def check_head(headers: Headers, most: int) -> BodyForm:
    """Refuses a body by its headers, before any of it is read.

    Args:
        headers: Of the request.
        most: Bytes that a body may have.

    Raises:
        ApiError: Neither JSON nor multipart, an encoding that is not known here, or too many bytes
            announced.
    """
    kind, _, parameters = headers.get("content-type", "application/json").partition(";")
    media = kind.strip().lower()
    boundary = boundary_of(headers.get("content-type", ""))
    json = media.startswith("application/") and (media[12:] == "json" or media.endswith("+json"))
    if not json and boundary is None:
        raise ApiError.of(
            WRONG_MEDIA, "content-type must be application/json or multipart/form-data"
        )
    charset = parameters.lower().replace(" ", "").replace('"', "")
    if "charset=" in charset and "charset=utf-8" not in charset:
        raise ApiError.of(WRONG_MEDIA, "the body must be UTF-8")
    encoding = headers.get("content-encoding", "identity").strip().lower()
    known = {"identity", "gzip", *(("zstd",) if _zstd() else ())}
    if encoding not in known:
        raise ApiError.of(
            WRONG_MEDIA, f"content-encoding must be one of {', '.join(sorted(known))}",
            headers={"accept-encoding": ", ".join(sorted(known - {"identity"}))},
        )  # fmt: skip
    _check_length(headers.get("content-length"), most)
    return BodyForm(encoding, boundary)


class BodyReader:
    """The body of one request as it arrives.

    Attributes:
        size: Bytes that have arrived.
        ended: Whether all of it has arrived, or the client is gone.
    """

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._timeout: asyncio.Timeout | None = None
        self._hurried = False
        self.size = 0
        self.ended = False

    def hurry(self) -> None:
        """Ends the reading at once: its place is needed. On the event loop."""
        self._hurried = True
        if self._timeout is not None and not self._timeout.expired():
            self._timeout.reschedule(asyncio.get_running_loop().time())

    async def read(self, most: int, seconds: float, charge: Callable[[int], None]) -> bytes:
        """Reads it all, and stops as soon as it is too long or too slow.

        Args:
            most: Bytes that it may have.
            seconds: Time that it may take.
            charge: Called with the bytes of every piece, before it is kept; may raise.

        Raises:
            ApiError: Too many bytes, or too late.
            ClientDisconnect: The client is gone.
        """
        parts: list[bytes] = []
        try:
            async with asyncio.timeout(seconds) as self._timeout:
                while not self.ended:
                    part = await self._next()
                    if self.size > most:
                        raise _too_large(most)
                    charge(len(part))
                    parts.append(part)
        except TimeoutError as error:
            message = f"the body did not arrive within {seconds:g} seconds"
            if self._hurried:
                message = "the body arrived too slowly while others waited"
            raise ApiError.of(TOO_SLOW, message) from error
        finally:
            self._timeout = None
        return b"".join(parts)

    async def discard(self, most: int, seconds: float) -> None:
        """Reads what is left of a refused body and throws it away, within limits.

        A connection that is closed with unread bytes is reset, and the client may lose the answer
        that says what was wrong.

        Args:
            most: Bytes to wait for.
            seconds: Time to wait.
        """
        start = self.size
        with suppress(TimeoutError, ClientDisconnect):
            async with asyncio.timeout(seconds):
                while not self.ended and self.size - start <= most:
                    await self._next()

    async def _next(self) -> bytes:
        message = await self._receive()
        if message["type"] == "http.disconnect":
            self.ended = True
            raise ClientDisconnect
        part: bytes = message.get("body", b"")
        self.size += len(part)
        self.ended = not message.get("more_body", False)
        return part


def decompress(raw: bytes, encoding: str, most: int) -> bytes:
    """Undoes the content encoding; never makes more than `most` bytes.

    Raises:
        ApiError: Not what its header says, or too large.
    """
    if encoding == "identity":
        return raw
    unpack = _gunzip if encoding == "gzip" else _unzstd
    try:
        text = unpack(raw, most)
    except (zlib.error, EOFError, ValueError) as error:
        raise ApiError.of(INVALID_JSON, f"the body is not whole {encoding} data") from error
    if len(text) > most:
        raise _too_large(most)
    return text


def _gunzip(raw: bytes, most: int) -> bytes:
    stream = zlib.decompressobj(wbits=_GZIP_WINDOW)
    text = stream.decompress(raw, most + 1)
    if len(text) <= most and (not stream.eof or stream.unused_data):
        raise EOFError
    return text


def _unzstd(raw: bytes, most: int) -> bytes:
    from backports import zstd

    stream = zstd.ZstdDecompressor(options={zstd.DecompressionParameter.window_log_max: 23})
    try:
        text = stream.decompress(raw, most + 1)
    except zstd.ZstdError as error:
        raise ValueError(str(error)) from error
    if len(text) <= most and (not stream.eof or stream.unused_data):
        raise EOFError
    return text


def _zstd() -> bool:
    try:
        import backports.zstd  # noqa: F401
    except ImportError:
        return False
    return True


def _check_length(value: str | None, most: int) -> None:
    if value is None:
        return
    if not (value.isascii() and value.isdigit()):
        raise ApiError.of(INVALID_HEADER, "content-length is no number")
    # compared as text first: a header of a thousand digits is no number to work with
    if len(value.lstrip("0")) > len(str(most)) or int(value) > most:
        raise _too_large(most)


def _too_large(most: int) -> ApiError:
    return ApiError.of(BODY_TOO_LARGE, f"the body has more than {most} bytes")
