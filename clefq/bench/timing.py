"""Timing: what a run of seconds says, and works compared within one run.

Machines are shared and change their clock, so a number belongs to its run: works that are to be
compared take turns (`take_turns`), and what is reported of them is a ratio.
"""

from __future__ import annotations

import math
import resource
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Percentiles of measured seconds; lower is better.

    A percentile is a value that was measured: the smallest one that at least that share of all
    values does not exceed. It is never interpolated below what somebody waited. With fewer than
    20 (100) values the 95th (99th) percentile is the largest.

    Attributes:
        count: Number of values.
        mean: Seconds.
        median: Seconds.
        p95: Seconds.
        p99: Seconds.
        largest: Seconds.
    """

    count: int
    mean: float
    median: float
    p95: float
    p99: float
    largest: float


@dataclass(frozen=True, slots=True)
class Turns:
    """Several runs of one work.

    Attributes:
        seconds: Wall time of each run.
        cpu: CPU seconds of this process (all threads) in each run.
        result: What the last run returned.
    """

    seconds: tuple[float, ...]
    cpu: tuple[float, ...]
    result: Any

    @property
    def best(self) -> float:
        """Wall time of the fastest run: the one that others disturbed least."""
        return min(self.seconds)

    @property
    def median(self) -> float:
        """Median wall time."""
        return median(self.seconds)

    @property
    def median_cpu(self) -> float:
        """Median CPU seconds: what a busy machine distorts least."""
        return median(self.cpu)


def summary(seconds: Sequence[float]) -> Percentiles:
    """Median, 95th and 99th percentile of measured seconds.

    Raises:
        ValueError: No value, or one that is not finite.
    """
    if not len(seconds) or not all(math.isfinite(value) for value in seconds):
        raise ValueError("seconds must be finite, and at least one")
    ordered = sorted(map(float, seconds))

    def at(percent: int) -> float:
        # in whole numbers: 0.95 · 20 is more than 19 in floating point
        return ordered[-(-percent * len(ordered) // 100) - 1]

    return Percentiles(
        len(ordered),
        math.fsum(ordered) / len(ordered),
        median(ordered),
        at(95),
        at(99),
        ordered[-1],
    )


def one_by_one(
    work: Callable[[T], Any], items: Sequence[T], *, warmup: int = 3, wait: Callable[[], Any] = int
) -> list[float]:
    """Seconds that each item takes alone, in the given order.

    Args:
        work: What is timed.
        items: What it is called with, one call each.
        warmup: Calls beforehand that are not timed (with the first items).
        wait: Called before the clock is read (`torch.cuda.synchronize`).
    """
    for item in items[:warmup]:
        work(item)
    wait()
    seconds = []
    for item in items:
        started = time.perf_counter()
        work(item)
        wait()
        seconds.append(time.perf_counter() - started)
    return seconds


def take_turns(
    works: Mapping[str, Callable[[], Any]], runs: int, *, wait: Callable[[], Any] = int
) -> dict[str, Turns]:
    """Runs works in turns, so that a slow moment of the machine meets all of them.

    Every second round goes backwards: no work always runs first, or after the same one.

    Args:
        works: Name to work.
        runs: Rounds, at least one.
        wait: Called before the clocks are read (`torch.cuda.synchronize`).
    """
    wall: dict[str, list[float]] = {name: [] for name in works}
    cpu: dict[str, list[float]] = {name: [] for name in works}
    results: dict[str, Any] = {}
    for turn in range(runs):
        names = list(works) if turn % 2 == 0 else list(works)[::-1]
        for name in names:
            wait()
            started, used = time.perf_counter(), time.process_time()
            results[name] = works[name]()
            wait()
            cpu[name].append(time.process_time() - used)
            wall[name].append(time.perf_counter() - started)
    return {n: Turns(tuple(wall[n]), tuple(cpu[n]), results[n]) for n in works}


def peak_memory() -> int:
    """Highest resident size of this process so far, in bytes.

    Linux counts it from the start of the program (VmHWM); elsewhere the value of getrusage, which
    may begin with that of the process that started this one.
    """
    status = Path("/proc/self/status")
    if status.is_file():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
