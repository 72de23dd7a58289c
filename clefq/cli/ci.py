"""`clefq ci`: the whole gate as one job, for any CI system."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clefq.cli.options import Json, Quiet

if TYPE_CHECKING:
    from rich.console import RenderableType

    from clefq.ci.spec import CandidateSpec, GateJob, JobResult

# Every option can come from the environment: a CI system's inputs then need no shell quoting.
_ENV = "CLEFQ_CI_"
_SHOWN = 8  # breaches of an audit


def _option(name: str, metavar: str | None, text: str) -> typer.models.OptionInfo:
    variable = _ENV + name.removeprefix("--").replace("-", "_").upper()
    option: typer.models.OptionInfo = typer.Option(
        name, metavar=metavar, envvar=variable, show_envvar=False, help=text
    )
    return option


def command(
    baseline: Annotated[
        str, _option("--baseline", "X", "BF16 checkpoint (folder or hub id), or its predictions.")
    ],
    candidate: Annotated[
        str | None, _option("--candidate", "Y", "Quantized checkpoint, or its predictions.")
    ] = None,
    scheme: Annotated[
        str | None, _option("--scheme", "NAME", "Instead: quantize the baseline by this scheme.")
    ] = None,
    recipe: Annotated[
        Path | None, _option("--recipe", "FILE", "Instead: quantize it by this recipe.")
    ] = None,
    calibration: Annotated[
        Path | None, _option("--calibration", "SET", "Calibration set of --scheme or --recipe.")
    ] = None,
    rounding: Annotated[
        str | None, _option("--rounding", "NAME", "Of --scheme's 4-bit weights.")
    ] = None,
    eval_set: Annotated[
        list[str] | None, _option("--eval", "SET", "Eval set folder; repeatable.")
    ] = None,
    gates: Annotated[
        str, _option("--gates", "FILE", "Gate file, or release, smoke, strict, labels, coherence.")
    ] = "release",
    engine: Annotated[
        str | None,
        _option("--engine", "E", "transformers or vllm (default: the fastest that is here)."),
    ] = None,
    max_length: Annotated[int, _option("--max-length", "N", "Most tokens of a prompt.")] = 16_384,
    audit: Annotated[
        str,
        _option("--audit", "HOW", "Audit of --candidate: against the source, alone, or off."),
    ] = "source",
    name: Annotated[
        str | None, _option("--name", "NAME", "The candidate's name in the report.")
    ] = None,
    inconclusive_ok: Annotated[
        bool, _option("--inconclusive-ok", None, "Exit with 0 where the verdict is inconclusive.")
    ] = False,
    out: Annotated[Path, _option("--out", "DIR", "The job's folder.")] = Path("clefq-ci"),
    cache: Annotated[
        Path | None,
        _option("--cache", "DIR", "Keeps the baseline's predictions (default: OUT/cache)."),
    ] = None,
    cache_salt: Annotated[
        str, _option("--cache-salt", "TEXT", "Another text, another cache.")
    ] = "",
    summary: Annotated[
        Path | None,
        _option("--summary", "FILE", "Append Markdown (default: $GITHUB_STEP_SUMMARY)."),
    ] = None,
    cache_key: Annotated[
        bool, typer.Option("--cache-key", help="Only print the key of the cache; runs no model.")
    ] = False,
    json_output: Json = False,
    quiet: Quiet = False,
) -> None:
    """Run the whole gate as one CI job.

    Quantizes or takes a checkpoint, audits it, predicts what is missing, judges. Exits with the
    verdict: 0 pass, 1 fail, 2 wrong use or input, 3 inconclusive, 4 invalid. A breached audit
    fails before anything is predicted. The same call resumes.

    Every option can come from the environment: CLEFQ_CI_EVAL for --eval, several sets separated
    by spaces.
    """
    from clefq.ci.job import cache_key as key_of
    from clefq.ci.job import run_job
    from clefq.ci.spec import CandidateSpec, GateJob
    from clefq.ci.summary import append_outputs, forget_results, report_error, write_results
    from clefq.console import Console
    from clefq.engines.select import parse_engine
    from clefq.errors import ClefqError

    console = Console(json_output=json_output, quiet=quiet)
    try:
        if not cache_key:
            forget_results(out)
        job = GateJob(
            baseline=baseline,
            candidate=_candidate(candidate, CandidateSpec(scheme, recipe, calibration, rounding)),
            name=name,
            sets=tuple(Path(each).expanduser() for each in eval_set or ()),
            gates=gates,
            engine=None if engine is None else parse_engine(engine),
            max_length=max_length,
            audit=_audit(audit),  # type: ignore[arg-type]
            out=out,
            cache=cache or out / "cache",
            salt=cache_salt,
            inconclusive_fails=not inconclusive_ok,
        )
        if cache_key:
            key = key_of(job)
            append_outputs({"cache-key": key or ""})
            console.result({"cache_key": key}, key or "")
            return
        result = run_job(job, console)
        write_results(job, result, summary)
    except ClefqError as error:
        report_error(error, summary)
        raise
    console.result(result.to_json(inconclusive_fails=not inconclusive_ok), _text(result, job))
    raise typer.Exit(int(result.exit_code(inconclusive_fails=not inconclusive_ok)))


def _candidate(given: str | None, recipe: CandidateSpec) -> str | CandidateSpec:
    from clefq.errors import InputError

    ways = [way for way in (given, recipe.scheme, recipe.file) if way is not None]
    if len(ways) != 1:
        raise InputError(
            "one candidate is needed.", fix="give --candidate, --scheme or --recipe, one of them."
        )
    if recipe.rounding is not None and recipe.scheme is None:
        raise InputError(
            "--rounding goes with --scheme.", fix="leave it out, or quantize here by a scheme."
        )
    if given is None:
        return recipe
    if recipe.calibration is not None:
        raise InputError(
            "--calibration goes with --scheme or --recipe.", fix="leave it out, or quantize here."
        )
    return given


def _audit(name: str) -> str:
    from clefq.ci.spec import AUDITS
    from clefq.errors import InputError

    if name not in AUDITS:
        raise InputError(f"unknown audit {name!r}.", fix=f"use one of {', '.join(AUDITS)}.")
    return name


def _text(result: JobResult, job: GateJob) -> RenderableType:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from clefq.ci.summary import SUMMARY_FILE
    from clefq.cli.parity_table import STYLES, comparison_text

    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True, style="dim")
    table.add_column(overflow="fold")
    table.add_column(justify="right", no_wrap=True)
    for step in result.steps:
        table.add_row(step.name, Text(step.text), f"{step.seconds:.0f} s")
    parts: list[RenderableType] = [table]
    for step in result.steps:
        parts += [Text(f"  {breach}", "red") for breach in step.breaches[:_SHOWN]]
        if len(step.breaches) > _SHOWN:
            parts.append(Text(f"  … and {len(step.breaches) - _SHOWN:,} more (clefq audit)"))
    if result.reports:
        parts.append(comparison_text(result.reports))
    word = Text(result.verdict.upper(), STYLES[result.verdict])
    parts.append(Text.assemble(word, f"  {job.out / SUMMARY_FILE}"))
    return Group(*parts)
