"""`clefq audit`: prove from the stored tensors that a quantized checkpoint is sound."""

from __future__ import annotations

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


def command(
    checkpoint: Checkpoint,
    source: Source = None,
    run: Run = None,
    json_output: Json = False,
    quiet: Quiet = False,
) -> None:
    """Prove from its tensors that a quantized checkpoint is sound.

    Checks shared scales, coverage, untouched tensors, hashes and more; exits with 1 on a breach.
    Needs no torch without --source.
    """
    from clefq.console import Console
    from clefq.names.models import find_model
    from clefq.names.run import find_run
    from clefq.quantize.audit import audit_checkpoint

    console = Console(json_output=json_output, quiet=quiet)
    here = find_run(run)
    folder = find_model(checkpoint, here).folder
    original = None if source is None else find_model(source, here).folder
    report = audit_checkpoint(folder, original)
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
    shown = report.breaches[:_SHOWN]
    for breach in shown:
        parts.append(Text(f"\n{breach.check}: {breach.subject}", "bold red"))
        parts.append(Text(f"  {breach.message}"))
        if breach.effect:
            parts.append(Text(f"  → {breach.effect}"))
    if len(report.breaches) > _SHOWN:
        parts.append(Text(f"\n… and {len(report.breaches) - _SHOWN} more (--json lists all)"))
    parts += [Text(f"note: {note}", "dim") for note in report.notes]
    parts.append(Text(_verdict(report)))
    return Group(*parts)


_SHOWN = 12


def _verdict(report: AuditReport) -> str:
    if report.passed:
        return "clean"
    count = f"{len(report.breaches)} breach(es)"
    kinds = {breach.check for breach in report.breaches}
    if kinds <= {"weight scales", "input scales"}:
        return f"{count}\nnext: clefq repair {report.folder} --out DIR"
    if kinds <= {"weight scales", "input scales", "untouched"}:
        return f"{count}\nnext: clefq repair {report.folder} --source BF16 --out DIR"
    return count
