"""Any server of decisions as an engine: hosted, ours, or another project's.

Asks for every record in the words of its API (`clefq.engines.http_apis`) and turns the answers back
into log-probabilities. It asks for full precision (`PRECISION_HEADER`, which our server honours); a
server that rounds all the same is noticed, and its rounding step is declared in the predictions
file. An answer that is malformed, or a record that the server refuses, is an error of its rows; a
server that cannot be reached ends the run, which the same command resumes.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clefq.clef.formats import ARITHMETICS, SCHEMES
from clefq.engines.base import EngineInfo, EngineSpec, RecordResult
from clefq.engines.http_answers import AnswerError, read_answers
from clefq.engines.http_apis import (
    APIS,
    AUTO,
    CLOUDFLARE,
    Api,
    api_of_models,
    api_of_url,
    fault_of,
    hosted_name,
    named_api,
    request_body,
    split_url,
    systemone_reply,
    unwrapped,
)
from clefq.engines.http_client import Endpoint, Pace, RefusedError, SystemOneClient
from clefq.errors import ClefqError, InputError

if TYPE_CHECKING:
    from clefq.clef.records import Record

API_KEY = "CLEFQ_API_KEY"
DEFAULT_CONCURRENCY = 8
# Fields that our own server adds to its entry in /v1/models, under this key.
DETAILS_KEY = "clefq"
# Recorded as the dtype where a server does not say what it runs; reports look for it.
UNSAID = "unknown"
_NOT_OF_A_SERVER = (
    *("truncate_state", "batch_tokens", "device", "dtype", "threads", "four_bit", "ray"),
)
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class HttpOptions:
    """How to ask a server.

    Attributes:
        api: A key of `APIS`, or `auto`: told by the address, else by asking `/v1/models`.
        rate: Requests a second at most, or None.
        budget: Requests in all at most, retries included, or None.
        count_with: Folder of a model whose tokenizer counts the prompts, or None.
    """

    api: str = AUTO
    rate: float | None = None
    budget: int | None = None
    count_with: Path | None = None

    def __post_init__(self) -> None:
        named_api(self.api)
        if self.rate is not None and not self.rate > 0:
            raise InputError(f"--rate is {self.rate:g}, expected more than 0.")
        if self.budget is not None and self.budget < 1:
            raise InputError(f"--budget is {self.budget}, expected at least 1.")


class HttpEngine:
    """A server of decisions.

    Args:
        url: Base URL, with or without the endpoint's path.
        model: Name that the server knows the model by.
        spec: Only `max_length` (recorded, the server decides) and `concurrency` mean something.
        options: How to ask.

    Raises:
        InputError: An option that a server cannot be given, a malformed URL, or a server that
            runs arithmetic which predictions files have no name for.
        ClefqError: The server cannot be reached, or refuses the key.
    """

    def __init__(
        self, url: str, model: str, spec: EngineSpec, options: HttpOptions | None = None
    ) -> None:
        options = options or HttpOptions()
        _refuse_local_options(spec)
        self._model = model
        self._workers = spec.concurrency or DEFAULT_CONCURRENCY
        url = url or _hosted_address(options)
        api = named_api(options.api) or api_of_url(url)
        self._client = self._connect(url, api, Pace(options.rate, options.budget))
        hosted = api is APIS["workers-ai"]  # which lists its models elsewhere
        listing = None if hosted else self._client.models()
        self.api = api or api_of_models(listing)
        details = _details(listing, model)
        unsaid = any(details.get(key, UNSAID) == UNSAID for key in ("arithmetic", "kernels"))
        self.warnings: tuple[str, ...] = ()
        if unsaid:
            self.warnings = (
                "the server does not say what arithmetic it runs: recorded as unknown on real "
                "kernels, of unknown dtype; required gates are then inconclusive at best",
            )
        self.info = EngineInfo(
            engine="http",
            api=self.api.name,
            engine_version=str(details.get("engine_version", self._client.server)),
            kernels="simulated" if details.get("kernels") == "simulated" else "real",
            arithmetic=_arithmetic(details),
            dtype=UNSAID if unsaid else str(details.get("dtype", "unspecified")),
            device=str(details.get("device", UNSAID)),
            model_sha256=_stated(details.get("sha256"), _SHA256.fullmatch),
            scheme=_stated(details.get("scheme"), SCHEMES.__contains__),
        )

    @property
    def stated(self) -> dict[str, Any]:
        """What the server says of itself, as fields of a file's metadata.

        A finished file of the same words would be asked for again without a reason.
        """
        names = ["api", "kernels", "arithmetic", "dtype", "device", "model_sha256"]
        if self.info.dtype != UNSAID:  # else it is a header's, of whatever stands before it
            names.append("engine_version")
        return {name: getattr(self.info, name) for name in names}

    @property
    def address(self) -> str:
        """Where the requests go."""
        return self._client.base + self._client.endpoint.path

    def _connect(self, url: str, api: Api | None, pace: Pace) -> SystemOneClient:
        base, path = split_url(url, api, self._model)
        names = (api or APIS["systemone"]).keys
        key = next((os.environ[name] for name in names if os.environ.get(name)), None)
        return SystemOneClient(Endpoint(base, path, key, names), self._workers, pace)

    def refused(self, records: Sequence[Record], media_root: Path | None = None) -> int:
        """How many records the API is known not to take: they are not asked."""
        root = media_root or Path()
        return sum(fault_of(self.api, record, root) is not None for record in records)

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
        now = _details(self._client.models(), self._model).get("sha256")
        if now != self.info.model_sha256:
            raise ClefqError(
                f"{self._client.base} changed the checkpoint behind {self._model!r} during the "
                "run: its answers are of two models.",
                fix="run the command again with another --out.",
            )

    def _ask(self, record: Record, root: Path) -> RecordResult:
        fault = fault_of(self.api, record, root)
        if fault is not None:
            return RecordResult.failed(record, fault)
        try:
            hosted = self.api is APIS["workers-ai"]
            model = hosted_name(self._model) if hosted else self._model
            reply = unwrapped(self._client.ask(request_body(record, model, root, self.api)))
            return read_answers(record, systemone_reply(record, reply))
        except (RefusedError, InputError, AnswerError) as error:
            return RecordResult.failed(record, str(error))
        except ValueError as error:
            return RecordResult.failed(record, f"the server refused it: {error}")


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


def _hosted_address(options: HttpOptions) -> str:
    """The address of an API that needs none to be given."""
    account = os.environ.get("CLOUDFLARE_ACCOUNT_ID")
    if options.api == "workers-ai" and account:
        return f"{CLOUDFLARE}/accounts/{account}"
    fix = "set CLOUDFLARE_ACCOUNT_ID, or give --url." if options.api == "workers-ai" else None
    raise InputError("there is no --url to ask.", fix=fix or "give --url http://HOST:PORT.")


def _details(listing: Any, model: str) -> dict[str, Any]:
    """What `/v1/models` says about a model under our key; empty where it says nothing."""
    try:
        found = next(entry for entry in listing["data"] if entry["id"] == model)
        details = found.get(DETAILS_KEY, {})
    except (KeyError, TypeError, AttributeError, StopIteration):
        return {}
    return details if isinstance(details, dict) else {}


def _refuse_local_options(spec: EngineSpec) -> None:
    default = EngineSpec()
    given = [
        f"--{name.replace('_', '-')}"
        for name in (
            "truncate_state",
            "batch_tokens",
            "device",
            "dtype",
            "threads",
            "four_bit",
            "ray",
        )
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
