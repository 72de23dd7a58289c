"""`clefq export`: predictions for other tools, and reports for MLflow."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clefq.cli.options import Json, Quiet

if TYPE_CHECKING:
    from clefq.console import Console

FORMS = ("decision-index", "csv", "mlflow")


def command(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="SOURCE", help="A predictions file (Parquet); for mlflow a report folder."
        ),
    ],
    eval_set: Annotated[
        Path | None,
        typer.Option("--eval", metavar="SET", help="The set that the predictions were made on."),
    ] = None,
    form: Annotated[
        str, typer.Option("--as", metavar="FORM", help=f"{', '.join(FORMS)}.")
    ] = "decision-index",
    candidate: Annotated[
        Path | None,
        typer.Option("--with", metavar="FILE", help="The candidate's predictions (csv)."),
    ] = None,
    changed: Annotated[
        bool, typer.Option("--changed", help="Only questions whose choice changed (csv).")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Default: results.jsonl, or answers.csv."),
    ] = None,
    tracking_uri: Annotated[
        str | None,
        typer.Option(
            "--tracking-uri", metavar="URI", help="MLflow's server or store (default: its own)."
        ),
    ] = None,
    experiment: Annotated[
        str | None,
        typer.Option("--experiment", metavar="NAME", help="MLflow's (default: clefq/SET)."),
    ] = None,
    json_output: Json = False,
    quiet: Quiet = False,
) -> None:
    """Write predictions or reports for other tools.

    decision-index: a results.jsonl with unrounded probabilities, in the layout
    of that kit; scores on format-alike records are no Decision Index scores.
    csv: both models' answers side by side, with the state's text. mlflow: one
    run a candidate, with figures, provenance and the report's files.
    """
    from clefq.console import Console
    from clefq.errors import InputError

    if form not in FORMS:
        raise InputError(f"--as is {form!r}, expected one of {', '.join(FORMS)}.")
    _check_options(form, candidate=candidate is not None, changed=changed)
    console = Console(json_output=json_output, quiet=quiet)
    if form == "mlflow":
        _mlflow(source, tracking_uri, experiment, console)
        return
    if eval_set is None:
        raise InputError("predictions need their set.", fix="add --eval SET.")
    path = out or Path("results.jsonl" if form == "decision-index" else "answers.csv")
    if path.exists():
        raise InputError(f"{path} exists already.", fix="remove it or choose another --out.")
    count = _write(path, source, candidate, eval_set, changed=changed)
    what = "lines" if form == "decision-index" else "rows"
    console.result({"path": str(path), what: count}, f"{count:,} {what} → {path}")


def _check_options(form: str, *, candidate: bool, changed: bool) -> None:
    from clefq.errors import InputError

    if (form == "csv") != candidate:
        raise InputError(
            "--as csv and --with CANDIDATE belong together.", fix="give both, or neither."
        )
    if changed and form != "csv":
        raise InputError("--changed goes with --as csv.", fix="leave it out.")


def _write(
    path: Path, source: Path, candidate: Path | None, eval_set: Path, *, changed: bool
) -> int:
    from clefq.data.index_results import write_results
    from clefq.data.side_by_side import write_side_by_side
    from clefq.store.predictions import read_predictions
    from clefq.store.sets import open_set

    folder = open_set(eval_set)
    if candidate is None:
        return write_results(path, read_predictions(source), folder)
    sides = (read_predictions(source), read_predictions(candidate))
    return write_side_by_side(path, sides, folder, changed_only=changed)


def _mlflow(
    source: Path, tracking_uri: str | None, experiment: str | None, console: Console
) -> None:
    from dataclasses import asdict

    from clefq.parity.rejudge import find_reports
    from clefq.parity.report.mlflow_runs import log_reports

    logged = log_reports(find_reports(source), tracking_uri, experiment)
    lines = [
        f"{item.path} → run {item.run_id}{'' if item.new else ', logged before'}" for item in logged
    ]
    value = [{**asdict(item), "path": str(item.path)} for item in logged]
    console.result({"runs": value}, "\n".join(lines))
