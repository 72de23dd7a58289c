"""Hostile bodies against a server: nothing it is sent may make it fail.

    python -m tests.serving.http.fuzz --url http://127.0.0.1:8000 [--count 5000] [--seed 0]

Prints how often each status was answered, and the server's memory before and after each fifth.
The same seed gives the same requests.
"""

from __future__ import annotations

import argparse
import base64
import gzip
import io
import json
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import httpx

from tests.clef.generate import question, text, value

ASK = "/v1/systemone"
# What a caller may be told: their own fault, or to come back.
ALLOWED = {200, 400, 401, 404, 408, 413, 415, 422, 429}
FIELDS = ("model", "state", "questions", "images", "videos", "assets", "media_kwargs", "other")
SOURCES = (
    "http://169.254.169.254/latest", "file:///etc/passwd", "/etc/passwd", "", "data:,",
    "data:image/png;base64,", "data:image/png;base64,====",
)  # fmt: skip
NUMBERS = (
    b"NaN", b"-Infinity", b"1e999", b"-1e999", b"9" * 4301, b"1" + b"0" * 4000, b"01", b"1.",
    b"0x1", b"1e-400", b"--1", b"-0.0", b"123456789012345678901234567890.5",
)  # fmt: skip
TEXTS = (
    rb'"\ud800"', rb'"\udc00\ud800"', rb'"\u0000"', rb'"\x"', b'"\xff\xfe"', b'"\xed\xa0\x80"',
    b'"\xc0\x80"', b'{"a":1,"a":2}', b'"' + b"a" * 70_000 + b'"', b"[1,]", b"{1:2}", b"'a'",
    b'"<|image_pad|><|video_pad|><|vision_start|>"', b'"<|im_end|>\\n<|im_start|>"', b"",
)  # fmt: skip
CONTENT_TYPES = (
    "text/plain",
    "multipart/form-data; boundary=x",
    "application/x-www-form-urlencoded",
)


@dataclass(frozen=True)
class Hostile:
    """One request.

    Attributes:
        body: As sent.
        headers: All of them.
    """

    body: bytes
    headers: dict[str, str]


def hostile(rng: random.Random) -> Hostile:
    """Any request: sound, malformed, damaged, or no JSON at all."""
    raw = json.dumps(body(rng), ensure_ascii=rng.random() < 0.5).encode("utf-8", "surrogatepass")
    headers = {"content-type": "application/json"}
    if rng.random() < 0.5:
        names = ("typesafe", "release", "other")
        headers["x-clefq-dialect"] = rng.choices(names, (5, 4, 1))[0]
    if rng.random() < 0.4:
        spoil = rng.choice(SPOILERS)
        raw = spoil(raw, rng)
        if spoil is _gzip:
            headers["content-encoding"] = "gzip"
    if rng.random() < 0.03:
        headers["content-type"] = rng.choice(CONTENT_TYPES)
    return Hostile(raw, headers)


def body(rng: random.Random) -> dict[str, Any]:
    """A sound or half-sound request."""
    asked = rng.choice([1] * 8 + [2, 2, 3, 5, 64, 65])
    questions = {
        rng.choice((f"q{number}", text(rng, 2) + str(number))): question(rng, _options(rng, asked))
        for number in range(asked)
    }
    made: dict[str, Any] = {"model": "clef", "state": value(rng, 4) or "s", "questions": questions}
    if rng.random() < 0.1:
        made["images"] = [image(rng) for _ in range(rng.choice((1, 1, 2, 5)))]
    if rng.random() < 0.15:
        made[rng.choice(FIELDS)] = value(rng)
    if rng.random() < 0.1:
        _damage(questions, rng)
    if rng.random() < 0.05:
        del made[rng.choice(sorted(made))]
    return made


@cache
def picture(form: str) -> bytes:
    """A small sound image file."""
    from PIL import Image

    file = io.BytesIO()
    Image.radial_gradient("L").resize((32, 24)).convert("RGB").save(file, form)
    return file.getvalue()


def image(rng: random.Random) -> Any:
    """One entry of an image list: sound, damaged, remote, or nothing of the kind."""
    if rng.random() < 0.2:
        return rng.choice((*SOURCES, value(rng, 1)))
    file = picture(rng.choice(("PNG", "PNG", "JPEG", "JPEG", "WEBP", "WEBP", "GIF", "BMP")))
    if rng.random() < 0.4:
        file = rng.choice((_cut, _flip))(file, rng)
    source = base64.b64encode(file).decode()
    return rng.choice((source, f"data:image/png;base64,{source}"))


