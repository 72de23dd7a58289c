"""Choices that follow from a text alone, the same on every machine and in every version."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from clefq.plain_files import stable_key

T = TypeVar("T")


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
