"""`clefq audit`: prove from the stored tensors that a quantized checkpoint is sound."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clefq.cli.options import Json, Quiet, Run

if TYPE_CHECKING:
    from rich.console import RenderableType

    from clefq.quantize.audit.report import AuditReport

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


Records = Annotated[
    Path | None,
    typer.Option("--calibration", metavar="SET", help="Measure input scales with these records."),
]
Vanished = Annotated[
    bool,
    typer.Option("--allow-vanished", help="Accept weights that four bits erase, as a note."),
]

Device = Annotated[
    str,
    typer.Option("--device", metavar="D", help="Recompute weights on it: auto, cpu or cuda."),
]


def command(
    checkpoint: Checkpoint,
    source: Source = None,
    calibration: Records = None,
    allow_vanished: Vanished = False,
    device: Device = "auto",
    run: Run = None,
    json_output: Json = False,
    quiet: Quiet = False,
) -> None:
    """Prove from its tensors that a quantized checkpoint is sound.

    Ends with one word: sound (proven against --source), consistent (nothing contradicts, and what
    is not proven is listed) or broken, which exits with 1. Needs no torch without --source.
    """
    from clefq.console import Console
    from clefq.names.models import find_model
    from clefq.names.run_folder import find_run
    from clefq.quantize.audit import audit_checkpoint
    from clefq.quantize.stream import chosen_device

    console = Console(json_output=json_output, quiet=quiet)
    here = find_run(run)
    folder = find_model(checkpoint, here).folder
    original = None if source is None else find_model(source, here).folder
    report = audit_checkpoint(
        folder,
        original,
        allow_vanished=allow_vanished,
        calibration=calibration,
        device=chosen_device(device),
    )
    console.result(report.to_json(), render(report))
    if not report.passed:
        raise typer.Exit(1)


def render(report: AuditReport) -> RenderableType:
    """The report as text of at most 80 columns."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from clefq.quantize.audit.report import CHECKS

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name, justify in (("check", "left"), ("looked at", "right"), ("result", "left")):
        table.add_column(name, justify=justify)  # type: ignore[arg-type]
    for check in CHECKS:
        if check in report.counts:
            count = len(report.of(check))
            result = Text("ok", "green") if not count else Text(f"{count} breach(es)", "bold red")
            table.add_row(check, f"{report.counts[check]:,}", result)
    parts: list[RenderableType] = [Text(f"{report.folder}  ({report.scheme})"), table]
    causes = report.causes()
    for cause in causes[:_SHOWN]:
        parts.append(Text(f"\n{cause.check}: {cause.subject}", "bold red"))
        parts.append(Text(f"  {cause.message}"))
        if cause.effect:
            parts.append(Text(f"  → {cause.effect}"))
    if len(causes) > _SHOWN:
        parts.append(Text(f"\n… and {len(causes) - _SHOWN} more (--json lists all)"))
    parts += [Text(f"note: {note}", "dim") for note in report.notes]
    parts += [Text(f"not proven: {line}", "dim") for line in report.unproven]
    parts.append(Text(_verdict(report)))
    return Group(*parts)


_SHOWN = 12


def _verdict(report: AuditReport) -> str:
    from clefq.quantize.repair.refusals import mendable

    if report.word == "sound":
        return "sound"
    if report.word == "consistent":
        return "consistent, not proven: see above"
    word = f"broken: {len(report.breaches)} breach(es)"
    if mendable(report, with_source=report.against_source):
        given = " --source BF16" if report.against_source else ""
        return f"{word}\nnext: clefq repair {report.folder}{given} --out DIR"
    return word
