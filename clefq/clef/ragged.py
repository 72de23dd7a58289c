"""Attention over many records at once, each record's queries seeing only its own keys.

Records differ in length by two orders of magnitude, so padding all to the longest would multiply
the work. A plan sorts them into groups of similar size: a group of several records is padded to
its own longest member and masked; a record alone is read in place, its queries in chunks where
the scores would be large. Which grouping is chosen never changes the result beyond rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

# Scores of one call, per head: 4 Mi × 16 heads × 4 bytes is 256 MiB where a kernel holds them.
SCORE_LIMIT = 1 << 22
# A group's longest record has at most this ratio to its shortest, plus a few tokens.
_LENGTH_RATIO = 1.25
_LENGTH_SLACK = 32


@dataclass(frozen=True, slots=True)
class Single:
    """One record, read in place: half-open ranges of query and key rows."""

    query_start: int
    query_end: int
    key_start: int
    key_end: int


@dataclass(frozen=True, slots=True)
class Padded:
    """Several records of similar size.

    Attributes:
        queries: Query rows, padded with a real row, int64 [records, longest].
        keys: Key rows, padded with a real row, int64 [records, longest].
        mask: True where a key is real, bool [records, 1, 1, longest]; None when all are.
        valid: Flat positions of the real queries in `queries`, int64; None when all are.
    """

    queries: Tensor
    keys: Tensor
    mask: Tensor | None
    valid: Tensor | None


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """How to attend: groups, and how to put their outputs back in query order.

    Attributes:
        groups: In the order in which they are computed.
        order: Position in the concatenated group outputs of each query row, int64; None when the
            outputs are in order already.
    """

    groups: tuple[Single | Padded, ...]
    order: Tensor | None

    @classmethod
    def build(
        cls,
        query_lengths: Sequence[int],
        key_lengths: Sequence[int],
        device: torch.device | str = "cpu",
        *,
        pad: bool = True,
        score_limit: int = SCORE_LIMIT,
    ) -> AttentionPlan:
        """Plans attention for records whose query and key rows are concatenated in order.

        Args:
            query_lengths: Query rows per record, each at least one.
            key_lengths: Key rows per record, each at least one.
            device: Where the index tensors go.
            pad: Group records of similar size (fewer, larger kernels); off: one by one.
            score_limit: Most query-key pairs of one call.
        """
        query_ends = np.cumsum(query_lengths)
        key_ends = np.cumsum(key_lengths)
        groups: list[Single | Padded] = []
        order: list[np.ndarray] = []
        for members in _members(query_lengths, key_lengths, score_limit, pad):
            ranges = [
                Single(
                    int(query_ends[i]) - query_lengths[i],
                    int(query_ends[i]),
                    int(key_ends[i]) - key_lengths[i],
                    int(key_ends[i]),
                )
                for i in members
            ]
            if len(ranges) == 1:
                groups += _chunks(ranges[0], score_limit)
            else:
                groups.append(_padded(ranges, device))
            order += [np.arange(span.query_start, span.query_end) for span in ranges]
        rows = np.concatenate(order)
        in_order = bool((rows == np.arange(len(rows))).all())
        places = None if in_order else torch.from_numpy(np.argsort(rows)).to(device)
        return cls(tuple(groups), places)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, heads: int) -> Tensor:
        """Multi-head scaled dot-product attention, without projections.

        Args:
            query: [query rows, width].
            key: [key rows, width].
            value: [key rows, width].
            heads: Divides width.

        Returns:
            [query rows, width].
        """
        outputs = [_attend_group(group, query, key, value, heads) for group in self.groups]
        joined = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
        return joined if self.order is None else joined[self.order]


def _members(
    query_lengths: Sequence[int], key_lengths: Sequence[int], score_limit: int, pad: bool
) -> list[list[int]]:
    """Record indices per group, similar sizes together."""
    if not pad:
        return [[i] for i in range(len(key_lengths))]
    by_size = sorted(range(len(key_lengths)), key=lambda i: (key_lengths[i], query_lengths[i]))
    groups: list[list[int]] = []
    widest = 0
    for i in by_size:
        if groups:
            group = groups[-1]
            width = max(widest, query_lengths[i])
            near = key_lengths[i] <= key_lengths[group[0]] * _LENGTH_RATIO + _LENGTH_SLACK
            if near and (len(group) + 1) * width * key_lengths[i] <= score_limit:
                group.append(i)
                widest = width
                continue
        groups.append([i])
        widest = query_lengths[i]
    return groups


def _chunks(span: Single, score_limit: int) -> list[Single | Padded]:
    rows = max(1, score_limit // (span.key_end - span.key_start))
    return [
        Single(start, min(start + rows, span.query_end), span.key_start, span.key_end)
        for start in range(span.query_start, span.query_end, rows)
    ]


def _padded(ranges: list[Single], device: torch.device | str) -> Padded:
    queries, real_queries = _pad_rows([(r.query_start, r.query_end) for r in ranges])
    keys, real_keys = _pad_rows([(r.key_start, r.key_end) for r in ranges])
    mask = None if real_keys.all() else torch.from_numpy(real_keys)[:, None, None, :].to(device)
    valid = None
    if not real_queries.all():
        valid = torch.from_numpy(np.flatnonzero(real_queries)).to(device)
    return Padded(
        torch.from_numpy(queries).to(device), torch.from_numpy(keys).to(device), mask, valid
    )


def _pad_rows(ranges: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    starts = np.array([start for start, _ in ranges])[:, None]
    lengths = np.array([end - start for start, end in ranges])[:, None]
    column = np.arange(lengths.max())[None, :]
    real = column < lengths
    return np.where(real, starts + column, starts), real


def _attend_group(
    group: Single | Padded, query: Tensor, key: Tensor, value: Tensor, heads: int
) -> Tensor:
    width = query.shape[-1]
    mask = None
    if isinstance(group, Single):
        q = query[None, group.query_start : group.query_end]
        k = key[None, group.key_start : group.key_end]
        v = value[None, group.key_start : group.key_end]
    else:
        q, k, v = query[group.queries], key[group.keys], value[group.keys]
        mask = group.mask
    # [records, rows, width] -> [records, heads, rows, width / heads]
    q, k, v = (x.view(*x.shape[:2], heads, width // heads).transpose(1, 2) for x in (q, k, v))
    mixed = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    rows = mixed.transpose(1, 2).reshape(-1, width)
    if isinstance(group, Padded) and group.valid is not None:
        rows = rows[group.valid]
    return rows
