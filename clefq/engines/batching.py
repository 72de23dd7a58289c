"""Which records run together.

Longest first, so that the largest batch is met at the start (memory that does not suffice shows
at once) and padding stays small. The plan is greedy from the front: leaving out its first batches
leaves the others as they are, so that a resumed run computes the same batches.
"""

from __future__ import annotations

from collections.abc import Sequence

# More records than this in a batch buy no speed, even when they are short.
MAX_RECORDS = 64


def plan_batches(lengths: Sequence[int], batch_tokens: int) -> list[list[int]]:
    """Groups prompts by length.

    Args:
        lengths: Tokens of each prompt, positive.
        batch_tokens: Most tokens of a batch, padding included; a longer prompt runs alone.

    Returns:
        Batches of indices into `lengths`, longest prompts first, equal lengths in given order.
    """
    order = sorted(range(len(lengths)), key=lambda index: (-lengths[index], index))
    batches: list[list[int]] = []
    room = 0
    for index in order:
        if room == 0:
            batches.append([])
            room = min(MAX_RECORDS, max(1, batch_tokens // lengths[index]))
        batches[-1].append(index)
        room -= 1
    return batches
