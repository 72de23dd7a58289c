"""Choices that follow from a text alone, the same on every machine and in every version."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import TypeVar

T = TypeVar("T")


def stable_order(items: Iterable[str], salt: str) -> list[str]:
    """Items in an order that looks random but is the same on every machine.

    Sorted by SHA-256 of `salt`, a NUL and the item: no random-number library, whose streams
    differ between versions, is involved.
    """
    return sorted(items, key=lambda item: stable_key(salt, item))


def stable_key(salt: str, item: str) -> bytes:
    """SHA-256 of `salt`, a NUL and `item`."""
    return hashlib.sha256(f"{salt}\0{item}".encode("utf-8", "surrogatepass")).digest()


class HashedChoices:
    """A stream of choices drawn from SHA-256 of a key and a counter.

    Args:
        key: Text that everything follows from.
    """

    def __init__(self, key: str) -> None:
        self._key = key
        self._count = 0

    def below(self, limit: int) -> int:
        """A whole number from 0 to `limit` - 1."""
        self._count += 1
        digest = stable_key(self._key, str(self._count))
        return int.from_bytes(digest[:16], "big") % limit

    def between(self, low: int, high: int) -> int:
        """A whole number from `low` to `high`, both included."""
        return low + self.below(high - low + 1)

    def pick(self, items: Sequence[T]) -> T:
        """One of the items."""
        return items[self.below(len(items))]

    def shuffled(self, items: Sequence[T]) -> list[T]:
        """The items in another order (Fisher-Yates)."""
        result = list(items)
        for last in range(len(result) - 1, 0, -1):
            other = self.below(last + 1)
            result[last], result[other] = result[other], result[last]
        return result
