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
# Records of one bucket that a new one is compared with; beyond it the bucket is a template.
MAX_COMPARED = 2048

Kind = Literal["exact", "normalised", "near"]


@dataclass(frozen=True, slots=True)
class Removal:
    """A record that duplicates another.

    Attributes:
        index: The record that is removed.
        kept: The record that stands for both.
        kind: How they are alike.
        similarity: Jaccard similarity; 1 for exact and normalised.
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
    """

    exact: NDArray[np.uint64]
    normalised: NDArray[np.uint64]
    signatures: NDArray[np.uint32] | None
    rank: NDArray[np.int64]
    fixed: NDArray[np.bool_]
    within: bool = True


def find_duplicates(
    prints: Fingerprints, similarity: Callable[[int, int], float], threshold: float
) -> list[Removal]:
    """Every record that duplicates one of lower rank that is itself kept.

    Args:
        prints: The records.
        similarity: Exact Jaccard similarity of two records, by index.
        threshold: From which two records are near duplicates.

    Returns:
        Removals by rank of the removed record; a record is removed once, for the strongest kind.
    """
    gone = np.zeros(len(prints.rank), dtype=np.bool_)
    found: list[Removal] = []
    kinds: tuple[tuple[Kind, NDArray[np.uint64]], ...] = (
        ("exact", prints.exact),
        ("normalised", prints.normalised),
    )
    for kind, keys in kinds:
        for kept, index in _equal_pairs(keys, prints, gone):
            gone[index] = True
            found.append(Removal(index, kept, kind, 1.0))
    if prints.signatures is not None:
        found += _near(prints, gone, similarity, threshold)
    found.sort(key=lambda removal: int(prints.rank[removal.index]))
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
) -> list[Removal]:
    """Greedy by rank: a record goes if a kept one of lower rank is similar enough."""
    partners = _candidates(prints, gone, threshold)
    found = []
    for index in sorted(partners, key=lambda i: int(prints.rank[i])):
        for kept in sorted(partners[index], key=lambda i: int(prints.rank[i])):
            if gone[kept] or not (prints.within or prints.fixed[kept]):
                continue
            value = similarity(index, kept)
            if value >= threshold:
                gone[index] = True
                found.append(Removal(index, kept, "near", value))
                break
    return found


def _candidates(
    prints: Fingerprints, gone: NDArray[np.bool_], threshold: float
) -> dict[int, set[int]]:
    """Removable record → records of lower rank that share a band and look similar enough."""
    signatures = prints.signatures
    if signatures is None:
        return {}
    alive = np.flatnonzero(~gone)
    # the estimate's standard deviation is below 1/16; three of them let no true pair slip
    floor = threshold - 3 / np.sqrt(PERMUTATIONS) / 2
    partners: dict[int, set[int]] = {}
    for band in range(BANDS):
        keys = _band_keys(signatures, alive, band)
        for group in _groups(keys[:, None], prints.rank[alive]):
            members = alive[group]
            _pair_up(members, signatures, prints.fixed, floor, partners)
    return partners


def _pair_up(
    members: NDArray[np.int64],
    signatures: NDArray[np.uint32],
    fixed: NDArray[np.bool_],
    floor: float,
    partners: dict[int, set[int]],
) -> None:
    rows = signatures[members]
    for position in range(1, len(members)):
        index = int(members[position])
        if fixed[index]:
            continue
        first = max(0, position - MAX_COMPARED)
        alike = (rows[first:position] == rows[position]).mean(axis=1) >= floor
        if alike.any():
            hits = members[first:position][alike]
            partners.setdefault(index, set()).update(int(hit) for hit in hits)


def _band_keys(
    signatures: NDArray[np.uint32], alive: NDArray[np.int64], band: int
) -> NDArray[np.uint64]:
    keys = np.zeros(len(alive), dtype=np.uint64)
    for row in range(band * ROWS, (band + 1) * ROWS):
        keys = mix(keys ^ signatures[alive, row].astype(np.uint64))
    return keys
