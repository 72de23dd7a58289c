"""`clefq diff`: which tensors of a checkpoint differ from another one, and by how much."""

from __future__ import annotations

from typing import Annotated

import typer

from clefq.cli.options import Json, Quiet, Run


def command(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="Folder, variant of the run folder, or hub id.")
    ],
    base: Annotated[
        str,
        typer.Argument(metavar="BASE", help="What it is compared with: folder, variant or hub id."),
    ],
    every: Annotated[bool, typer.Option("--all", help="List every tensor.")] = False,
    run: Run = None,
    json_output: Json = False,
    quiet: Quiet = False,
) -> None:
    """Compare two checkpoints tensor by tensor, layer by layer.

    Says of every tensor whether it is identical, changed (by which relative
    Frobenius norm), missing, added, or of another dtype or shape. Quantized
    weights are compared by the values that they stand for.

    A Clef may be compared with the backbone that it was trained from.
    """
    from clefq.console import Console
    from clefq.names.models import find_model
    from clefq.names.run_folder import find_run
    from clefq.release.diff import diff_folders
    from clefq.release.diff_text import diff_text
    from clefq.release.weights import open_weights

    console = Console(json_output=json_output, quiet=quiet)
    here = find_run(run)
    ours, theirs = (open_weights(find_model(name, here).folder) for name in (model, base))
    total = sum(weight.nbytes for weight in ours.weights.values())
    with console.progress("compare", total) as advance:
        found = diff_folders(ours, theirs, advance)
    console.result(found.to_json(), diff_text(found, every=every))
