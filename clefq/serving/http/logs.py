"""The server's log: JSON lines on stdout for machines, or text on stderr for people.

Everything that the server writes goes through two loggers, `clefq.access` for requests and
`clefq.server` for events; what other libraries log as an error joins the second.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, TextIO

from clefq.errors import InputError

ACCESS_LOGGER = "clefq.access"
EVENT_LOGGER = "clefq.server"
LogFormat = Literal["json", "text"]
LOG_FORMATS: tuple[LogFormat, ...] = ("json", "text")
# Lines of one kind within so many seconds; the others are counted.
_BURST, _SECONDS = 10, 10.0
_MOST_KINDS = 256


def timed(entry: Mapping[str, Any]) -> Entry:
    """An entry with the time in front."""
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    return Entry({"time": now, **entry})


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the log; as text it is JSON.

    Attributes:
        values: By name, the time first.
    """

    values: Mapping[str, Any]

    def __str__(self) -> str:
        return json.dumps(self.values, separators=(",", ":"))

    def text(self) -> str:
        """For people: time, then what happened."""
        values = dict(self.values)
        parts = [str(values.pop("time"))]
        if "method" in values:
            parts += [str(values.pop(key)) for key in ("method", "path", "status")]
        parts += [f"{name}={_shown(value)}" for name, value in values.items() if value is not None]
        return " ".join(parts)


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return ",".join(f"{name}:{part}" for name, part in value.items())
    return str(value)


def log_to(
    form: LogFormat,
    stdout: TextIO | None = None,
    stderr: TextIO | None = None,
    *,
    guest: bool = False,
) -> None:
    """Sends the logs to their streams.

    Args:
        form: `json` writes requests and events to stdout, one JSON object a line and nothing else
            on it; `text` writes both to stderr.
        stdout: In place of the process's.
        stderr: In place of the process's.
        guest: The process is somebody else's server: the logs of its libraries are left alone.

    Raises:
        InputError: Neither of the two.
    """
    if form not in LOG_FORMATS:
        raise InputError(f"--log-format is {form!r}, expected {' or '.join(LOG_FORMATS)}.")
    stream = (stdout or sys.stdout) if form == "json" else (stderr or sys.stderr)
    handler = logging.StreamHandler(stream)
    handler.setFormatter(_Json() if form == "json" else _Text())
    quiet = Sparing()
    levels = {ACCESS_LOGGER: logging.INFO, EVENT_LOGGER: logging.INFO}
    if not guest:
        levels |= dict.fromkeys(("uvicorn.error", "asyncio"), logging.ERROR)
    for name, level in levels.items():
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.filters = [] if name == ACCESS_LOGGER else [quiet]
        logger.setLevel(level)
        logger.propagate = False


def event(line: str) -> None:
    """Logs what an operator wants to see."""
    logging.getLogger(EVENT_LOGGER).info("%s", line)


class Sparing(logging.Filter):
    """Lets ten lines of a kind through in ten seconds, and then says how many it held back.

    A kind is a logger and its unformatted message, or its text up to the first digit.

    Args:
        clock: Seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._seen: dict[tuple[str, str], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a line is written; may add to its text."""
        held = self.count((record.name, _kind_of(record)))
        if held:
            record.msg = f"{record.getMessage()} ({held} more like this were left out)"
            record.args = None
        return held is not None

    def let_through(self, kind: str) -> bool:
        """Whether something that is not a line of these loggers is written."""
        return self.count(("", kind)) is not None

    def count(self, kind: tuple[str, str]) -> int | None:
        """Counts one of a kind: None where it is held back, else how many were, before it."""
        now = self._clock()
        began, count = self._seen.get(kind, (now, 0))
        held = 0
        if now - began > _SECONDS:
            held, began, count = max(0, count - _BURST), now, 0
        if len(self._seen) > _MOST_KINDS:
            self._seen.clear()
        self._seen[kind] = (began, count + 1)
        return held if count < _BURST else None


def _kind_of(record: logging.LogRecord) -> str:
    text = record.getMessage() if record.msg == "%s" else str(record.msg)
    end = next((place for place, letter in enumerate(text) if letter.isdigit()), len(text))
    return text[:end][:60]


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return str(_entry_of(record))


class _Text(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        entry = _entry_of(record)
        if "event" not in entry.values:
            return entry.text()
        line = f"{entry.values['time']} {entry.values['event']}"
        return line + (f"\n{entry.values['trace']}" if "trace" in entry.values else "")


def _entry_of(record: logging.LogRecord) -> Entry:
    args = record.args if isinstance(record.args, tuple) else ()
    if len(args) == 1 and isinstance(args[0], Entry):
        return args[0]
    values: dict[str, Any] = {"event": record.getMessage()}
    if record.levelno >= logging.WARNING:
        values["level"] = record.levelname.lower()
    if record.exc_info:
        values["trace"] = logging.Formatter().formatException(record.exc_info)
    return timed(values)
