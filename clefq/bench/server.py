"""`clefq bench server`: load on any SystemOne server, one row per load."""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from clefq.bench.load import Load, LoadSpec, Target, run_load
from clefq.bench.load_report import LoadRow, row_of, warnings_of
from clefq.bench.replies import ReplyChecker, read_expected
from clefq.bench.source import Loaded, RecordSource, opened
from clefq.bench.wire import ServerAddress
from clefq.console import Console
from clefq.engines.http_apis import request_body
from clefq.engines.http_client import PATH, error_text
from clefq.engines.http_engine import API_KEY
from clefq.errors import ClefqError, InputError

_CONNECT = 10.0
# A server that starts or wakes may take long over its first answer.
_FIRST_ANSWER = 120.0
# seconds of silence after which people are told what is waited for
_PATIENCE = 5.0
_SHOWN = 200  # characters of what a server that speaks no HTTP sent


@dataclass(frozen=True, slots=True)
class ServerJob:
    """What to measure.

    Attributes:
        url: Base URL, with or without `/v1/systemone`.
        model: Name that the server knows the model by; None takes its first.
        loads: One row each, run one after another.
        spec: How long.
        source: The records.
        check: Predictions file whose probabilities are expected, or None.
        tolerance: Largest difference from them that is no fault.
    """

    url: str
    model: str | None
    loads: tuple[Load, ...]
    spec: LoadSpec
    source: RecordSource
    check: Path | None = None
    tolerance: float = 0.02


@dataclass(frozen=True, slots=True)
class ServerReport:
    """What was measured.

    Attributes:
        url: Base URL.
        model: Name that was asked for.
        server: What the server calls itself (`server` header), or `unknown`.
        records: What was asked, for the heading.
        n_records: How many different records.
        spec: How long, and with which limits.
        tolerance: As given; None without expectations.
        rows: One per load.
        warnings: What the reader must know.
    """

    url: str
    model: str
    server: str
    records: str
    n_records: int
    spec: LoadSpec
    tolerance: float | None
    rows: tuple[LoadRow, ...]
    warnings: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """As one JSON document."""
        return asdict(self)


def bench_server(job: ServerJob, console: Console) -> ServerReport:
    """Loads a server, load by load.

    Raises:
        InputError: A malformed address, no such records, or predictions of another set.
        ClefqError: The server cannot be reached or refuses the first record.
    """
    address = ServerAddress.parse(job.url, os.environ.get(API_KEY))
    with opened(job.source) as loaded:
        records = [record for record in loaded.records if not record.videos]
        if not records:
            raise InputError(f"{loaded.name} holds no record without videos.")
        expected = None
        if job.check is not None:
            expected = read_expected(job.check, records, loaded.set_sha256)
        with _told_of_waiting(address, console):
            model, server = _ask_first(address, job.model, (records[0], loaded))
        bodies = [
            json.dumps(request_body(record, model, loaded.root), ensure_ascii=False).encode()
            for record in records
        ]
    target = Target(address, bodies, ReplyChecker(records, expected, job.tolerance))
    _allow_connections()
    rows = _rows(target, job, console)
    return ServerReport(
        url=address.base,
        model=model,
        server=server,
        records=loaded.name,
        n_records=len(records),
        spec=job.spec,
        tolerance=None if expected is None else job.tolerance,
        rows=tuple(rows),
        warnings=tuple(warnings_of(rows)),
    )


def _rows(target: Target, job: ServerJob, console: Console) -> Sequence[LoadRow]:
    rows = []
    seconds = round(job.spec.warmup + job.spec.duration)
    for load in job.loads:
        with console.progress(load.name, seconds) as advance:
            rows.append(row_of(run_load(target, load, job.spec, advance)))
    return rows


def _allow_connections() -> None:
    """A connection is an open file, and shells allow fewer of them than the system does."""
    import resource

    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


@contextlib.contextmanager
def _told_of_waiting(address: ServerAddress, console: Console) -> Iterator[None]:
    """Says once, if the block takes long, that the server is waited for."""
    text = f"waiting up to {_FIRST_ANSWER:.0f} s for a first answer of {address.base}"
    timer = threading.Timer(_PATIENCE, console.note, (text,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _ask_first(
    address: ServerAddress, model: str | None, first: tuple[Any, Loaded]
) -> tuple[str, str]:
    """Asks one record politely; returns the model's name and the server's."""
    import httpx

    headers = {"authorization": f"Bearer {address.key}"} if address.key else {}
    timeout = httpx.Timeout(_FIRST_ANSWER, connect=_CONNECT)
    record, loaded = first
    try:
        with httpx.Client(base_url=address.base, headers=headers, timeout=timeout) as client:
            model = model or _first_model(address, client.get("/v1/models"))
            reply = client.post(PATH, json=request_body(record, model, loaded.root))
    except httpx.ReadTimeout as error:
        raise ClefqError(
            f"{address.base} takes requests but answers none within {_FIRST_ANSWER:.0f} s.",
            fix="check the address and the server's log.",
        ) from error
    except httpx.TransportError as error:
        raise ClefqError(
            f"cannot reach {address.base}: {(str(error) or type(error).__name__)[:_SHOWN]}.",
            fix="start the server, or check the address.",
        ) from error
    if reply.status_code != 200:
        raise _refused(address, "the first record", reply, "see what it says above.")
    return model, reply.headers.get("server", "unknown")


def _refused(address: ServerAddress, what: str, reply: Any, fix: str) -> ClefqError:
    if reply.status_code in (401, 403):
        fix = f"set {API_KEY} to a token of the server."
    return ClefqError(
        f"{address.base} refuses {what} ({reply.status_code}): {error_text(reply)}", fix=fix
    )


def _first_model(address: ServerAddress, reply: Any) -> str:
    if reply.status_code in (401, 403):
        raise _refused(address, "to list its models", reply, "")
    try:
        return str(reply.json()["data"][0]["id"])
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise InputError(
            f"the server names no model in /v1/models ({reply.status_code}).",
            fix="give --model NAME.",
        ) from error
