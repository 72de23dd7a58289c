"""`clefq convert`: a compressed-tensors copy of a ModelOpt checkpoint, bit for bit."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clefq.cli.options import Json, Quiet, Run

if TYPE_CHECKING:
    from rich.console import RenderableType

    from clefq.quantize.convert import Conversion

Checkpoint = Annotated[
    str,
    typer.Argument(
        metavar="CKPT",
        help="ModelOpt checkpoint: a folder, a variant of the run folder, or a hub id.",
    ),
]
Out = Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder for the copy.")]
Source = Annotated[
    str | None,
    typer.Option("--source", metavar="BF16", help="The BF16 checkpoint, to audit the copy with."),
]
Faults = Annotated[
    bool,
    typer.Option(
        "--keep-faults", help="Write the copy though its audit finds breaches, for clefq repair."
    ),
]


def command(
    checkpoint: Checkpoint,
    out: Out,
    source: Source = None,
    keep_faults: Faults = False,
    run: Run = None,
    json_output: Json = False,
    quiet: Quiet = False,
) -> None:
    """Make a compressed-tensors copy of a ModelOpt checkpoint (NVFP4, FP8).

    The weights stay the same numbers, which is checked; the copy is audited before it gets its
    name. Interrupted, the same command continues; finished, it does nothing.
    """
    from clefq.console import Console
    from clefq.names.models import find_model
    from clefq.names.run_folder import find_run
    from clefq.quantize.convert import convert_checkpoint

    console = Console(json_output=json_output, quiet=quiet)
    here = find_run(run)
    folder = find_model(checkpoint, here).folder
    original = None if source is None else find_model(source, here).folder
    result = convert_checkpoint(folder, out, console, source=original, keep_faults=keep_faults)
    console.result(asdict(result), render(result))


def render(result: Conversion) -> RenderableType:
    """The result, one line a fact."""
    from clefq.console import name_table

    lines = [
        ("checkpoint", result.folder),
        ("made of", result.origin),
        ("quantized", ", ".join(f"{n} × {kind}" for kind, n in sorted(result.formats.items()))),
    ]
    if result.exact or result.rounded:
        lines.append(("global scales", _scales(result)))
    if result.left_out:
        lines.append(("left out", f"{len(result.left_out)} scales of a KV cache"))
    lines.append(("audit", result.audit))
    if result.finished:
        lines.append(("finished", "it was there already; nothing was done"))
    following = "repair" if result.audit == "broken" else "predict"
    rest = "--out MENDED" if following == "repair" else "--eval SET"
    lines.append(("next", f"clefq {following} {result.folder} {rest}"))
    return name_table(lines)


def _scales(result: Conversion) -> str:
    text = f"{result.exact} bit for bit"
    if result.rounded:
        text += f", {len(result.rounded)} as their nearest number: every weight the same in BF16"
    return text
