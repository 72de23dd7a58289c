"""The wire side of the http engine: requests, retries, and which failures end a run."""

from __future__ import annotations

import random
import time
from typing import Any

from clefq.errors import ClefqError, InputError

PATH = "/v1/systemone"
PRECISION_HEADER = {"x-clefq-precision": "full"}
ATTEMPTS = 6
# Seconds; a cold hosted model may take a while to answer its first request.
TIMEOUT = 300.0
LONGEST_PAUSE = 60.0
_FIRST_PAUSE = 0.5
# Answers that the next attempt may change.
_AGAIN = (408, 425, 429, 500, 502, 503, 504)
# Answers that no record can change.
_KEY = (401, 403)
_PLACE = (404, 405)


class RefusedError(Exception):
    """The server will not answer this record; the message is one line."""


class SystemOneClient:
    """Connections to one server.

    Args:
        url: Base URL, with or without `/v1/systemone`.
        key: Bearer token, or None.
        connections: Most connections at a time.

    Raises:
        InputError: The URL is not http or https.
    """

    def __init__(self, url: str, key: str | None, connections: int) -> None:
        import httpx

        base = url.rstrip("/").removesuffix(PATH)
        if not base.startswith(("http://", "https://")):
            raise InputError(f"--url {url!r} is no http address.", fix="give http://HOST:PORT.")
        headers = dict(PRECISION_HEADER)
        if key:
            headers["authorization"] = f"Bearer {key}"
        self.base = base
        self.server = "unknown"
        self._http = httpx.Client(
            base_url=base,
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
            ClefqError: The server cannot be reached, or refuses the key or the address.
        """
        response = self._send("POST", PATH, body)
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

    def details(self, model: str, key: str) -> dict[str, Any]:
        """What `/v1/models` says about a model under `key`; empty where it says nothing.

        Raises:
            ClefqError: The server cannot be reached, or refuses the key.
        """
        response = self._send("GET", "/v1/models", None, place_matters=False)
        self.server = response.headers.get("server", "unknown")
        try:
            entries = response.json()["data"]
            found = next(entry for entry in entries if entry["id"] == model)
            details = found.get(key, {})
        except (ValueError, KeyError, TypeError, AttributeError, StopIteration):
            return {}
        return details if isinstance(details, dict) else {}

    def close(self) -> None:
        """Closes the connections."""
        self._http.close()

    def _send(self, method: str, path: str, body: Any, place_matters: bool = True) -> Any:
        import httpx

        for attempt in range(ATTEMPTS):
            try:
                response = self._http.request(method, path, json=body)
            except httpx.TransportError as error:
                if attempt + 1 == ATTEMPTS:
                    raise self._unreachable(error) from error
                _pause(attempt, None)
                continue
            if response.status_code in _KEY:
                raise ClefqError(
                    f"{self.base} refuses the key ({response.status_code}).",
                    fix="set CLEFQ_API_KEY.",
                )
            if response.status_code in _PLACE and place_matters:
                raise ClefqError(
                    f"{self.base} has no {path} ({response.status_code}): {error_text(response)}",
                    fix="check --url and the model's name.",
                )
            if response.status_code in _AGAIN and attempt + 1 < ATTEMPTS:
                _pause(attempt, response.headers.get("retry-after"))
                continue
            break
        if response.status_code in (429, 503) and method == "POST":
            raise ClefqError(
                f"{self.base} is still overloaded after {ATTEMPTS} attempts.",
                fix="run the same command later; it resumes. Or lower --concurrency.",
            )
        return response

    def _unreachable(self, error: Exception) -> ClefqError:
        return ClefqError(
            f"cannot reach {self.base}: {error}.",
            fix="start the server, then run the same command; it resumes.",
        )


def _pause(attempt: int, retry_after: str | None) -> None:
    """Waits as the server asks, else exponentially with jitter."""
    seconds = _FIRST_PAUSE * 2**attempt * random.uniform(0.75, 1.25)
    if retry_after is not None and retry_after.strip().isdigit():
        seconds = float(retry_after)
    time.sleep(min(seconds, LONGEST_PAUSE))


def error_text(response: Any) -> str:
    """The server's own words, one line, at most 200 characters."""
    try:
        value = response.json()
    except ValueError:
        value = response.text
    for key in ("error", "detail", "message"):
        if isinstance(value, dict) and key in value:
            value = value[key]
    return " ".join(str(value).split())[:200]
