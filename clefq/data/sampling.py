"""Stratified order of a pool of records, the same on every machine.

The result is an order, not a sample: every prefix of it keeps the strata in proportion, so that a
count, a token budget or a removed duplicate only decides how far down one goes, and a smaller set
is a prefix of a larger one. Within a stratum the order is by SHA-256 of seed and record id; no
random-number library is involved.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from clefq.data.definition import Allocation
from clefq.plain_files import stable_key

Indices = NDArray[np.int64]


def sample_key(seed: str, record_id: str) -> int:
    """64 bits of the SHA-256 of seed and record id."""
    return int.from_bytes(stable_key(seed, record_id)[:8], "big")


def length_stratum(size: int) -> int:
    """Band of a record's size in bytes: doubling bands, so a band means "twice as long"."""
    return size.bit_length()


def stratified_order(
    keys: NDArray[np.uint64],
    strata: Sequence[NDArray[np.int64]],
    allocate: Allocation = "proportional",
) -> Indices:
    """Positions of the pool in stratified order.

    Args:
        keys: uint64[n], from `sample_key`.
        strata: One int64[n] per dimension, the most important first; equal numbers are one
            stratum, their values mean nothing.
        allocate: `proportional`: a prefix of m of n records holds about m·s/n of a stratum of
            size s. `equal`: along the first dimension every stratum gives the same number, or
            all that it has; deeper dimensions stay proportional.

    Returns:
        int64[n], a permutation of range(n).
    """
    return _order(np.arange(len(keys), dtype=np.int64), keys, strata, allocate)


def _order(
    members: Indices,
    keys: NDArray[np.uint64],
    strata: Sequence[NDArray[np.int64]],
    allocate: Allocation,
) -> Indices:
    if not strata or len(members) == 0:
        return members[np.argsort(keys[members], kind="stable")]
    children = [
        _order(group, keys, strata[1:], "proportional") for group in _split(members, strata[0])
    ]
    # the child that holds the smallest key comes first: no label's name decides
    children.sort(key=lambda child: int(keys[child].min()))
    positions, numbers = [], []
    for number, child in enumerate(children):
        phase = (number + 0.5) / len(children)
        size = len(child) if allocate == "proportional" else 1
        positions.append((np.arange(len(child)) + phase) / size)
        numbers.append(np.full(len(child), number))
    order = np.lexsort((np.concatenate(numbers), np.concatenate(positions)))
    return np.concatenate(children)[order]


def _split(members: Indices, values: NDArray[np.int64]) -> list[Indices]:
    order = np.argsort(values[members], kind="stable")
    ordered = members[order]
    bounds = np.flatnonzero(np.diff(values[ordered])) + 1
    return [np.asarray(part, dtype=np.int64) for part in np.split(ordered, bounds)]
