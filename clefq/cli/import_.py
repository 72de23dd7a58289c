"""`clefq import`: probabilities from another tool become a predictions file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clefq.clef.formats import ARITHMETICS, SCHEMES
from clefq.cli.options import Json, Quiet, Run

if TYPE_CHECKING:
    from clefq.store.predictions import PredictionsMeta
    from clefq.store.sets import SetFolder


def command(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="CSV or JSON Lines with probabilities.")
    ],
    eval_set: Annotated[
        str, typer.Option("--eval", metavar="SET", help="Set folder, or a set of the run folder.")
    ],
    variant: Annotated[
        str, typer.Option("--variant", metavar="NAME", help="Name of this model in reports.")
    ],
    arithmetic: Annotated[
        str,
        typer.Option(
            "--arithmetic",
            metavar="A",
            help=f"As executed: {', '.join(ARITHMETICS)}.",
        ),
    ],
    kernels: Annotated[
        str, typer.Option("--kernels", metavar="K", help="real or simulated.")
    ] = "real",
    scheme: Annotated[
        str,
        typer.Option(
            "--scheme",
            metavar="NAME",
            help=f"{', '.join(SCHEMES)}.",
        ),
    ] = "unknown",
    quantum: Annotated[
        float | None,
        typer.Option(
            "--quantum", metavar="D", help="Rounding step of the probabilities, such as 0.0001."
        ),
    ] = None,
    exact: Annotated[bool, typer.Option("--exact", help="They look rounded, but are not.")] = False,
    source: Annotated[
        str, typer.Option("--source", metavar="TEXT", help="Tool and version that ran the model.")
    ] = "unknown",
    model_id: Annotated[
        str | None, typer.Option("--model", metavar="ID", help="Default: the variant's name.")
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
    """Import probabilities that another tool computed on a set.

    CSV, one option a row: record_id, question_id, option_id, probability
    (or logprob).

    JSON Lines: record_id, question_id and probabilities (or logprobs), an
    object by option; or record_id and answers, as a SystemOne server sends.

    Questions without a valid answer become rows with an error; the coverage
    gate judges them.
    """
    from dataclasses import asdict

    from clefq.console import Console
    from clefq.errors import PredictionsError
    from clefq.parity.importing import import_answers, read_answers, rounding_step
    from clefq.store.predictions import check_replaceable, write_predictions

    console = Console(json_output=json_output, quiet=quiet)
    folder, path = _places(eval_set, variant, out, run)
    meta = _meta(folder, variant, (arithmetic, kernels, scheme), (source, model_id or variant))
    meta = _checked(meta, quantum)
    check_replaceable(path, meta.eval_set_sha256)
    answers = read_answers(file)
    step = rounding_step(answers) if quantum is None and not exact else None
    if step is not None:
        raise PredictionsError(
            f"{file}: every probability is a multiple of {step:g}, so they look rounded.",
            fix=f"add --quantum {step:g}, or --exact if they are not.",
        )
    frame, summary = import_answers(folder.records(), answers, quantum)
    write_predictions(path, frame, meta)
    text = (
        f"{path}: {summary.answered:,} of {summary.questions:,} questions answered, "
        f"{summary.missing:,} missing, {summary.failed:,} failed."
    )
    if summary.renormalised:
        text += f" {summary.renormalised:,} sums were off one and divided out."
    console.result({"out": str(path), **asdict(summary)}, text)
    if not summary.answered:
        raise PredictionsError(
            f"not one of the {summary.questions:,} questions has a usable answer.",
            fix=f"compare the ids and options of {file} with `clefq export` of the set.",
        )


def _places(
    eval_set: str, variant: str, out: Path | None, run: Path | None
) -> tuple[SetFolder, Path]:
    """The set and the file to write."""
    from clefq.errors import InputError
    from clefq.names.run import find_run, find_set
    from clefq.store.sets import open_set

    found = find_run(run)
    folder = open_set(find_set(eval_set, found))
    if out is not None:
        return folder, out
    if found is None:
        raise InputError("no run folder to write to.", fix="give --out FILE or --run DIR.")
    return folder, found.predictions(folder.name, variant)


def _meta(
    folder: SetFolder, variant: str, ran: tuple[str, str, str], made: tuple[str, str]
) -> PredictionsMeta:
    from datetime import UTC, datetime
    from typing import Any, cast

    from clefq import __version__
    from clefq.store.predictions import PredictionsMeta

    return PredictionsMeta(
        eval_set=folder.name,
        eval_set_sha256=folder.sha256(),
        model_id=made[1],
        model_revision=None,
        model_sha256=None,
        variant=variant,
        scheme=ran[2],
        engine="import",
        engine_version=made[0],
        kernels=cast("Any", ran[1]),
        arithmetic=cast("Any", ran[0]),
        dtype="unknown",
        device="unknown",
        clefq_version=__version__,
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        max_length=16_384,
        truncate_state=False,
        probability_quantum=None,
    )


def _checked(meta: PredictionsMeta, quantum: float | None) -> PredictionsMeta:
    """The metadata with its quantum, refused before the file is read."""
    from dataclasses import replace

    from clefq.errors import PredictionsError
    from clefq.store.reading import faults_of

    meta = replace(meta, probability_quantum=quantum)
    faults = faults_of(meta)
    if faults:
        raise PredictionsError(f"{faults[0]}.", faults=faults[1:])
    return meta
