"""One order for everything, from a hash of the ids: independent of files, machines and versions.

The hash is written out here because the library ones may change: FNV-1a (64 bit) over the UTF-8
bytes, then the splitmix64 finalizer (FNV's low bits alone are poorly mixed for short ids).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

_FNV_OFFSET = np.uint64(0xCBF29CE484222325)
_FNV_PRIME = np.uint64(0x100000001B3)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


def hash64(ids: npt.NDArray[np.object_] | pa.Array) -> npt.NDArray[np.uint64]:
    """Hashes strings, one pass over the bytes per position instead of one call per string.

    Args:
        ids: Strings, object or Arrow text [m].

    Returns:
        Hashes, uint64 [m].
    """
    text = pa.concat_arrays([pa.array(ids, type=pa.large_string())])  # from its first byte on
    offsets = np.frombuffer(text.buffers()[1], dtype=np.int64)[: len(ids) + 1]
    buffer = text.buffers()[2]
    data = np.frombuffer(buffer if buffer is not None else b"", dtype=np.uint8)
    by_length = np.argsort(-np.diff(offsets), kind="stable")
    start, lengths = offsets[:-1][by_length], np.diff(offsets)[by_length]
    state = np.full(len(ids), _FNV_OFFSET, dtype=np.uint64)
    longest = int(lengths[0]) if len(lengths) else 0
    # strings lie longest first, so those that still have a byte at `column` are a prefix
    alive = len(ids) - np.searchsorted(lengths[::-1], np.arange(longest), side="right")
    for column in range(longest):
        rows = int(alive[column])
        state[:rows] ^= data[start[:rows] + column]
        state[:rows] *= _FNV_PRIME
    result = np.empty_like(state)
    result[by_length] = _finalize(state)
    return result


def hash_ranks(ids: npt.NDArray[np.object_] | pa.Array) -> npt.NDArray[np.int64]:
    """The rank of each of m distinct ids in hash order (ties of the hash: by id), int64 [m]."""
    hashes = hash64(ids)
    order = np.argsort(hashes, kind="stable")
    ordered = hashes[order]
    if bool(np.any(ordered[1:] == ordered[:-1])):
        order = np.array(
            sorted(range(len(ids)), key=lambda i: (int(hashes[i]), str(ids[i]))), dtype=np.int64
        )
    ranks = np.empty(len(ids), dtype=np.int64)
    ranks[order] = np.arange(len(ids))
    return ranks


def _finalize(state: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    state = (state ^ (state >> np.uint64(30))) * _MIX_1
    state = (state ^ (state >> np.uint64(27))) * _MIX_2
    mixed: npt.NDArray[np.uint64] = state ^ (state >> np.uint64(31))
    return mixed
