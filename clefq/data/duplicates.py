"""Finds exact, normalised and near duplicates among fingerprints, in bounded memory.

Near duplicates: locality-sensitive hashing over MinHash signatures (16 bands of 4 rows finds a
pair of similarity 0.8 with a probability of 0.9998) proposes pairs; the caller's exact Jaccard
similarity decides. Per record, 96 bytes stay in memory; signatures may lie in a memory-mapped
file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from clefq.data.content import PERMUTATIONS, mix

BANDS = 16
ROWS = PERMUTATIONS // BANDS
# Records of one bucket that a new one is compared with, the nearest in rank.
MAX_COMPARED = 256
_CHUNK = 1 << 16

Kind = Literal["conflict", "exact", "normalised", "near"]
Differ = Callable[[int, int], bool]


@dataclass(frozen=True, slots=True)
class Removal:
    """A record that duplicates another.

    Attributes:
        index: The record that is removed.
        kept: The record that stands for both; of a conflict, one with another right answer.
        kind: How they are alike; a `conflict` is alike up to case and spacing, and contradicts.
        similarity: Jaccard similarity; 1 for all but near ones.
    """

    index: int
    kept: int
    kind: Kind
    similarity: float


@dataclass(frozen=True, slots=True)
class Fingerprints:
    """Fingerprints of many records.

    Attributes:
        exact: uint64[n, 2], 128-bit digests.
        normalised: As `exact`.
        signatures: uint32[n, PERMUTATIONS], or None when near duplicates are not looked for.
        rank: int64[n]; of two duplicates the one of lower rank is kept.
        fixed: bool[n]; never removed (sets and lists that are only compared with); their ranks
            are below all others.
        within: Whether records that are not fixed are compared with each other.
        golds: uint64[n], digest of the right answers, 0 where there are none; None: right answers
            do not matter.
    """

    exact: NDArray[np.uint64]
    normalised: NDArray[np.uint64]
    signatures: NDArray[np.uint32] | None
    rank: NDArray[np.int64]
    fixed: NDArray[np.bool_]
    within: bool = True
    golds: NDArray[np.uint64] | None = None


def find_duplicates(
    prints: Fingerprints,
    similarity: Callable[[int, int], float],
    threshold: float,
    differ: Differ = lambda left, right: True,
) -> list[Removal]:
    """Every record that duplicates one of lower rank that is itself kept.

    Where right answers matter, records of one content with different ones are conflicts: all of
    them go, none is kept by chance. Records that are only nearly alike stay where theirs differ.

    Args:
        prints: The records.
        similarity: Exact Jaccard similarity of two records, by index.
        threshold: From which two records are near duplicates.
        differ: Whether the right answers of two records with different digests contradict.

    Returns:
        Removals by rank of the removed record; a record is removed once, for the strongest kind.
    """
    gone = np.zeros(len(prints.rank), dtype=np.bool_)
    found: list[Removal] = []
    if prints.golds is not None:
        found += _conflicts(prints, prints.golds, gone, differ)
    kinds: tuple[tuple[Kind, NDArray[np.uint64]], ...] = (
        ("exact", prints.exact),
        ("normalised", prints.normalised),
    )
    for kind, keys in kinds:
        for kept, index in _equal_pairs(keys, prints, gone):
            gone[index] = True
            found.append(Removal(index, kept, kind, 1.0))
    if prints.signatures is not None:
        found += _near(prints, gone, similarity, threshold, differ)
    found.sort(key=lambda removal: int(prints.rank[removal.index]))
    return found


def _conflicts(
    prints: Fingerprints, golds: NDArray[np.uint64], gone: NDArray[np.bool_], differ: Differ
) -> list[Removal]:
    """All records of every content that has several right answers."""
    found = []
    for group in _groups(prints.normalised, prints.rank):
        answers: dict[int, int] = {}  # digest → first record with it
        for index in group[golds[group] != 0]:
            answers.setdefault(int(golds[index]), int(index))
        firsts = list(answers.values())
        other = {
            left: right
            for left in firsts
            for right in firsts
            if left != right and differ(left, right)
        }
        if not other:
            continue
        one, two = next(iter(other.items()))
        for index in map(int, group[~prints.fixed[group]]):
            kept = other.get(answers.get(int(golds[index]), -1), one)
            gone[index] = True
            found.append(Removal(index, kept if kept != index else two, "conflict", 1.0))
    return found


def _equal_pairs(
    keys: NDArray[np.uint64], prints: Fingerprints, gone: NDArray[np.bool_]
) -> Iterator[tuple[int, int]]:
    """(kept, removed) for records with the same key."""
    alive = np.flatnonzero(~gone)
    for group in _groups(keys[alive], prints.rank[alive]):
        members = alive[group]
        if not prints.within and not prints.fixed[members[0]]:
            continue
        for index in members[1:]:
            if not prints.fixed[index]:
                yield int(members[0]), int(index)


def _groups(keys: NDArray[np.uint64], rank: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    """Positions of equal keys (uint64[n, k]), groups of two and more, each ordered by rank."""
    if len(keys) == 0:
        return
    order = np.lexsort((rank, *keys.T))
    ordered = keys[order]
    bounds = np.flatnonzero((ordered[1:] != ordered[:-1]).any(axis=1)) + 1
    edges = np.concatenate(([0], bounds, [len(order)]))
    for number in np.flatnonzero(np.diff(edges) > 1):
        yield order[edges[number] : edges[number + 1]]


def _near(
    prints: Fingerprints,
    gone: NDArray[np.bool_],
    similarity: Callable[[int, int], float],
    threshold: float,
    differ: Differ,
) -> list[Removal]:
    """Greedy by rank: a record goes if a kept one of lower rank is similar enough."""
    found = []
    for index, kept in _candidates(prints, gone, threshold):
        if gone[index] or gone[kept] or not (prints.within or prints.fixed[kept]):
            continue
        if _contradict(prints.golds, index, kept, differ):
            continue
        value = similarity(index, kept)
        if value >= threshold:
            gone[index] = True
            found.append(Removal(index, kept, "near", value))
    return found


def _contradict(golds: NDArray[np.uint64] | None, left: int, right: int, differ: Differ) -> bool:
    if golds is None or golds[left] == golds[right] or 0 in (golds[left], golds[right]):
        return False
    return differ(left, right)


def _candidates(
    prints: Fingerprints, gone: NDArray[np.bool_], threshold: float
) -> Iterator[tuple[int, int]]:
    """(record, another of lower rank) that share a band and look similar enough, by rank."""
    signatures = prints.signatures
    if signatures is None:
        return
    alive = np.flatnonzero(~gone)
    # the estimate's standard deviation is at most 1/16; three of them let no true pair slip
    floor = threshold - 3 / np.sqrt(PERMUTATIONS) / 2
    found = [np.zeros((0, 2), dtype=np.int64)]
    for band in range(BANDS):
        keys = _band_keys(signatures, alive, band)
        order = np.lexsort((prints.rank[alive], keys))
        found.append(_pairs(alive[order], keys[order], prints, floor))
    pairs = np.unique(np.concatenate(found), axis=0)
    order = np.lexsort((prints.rank[pairs[:, 1]], prints.rank[pairs[:, 0]]))
    for index, kept in pairs[order]:
        yield int(index), int(kept)


def _pairs(
    members: NDArray[np.int64], keys: NDArray[np.uint64], prints: Fingerprints, floor: float
) -> NDArray[np.int64]:
    """Pairs of equal key whose signatures agree in a share of at least `floor`.

    Compares every record with the one before it in its bucket, then with the one before that,
    and so on, all buckets at once.
    """
    found = [np.zeros((0, 2), dtype=np.int64)]
    position = np.arange(len(members))
    for distance in range(1, MAX_COMPARED + 1):
        position = position[position >= distance]
        position = position[keys[position] == keys[position - distance]]
        if len(position) == 0:
            break
        left = members[position]
        right = members[position - distance]
        wanted = ~prints.fixed[left]
        found.append(_alike(left[wanted], right[wanted], prints, floor))
    return np.concatenate(found)


def _alike(
    left: NDArray[np.int64], right: NDArray[np.int64], prints: Fingerprints, floor: float
) -> NDArray[np.int64]:
    kept = [np.zeros((0, 2), dtype=np.int64)]
    for start in range(0, len(left), _CHUNK):
        part = np.stack([left[start : start + _CHUNK], right[start : start + _CHUNK]], axis=1)
        rows = prints.signatures
        if rows is not None:
            share = (rows[part[:, 0]] == rows[part[:, 1]]).mean(axis=1)
            kept.append(part[share >= floor])
    return np.concatenate(kept)


def _band_keys(
    signatures: NDArray[np.uint32], alive: NDArray[np.int64], band: int
) -> NDArray[np.uint64]:
    keys = np.zeros(len(alive), dtype=np.uint64)
    for row in range(band * ROWS, (band + 1) * ROWS):
        keys = mix(keys ^ signatures[alive, row].astype(np.uint64))
    return keys
