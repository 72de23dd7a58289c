"""`clefq repair`: mend unequal shared scales and damaged norms of a published checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clefq.cli.options import Json, Quiet, Run

if TYPE_CHECKING:
    from rich.console import RenderableType

    from clefq.quantize.repair.report import RepairReport

Checkpoint = Annotated[
    str,
    typer.Argument(
        metavar="CKPT",
        help="Quantized checkpoint: a folder, a variant of the run folder, or a hub id.",
    ),
]
Source = Annotated[
    str | None,
    typer.Option(
        "--source",
        metavar="BF16",
        help="The BF16 checkpoint it was made from: folder, variant or hub id.",
    ),
]
Out = Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder for the mended copy.")]


def command(
    checkpoint: Checkpoint,
    out: Out,
    source: Source = None,
    run: Run = None,
    json_output: Json = False,
    quiet: Quiet = False,
) -> None:
    """Mend unequal shared scales and damaged norms, in a copy.

    Nothing is quantized anew without --source, and what cannot be mended safely is refused.
    """
    from clefq.console import Console
    from clefq.names.models import find_model
    from clefq.names.run_folder import find_run
    from clefq.quantize.repair import repair_checkpoint

    console = Console(json_output=json_output, quiet=quiet)
    here = find_run(run)
    folder = find_model(checkpoint, here).folder
    original = None if source is None else find_model(source, here).folder
    report = repair_checkpoint(folder, original, out, console)
    console.result(report.to_json(), render(report))


def render(report: RepairReport) -> RenderableType:
    """The report as text of at most 80 columns, one line per kind of projection."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    if report.folder is None:
        return Text("nothing to mend, nothing written")
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in ("projection", "method", "modules", "served at", "error before", "now"):
        table.add_column(name, justify="left" if name in ("projection", "method") else "right")
    for row in _rows(report):
        table.add_row(*row)
    parts: list[RenderableType] = [Text(str(report.folder))]
    if report.members:
        parts += [table, Text(f"errors: mean relative weight error against the {report.against}")]
    if report.inputs:
        parts.append(Text(f"{len(report.inputs)} groups now share their input scale"))
    if report.restored:
        parts.append(Text(f"{len(report.restored)} unquantized tensors restored from the source"))
    if report.remade:
        parts.append(Text(f"{len(report.remade)} damaged modules made anew from the source"))
    word = "" if report.audit is None else report.audit.word
    parts.append(Text(f"audit {word}\nnext: clefq predict {report.folder} --eval SET"))
    return Group(*parts)


def _rows(report: RepairReport) -> list[tuple[str, ...]]:
    kinds: dict[tuple[str, str], list[int]] = {}
    for index, member in enumerate(report.members):
        kinds.setdefault((member.module.rpartition(".")[2], member.method), []).append(index)
    rows: list[tuple[str, ...]] = []
    for (leaf, method), indices in kinds.items():
        members = [report.members[index] for index in indices]
        count = len(members)
        rows.append(
            (
                leaf,
                method,
                str(count),
                f"×{min(m.shrink for m in members):.2f}",
                f"{sum(m.before for m in members) / count:.4f}",
                f"{sum(m.after for m in members) / count:.4f}",
            )
        )
    return rows
