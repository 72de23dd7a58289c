"""`clefq export`: predictions in the results layout of the Decision Index's kit."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from clefq.cli.options import Json, Quiet


def command(
    predictions: Annotated[
        Path, typer.Argument(metavar="PREDICTIONS", help="A predictions file (Parquet).")
    ],
    eval_set: Annotated[
        Path, typer.Option("--eval", metavar="SET", help="The set that it was made on.")
    ],
    out: Annotated[Path, typer.Option(metavar="FILE", help="File to write.")] = Path(
        "results.jsonl"
    ),
    json_output: Json = False,
    quiet: Quiet = False,
) -> None:
    """Write predictions in the layout of the Decision Index kit.

    A `results.jsonl` with unrounded probabilities. The layout only: scores on format-alike
    records are not Decision Index scores.
    """
    from clefq.console import Console
    from clefq.data.index_results import write_results
    from clefq.errors import InputError
    from clefq.store.predictions import read_predictions
    from clefq.store.sets import open_set

    if out.exists():
        raise InputError(f"{out} exists already.", fix="remove it or choose another --out.")
    count = write_results(out, read_predictions(predictions), open_set(eval_set))
    console = Console(json_output=json_output, quiet=quiet)
    console.result({"path": str(out), "lines": count}, f"{count:,} lines → {out}")
