"""Any SystemOne server as an engine: hosted, ours, or another project's.

Asks `POST /v1/systemone` for every record and turns the answers back into log-probabilities. It
asks for full precision (`PRECISION_HEADER`, which our server honours); a server that rounds all
the same is noticed, and its rounding step is declared in the predictions file. An answer that is
malformed, or a record that the server refuses, is an error of its rows; a server that cannot be
reached ends the run, which the same command resumes.
"""

from __future__ import annotations

import base64
import mimetypes
import os
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clefq.clef.formats import ARITHMETICS, SCHEMES
from clefq.engines.base import EngineInfo, EngineSpec, RecordResult
from clefq.engines.http_answers import AnswerError, read_answers
from clefq.engines.http_client import RefusedError, SystemOneClient
from clefq.errors import ClefqError, InputError

if TYPE_CHECKING:
    from clefq.clef.records import Record

API_KEY = "CLEFQ_API_KEY"
DEFAULT_CONCURRENCY = 8
# Fields that our own server adds to its entry in /v1/models, under this key.
DETAILS_KEY = "clefq"
# Recorded as the dtype where a server does not say what it runs; reports look for it.
UNSAID = "unknown"
_SHA256 = re.compile(r"[0-9a-f]{64}")


class HttpEngine:
    """A SystemOne server.

    Args:
        url: Base URL, with or without `/v1/systemone`.
        model: Name that the server knows the model by.
        spec: Only `max_length` (recorded, the server decides) and `concurrency` mean something.

    Raises:
        InputError: An option that a server cannot be given, a malformed URL, or a server that
            runs arithmetic which predictions files have no name for.
        ClefqError: The server cannot be reached, or refuses the key.
    """

    def __init__(self, url: str, model: str, spec: EngineSpec) -> None:
        _refuse_local_options(spec)
        self._model = model
        self._workers = spec.concurrency or DEFAULT_CONCURRENCY
        self._client = SystemOneClient(url, os.environ.get(API_KEY), self._workers)
        details = self._client.details(model, DETAILS_KEY)
        unsaid = any(details.get(key, UNSAID) == UNSAID for key in ("arithmetic", "kernels"))
        self.warnings: tuple[str, ...] = ()
        if unsaid:
            self.warnings = (
                "the server does not say what arithmetic it runs: recorded as unknown on real "
                "kernels, of unknown dtype; required gates are then inconclusive at best",
            )
        self.info = EngineInfo(
            engine="http",
            engine_version=str(details.get("engine_version", self._client.server)),
            kernels="simulated" if details.get("kernels") == "simulated" else "real",
            arithmetic=_arithmetic(details),
            dtype=UNSAID if unsaid else str(details.get("dtype", "unspecified")),
            device=str(details.get("device", UNSAID)),
            model_sha256=_stated(details.get("sha256"), _SHA256.fullmatch),
            scheme=_stated(details.get("scheme"), SCHEMES.__contains__),
        )

    def predict(
        self, records: Sequence[Record], media_root: Path | None = None
    ) -> Iterator[Sequence[RecordResult]]:
        """See `Engine.predict`: one record a group, in the order of the answers."""

        def ask(record: Record) -> RecordResult:
            return self._ask(record, media_root or Path())

        with ThreadPoolExecutor(self._workers) as pool:
            yield from _in_flight(pool, ask, records, self._workers)
        self._check_model()

    def close(self) -> None:
        """Closes the connections."""
        self._client.close()

    def _check_model(self) -> None:
        """Refuses a run whose server has changed its model on the way."""
        if self.info.model_sha256 is None:
            return
        now = self._client.details(self._model, DETAILS_KEY).get("sha256")
        if now != self.info.model_sha256:
            raise ClefqError(
                f"{self._client.base} changed the checkpoint behind {self._model!r} during the "
                "run: its answers are of two models.",
                fix="run the command again with another --out.",
            )

    def _ask(self, record: Record, root: Path) -> RecordResult:
        try:
            body = request_body(record, self._model, root)
            reply = self._client.ask(body)
        except (RefusedError, InputError) as error:
            return RecordResult.failed(record, str(error))
        try:
            return read_answers(record, reply)
        except AnswerError as error:
            return RecordResult.failed(record, str(error))


def _in_flight(
    pool: ThreadPoolExecutor,
    ask: Callable[[Record], RecordResult],
    records: Sequence[Record],
    workers: int,
) -> Iterator[list[RecordResult]]:
    """Keeps every worker busy without queueing the whole set; stops at the first exception."""
    waiting = iter(records)
    running: set[Future[RecordResult]] = set()
    try:
        while True:
            for record in waiting:
                running.add(pool.submit(ask, record))
                if len(running) >= 2 * workers:
                    break
            if not running:
                return
            done, running = wait(running, return_when=FIRST_COMPLETED)
            yield [future.result() for future in done]
    finally:
        for future in running:
            future.cancel()


def request_body(record: Record, model: str, root: Path) -> dict[str, Any]:
    """The JSON body that asks a server for a record, images as data URLs.

    Args:
        record: What to ask.
        model: Name that the server knows the model by.
        root: Folder that image paths are relative to.

    Raises:
        InputError: The record has videos, or an image is missing.
    """
    from clefq.clef.records import record_to_json

    if record.videos:
        raise InputError("videos are not supported by this engine.")
    body = {
        "model": model,
        "state": record.state,
        "questions": record_to_json(record)["questions"],
    }
    if record.images:
        body["images"] = [_data_url(root / image) for image in record.images]
    return body


def _data_url(path: Path) -> str:
    try:
        data = base64.b64encode(path.read_bytes()).decode("ascii")
    except OSError as error:
        raise InputError(f"no image {path}.") from error
    return f"data:{mimetypes.guess_type(path.name)[0] or 'image/png'};base64,{data}"


def _refuse_local_options(spec: EngineSpec) -> None:
    default = EngineSpec()
    given = [
        f"--{name.replace('_', '-')}"
        for name in ("truncate_state", "batch_tokens", "device", "dtype", "threads", "four_bit")
        if getattr(spec, name) != getattr(default, name)
    ]
    if given:
        raise InputError(
            f"--engine http cannot set {', '.join(given)}: the server decides.",
            fix="leave the option out, and set it where the server is started.",
        )


def _stated(value: Any, sound: Callable[[str], object]) -> str | None:
    """What a server states, where it is text that a predictions file may hold."""
    return value if isinstance(value, str) and sound(value) else None


def _arithmetic(details: dict[str, Any]) -> Any:
    stated = details.get("arithmetic", UNSAID)
    if stated not in ARITHMETICS:
        raise InputError(
            f"the server says that it runs {stated} arithmetic, which is none that a scheme means.",
            fix="serve it where its own arithmetic runs (`clefq doctor` says where).",
        )
    return stated
