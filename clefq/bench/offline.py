"""`clefq bench offline`: checkpoints and engines side by side, on this machine."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

from clefq.bench.measuring import STEADY, Measured, OneJob, Speed
from clefq.bench.source import RecordSource
from clefq.child import run_child
from clefq.engines.base import EngineName, EngineSpec
from clefq.engines.select import python_for

if TYPE_CHECKING:
    from clefq.console import Console
    from clefq.names.models import ModelRef

# Beyond this the machine was not the same at the end as at the start.
_DRIFT = 0.05


@dataclass(frozen=True, slots=True)
class OfflineJob:
    """What to compare.

    Attributes:
        models: Checkpoints; with the first engine the first one is the baseline.
        engines: Each runs every model.
        spec: How to run them.
        source: The records.
        runs: Timed passes over the records.
        alone: Records that run one by one, for the latency.
        again: Measure the baseline again at the end, to see what the machine did meanwhile.
    """

    models: tuple[ModelRef, ...]
    engines: tuple[EngineName, ...]
    spec: EngineSpec
    source: RecordSource
    runs: int = 3
    alone: int = 40
    again: bool = False


@dataclass(frozen=True, slots=True)
class Cell:
    """One row on one group of records, ready to be shown.

    Attributes:
        name: Name of the row.
        records: The group.
        records_per_second: Of the median pass; higher is better.
        tokens_per_second: Of the median pass; higher is better.
        ratio: Records per second over those of the first row on the same group.
        cpu_ratio: The same of records per CPU second: on a CPU that others use as well, the
            steadier of the two; on a GPU it compares the hosts' work.
    """

    name: str
    records: str
    records_per_second: float
    tokens_per_second: float
    ratio: float
    cpu_ratio: float


@dataclass(frozen=True, slots=True)
class OfflineReport:
    """What was measured.

    Attributes:
        rows: One per engine and model; the first is the baseline.
        cells: One per row and group, ratios included.
        runs: Timed passes.
        warnings: What the reader must know.
    """

    rows: tuple[Measured, ...]
    cells: tuple[Cell, ...]
    runs: int
    warnings: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """As one JSON document."""
        return asdict(self)


def bench_offline(job: OfflineJob, console: Console) -> OfflineReport:
    """Measures every model in every engine, each in a process of its own, one after another.

    Raises:
        MissingDependencyError: No environment has an engine.
        ClefqError: A checkpoint cannot be run, or answers nothing.
    """
    pairs = [(engine, model) for engine in job.engines for model in job.models]
    pythons = {engine: python_for(engine) for engine in job.engines}  # says now what is missing
    rows = []
    for number, (engine, model) in enumerate(pairs, start=1):
        console.note(f"{number} of {len(pairs)}: {model.variant} with {engine}")
        rows.append(_measure(job, pythons, pairs[number - 1], console))
    warnings = [warning for row in rows for warning in row.warnings]
    if job.again:
        console.note("the first row again")
        warnings += _drift(rows[0], _measure(job, pythons, pairs[0], console))
    if any(row.kernels == "simulated" for row in rows):
        warnings.append("simulated kernels say nothing about the speed of real ones")
    cells = cells_of(rows)
    warnings += by_cpu(rows, cells)
    return OfflineReport(tuple(rows), tuple(cells), job.runs, tuple(warnings))


def _measure(
    job: OfflineJob,
    pythons: dict[EngineName, Any],
    pair: tuple[EngineName, ModelRef],
    console: Console,
) -> Measured:
    engine, model = pair
    name = model.variant if len(job.engines) == 1 else f"{engine} {model.variant}"
    one = OneJob(name, model.folder, engine, job.spec, job.source, job.runs, job.alone, time.time())
    reply = run_child(pythons[engine], "clefq.bench.measuring", one.to_json(), console, engine)
    return Measured.from_json(reply)


def cells_of(rows: Sequence[Measured]) -> list[Cell]:
    """Speeds per group, ratios against the first row; group by group."""
    cells = []
    for index, base in enumerate(rows[0].speeds):
        for row in rows:
            speed = row.speeds[index]
            cells.append(
                Cell(
                    name=row.name,
                    records=speed.records,
                    records_per_second=_rate(speed),
                    tokens_per_second=speed.tokens / median(speed.seconds),
                    ratio=_rate(speed) / _rate(base),
                    cpu_ratio=_cpu_rate(speed) / _cpu_rate(base),
                )
            )
    return cells


def _rate(speed: Speed) -> float:
    return speed.n_records / median(speed.seconds)


def _cpu_rate(speed: Speed) -> float:
    return speed.n_records / median(speed.cpu_seconds)


def by_cpu(rows: Sequence[Measured], cells: Sequence[Cell]) -> list[str]:
    """Ratios by CPU time, where a busy CPU makes those by wall time doubtful."""
    unsteady = any(speed.spread > STEADY for row in rows for speed in row.speeds)
    if len(rows) == 1 or rows[0].device != "cpu" or not unsteady:
        return []
    found = [
        f"{cell.name} {cell.cpu_ratio:.2f}× ({cell.records})"
        for cell in cells
        if cell.name != rows[0].name
    ]
    return [f"by CPU seconds, steadier on a busy machine: {', '.join(found)}"]


def _drift(first: Measured, again: Measured) -> list[str]:
    found = []
    for before, after in zip(first.speeds, again.speeds, strict=True):
        ratio = _rate(after) / _rate(before)
        text = f"{first.name}, {before.records}: measured again at the end: {ratio:.2f}×"
        more = "; the machine changed meanwhile" if abs(ratio - 1) > _DRIFT else ""
        found.append(text + more)
    return found
