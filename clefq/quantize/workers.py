"""Threads over independent tensors: numpy, torch, hashing and reading all release the lock."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

A = TypeVar("A")
B = TypeVar("B")


def default_workers() -> int:
    """One worker per core that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def in_threads(
    function: Callable[[A], B], items: Iterable[A], workers: int | None = None
) -> Iterator[B]:
    """The function's results in the order of the items, by one thread per core or `workers`."""
    with ThreadPoolExecutor(workers or default_workers()) as pool:
        yield from pool.map(function, items)
