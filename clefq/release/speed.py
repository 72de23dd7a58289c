"""Throughput on a card: what `clefq bench offline` measured, on what, and how much faster it is.

The files lie in `bench/` of a run folder. A row counts for a checkpoint when it has its name and
its size; rows of simulated kernels say nothing about speed and are not shown.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clefq.errors import InputError
from clefq.plain_files import read_json

BENCH = "bench"
SIMULATED = "simulated"


@dataclass(frozen=True, slots=True)
class SpeedFigure:
    """One measurement.

    Attributes:
        what: What was run, for example `offline, 500 tokens`.
        value: The figure with its unit.
        hardware: Device and engine.
        source: Where it comes from.
    """

    what: str
    value: str
    hardware: str
    source: str


@dataclass(frozen=True, slots=True)
class BenchRow:
    """One checkpoint of a bench file.

    Attributes:
        path: The file.
        row: Its entry under `rows`.
        cells: Its entries under `cells`, one per group of records.
        baseline: Name of the file's first row, to which ratios refer.
        warnings: What the file says the reader must know.
    """

    path: Path
    row: Mapping[str, Any]
    cells: tuple[Mapping[str, Any], ...]
    baseline: str
    warnings: tuple[str, ...]

    @property
    def simulated(self) -> bool:
        """Whether its kernels were simulated."""
        return bool(self.row["kernels"] == SIMULATED)

    def speeds(self) -> Iterator[SpeedFigure]:
        """What a card shows of it."""
        row = self.row
        hardware = f"{row['device']}, {row['engine']} {row['engine_version']}, {row['arithmetic']}"
        latency = {speed["records"]: speed["latency"] for speed in row["speeds"]}
        for cell in self.cells:
            ratio = "" if cell["name"] == self.baseline else f", {cell['ratio']:.2f}× "
            words = f"{cell['records_per_second']:.4g} records/s, "
            words += f"{cell['tokens_per_second']:,.0f} tokens/s"
            words += f"{ratio}{self.baseline}" if ratio else ""
            took = latency.get(cell["records"])
            if took is not None:
                words += f"; one alone {1000 * took['median']:.3g} ms"
            yield SpeedFigure(
                f"offline, {cell['records']}", words, hardware, f"bench/{self.path.name}"
            )


def bench_files(root: Path | None) -> list[Path]:
    """The bench files of a run folder or bundle, sorted."""
    return [] if root is None else sorted((root / BENCH).glob("*.json"))


def bench_rows(root: Path | None, variant: str) -> list[BenchRow]:
    """The rows about a checkpoint, in all bench files.

    Args:
        root: Run folder or bundle, or None.
        variant: Its name.

    Raises:
        InputError: A file is none that `clefq bench offline` wrote.
    """
    return [row for path in bench_files(root) for row in _rows_of(path, read_bench(path), variant)]


def _rows_of(path: Path, body: Mapping[str, Any], variant: str) -> Iterator[BenchRow]:
    rows = body["rows"]
    for row in rows:
        if variant in (row["name"], str(row["name"]).removeprefix(f"{row['engine']} ")):
            cells = tuple(cell for cell in body["cells"] if cell["name"] == row["name"])
            warnings = tuple(str(warning) for warning in body["warnings"])
            yield BenchRow(path, row, cells, str(rows[0]["name"]), warnings)


def throughput(root: Path | None, sizes: Mapping[str, int]) -> dict[str, dict[str, Any]]:
    """One speed of each checkpoint, of the file and records that most of them were timed on.

    Args:
        root: Run folder, or None.
        sizes: Variant → bytes of its weights; a row of another size is of another checkpoint.

    Returns:
        Variant → value, unit and source, of real kernels only; variants without any are left out.
    """
    found: dict[tuple[Path, str], dict[str, dict[str, Any]]] = {}
    for path in bench_files(root):
        try:
            body = read_bench(path)
        except InputError:  # of a server, which names no checkpoint
            continue
        for variant, nbytes in sizes.items():
            for bench in _rows_of(path, body, variant):
                if bench.simulated or bench.row["disk_bytes"] != nbytes:
                    continue
                for cell in bench.cells:
                    speed = {"value": cell["tokens_per_second"], "unit": "tokens/s"}
                    speed["source"] = f"bench/{path.name}, {cell['records']}"
                    found.setdefault((path, str(cell["records"])), {})[variant] = speed
    return max(found.values(), key=len, default={})


_ROW = {
    "name", "engine", "engine_version", "kernels", "arithmetic", "device", "disk_bytes", "speeds",
}  # fmt: skip
_CELL = {"name", "records", "records_per_second", "tokens_per_second", "ratio"}


def read_bench(path: Path) -> Mapping[str, Any]:
    """Reads a file of `clefq bench offline --out`.

    Raises:
        InputError: It is none; one of a server names no checkpoint and cannot count for one.
    """
    body = read_json(path)
    try:
        sound = all(row.keys() >= _ROW for row in body["rows"]) and bool(body["rows"])
        sound &= all(cell.keys() >= _CELL for cell in body["cells"])
        sound &= all({"records", "latency"} <= s.keys() for r in body["rows"] for s in r["speeds"])
        sound &= isinstance(body["warnings"], list)
    except (AttributeError, KeyError, TypeError):
        sound = False
    if not sound:
        raise InputError(
            f"{path} was not written by `clefq bench offline`.",
            fix="a server's figures name no checkpoint: measure with `clefq bench offline --out`.",
        )
    found: Mapping[str, Any] = body
    return found
