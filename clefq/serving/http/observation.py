"""What is known of one request: for its answer's headers, the access log and the metrics."""

from __future__ import annotations

import logging
import re
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from clefq.serving.http.body import BodyReader
from clefq.serving.http.logs import ACCESS_LOGGER, timed
from clefq.serving.http.settings import Dialect

if TYPE_CHECKING:
    from starlette.requests import Request

_SOUND_ID = re.compile(r"[A-Za-z0-9._:@/+=-]{1,128}")
# The stages that `Server-Timing` states.
_TIMED = ("encode", "images", "queue", "engine", "answer")
_TRACE = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}(?:-.{0,200})?")
CLIENT_GONE = 499
"""Status in log and metrics of a request whose client went away; no client ever sees it."""


@dataclass(slots=True)
class Observation:
    """One request as it is worked on.

    Attributes:
        id: The client's `x-request-id` where it has a plain one, else ours.
        route: Path of the route, or `other`.
        dialect: As asked for, or the server's.
        started: `time.perf_counter` at its head.
        seconds: From its head to its answer.
        status: HTTP status answered.
        stages: Stage name to seconds.
        error: Kind of the error answered, or None.
        body: Of the request, as far as it was read.
        questions: Asked.
        images: Sent.
        input_tokens: Of the prompt as run; None where nothing was answered.
        truncated_tokens: Cut from the state.
        client_name: Of the token that asked, or `anybody`; None where nobody was let in.
        trace: Trace id and span id of a sound `traceparent` header, or None.
    """

    id: str
    route: str
    dialect: Dialect
    body: BodyReader
    started: float = field(default_factory=time.perf_counter)
    seconds: float = 0.0
    status: int = 0
    stages: dict[str, float] = field(default_factory=dict)
    error: str | None = None
    questions: int = 0
    images: int = 0
    input_tokens: int | None = None
    truncated_tokens: int = 0
    client_name: str | None = None
    trace: tuple[str, str] | None = None

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Times a stage."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.stages[name] = time.perf_counter() - start

    def headers(self) -> dict[str, str]:
        """Headers that every answer carries; the SDK of the hosted API reads the second."""
        headers = {"x-request-id": self.id, "x-typesafe-request-id": self.id}
        timed = [
            f"{name};dur={1000 * self.stages[name]:.3f}" for name in _TIMED if name in self.stages
        ]
        if timed:
            headers["server-timing"] = ", ".join(timed)
        if self.truncated_tokens:
            headers["x-clefq-truncated-tokens"] = str(self.truncated_tokens)
        return headers


def request_id(given: str | None) -> str:
    """The client's id if it is plain text of at most 128 characters, else a new one."""
    return given if given and _SOUND_ID.fullmatch(given) else uuid.uuid4().hex


def trace_of(given: str | None) -> tuple[str, str] | None:
    """Trace id and span id of a `traceparent` header (W3C Trace Context); None for another one."""
    found = _TRACE.fullmatch(given or "")
    if found is None or given is None or given.startswith("ff"):
        return None
    trace, span = found[1], found[2]
    return None if trace.strip("0") == "" or span.strip("0") == "" else (trace, span)


def log_access(request: Request, seen: Observation) -> None:
    """Writes one line: who, what, how long; never a body, a query or a token."""
    entry: dict[str, Any] = {
        "id": seen.id,
        "client": request.client.host if request.client else None,
        "method": request.method,
        "path": request.url.path[:200],
        "status": seen.status,
        "seconds": round(seen.seconds, 6),
        "body_bytes": seen.body.size,
    }
    if seen.client_name is not None:
        entry["token"] = seen.client_name
    if seen.trace is not None:
        entry |= {"trace_id": seen.trace[0], "parent_id": seen.trace[1]}
    if seen.error is not None:
        entry["error"] = seen.error
    if seen.input_tokens is not None:
        entry |= {
            "dialect": seen.dialect,
            "questions": seen.questions,
            "images": seen.images,
            "input_tokens": seen.input_tokens,
            "truncated_tokens": seen.truncated_tokens,
            "stages": {name: round(seconds, 6) for name, seconds in seen.stages.items()},
        }
    write_entry(entry)


def write_entry(entry: Mapping[str, Any]) -> None:
    """Writes one line of the access log, with the time in front."""
    logging.getLogger(ACCESS_LOGGER).info("%s", timed(entry))
