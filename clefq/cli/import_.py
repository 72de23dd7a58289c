"""`clefq import`: answers of another tool become a predictions file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clefq.clef.formats import ARITHMETICS, SCHEMES
from clefq.cli.options import Json, Quiet, Run

if TYPE_CHECKING:
    from clefq.console import Console
    from clefq.importing.answers import Answer, Key
    from clefq.store.predictions import PredictionsMeta
    from clefq.store.sets import SetFolder


def command(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="CSV or JSON Lines with answers.")],
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
    eval_set: Annotated[
        str | None,
        typer.Option("--eval", metavar="SET", help="Set folder, or a set of the run folder."),
    ] = None,
    new_set: Annotated[
        Path | None,
        typer.Option(
            "--new-set", metavar="DIR", help="Make the set of what the file says was asked."
        ),
    ] = None,
    from_format: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="FORMAT",
            help="csv, jsonl, decision-index, lm-eval or openai; auto looks at the file.",
        ),
    ] = "auto",
    choice: Annotated[
        str | None,
        typer.Option("--choice", metavar="COLUMN", help="CSV column of the chosen options."),
    ] = None,
    id_template: Annotated[
        str | None,
        typer.Option(
            "--id", metavar="TEMPLATE", help="Record of an lm-eval sample; default {doc_id}."
        ),
    ] = None,
    labels: Annotated[
        bool,
        typer.Option("--labels", help="Take the most probable option alone, as a label."),
    ] = False,
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
    """Import answers of another tool on a set.

    CSV: record_id, question_id, option_id and probability (or logprob), one
    option a row; or probability alone, that of true; or choice, the option
    that was chosen. JSON Lines: the same as objects, a SystemOne server's
    answers, results.jsonl of the Decision Index's kit, lm-eval's samples, or
    OpenAI-style completions with logprobs.

    Answers without probabilities are labels: agreement and accuracy are
    judged, distances are not computed. Questions without a valid answer become
    rows with an error; the coverage gate judges them.
    """
    from dataclasses import asdict

    from clefq.console import Console
    from clefq.errors import InputError, PredictionsError
    from clefq.importing.answers import are_labels, import_answers
    from clefq.importing.formats import ImportSpec, read_answers
    from clefq.store.predictions import check_replaceable, write_predictions

    console = Console(json_output=json_output, quiet=quiet)
    if (eval_set is None) == (new_set is None):
        raise InputError("give the set: either --eval SET or --new-set DIR.")
    ran = (arithmetic, kernels, scheme)
    _check_meta(_meta(None, variant, ran, (source, model_id or variant)), quantum)
    answers = read_answers(file, ImportSpec(from_format, choice, id_template))
    _settle(file, answers, labels=labels, exact=exact, quantum=quantum)
    with _removed_on_error(new_set):
        if new_set is not None:
            _make_set(new_set, answers, file, console)
        folder, path = _places(eval_set or str(new_set), variant, out, run)
        meta = _meta(folder, variant, ran, (source, model_id or variant))
        meta = _check_meta(meta, quantum, labels=are_labels(answers))
        check_replaceable(path, meta.eval_set_sha256)
        frame, summary = import_answers(folder.records(), answers, quantum)
        if not summary.answered:
            why = f" ({summary.first_error})" if summary.first_error is not None else ""
            raise PredictionsError(
                f"not one of the {summary.questions:,} questions has a usable answer{why}.",
                fix=f"compare the ids and options of {file} with `clefq export` of the set.",
            )
        write_predictions(path, frame, meta)
    kind = "labels" if meta.labels else "probabilities"
    text = (
        f"{path}: {summary.answered:,} of {summary.questions:,} questions answered ({kind}), "
        f"{summary.missing:,} missing, {summary.failed:,} failed."
    )
    if summary.first_error is not None:
        text += f" Most often: {summary.first_error}."
    if summary.renormalised:
        text += f" {summary.renormalised:,} sums were off one and divided out."
    console.result({"out": str(path), "answers": meta.answers, **asdict(summary)}, text)


@contextmanager
def _removed_on_error(new_set: Path | None) -> Iterator[None]:
    """Removes a set that was made for answers which then did not fit."""
    import shutil

    there = new_set is None or new_set.exists()
    try:
        yield
    except BaseException:
        if new_set is not None and not there:
            shutil.rmtree(new_set, ignore_errors=True)
        raise


def _settle(
    file: Path, answers: dict[Key, Answer], *, labels: bool, exact: bool, quantum: float | None
) -> None:
    """Labels where they were asked for; refuses what looks rounded and is not said to be."""
    from clefq.errors import PredictionsError
    from clefq.importing.answers import are_labels, as_labels, is_one_hot, rounding_step

    if labels and quantum is not None:
        raise PredictionsError("labels have no --quantum.", fix="leave one of the two out.")
    if labels:
        as_labels(answers)
    if are_labels(answers) or exact or quantum is not None:
        return
    if is_one_hot(answers):
        raise PredictionsError(
            f"{file}: every probability is 0 or 1, so they are labels.",
            fix="add --labels, or --exact if the model is that sure.",
        )
    step = rounding_step(answers)
    if step is not None:
        raise PredictionsError(
            f"{file}: every probability is a multiple of {step:g}, so they look rounded.",
            fix=f"add --quantum {step:g}, or --exact if they are not.",
        )


def _make_set(folder: Path, answers: dict[Key, Answer], file: Path, console: Console) -> None:
    from clefq.importing.new_set import write_new_set

    count = write_new_set(folder, answers, file)
    console.note(f"{folder}: a set of {count:,} records, as {file} describes them")
    asked = [answer.asked for answer in answers.values() if answer.asked is not None]
    without = sum(question.gold is None for question in asked)
    if without:
        console.note(
            f"of {without:,} of {len(asked):,} questions the file says no right answer that is one "
            "of the options: accuracy leaves them out"
        )
    lost = [key for key in answers if key[1] is None]
    for key in lost:
        del answers[key]
    if lost:
        console.note(
            f"{len(lost):,} records are errors whose questions nobody knows; they are not in it"
        )


def _places(
    eval_set: str, variant: str, out: Path | None, run: Path | None
) -> tuple[SetFolder, Path]:
    """The set and the file to write."""
    from clefq.errors import InputError
    from clefq.names.run_folder import find_run, find_set
    from clefq.store.sets import open_set

    found = find_run(run)
    folder = open_set(find_set(eval_set, found))
    if out is not None:
        return folder, out
    if found is None:
        raise InputError("no run folder to write to.", fix="give --out FILE or --run DIR.")
    return folder, found.predictions(folder.name, variant)


def _meta(
    folder: SetFolder | None, variant: str, ran: tuple[str, str, str], made: tuple[str, str]
) -> PredictionsMeta:
    from datetime import UTC, datetime
    from typing import Any, cast

    from clefq import __version__
    from clefq.store.predictions import PredictionsMeta

    return PredictionsMeta(
        eval_set="imported" if folder is None else folder.name,
        eval_set_sha256="0" * 64 if folder is None else folder.sha256(),
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


def _check_meta(
    meta: PredictionsMeta, quantum: float | None, *, labels: bool = False
) -> PredictionsMeta:
    """The metadata with its quantum, refused before anything is written."""
    from dataclasses import replace
    from typing import Any

    from clefq.errors import PredictionsError
    from clefq.store.reading import faults_of

    answers: Any = "labels" if labels else "probabilities"
    meta = replace(meta, probability_quantum=quantum, answers=answers)
    faults = faults_of(meta)
    if faults:
        raise PredictionsError(f"{faults[0]}.", faults=faults[1:])
    return meta
