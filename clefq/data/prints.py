"""Fingerprints of pools: what is compared of every record, and how alike two records are."""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from clefq.clef.records import Record
from clefq.data.content import (
    COMMON_SAMPLE,
    NOTHING,
    PERMUTATIONS,
    CommonShingles,
    SchemaTexts,
    answer_digest,
    fingerprint,
    jaccard,
    normalise,
    own_texts,
    shingles,
    without,
)
from clefq.data.pool import Pool
from clefq.plain_files import compact_json, sha256_file

_OWN = "own.jsonl"


class PoolPrints:
    """Fingerprints of one pool; the records' own texts lie beside it.

    Attributes:
        pool: The pool.
        exact: uint64[n, 2], 128-bit digests.
        normalised: As `exact`.
        golds: uint64[n], digests of the right answers, 0 where there are none.
        signatures: uint32[n, PERMUTATIONS] in a memory-mapped file, or None.
        offsets: int64[n + 1], byte offsets of the own texts.
    """

    def __init__(
        self,
        pool: Pool,
        schema: Schema,
        ngram: int | None,
        advance: Callable[[int], None] = lambda _: None,
    ) -> None:
        self.pool = pool
        count = len(pool)
        self.exact = np.zeros((count, 2), dtype=np.uint64)
        self.normalised = np.zeros((count, 2), dtype=np.uint64)
        self.golds = np.zeros(count, dtype=np.uint64)
        self.signatures: NDArray[np.uint32] | None = None
        if ngram is not None:
            self.signatures = np.lib.format.open_memmap(
                pool.folder / "signatures.npy",
                mode="w+",
                dtype=np.uint32,
                shape=(count, PERMUTATIONS),
            )
        offsets = array("q", [0])
        with pool.reader() as reader, self.own_path.open("wb") as file:
            for index, (record, media) in enumerate(reader.all()):
                texts = own_texts(record, schema.texts)
                hashes = media_hashes(record, media)
                marks = fingerprint(texts, hashes, ngram, schema.shingles)
                self.golds[index] = answer_digest(record)
                self.exact[index] = np.frombuffer(marks.exact, dtype=np.uint64)
                self.normalised[index] = np.frombuffer(marks.normalised, dtype=np.uint64)
                if self.signatures is not None and marks.signature is not None:
                    self.signatures[index] = marks.signature
                line = compact_json(texts).encode()
                offsets.append(offsets[-1] + file.write(line))
                advance(1)
        self.offsets = np.array(offsets, dtype=np.int64)

    @property
    def own_path(self) -> Path:
        """File of the records' own texts."""
        return self.pool.folder / _OWN


@dataclass(frozen=True, slots=True)
class Schema:
    """What many records share, so that it is not compared.

    Attributes:
        texts: Digests of instructions and options that come with different contexts.
        shingles: Hashes of shingles that many records hold, sorted.
    """

    texts: set[bytes]
    shingles: NDArray[np.uint64]


def learn_schema(pools: Sequence[Pool], ngram: int | None) -> Schema:
    """What is shared in any of the pools; looks at the first records of each."""
    shared: set[bytes] = set()
    for pool in pools:
        texts = SchemaTexts()
        with pool.reader() as reader:
            for index in range(min(len(pool), texts.limit)):
                texts.learn(reader.get(index)[0])
        shared |= texts.shared
    common = NOTHING
    if ngram is not None:
        for pool in pools:
            common = np.union1d(common, _common_shingles(pool, shared, ngram))
    return Schema(shared, common)


def _common_shingles(pool: Pool, shared: set[bytes], ngram: int) -> NDArray[np.uint64]:
    """Common shingles of a pool, from records spread over all of it."""
    common = CommonShingles(ngram)
    step = max(1, len(pool) // COMMON_SAMPLE)
    with pool.reader() as reader:
        for index in range(0, len(pool), step):
            if common.full:
                break
            common.learn(own_texts(reader.get(index)[0], shared))
    return common.found()


def media_hashes(record: Record, media: dict[str, Path]) -> tuple[str, ...]:
    """SHA-256 of a record's images and videos, in prompt order."""
    return tuple(sha256_file(media[name]) for name in (*record.images, *record.videos))


Parts = tuple[NDArray[np.uint64], NDArray[np.uint64] | None]


class Similarity:
    """How alike records are that lie in several pools, addressed in a row.

    The state and the record's own questions are compared apart, and the lower Jaccard similarity
    counts: two questions about one long passage are two records, and so are two states under
    one instruction. Where either record has no question of its own, the states decide.

    Args:
        prints: One per pool.
        places: int64[n, 2]: number of the pool, position in it.
        ngram: Characters in a shingle.
        common: Shingles that many records hold, sorted.
    """

    def __init__(
        self,
        prints: Sequence[PoolPrints],
        places: NDArray[np.int64],
        ngram: int,
        common: NDArray[np.uint64] = NOTHING,
    ) -> None:
        self._stack = ExitStack()
        self._files = [self._stack.enter_context(p.own_path.open("rb")) for p in prints]
        self._offsets = [p.offsets for p in prints]
        self._places = places
        self._ngram = ngram
        self._common = common
        self._last: tuple[int, Parts] | None = None

    def __enter__(self) -> Similarity:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def __call__(self, left: int, right: int) -> float:
        """Similarity of two records; the same left one may come many times in a row."""
        if self._last is None or self._last[0] != left:
            self._last = (left, self._parts(left))
        (state, own), (other_state, other_own) = self._last[1], self._parts(right)
        value = self._compare(state, other_state)
        if own is None or other_own is None:
            return value
        return min(value, self._compare(own, other_own))

    def _compare(self, left: NDArray[np.uint64], right: NDArray[np.uint64]) -> float:
        if np.array_equal(left, right):
            return 1.0
        left, right = without(left, self._common), without(right, self._common)
        return jaccard(left, right) if len(left) and len(right) else 0.0

    def _parts(self, index: int) -> Parts:
        pool, position = (int(number) for number in self._places[index])
        start, end = (int(number) for number in self._offsets[pool][position : position + 2])
        file = self._files[pool]
        file.seek(start)
        texts = [normalise(text) for text in json.loads(file.read(end - start))]
        own = shingles(texts[1:], self._ngram) if len(texts) > 1 else None
        return shingles(texts[:1], self._ngram), own
