"""Everything that a server can be told about its protocol: limits, dialect, who may ask."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Literal

from clefq.errors import InputError
from clefq.serving.http.tokens import Token

Dialect = Literal["release", "typesafe"]
DIALECTS: tuple[Dialect, ...] = ("release", "typesafe")

MIB = 1 << 20
# Seconds; nobody means less.
_SHORTEST = 0.01
# What a fault is called where an option of `clefq serve` sets it.
_OPTIONS = {
    "max_pending": "--max-queue",
    "max_connections": "--max-connections",
    "answer_seconds": "--request-timeout",
}


@dataclass(frozen=True, slots=True)
class Limits:
    """What one request may hold. The first six are the hosted API's.

    Attributes:
        max_questions: Questions of a request.
        max_options: Options of a choice question.
        max_levels: Levels of a score question.
        max_images: Images of a request; fewer where the engines were started for fewer.
        max_image_bytes: Bytes of one image file.
        max_images_bytes: Bytes of all image files of a request.
        max_id_chars: Characters of a question id or option id.
        max_body_bytes: Bytes of a body; with images in base64, which adds a third.
        max_text_bytes: Bytes of a body without its images.
        max_values: JSON values of a body (counted by its commas, before it is read).
        max_image_pixels: Pixels of one image, read from its header before it is decoded.
        max_images_pixels: Pixels of all images of a request.
        image_formats: As Pillow names them.
    """

    max_questions: int = 64
    max_options: int = 255
    max_levels: int = 10
    max_images: int = 4
    max_image_bytes: int = 4 * MIB
    max_images_bytes: int = 8 * MIB
    max_id_chars: int = 512
    max_body_bytes: int = 16 * MIB
    max_text_bytes: int = 4 * MIB
    max_values: int = 100_000
    max_image_pixels: int = 24_000_000
    max_images_pixels: int = 48_000_000
    image_formats: tuple[str, ...] = ("PNG", "JPEG", "WEBP")

    def __post_init__(self) -> None:
        _check_positive(self, "limits", {"max_images": 0, "max_options": 2, "max_levels": 2})


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """What a connection may do, whoever is behind it.

    Attributes:
        max_connections: At a time; beyond it the one that has been idle longest is closed.
        max_headers: Of a request.
        max_header_bytes: Of a request's head.
        header_seconds: From the first byte of a head to its last.
        idle_seconds: Between requests, and before the first; longer than the idle time of common
            load balancers, so that they close first.
        send_seconds: That a client may take to read an answer.
    """

    max_connections: int = 4096
    max_headers: int = 100
    max_header_bytes: int = 32 * 1024
    header_seconds: float = 10.0
    idle_seconds: float = 75.0
    send_seconds: float = 30.0

    def __post_init__(self) -> None:
        _check_positive(self, "connection limits", {"max_header_bytes": 1024})


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """How a server speaks and how much it takes on.

    Attributes:
        dialect: Of requests that do not ask for one by header.
        truncate_state: Cut the end of an over-long state, as the release does silently, and say
            so in the answer; otherwise an over-long request is an error.
        limits: Of one request.
        bearer_tokens: Tokens that `/v1/` asks for, any of them, as texts or with names and rates;
            none asked for when empty.
        allowed_hosts: Values of `Host` that `/v1/` answers to; any when empty.
        allowed_origins: Origins whose pages may ask (CORS); none when empty, `*` for all.
        connections: See `ConnectionLimits`.
        max_pending: Requests that are queued and run at a time; the next one gets 429.
        max_pending_bytes: Memory that their bodies and decoded images may take together.
        max_reading: Bodies that arrive at a time; beyond it the slowest makes way.
        body_seconds: Time that a body may take to arrive.
        answer_seconds: Time that the engines may take for one request.
        threads: That read, decode, tokenize and answer, outside the event loop.
        image_threads: That decode and resize images, at a low priority.
        escape_special_tokens: Special tokens written out in a request stay text, where the
            release turns them into the tokens.
        access_log: One line per request to the logger `clefq.access`.
        log_probes: Also for health checks and metrics.
    """

    dialect: Dialect = "release"
    truncate_state: bool = False
    limits: Limits = field(default_factory=Limits)
    bearer_tokens: tuple[str | Token, ...] = field(default=(), repr=False)
    allowed_hosts: tuple[str, ...] = ()
    allowed_origins: tuple[str, ...] = ()
    connections: ConnectionLimits = field(default_factory=ConnectionLimits)
    max_pending: int = 256
    max_pending_bytes: int = 1024 * MIB
    max_reading: int = 1024
    body_seconds: float = 30.0
    answer_seconds: float = 300.0
    threads: int = field(default_factory=lambda: min(8, (os.cpu_count() or 1) + 1))
    image_threads: int = field(default_factory=lambda: max(1, (os.cpu_count() or 1) // 4))
    escape_special_tokens: bool = False
    access_log: bool = True
    log_probes: bool = False

    def __post_init__(self) -> None:
        if self.dialect not in DIALECTS:
            raise InputError(
                f"server settings: dialect is {self.dialect!r}, expected one of "
                f"{', '.join(DIALECTS)}."
            )
        secrets = [token.secret for token in self.tokens]
        if any(not secret.strip() or not secret.isascii() for secret in secrets):
            raise InputError(
                "server settings: a bearer token is empty or not ASCII.",
                fix="make one with `openssl rand -hex 32`.",
            )
        _check_positive(self, "server settings", {})

    @property
    def tokens(self) -> tuple[Token, ...]:
        """The bearer tokens, each with a name."""
        return tuple(
            Token(f"token-{number}", token) if isinstance(token, str) else token
            for number, token in enumerate(self.bearer_tokens, start=1)
        )


def limits_from(pairs: Sequence[str]) -> Limits:
    """Limits from `NAME=NUMBER` texts, as an option gives them; the others keep their defaults.

    Raises:
        InputError: Names every text that is no limit.
    """
    known = {item.name: item.type for item in fields(Limits) if item.type == "int"}
    given: dict[str, int] = {}
    faults = []
    for pair in pairs:
        name, _, number = pair.partition("=")
        name = name.strip().replace("-", "_")
        if name not in known:
            faults.append(f"{name!r} is no limit; there are {', '.join(known)}")
        elif not (number.strip().isascii() and number.strip().isdigit()):
            faults.append(f"{pair!r} must be NAME=NUMBER")
        else:
            given[name] = int(number)
    if faults:
        raise InputError(f"limits: {faults[0]}.", faults=faults[1:])
    return replace(Limits(), **given)  # type: ignore[arg-type]  # the names are those of numbers


def _check_positive(
    settings: Limits | ConnectionLimits | ServerSettings, what: str, least: dict[str, int]
) -> None:
    faults = []
    for item in fields(settings):
        value = getattr(settings, item.name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        lowest = least.get(item.name, 1 if isinstance(value, int) else _SHORTEST)
        # written so that NaN is refused too
        if not value >= lowest:
            name = _OPTIONS.get(item.name, item.name)
            faults.append(f"{name} is {value}, expected at least {lowest}")
    if faults:
        raise InputError(f"{what}: {faults[0]}.", faults=faults[1:])
