"""Who may ask, and how often: named bearer tokens, each with a rate of its own."""

from __future__ import annotations

import hashlib
import hmac
import math
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from clefq.serving.http.errors import OVERLOADED, UNAUTHENTICATED, ApiError
from clefq.serving.http.tokens import Rate, Token

if TYPE_CHECKING:
    from starlette.datastructures import Headers

_BEARER = {"www-authenticate": "Bearer"}
NOBODYS = Token("anybody", "")
"""Who asks a server without tokens, in logs and metrics."""


class Clients:
    """The tokens that a server takes; they can be replaced while it runs.

    Args:
        tokens: None are asked for when empty.
        clock: Seconds, monotonic.
    """

    def __init__(
        self, tokens: Sequence[Token], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self._known: list[tuple[bytes, Token]] = []
        self._buckets: dict[str, _Bucket] = {}
        self.replace(tokens)

    def replace(self, tokens: Sequence[Token]) -> None:
        """Takes these from now on; what a client has used of its rate stays used."""
        # digests have one length, so that comparing them takes one time
        self._known = [(_digest(token.secret), token) for token in tokens]
        self._buckets = {
            token.name: self._buckets.get(token.name) or _Bucket(self._clock())
            for token in tokens
            if token.rate is not None
        }

    def token_of(self, headers: Headers) -> Token:
        """Who asks.

        Raises:
            ApiError: No token, or one that is not known.
        """
        if not self._known:
            return NOBODYS
        kind, _, secret = headers.get("authorization", "").partition(" ")
        digest = _digest(secret.strip())
        found = None
        for known, token in self._known:  # all of them, whichever it is
            if hmac.compare_digest(known, digest):
                found = token
        if kind.lower() != "bearer" or found is None:
            message = "give the server's token as `Authorization: Bearer TOKEN`"
            raise ApiError.of(UNAUTHENTICATED, message, headers=_BEARER)
        return found

    def take(self, token: Token) -> None:
        """Counts a request.

        Args:
            token: From `token_of`.

        Raises:
            ApiError: More than its rate.
        """
        if token.rate is None:
            return
        wait = self._buckets[token.name].take(token.rate, self._clock())
        if wait > 0:
            seconds = math.ceil(wait)
            message = (
                f"more than {token.rate.count} requests in {token.rate.seconds:g} s with this "
                f"token; try again in {seconds} s"
            )
            raise ApiError.of(OVERLOADED, message, headers={"retry-after": str(seconds)})


class _Bucket:
    """Refills evenly; holds what a rate allows at once."""

    def __init__(self, now: float) -> None:
        self._at = now
        self._used = 0.0

    def take(self, rate: Rate, now: float) -> float:
        """Takes one, or says how many seconds are left until there is one."""
        self._used = max(0.0, self._used - (now - self._at) * rate.count / rate.seconds)
        self._at = now
        if self._used + 1 > rate.count + 1e-9:
            return (self._used + 1 - rate.count) * rate.seconds / rate.count
        self._used += 1
        return 0.0


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
