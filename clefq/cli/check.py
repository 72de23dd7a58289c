"""`clefq check`: what is wrong with a set that exists."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from clefq.cli.options import Json, Quiet, Run
from clefq.errors import ExitCode


def command(
    set_name: Annotated[
        str, typer.Argument(metavar="SET", help="A set folder, or a set of the run folder.")
    ],
    model: Annotated[
        Path | None,
        typer.Argument(metavar="[MODEL]", help="Model folder whose tokenizer counts the prompts."),
    ] = None,
    max_length: Annotated[
        int, typer.Option(min=1, metavar="N", help="Longest prompt that MODEL will be asked.")
    ] = 16384,
    run: Run = None,
    json_output: Json = False,
    quiet: Quiet = False,
) -> None:
    """Check a set: contradictions, duplicates, empty texts, odd labels, classes, lengths.

    Exits with 1 where it found a problem; notes alone pass.
    """
    from clefq.cli.build import class_lines
    from clefq.console import Console, name_table
    from clefq.data.check import check_set
    from clefq.data.tokens import PromptCounter
    from clefq.names.run_folder import find_run, find_set
    from clefq.store.sets import open_set

    console = Console(json_output=json_output, quiet=quiet)
    folder = open_set(find_set(set_name, find_run(run)))
    counter = None if model is None else PromptCounter(model)
    findings = check_set(folder, counter, max_length)
    problems = [finding for finding in findings if finding.problem]
    manifest = folder.manifest
    rows = [("set", f"{manifest.name} ({manifest.role}), {manifest.records:,} records")]
    rows += [("answers" if i == 0 else "", line) for i, line in enumerate(class_lines(manifest))]
    rows += [("problem" if found.problem else "note", found.text) for found in findings]
    rows.append(("result", f"{len(problems)} problems" if problems else "no problem found"))
    value = {
        "set": manifest.name,
        "sha256": manifest.sha256,
        "problems": len(problems),
        "findings": [asdict(finding) for finding in findings],
    }
    console.result(value, name_table(rows))
    if problems:
        raise typer.Exit(int(ExitCode.FAIL))
