"""`clefq merge`: the shards of one prediction become one predictions file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clefq.cli.options import Json, Quiet, Run

if TYPE_CHECKING:
    from clefq.names.run_folder import RunFolder


def command(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE…", help="Every shard, once, in any order.")
    ],
    eval_set: Annotated[
        str | None,
        typer.Option("--eval", metavar="SET", help="Their set (default: the run folder's own)."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="FILE",
            help="Default: predictions/SET/VARIANT.parquet in the run folder.",
        ),
    ] = None,
    run: Run = None,
    json_output: Json = False,
    quiet: Quiet = False,
) -> None:
    """Merge the shards that `clefq predict --shard I/N` made.

    Refuses unless set, model, arithmetic, engine with its version, limits and device agree and
    every question is there once; a shard that is missing is named.
    """
    from clefq.console import Console
    from clefq.engines.shards import merge
    from clefq.errors import InputError
    from clefq.names.run_folder import find_run
    from clefq.store.predictions import read_meta
    from clefq.store.sets import open_set

    console = Console(json_output=json_output, quiet=quiet)
    folder = find_run(run)
    meta = read_meta(files[0])
    opened = open_set(_set(eval_set, meta.eval_set_sha256, folder))
    if out is None:
        if folder is None:
            raise InputError("no run folder to write to.", fix="give --out FILE or --run DIR.")
        out = folder.predictions(opened.name, meta.variant)
    found = merge(files, opened, out)
    value = {"out": str(out), "shards": len(files), "questions": len(found.frame)}
    text = f"{out}: {len(found.frame):,} questions of {len(files)} shards"
    console.result(value, f"{text}\nnext: clefq parity --baseline bf16")


def _set(given: str | None, sha256: str, run: RunFolder | None) -> Path:
    from clefq.errors import InputError
    from clefq.names.run_folder import find_set, manifest_of

    if given is not None:
        return find_set(given, run)
    folders = [] if run is None else [run.set_folder(name) for name in run.sets()]
    for folder in folders:
        if manifest_of(folder).sha256 == sha256:
            return folder
    raise InputError("the set of these shards is not here.", fix="give --eval SET.")