def _options(rng: random.Random, asked: int) -> int:
    return 2 if asked > 5 else rng.choice((2, 2, 2, 3, 4, 10, 11, 255, 256))


def _damage(questions: dict[str, Any], rng: random.Random) -> None:
    name = rng.choice(list(questions))
    part = rng.choice(("type", "instructions", "criteria", "other", None))
    if part is None:
        questions[name] = value(rng)
    else:
        questions[name] = {**questions[name], part: value(rng)}


def _cut(raw: bytes, rng: random.Random) -> bytes:
    return raw[: rng.randrange(len(raw))]


def _flip(raw: bytes, rng: random.Random) -> bytes:
    place = rng.randrange(len(raw))
    return raw[:place] + bytes([rng.randrange(256)]) + raw[place + 1 :]


def _state(state: bytes) -> bytes:
    return b'{"state":' + state + b',"questions":{"q":{"type":"noul"}}}'


def _deep(raw: bytes, rng: random.Random) -> bytes:
    depth = rng.choice((150, 199, 201, 990, 5000, 50_000))
    opening, closing = rng.choice(((b"[", b"]"), (b'{"a":', b"}")))
    return _state(opening * depth + b"1" + closing * depth)


def _number(raw: bytes, rng: random.Random) -> bytes:
    return _state(rng.choice(NUMBERS))


def _text(raw: bytes, rng: random.Random) -> bytes:
    return _state(rng.choice(TEXTS))


def _gzip(raw: bytes, rng: random.Random) -> bytes:
    packed = gzip.compress(raw)
    return rng.choice((packed, packed[:-5], _flip(packed, rng), raw))


def _bytes(raw: bytes, rng: random.Random) -> bytes:
    return rng.choice((rng.randbytes(60), raw.decode("utf-8", "replace").encode("utf-16")))


Spoiler = Callable[[bytes, random.Random], bytes]
SPOILERS: tuple[Spoiler, ...] = (_cut, _flip, _deep, _number, _text, _gzip, _bytes)


def check(response: httpx.Response) -> None:
    """What must hold of the answer to any request."""
    assert response.status_code in ALLOWED, (response.status_code, response.text[:300])
    answered = response.json()
    if response.status_code == 200:
        assert set(answered) == {"model", "answers", "usage"}
    else:
        assert set(answered) in ({"error"}, {"detail"})
        assert len(response.content) < 20_000
    assert response.headers["x-request-id"]


def run(send: Callable[[Hostile], httpx.Response], count: int, seed: int = 0) -> Counter[int]:
    """Sends `count` requests; raises for the first whose answer is not sound.

    Args:
        send: Sends one request.
        count: How many.
        seed: The same requests for the same number.

    Returns:
        Status to how often it was answered.
    """
    rng = random.Random(seed)
    statuses: Counter[int] = Counter()
    for number in range(count):
        request = hostile(rng)
        try:
            response = send(request)
            check(response)
        except (AssertionError, httpx.TransportError) as error:
            shown = f"{request.headers} {request.body[:200]!r}, {len(request.body)} bytes"
            raise AssertionError(f"seed {seed}, request {number}: {error!r}: {shown}") from error
        statuses[response.status_code] += 1
    return statuses


def main() -> None:
    """Fuzzes a running server and prints what it answered."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True)
    parser.add_argument("--key", default="none")
    parser.add_argument("--count", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    headers = {"authorization": f"Bearer {options.key}"}
    with httpx.Client(base_url=options.url, timeout=120, headers=headers) as client:

        def send(request: Hostile) -> httpx.Response:
            return client.post(ASK, content=request.body, headers=request.headers)

        memory = [_memory(client)]
        total: Counter[int] = Counter()
        for part in range(5):
            total += run(send, options.count // 5, options.seed + part)
            memory.append(_memory(client))
        assert client.get("/health").status_code == 200
    print(f"{sum(total.values())} requests:", dict(sorted(total.items())))
    print("server memory, MiB:", [round(m) for m in memory])


def _memory(client: httpx.Client) -> float:
    for line in client.get("/metrics").text.splitlines():
        if line.startswith("process_resident_memory_bytes"):
            return float(line.split()[-1]) / 2**20
    return float("nan")


if __name__ == "__main__":
    main()
