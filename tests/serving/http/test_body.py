from __future__ import annotations

import asyncio
import gzip
import itertools
import time
from collections.abc import Iterable
from typing import Any

import pytest
from backports import zstd
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect

from clefq.serving.http.body import BodyForm, BodyReader, check_head, decompress
from clefq.serving.http.errors import ApiError


def head(**values: str) -> Headers:
    return Headers({name.replace("_", "-"): value for name, value in values.items()})


@pytest.mark.parametrize(
    "kind",
    ["application/json", "Application/JSON; charset=UTF-8", "application/problem+json",
     'application/json; charset="utf-8"'],
)  # fmt: skip
def test_json_types_are_taken(kind: str) -> None:
    assert check_head(head(content_type=kind), 10) == BodyForm()
    assert check_head(head(), 10) == BodyForm()


@pytest.mark.parametrize(
    "kind",
    ["text/plain", "application/x-www-form-urlencoded", "multipart/mixed; boundary=x", "",
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
    check_head(head(content_length="0000010"), 10)


def test_unknown_encodings_are_refused_with_those_that_are_known() -> None:
    with pytest.raises(ApiError) as caught:
        check_head(head(content_encoding="br"), 10)
    assert caught.value.kind.status == 415
    assert caught.value.headers["accept-encoding"] == "gzip, zstd"
    assert check_head(head(content_encoding="ZSTD"), 10) == BodyForm("zstd")


@pytest.mark.parametrize("given", ["boundary=abc", 'charset=utf-8; boundary="abc"'])
def test_multipart_is_taken_with_its_boundary(given: str) -> None:
    kind = f"Multipart/Form-Data; {given}"
    assert check_head(head(content_type=kind), 10) == BodyForm(boundary=b"abc")


class Arriving:
    """A body that arrives in pieces.

    Attributes:
        taken: Pieces that were asked for.
    """

    def __init__(self, pieces: Iterable[bytes | None], pause: float = 0.0) -> None:
        self.pieces = iter(pieces)
        self.pause = pause
        self.taken = 0

    async def __call__(self) -> dict[str, Any]:
        await asyncio.sleep(self.pause)
        self.taken += 1
        piece = next(self.pieces, b"")
        if piece is None:
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": piece, "more_body": piece != b""}


def read(arriving: Arriving, most: int) -> bytes:
    return asyncio.run(BodyReader(arriving).read(most, 0.2, lambda _: None))


def test_reading_stops_at_the_limit() -> None:
    assert read(Arriving([b"ab", b"cd"]), 4) == b"abcd"
    endless = Arriving(itertools.repeat(b"x" * 100))
    with pytest.raises(ApiError) as caught:
        read(endless, 1000)
    assert caught.value.kind.status == 413
    assert endless.taken == 11


def test_a_body_that_trickles_in_is_given_up() -> None:
    start = time.monotonic()
    with pytest.raises(ApiError) as caught:
        read(Arriving([b"x"] * 100, pause=0.05), 1000)
    assert caught.value.kind.status == 408
    assert time.monotonic() - start < 2


def test_a_client_that_leaves_ends_the_body() -> None:
    with pytest.raises(ClientDisconnect):
        read(Arriving([b"x", None]), 1000)


def test_what_is_charged_may_refuse() -> None:
    def refuse(count: int) -> None:
        raise KeyError(count)

    with pytest.raises(KeyError, match="2"):
        asyncio.run(BodyReader(Arriving([b"ab"])).read(9, 1, refuse))


def test_what_is_left_is_discarded_within_limits() -> None:
    def left(pieces: Iterable[bytes | None], pause: float = 0.0) -> tuple[bool, int]:
        reader = BodyReader(Arriving(pieces, pause))
        asyncio.run(reader.discard(1000, 0.2))
        return reader.ended, reader.size

    assert left([b"x" * 100] * 3) == (True, 300)
    assert left(itertools.repeat(b"x" * 100)) == (False, 1100)
    assert left([b"x" * 100, None]) == (True, 100)
    ended, size = left(itertools.repeat(b"x"), pause=0.05)
    assert (ended, size < 10) == (False, True)


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
