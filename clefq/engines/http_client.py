"""The wire side of the http engine: requests, retries, pace, and which failures end a run."""

from __future__ import annotations

import random
import threading
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from clefq.engines.http_apis import SYSTEMONE_PATH
from clefq.errors import ClefqError

PATH = SYSTEMONE_PATH
PRECISION_HEADER = {"x-clefq-precision": "full"}
ATTEMPTS = 6
# Seconds; a cold hosted model may take a while to answer its first request.
TIMEOUT = 300.0
# A server that asks for a longer pause than this ends the run, which can be resumed.
LONGEST_PAUSE = 600.0
_LONGEST_OWN_PAUSE = 60.0
_FIRST_PAUSE = 0.5
# Answers that the next attempt may change.
_AGAIN = (408, 425, 429, 500, 502, 503, 504, 529)
_OVERLOADED = (429, 503, 529)
# Answers that no record can change.
_KEY = (401, 403)
_PLACE = (404, 405, 501)


class RefusedError(Exception):
    """The server will not answer this record; the message is one line."""


class Pace:
    """When the next request may be sent, for all threads; and how many may be sent at all.

    Args:
        rate: Requests a second, or None for no limit.
        budget: Requests in all, retries included, or None.
    """

    def __init__(self, rate: float | None = None, budget: int | None = None) -> None:
        self._interval = 0.0 if rate is None else 1.0 / rate
        self._budget = budget
        self._next = 0.0
        self._lock = threading.Lock()
        self.sent = 0

    def take(self) -> None:
        """Waits for its turn and counts one request.

        Raises:
            ClefqError: The budget is used up.
        """
        with self._lock:
            if self._budget is not None and self.sent >= self._budget:
                raise ClefqError(
                    f"the budget of {self._budget:,} requests is used up.",
                    fix="run the same command with another --budget; it resumes.",
                )
            self.sent += 1
            now = time.monotonic()
            at = max(now, self._next)
            self._next = at + self._interval
        if at > now:
            time.sleep(at - now)

    def hold(self, seconds: float) -> None:
        """Lets nobody send for a while: the server asked for it."""
        with self._lock:
            self._next = max(self._next, time.monotonic() + seconds)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a server is asked.

    Attributes:
        base: Address of the server.
        path: Of the endpoint behind it.
        key: Bearer token, or None.
        key_names: Environment variables that would set it, for messages.
    """

    base: str
    path: str = PATH
    key: str | None = None
    key_names: tuple[str, ...] = ("CLEFQ_API_KEY",)


class SystemOneClient:
    """Connections to one server.

    Args:
        endpoint: Where it is.
        connections: Most connections at a time.
        pace: How fast, and how many requests.
    """

    def __init__(self, endpoint: Endpoint, connections: int, pace: Pace | None = None) -> None:
        import httpx

        headers = dict(PRECISION_HEADER)
        if endpoint.key:
            headers["authorization"] = f"Bearer {endpoint.key}"
        self.endpoint = endpoint
        self.base = endpoint.base
        self.server = "unknown"
        self.pace = pace or Pace()
        self._http = httpx.Client(
            base_url=endpoint.base,
            headers=headers,
            timeout=httpx.Timeout(TIMEOUT, connect=15.0),
            limits=httpx.Limits(max_connections=connections),
        )

    def ask(self, body: dict[str, Any]) -> dict[str, Any]:
        """One request, repeated while the failure may pass.

        Returns:
            The decoded response.

        Raises:
            RefusedError: The server will not answer this record.
            ClefqError: The server cannot be reached, refuses the key or the address, is still
                overloaded, or the budget is used up.
        """
        response = self._send("POST", self.endpoint.path, body)
        if response.status_code != 200:
            raise RefusedError(
                f"the server answered {response.status_code}: {error_text(response)}"
            )
        try:
            value = response.json()
        except ValueError as error:
            raise RefusedError("the server's answer is not JSON") from error
        if not isinstance(value, dict):
            raise RefusedError("the server's answer is not a JSON object")
        return value

    def models(self) -> Any:
        """What `/v1/models` says; None where it says nothing.

        Raises:
            ClefqError: The server cannot be reached, or refuses the key.
        """
        response = self._send("GET", "/v1/models", None, place_matters=False)
        self.server = response.headers.get("server", "unknown")
        try:
            return response.json()
        except ValueError:
            return None

    def close(self) -> None:
        """Closes the connections."""
        self._http.close()

    def _send(self, method: str, path: str, body: Any, place_matters: bool = True) -> Any:
        import httpx

        for attempt in range(ATTEMPTS):
            if method == "POST":
                self.pace.take()
            try:
                response = self._http.request(method, path, json=body)
            except httpx.TransportError as error:
                if attempt + 1 == ATTEMPTS:
                    raise self._unreachable(error) from error
                self._pause(attempt, None)
                continue
            if response.status_code in _KEY:
                raise ClefqError(
                    f"{self.base} refuses the key ({response.status_code}).",
                    fix=f"set {' or '.join(self.endpoint.key_names)}.",
                )
            if response.status_code in _PLACE and place_matters:
                raise ClefqError(
                    f"{self.base} has no {path} ({response.status_code}): {error_text(response)}",
                    fix="check --url, --api and the model's name.",
                )
            if response.status_code in _AGAIN and attempt + 1 < ATTEMPTS:
                self._pause(attempt, response.headers.get("retry-after"))
                continue
            break
        if response.status_code in _OVERLOADED and method == "POST":
            raise ClefqError(
                f"{self.base} is still overloaded after {ATTEMPTS} attempts.",
                fix="run the same command later; it resumes. Or lower --concurrency or --rate.",
            )
        return response

    def _pause(self, attempt: int, retry_after: str | None) -> None:
        """Waits as the server asks, else exponentially with jitter."""
        asked = seconds_of(retry_after)
        if asked is not None and asked > LONGEST_PAUSE:
            raise ClefqError(
                f"{self.base} asks to wait {asked:,.0f} seconds.",
                fix="run the same command then; it resumes.",
            )
        if asked is not None:
            self.pace.hold(asked)
        own = _FIRST_PAUSE * 2**attempt * random.uniform(0.75, 1.25)
        time.sleep(min(own, _LONGEST_OWN_PAUSE) if asked is None else asked)

    def _unreachable(self, error: Exception) -> ClefqError:
        return ClefqError(
            f"cannot reach {self.base}: {error}.",
            fix="start the server, then run the same command; it resumes.",
        )


def seconds_of(retry_after: str | None) -> float | None:
    """The seconds of a `Retry-After`, in digits or as a date; None where it says neither."""
    if retry_after is None:
        return None
    text = retry_after.strip()
    if text.isdigit():
        return float(text)
    try:
        at = parsedate_to_datetime(text)
    except ValueError:
        return None
    at = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    return max(0.0, (at - datetime.now(UTC)).total_seconds())


def error_text(response: Any) -> str:
    """The server's own words, one line, at most 200 characters."""
    try:
        value = response.json()
    except ValueError:
        value = response.text
    for key in ("errors", "error", "detail", "message"):
        if isinstance(value, dict) and value.get(key):
            value = value[key]
            if isinstance(value, list) and value:
                value = value[0]
    return " ".join(str(value).split())[:200]
