from __future__ import annotations

import asyncio
import gzip
import time
from collections.abc import AsyncIterator

import pytest
from backports import zstd
from starlette.datastructures import Headers

from clefq.serving.http.body import check_head, decompress, read_body
from clefq.serving.http.errors import ApiError


def head(**values: str) -> Headers:
    return Headers({name.replace("_", "-"): value for name, value in values.items()})


@pytest.mark.parametrize(
    "kind",
    ["application/json", "Application/JSON; charset=UTF-8", "application/problem+json",
     'application/json; charset="utf-8"'],
)  # fmt: skip
def test_json_types_are_taken(kind: str) -> None:
    assert check_head(head(content_type=kind), 10) == "identity"
    assert check_head(head(), 10) == "identity"


@pytest.mark.parametrize(
    "kind",
    ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "",
     "application/json; charset=latin-1", "application/xml"],
)  # fmt: skip
def test_other_types_are_not(kind: str) -> None:
    with pytest.raises(ApiError) as caught:
        check_head(head(content_type=kind), 10)
    assert caught.value.kind.status == 415


@pytest.mark.parametrize(
    ("length", "status"),
    [("11", 413), ("9" * 5000, 413), ("-1", 400), ("x", 400), ("²", 400), ("1e1", 400)],
)
def test_announced_lengths(length: str, status: int) -> None:
    with pytest.raises(ApiError) as caught:
        check_head(head(content_length=length), 10)
    assert caught.value.kind.status == status
    assert caught.value.headers["connection"] == "close"
    check_head(head(content_length="0000010"), 10)


def test_unknown_encodings_are_refused_with_those_that_are_known() -> None:
    with pytest.raises(ApiError) as caught:
        check_head(head(content_encoding="br"), 10)
    assert caught.value.kind.status == 415
    assert caught.value.headers["accept-encoding"] == "gzip, zstd"
    assert check_head(head(content_encoding="ZSTD"), 10) == "zstd"


def read(chunks: list[bytes], most: int, pause: float = 0.0) -> tuple[bytes, int]:
    taken = 0

    async def arrive() -> AsyncIterator[bytes]:
        nonlocal taken
        for chunk in chunks:
            await asyncio.sleep(pause)
            taken += 1
            yield chunk

    charged: list[int] = []
    return asyncio.run(read_body(arrive(), most, 0.2, charged.append)), taken


def test_reading_stops_at_the_limit() -> None:
    assert read([b"ab", b"cd"], 4) == (b"abcd", 2)
    seen = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal seen
        while True:
            seen += 1
            yield b"x" * 100

    with pytest.raises(ApiError) as caught:
        asyncio.run(read_body(endless(), 1000, 5, lambda _: None))
    assert caught.value.kind.status == 413
    assert seen == 11


def test_a_body_that_trickles_in_is_given_up() -> None:
    start = time.monotonic()
    with pytest.raises(ApiError) as caught:
        read([b"x"] * 100, 1000, pause=0.05)
    assert caught.value.kind.status == 408
    assert time.monotonic() - start < 2


@pytest.mark.parametrize(("encoding", "pack"), [("gzip", gzip.compress), ("zstd", zstd.compress)])
def test_compressed_bodies(encoding: str, pack: object) -> None:
    assert callable(pack)
    text = b'{"a": 1}' * 50
    packed = pack(text)
    assert decompress(packed, encoding, len(text)) == text
    bomb = pack(bytes(50_000_000))
    with pytest.raises(ApiError) as caught:
        decompress(bomb, encoding, 1000)
    assert caught.value.kind.status == 413
    for damaged in (b"", b"junk", packed[:-3], packed + b"more", packed + packed):
        with pytest.raises(ApiError) as caught:
            decompress(damaged, encoding, 1000)
        assert caught.value.kind.status == 400
