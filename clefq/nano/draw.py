"""Randomness of the miniature's tasks: a record depends on its task, split, seed and index alone.

Splits cannot meet: every invented name and code belongs to exactly one split, by its own hash,
and every record holds some.
"""

from __future__ import annotations

import hashlib
import random
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from clefq.clef.records import Question

_T = TypeVar("_T")

# Share of the invented words, in tenths, that belongs to each split.
_BUCKETS = {"train": range(8), "calibration": range(8, 9), "eval": range(9, 10)}
SPLITS = tuple(_BUCKETS)
_ONSETS = [
    "b",
    "d",
    "f",
    "g",
    "h",
    "j",
    "k",
    "l",
    "m",
    "n",
    "p",
    "r",
    "s",
    "t",
    "v",
    "z",
    "br",
    "dr",
    "gr",
    "kl",
    "pl",
    "st",
    "tr",
]
_VOWELS = ["a", "e", "i", "o", "u", "ai", "ea", "io"]
_CODAS = ["", "", "", "n", "r", "l", "s", "m", "x"]
_LETTERS = "ABCDEFGHJKLMNPQRSTUVWXYZ"


@dataclass(frozen=True, slots=True)
class Draft:
    """A record without its id and cohort.

    Attributes:
        state: Any JSON value.
        asked: Question and its gold option id, in prompt order.
        images: Number of images, all drawn from the record's own scenes.
    """

    state: Any
    asked: tuple[tuple[Question, str], ...]
    images: int = 0


class Draw:
    """The random choices of one record.

    Args:
        key: What the record is: equal keys give equal records.
        split: `train`, `calibration` or `eval`: which invented words it may use.
        level: Size of the record, from 0 (smallest) to 1 (everything the task offers).
    """

    def __init__(self, key: str, split: str, level: float = 1.0) -> None:
        seed = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big")
        self._random = random.Random(seed)
        self._bucket = _BUCKETS[split]
        self.split = split
        self.level = level
        self._used: set[str] = set()

    def upto(self, low: int, high: int) -> int:
        """A whole number from `low` to `high`, both included; `high` shrinks with the level."""
        return self._random.randint(low, low + round((high - low) * self.level))

    def whole(self, low: int, high: int) -> int:
        """A whole number from `low` to `high`, both included, whatever the level."""
        return self._random.randint(low, high)

    def real(self) -> float:
        """Uniform in [0, 1)."""
        return self._random.random()

    def normal(self, sigma: float) -> float:
        """Normal with mean 0."""
        return self._random.gauss(0.0, sigma)

    def chance(self, probability: float) -> bool:
        """True with this probability."""
        return self._random.random() < probability

    def one(self, items: Sequence[_T]) -> _T:
        """One of the items."""
        return items[self._random.randrange(len(items))]

    def some(self, items: Sequence[_T], count: int) -> list[_T]:
        """`count` different items, in random order."""
        return self._random.sample(list(items), count)

    def mixed(self, items: Sequence[_T]) -> list[_T]:
        """All items, in random order."""
        return self.some(items, len(items))

    def weighted(self, items: Sequence[_T], weights: Sequence[float]) -> _T:
        """One of the items, with these relative weights."""
        return self._random.choices(list(items), list(weights))[0]

    def name(self) -> str:
        """An invented capitalised word of this split, new in this record."""
        while True:
            parts = [
                self.one(_ONSETS) + self.one(_VOWELS) + self.one(_CODAS)
                for _ in range(self.whole(2, 3))
            ]
            word = "".join(parts)
            if self._own(word):
                return word.capitalize()

    def code(self) -> str:
        """A reference such as `KT-4821` of this split, new in this record."""
        while True:
            letters = self.one(_LETTERS) + self.one(_LETTERS)
            code = f"{letters}-{self.whole(1000, 9999)}"
            if self._own(code):
                return code

    def names(self, count: int) -> list[str]:
        """Different invented words."""
        return [self.name() for _ in range(count)]

    def option_ids(self, count: int) -> list[str]:
        """Different option ids of one style; they say nothing about the options."""
        style = self.whole(0, 3)
        if style == 0:
            return [self.name().lower() for _ in range(count)]
        if style == 1:
            return [self.code() for _ in range(count)]
        if style == 2:
            numbers = self.some(range(10, 100 if count <= 45 else 1000), count)
            return [f"option_{number}" for number in numbers]
        return [f"{self.name().lower()}_{self.whole(1, 9)}" for _ in range(count)]

    def _own(self, word: str) -> bool:
        if word in self._used or zlib.crc32(word.lower().encode()) % 10 not in self._bucket:
            return False
        self._used.add(word)
        return True


def listed(words: Sequence[str], last: str = "and") -> str:
    """Words as a list in prose: `a, b and c`."""
    if len(words) == 1:
        return words[0]
    return f"{', '.join(words[:-1])} {last} {words[-1]}"
