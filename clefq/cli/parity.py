"""`clefq parity`: statistics, gates and reports of candidates against their baseline."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from clefq.cli.options import Json, Quiet, Run

if TYPE_CHECKING:
    from clefq.cli.comparison import Request
    from clefq.console import Console
    from clefq.names.run_folder import RunFolder


def command(
    baseline: Annotated[
        str,
        typer.Option(
            "--baseline", metavar="X", help="Predictions file, checkpoint, or variant of the run."
        ),
    ],
    candidate: Annotated[
        list[str] | None,
        typer.Option(
            "--candidate", metavar="Y", help="The same; repeatable (default: every other variant)."
        ),
    ] = None,
    eval_set: Annotated[
        list[str] | None,
        typer.Option("--eval", metavar="SET", help="Repeatable (default: all of the run)."),
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option("--engine", metavar="E", help="For what is missing: transformers or vllm."),
    ] = None,
    gates: Annotated[
        str | None,
        typer.Option(
            "--gates",
            metavar="FILE",
            help="Gate file, or release (the default), smoke, strict, labels, coherence.",
        ),
    ] = None,
    replicate: Annotated[
        list[Path] | None,
        typer.Option(
            "--replicate", metavar="FILE", help="Another run of the baseline; repeatable."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="Report folder (default: report/SET)."),
    ] = None,
    reproduce: Annotated[
        Path | None,
        typer.Option(
            "--reproduce",
            metavar="REPORT",
            help="Judge whether these predictions reproduce a published parity.json.",
        ),
    ] = None,
    inconclusive_ok: Annotated[
        bool,
        typer.Option("--inconclusive-ok", help="JUnit: inconclusive gates are skipped tests."),
    ] = False,
    pick: Annotated[
        bool, typer.Option("--pick", help="Recommend one of the candidates that pass.")
    ] = False,
    run: Run = None,
    json_output: Json = False,
    quiet: Quiet = False,
) -> None:
    """Judge candidates against their baseline; exits by verdict.

    The worst of all counts: 0 pass, 1 fail, 2 wrong use or input, 3 inconclusive, 4 invalid.
    Predictions that are missing are made first. Reports of other candidates stay in the report
    folder where what they rest on is unchanged; the exit code is of those that are judged now.

    `clefq parity --baseline bf16` in a run folder judges every other variant on every eval set.
    With --reproduce the one candidate is judged by the gates of a published report, and whether
    verdict, gates and answers come out again is the exit code.
    """
    from clefq.cli import comparison
    from clefq.cli.parity_table import comparison_json, comparison_text
    from clefq.console import Console
    from clefq.engines.select import parse_engine
    from clefq.errors import InputError
    from clefq.names.run_folder import find_run
    from clefq.parity.comparison import SetJob, judge_set, load_spec
    from clefq.parity.gates.verdict import EXIT_CODES, worst

    console = Console(json_output=json_output, quiet=quiet)
    folder = find_run(run)
    request = comparison.Request(
        baseline, tuple(candidate or ()), tuple(eval_set or ()), engine, tuple(replicate or ())
    )
    if engine is not None:
        parse_engine(engine)
    if reproduce is not None:
        if out is not None or pick or inconclusive_ok or gates is not None or replicate:
            raise InputError(
                "--reproduce judges by the report's own gates and writes no report.",
                fix="leave out --gates, --replicate, --out, --pick and --inconclusive-ok.",
            )
        _reproduce(reproduce, request, folder, console)
    spec = load_spec(gates or "release")
    plans = comparison.plan(request, folder)
    comparison.check_bound(plans, spec.loaded.gates)
    comparison.predict_missing(plans, request, console)
    results = []
    for found in plans:
        target = _target(found.name, len(plans), out, folder.root if folder else Path.cwd())
        job = SetJob(
            baseline=found.baseline.path,
            candidates=tuple(slot.path for slot in found.candidates),
            out=target,
            replicates=found.replicates,
            sizes=comparison.sizes(found, folder),
            inconclusive_fails=not inconclusive_ok,
            set_path=found.set_path,
            pick=pick,
        )
        results.append((target, judge_set(job, spec, console)))
    console.result(comparison_json(results), comparison_text(results))
    raise typer.Exit(int(EXIT_CODES[worst([summary["verdict"] for _, summary in results])]))


def _target(set_name: str, n_sets: int, out: Path | None, root: Path) -> Path:
    if out is None:
        return root / "report" / set_name
    return out if n_sets == 1 else out / set_name


def _reproduce(
    report: Path, request: Request, folder: RunFolder | None, console: Console
) -> NoReturn:
    from rich.console import Group
    from rich.text import Text

    from clefq.cli import comparison
    from clefq.errors import InputError
    from clefq.parity.gates.formatting import MARKS
    from clefq.parity.gates.verdict import EXIT_CODES
    from clefq.parity.rejudge import find_reports
    from clefq.parity.reproduce import reproduce

    plans = comparison.plan(request, folder)
    paths = find_reports(report)
    if len(paths) != 1 or len(plans) != 1 or len(plans[0].candidates) != 1:
        raise InputError(
            "--reproduce takes one report, one set and one candidate.",
            fix="name the report's parity.json, --eval SET and --candidate Y.",
        )
    [found] = plans
    comparison.predict_missing(plans, request, console)
    result = reproduce(paths[0], found.baseline.path, found.candidates[0].path, found.set_path)
    head = {"pass": "reproduced", "fail": "not reproduced"}.get(result.word, result.word)
    lines = [
        Text(f"{MARKS[check.status]} {check.name}: {check.text}", overflow="fold")
        for check in result.checks
    ]
    console.result(result.to_json(), Group(Text(f"{head.upper()}: {paths[0]}"), *lines))
    raise typer.Exit(int(EXIT_CODES[result.word]))
