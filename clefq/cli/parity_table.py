"""The comparison as a table of at most 80 columns, and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from clefq.parity.gates.formatting import NONE
from clefq.parity.gates.verdict import EXIT_CODES, worst

STYLES = {"pass": "green", "fail": "red", "inconclusive": "yellow", "invalid": "magenta"}
Result = tuple[Path, Mapping[str, Any]]


def comparison_json(results: Sequence[Result]) -> dict[str, Any]:
    """The JSON document of `clefq parity --json`.

    Args:
        results: Report folder and `summary.json` value of every set.
    """
    word = worst([summary["verdict"] for _, summary in results])
    return {
        "verdict": word,
        "exit_code": int(EXIT_CODES[word]),
        "sets": [{**summary, "report_folder": str(folder)} for folder, summary in results],
    }


def comparison_text(results: Sequence[Result]) -> RenderableType:
    """The tables, the next step of every candidate that did not pass, and the reports' paths."""
    parts: list[RenderableType] = []
    for folder, summary in results:
        parts += [_heading(summary), _table(summary), *_steps(summary)]
        parts.append(Text(f"report  {_near(folder) / 'index.html'}", overflow="fold"))
    return Group(*parts)


def _near(folder: Path) -> Path:
    """The path as seen from the current folder, where it lies below it."""
    here = Path.cwd()
    full = folder.resolve()
    return full.relative_to(here) if full.is_relative_to(here) else folder


def _heading(summary: Mapping[str, Any]) -> Text:
    base, gates = summary["baseline"], summary["gate_file"]
    accuracy = _share(_estimate(base["accuracy"]))
    bound = "" if gates["bound"] else " (template)"
    return Text(
        f"{summary['eval_set']['name']}: against {base['variant']} ({accuracy} right), "
        f"gates {gates['name']}{bound}"
    )


def _table(summary: Mapping[str, Any]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("candidate", overflow="fold")
    for name in ("accuracy", "Δ", "agreement", "KL", "TV"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    for row in summary["candidates"]:
        delta = _estimate(row["accuracy_delta"])
        table.add_row(
            row["variant"],
            _share(_estimate(row["accuracy"])),
            NONE if delta is None else f"{100 * delta:+.2f} pt",
            _share(_estimate(row["agreement"])),
            _number(_estimate(row["kl"])),
            _number(_estimate(row["tv"])),
            Text(row["verdict"].upper(), style=STYLES[row["verdict"]]),
        )
    return table


def _steps(summary: Mapping[str, Any]) -> list[Text]:
    steps = [
        Text(f"  {row['variant']}: {row['sentence']} Next: {row['next_step']}")
        for row in summary["candidates"]
        if row["verdict"] != "pass"
    ]
    simulated = [row["variant"] for row in summary["candidates"] if row["kernels"] == "simulated"]
    if simulated:
        steps.append(Text(f"  simulated kernels: {', '.join(simulated)}; real ones may differ."))
    return steps


def _estimate(metric: Mapping[str, Any] | None) -> float | None:
    return None if metric is None else metric["estimate"]


def _share(value: float | None) -> str:
    return NONE if value is None else f"{100 * value:.2f}%"


def _number(value: float | None) -> str:
    return NONE if value is None else f"{value:.4f}"
