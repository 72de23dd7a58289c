"""A request's bytes: read with a limit and a deadline, decompressed with a limit."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING

from clefq.serving.http.errors import (
    BODY_TOO_LARGE,
    INVALID_HEADER,
    INVALID_JSON,
    TOO_SLOW,
    WRONG_MEDIA,
    ApiError,
)

if TYPE_CHECKING:
    from starlette.datastructures import Headers

# The rest of the body is not wanted: the connection cannot be used again.
_CLOSE = {"connection": "close"}
_GZIP_WINDOW = 31


def check_head(headers: Headers, most: int) -> str:
    """Refuses a body by its headers, before any of it is read.

    Args:
        headers: Of the request.
        most: Bytes that a body may have.

    Returns:
        The content encoding: `identity`, `gzip` or `zstd`.

    Raises:
        ApiError: Not JSON, an encoding that is not known here, or too many bytes announced.
    """
    kind, _, parameters = headers.get("content-type", "application/json").partition(";")
    media = kind.strip().lower()
    if media != "application/json" and not (media.startswith("application/") and
                                            media.endswith("+json")):  # fmt: skip
        hint = "; send images inside the JSON body, as `images`" if "multipart" in media else ""
        raise ApiError.of(
            WRONG_MEDIA, f"content-type must be application/json{hint}", headers=_CLOSE
        )
    charset = parameters.lower().replace(" ", "").replace('"', "")
    if "charset=" in charset and "charset=utf-8" not in charset:
        raise ApiError.of(WRONG_MEDIA, "the body must be UTF-8", headers=_CLOSE)
    encoding = headers.get("content-encoding", "identity").strip().lower()
    known = {"identity", "gzip", *(("zstd",) if _zstd() else ())}
    if encoding not in known:
        raise ApiError.of(
            WRONG_MEDIA, f"content-encoding must be one of {', '.join(sorted(known))}",
            headers={**_CLOSE, "accept-encoding": ", ".join(sorted(known - {"identity"}))},
        )  # fmt: skip
    _check_length(headers.get("content-length"), most)
    return encoding


async def read_body(
    chunks: AsyncIterator[bytes], most: int, seconds: float, charge: Callable[[int], None]
) -> bytes:
    """Reads a body, and stops as soon as it is too long or too slow.

    Args:
        chunks: The body as it arrives.
        most: Bytes that it may have.
        seconds: Time that it may take.
        charge: Called with the bytes of every chunk, before it is kept; may raise.

    Raises:
        ApiError: Too many bytes, or too late.
    """
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(seconds):
            async for chunk in chunks:
                size += len(chunk)
                if size > most:
                    raise _too_large(most)
                charge(len(chunk))
                parts.append(chunk)
    except TimeoutError as error:
        raise ApiError.of(
            TOO_SLOW, f"the body did not arrive within {seconds:g} seconds", headers=_CLOSE
        ) from error
    return b"".join(parts)


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
        raise ApiError.of(INVALID_HEADER, "content-length is no number", headers=_CLOSE)
    # compared as text first: a header of a thousand digits is no number to work with
    if len(value.lstrip("0")) > len(str(most)) or int(value) > most:
        raise _too_large(most)


def _too_large(most: int) -> ApiError:
    return ApiError.of(BODY_TOO_LARGE, f"the body has more than {most} bytes", headers=_CLOSE)
