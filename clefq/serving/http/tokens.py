"""Bearer tokens with names and rates, and where they are read from."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from clefq.errors import InputError

_SECONDS = {"s": 1.0, "min": 60.0, "h": 3600.0}
_RATE = re.compile(r"(?P<count>[1-9][0-9]{0,8})/(?P<unit>s|min|h)")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True, slots=True)
class Rate:
    """How often somebody may ask.

    Attributes:
        count: Requests …
        seconds: … in so many seconds; all of them may come at once.
    """

    count: int
    seconds: float

    @classmethod
    def read(cls, text: str) -> Rate | None:
        """`20/s`, `600/min` or `1000/h`; None where it is none of these."""
        found = _RATE.fullmatch(text)
        return cls(int(found["count"]), _SECONDS[found["unit"]]) if found else None


@dataclass(frozen=True, slots=True)
class Token:
    """One bearer token.

    Attributes:
        name: In logs and metrics.
        secret: What the client sends.
        rate: How often it may ask; None for as often as the server can.
    """

    name: str
    secret: str = field(repr=False)
    rate: Rate | None = None


def tokens_from(given: Sequence[str], variable: str | None, file: Path | None) -> tuple[Token, ...]:
    """Bearer tokens from everywhere that they may be given, each once.

    Args:
        given: From options.
        variable: The environment variable's value, one token, or None.
        file: `--token-file`, or None. A line is `TOKEN`, or `NAME: TOKEN [RATE]` with a rate as
            `20/s` or `600/min`; `#` begins a comment.

    Raises:
        InputError: The file cannot be read, holds none or a line that is neither, or the variable
            is empty.
    """
    found = [Token(f"option-{number}", text) for number, text in enumerate(given, start=1)]
    if variable is not None:
        if not variable.strip():
            # what a deployment forgot to fill in must not mean an open server
            raise InputError(
                "the environment variable for the token is set but empty.",
                fix="fill it in, or unset it.",
            )
        found.append(Token("environment", variable.strip()))
    if file is not None:
        found += _tokens_in(file)
    known: dict[str, Token] = {}
    for token in found:
        known.setdefault(token.secret, token)
    return tuple(known.values())


def _tokens_in(file: Path) -> list[Token]:
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise InputError(f"cannot read --token-file {file}: {reason}.") from error
    tokens: list[Token] = []
    faults = []
    for number, line in enumerate(lines, start=1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        try:
            tokens += _tokens_of(words, number)
        except ValueError as error:
            faults.append(f"--token-file {file}, line {number}: {error}")
    names = [token.name for token in tokens]
    faults += [f"--token-file {file}: two tokens are called {name}"
               for name in sorted(set(names)) if names.count(name) > 1]  # fmt: skip
    if faults:
        raise InputError(
            f"{faults[0]}.", faults=faults[1:], fix="a line is TOKEN, or NAME: TOKEN [20/s]."
        )
    if not tokens:
        # an empty file must not mean an open server
        raise InputError(f"--token-file {file} holds no token.", fix="one token a line.")
    return tokens


def _tokens_of(words: list[str], number: int) -> list[Token]:
    if not words[0].endswith(":"):
        return [Token(f"line-{number}" if len(words) == 1 else f"line-{number}.{place}", word)
                for place, word in enumerate(words, start=1)]  # fmt: skip
    name = words[0][:-1]
    if not _NAME.fullmatch(name):
        raise ValueError("a name is letters, digits, dots, dashes and underscores")
    if len(words) not in (2, 3):
        raise ValueError("a name is followed by its token and, if wanted, a rate")
    rate = Rate.read(words[2]) if len(words) == 3 else None
    if len(words) == 3 and rate is None:
        raise ValueError("a rate is written as 20/s, 600/min or 1000/h")
    return [Token(name, words[1], rate)]
