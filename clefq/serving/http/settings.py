"""Everything that a server can be told about its protocol: limits, dialect, who may ask."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Literal

from clefq.errors import InputError

Dialect = Literal["release", "typesafe"]
DIALECTS: tuple[Dialect, ...] = ("release", "typesafe")

MIB = 1 << 20
# Seconds; nobody means less.
_SHORTEST = 0.01


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
    image_formats: tuple[str, ...] = ("PNG", "JPEG", "WEBP")

    def __post_init__(self) -> None:
        _check_positive(self, "limits", {"max_images": 0, "max_options": 2, "max_levels": 2})


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """How a server speaks and how much it takes on.

    Attributes:
        dialect: Of requests that do not ask for one by header.
        truncate_state: Cut the end of an over-long state, as the release does silently, and say
            so in the answer; otherwise an over-long request is an error.
        limits: Of one request.
        bearer_tokens: Tokens that `/v1/` asks for, any of them; none asked for when empty.
        max_pending: Requests that are read, queued and run at a time; the next one gets 429.
        max_pending_bytes: Memory that their bodies and decoded images may take together.
        body_seconds: Time that a body may take to arrive.
        answer_seconds: Time that the engines may take for one request.
        threads: That read, decode, tokenize and answer, outside the event loop.
        access_log: One JSON line per request to the logger `clefq.access`.
    """

    dialect: Dialect = "release"
    truncate_state: bool = False
    limits: Limits = field(default_factory=Limits)
    bearer_tokens: tuple[str, ...] = field(default=(), repr=False)
    max_pending: int = 256
    max_pending_bytes: int = 1024 * MIB
    body_seconds: float = 30.0
    answer_seconds: float = 300.0
    threads: int = field(default_factory=lambda: min(8, (os.cpu_count() or 1) + 1))
    access_log: bool = True

    def __post_init__(self) -> None:
        if self.dialect not in DIALECTS:
            raise InputError(
                f"server settings: dialect is {self.dialect!r}, expected one of "
                f"{', '.join(DIALECTS)}."
            )
        if any(not token.strip() or not token.isascii() for token in self.bearer_tokens):
            raise InputError(
                "server settings: a bearer token is empty or not ASCII.",
                fix="make one with `openssl rand -hex 32`.",
            )
        _check_positive(self, "server settings", {})


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


def tokens_from(given: Sequence[str], variable: str | None, file: Path | None) -> tuple[str, ...]:
    """Bearer tokens from everywhere that they may be given, each once.

    Args:
        given: From options.
        variable: The environment variable's value, one token, or None.
        file: `--token-file`, with tokens between white space, or None.

    Raises:
        InputError: The file cannot be read or holds none, or the variable is empty.
    """
    found = [*given]
    if variable is not None:
        if not variable.strip():
            # what a deployment forgot to fill in must not mean an open server
            raise InputError(
                "the environment variable for the token is set but empty.",
                fix="fill it in, or unset it.",
            )
        found.append(variable.strip())
    if file is not None:
        try:
            lines = file.read_text(encoding="utf-8").split()
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            raise InputError(f"cannot read --token-file {file}: {reason}.") from error
        if not lines:
            # an empty file must not mean an open server
            raise InputError(f"--token-file {file} holds no token.", fix="one token a line.")
        found += lines
    return tuple(dict.fromkeys(found))


def _check_positive(settings: Limits | ServerSettings, what: str, least: dict[str, int]) -> None:
    faults = []
    for item in fields(settings):
        value = getattr(settings, item.name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        lowest = least.get(item.name, 1 if isinstance(value, int) else _SHORTEST)
        # written so that NaN is refused too
        if not value >= lowest:
            faults.append(f"{item.name} is {value}, expected at least {lowest}")
    if faults:
        raise InputError(f"{what}: {faults[0]}.", faults=faults[1:])
