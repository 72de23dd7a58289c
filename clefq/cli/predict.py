"""`clefq predict`: a model and a set become a predictions file."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clefq.cli.options import Json, Quiet, Run

if TYPE_CHECKING:
    from rich.console import RenderableType

    from clefq.engines.base import EngineName, EngineSpec
    from clefq.engines.http_engine import HttpOptions
    from clefq.engines.predict import PredictJob, PredictSummary
    from clefq.names.run_folder import RunFolder

_NAME = re.compile(r"[\w.+-]+")


def command(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="Checkpoint folder, variant of the run folder, hub id (org/name@revision), or "
            "nano, the bundled miniature.",
        ),
    ],
    eval_set: Annotated[
        str, typer.Option("--eval", metavar="SET", help="Set folder, or a set of the run folder.")
    ],
    engine: Annotated[
        str, typer.Option("--engine", metavar="E", help="transformers, vllm or http.")
    ] = "transformers",
    url: Annotated[
        str | None,
        typer.Option("--url", metavar="URL", help="Server to ask (with --engine http)."),
    ] = None,
    api: Annotated[
        str,
        typer.Option(
            "--api",
            metavar="NAME",
            help="Its API: systemone, typesafe, workers-ai, vllm, sglang or decisions; auto asks.",
        ),
    ] = "auto",
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="FILE",
            help="Default: predictions/SET/VARIANT.parquet in the run folder.",
        ),
    ] = None,
    variant: Annotated[
        str | None, typer.Option("--variant", metavar="NAME", help="Default: the model's name.")
    ] = None,
    max_length: Annotated[
        int, typer.Option("--max-length", metavar="N", help="Most tokens of a prompt.")
    ] = 16_384,
    truncate_state: Annotated[
        bool,
        typer.Option(
            "--truncate-state", help="Cut over-long states as the release does (recorded per row)."
        ),
    ] = False,
    batch_tokens: Annotated[
        int | None,
        typer.Option(
            "--batch-tokens",
            metavar="N",
            help="Most tokens of one batch (default: what suits the device).",
        ),
    ] = None,
    device: Annotated[
        str, typer.Option("--device", metavar="D", help="auto, cpu, cuda or cuda:N.")
    ] = "auto",
    dtype: Annotated[
        str,
        typer.Option(
            "--dtype", metavar="TYPE", help="auto, bfloat16, float32 or float64 (reference work)."
        ),
    ] = "auto",
    threads: Annotated[
        int | None, typer.Option("--threads", metavar="N", help="CPU threads.")
    ] = None,
    dp: Annotated[
        int,
        typer.Option(
            "--dp", metavar="N", help="Engines side by side, each with its own GPUs (vllm)."
        ),
    ] = 1,
    tp: Annotated[int, typer.Option("--tp", metavar="N", help="GPUs of each engine (vllm).")] = 1,
    ray: Annotated[
        str | None,
        typer.Option(
            "--ray",
            metavar="ADDRESS",
            help="Engines on a Ray cluster (vllm): auto, local or HOST:PORT; --dp of them, or as "
            "many as fit.",
        ),
    ] = None,
    four_bit: Annotated[
        str,
        typer.Option(
            "--four-bit",
            metavar="HOW",
            help="NVFP4 layers on a GPU (vllm): auto, kernel (vLLM's choice), bf16 (unpacked at "
            "load), or simulated (W4A4 as Blackwell rounds it).",
        ),
    ] = "auto",
    concurrency: Annotated[
        int | None,
        typer.Option("--concurrency", metavar="N", help="Requests in flight (with --engine http)."),
    ] = None,
    rate: Annotated[
        float | None,
        typer.Option("--rate", metavar="R", help="Most requests a second (with --engine http)."),
    ] = None,
    budget: Annotated[
        int | None,
        typer.Option(
            "--budget", metavar="N", help="Most requests in all, retries too (with --engine http)."
        ),
    ] = None,
    count_with: Annotated[
        str | None,
        typer.Option(
            "--count-with",
            metavar="MODEL",
            help="Count prompts with this model's tokenizer, to find those that the server cut "
            "(with --engine http; default: the run folder's bf16).",
        ),
    ] = None,
    shard: Annotated[
        str | None,
        typer.Option("--shard", metavar="I/N", help="One of N parts, for `clefq merge` (vllm)."),
    ] = None,
    again: Annotated[
        bool,
        typer.Option("--again", help="Ask every question, whatever is known already."),
    ] = False,
    run: Run = None,
    json_output: Json = False,
    quiet: Quiet = False,
) -> None:
    """Predict every question of a set and write the predictions file.

    Interrupted, the same command continues; finished, it does nothing. Records that another set
    of the run folder has unchanged keep their answers. A record that is too long, or whose
    logits are not finite, becomes rows with an error; the coverage gate judges them. Where every
    question ends so, the file is written and the exit code is 2.
    """
    from clefq.console import Console
    from clefq.engines.base import EngineSpec
    from clefq.engines.predict import predict_set
    from clefq.engines.select import parse_engine
    from clefq.names.run_folder import find_run

    console = Console(json_output=json_output, quiet=quiet)
    spec = EngineSpec(
        max_length=max_length,
        truncate_state=truncate_state,
        batch_tokens=batch_tokens,
        device=device,
        dtype=dtype,
        threads=threads,
        concurrency=concurrency,
        copies=dp,
        tensor_parallel=tp,
        four_bit=four_bit,
        ray=ray,
    )
    choice = _Choice(model, variant, eval_set, parse_engine(engine), url, out, again, shard)
    folder = find_run(run)
    http = _http_options(choice, (api, rate, budget, count_with), folder)
    job = replace(_job(choice, spec, folder), http=http)
    summary = predict_set(job, console)
    _check_answers(summary)
    console.result(_json(summary), _text(summary, job, folder))


@dataclass(frozen=True, slots=True)
class _Choice:
    """The options that name things."""

    model: str
    variant: str | None
    eval_set: str
    engine: EngineName
    url: str | None
    out: Path | None
    again: bool
    shard: str | None


def _http_options(
    choice: _Choice,
    given: tuple[str, float | None, int | None, str | None],
    run: RunFolder | None,
) -> HttpOptions:
    from clefq.engines.http_engine import HttpOptions
    from clefq.errors import InputError
    from clefq.names.models import find_model
    from clefq.names.run_folder import BASELINE

    api, rate, budget, count_with = given
    if choice.engine != "http":
        if given != ("auto", None, None, None):
            raise InputError(
                "--api, --rate, --budget and --count-with go with --engine http.",
                fix="leave them out, or add --engine http --url URL.",
            )
        return HttpOptions()
    if choice.url is None and api != "workers-ai":
        raise InputError("--engine http and --url belong together.", fix="give both, or neither.")
    if count_with is None and run is not None and run.model(BASELINE).is_dir():
        count_with = BASELINE
    folder = None if count_with is None else find_model(count_with, run).folder
    return HttpOptions(api, rate, budget, folder)


def _job(choice: _Choice, spec: EngineSpec, run: RunFolder | None) -> PredictJob:
    from clefq.engines.predict import PredictJob
    from clefq.engines.shards import parse_shard
    from clefq.errors import InputError
    from clefq.names.models import find_model, served_model
    from clefq.names.run_folder import find_set
    from clefq.store.sets import open_set

    if choice.engine != "http" and choice.url is not None:
        raise InputError("--engine http and --url belong together.", fix="give both, or neither.")
    shard = None if choice.shard is None else parse_shard(choice.shard)
    if shard is not None and choice.engine != "vllm":
        raise InputError("--shard goes with the vllm engine.", fix="add --engine vllm.")
    http = choice.engine == "http"
    model = served_model(choice.model) if http else find_model(choice.model, run)
    if choice.variant is not None:
        model = replace(model, variant=choice.variant)
    if not _NAME.fullmatch(model.variant):
        raise InputError(
            f"{model.variant!r} cannot name a file.", fix="give --variant a plain name."
        )
    set_path = find_set(choice.eval_set, run)
    out = choice.out
    if out is None:
        if run is None:
            raise InputError(
                "there is no run folder here to write to.", fix="give --out FILE, or --run DIR."
            )
        set_name = open_set(set_path).name
        out = run.predictions(set_name, model.variant)
        if shard is not None:
            out = run.root / "shards" / set_name / model.variant / f"{shard.name}.parquet"
    return PredictJob(
        model, set_path, out, choice.engine, spec, choice.url, choice.again, choice.shard
    )


def _check_answers(summary: PredictSummary) -> None:
    """No answer at all is no result: something that every record shares is wrong."""
    from clefq.errors import InputError

    if 0 < summary.questions == summary.errors:
        why = (summary.first_error or "").rstrip(".")
        raise InputError(
            f"{summary.out}: each of {summary.questions:,} questions failed, most often: {why}.",
            fix="mend the cause and run it again; clefq parity judges the file as it is invalid.",
        )


def _json(summary: PredictSummary) -> dict[str, object]:
    return {
        **asdict(summary),
        "accuracy": summary.accuracy,
        "tokens_per_second": summary.tokens_per_second,
    }


def _text(summary: PredictSummary, job: PredictJob, run: RunFolder | None) -> RenderableType:
    from clefq.console import name_table

    return name_table(_lines(summary, job, run))


def _lines(
    summary: PredictSummary, job: PredictJob, run: RunFolder | None
) -> list[tuple[str, str]]:
    lines = [
        ("file", summary.out),
        ("questions", f"{summary.questions:,} in {summary.records:,} records"),
    ]
    if summary.accuracy is not None:
        labelled = f"{summary.correct:,} of {summary.gold:,} with gold"
        lines.append(("accuracy", f"{summary.accuracy:.4f}  ({labelled})"))
    errors = f"{summary.errors:,}"
    if summary.first_error is not None:
        errors += f"  (most often: {summary.first_error})"
    lines.append(("errors", errors))
    if summary.truncated:
        lines.append(("truncated", f"{summary.truncated:,} records lost the end of their state"))
    lines.append(("ran as", f"{summary.arithmetic}, {summary.kernels} kernels, {summary.device}"))
    speed = summary.tokens_per_second
    if speed is not None:
        lines.append(
            ("speed", f"{speed:,.0f} tokens/s  ({summary.tokens:,} in {summary.seconds:,.1f} s)")
        )
    if summary.finished:
        lines.append(("finished", "it was there already; nothing was done (--again asks anew)"))
    if summary.reused:
        lines.append(("reused", f"{summary.reused:,} unchanged records, from other sets here"))
    if summary.resumed:
        lines.append(("resumed", f"{summary.resumed:,} records were done already"))
    lines.append(("next", _next(job, run, summary.arithmetic)))
    return lines


def _next(job: PredictJob, run: RunFolder | None, arithmetic: str) -> str:
    from clefq.names.run_folder import BASELINE

    if job.shard is not None:
        return f"clefq merge {job.out.parent}/*.parquet, when every shard is there"
    if run is not None and job.out.resolve().parent.parent != (run.root / "predictions").resolve():
        run = None  # not where the run folder's parity looks
    if run is not None and job.model.variant != BASELINE:
        return f"clefq parity --baseline {BASELINE}"
    if run is not None:
        return "clefq predict VARIANT for the candidates, or clefq parity --baseline bf16"
    if arithmetic == "bf16":
        names = f"--baseline {job.out} --candidate OTHER.parquet"
    else:
        names = f"--baseline BF16.parquet --candidate {job.out}"
    return f"clefq parity {names} --eval {job.set_path}"
