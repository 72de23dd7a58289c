"""`clefq gate`: judges stored reports again in CI, or binds a gate file to a set and a baseline."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clefq.cli.options import Json, Quiet, Run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from clefq.console import Console
    from clefq.names.run_folder import RunFolder
    from clefq.parity.gates.freeze import Frozen
    from clefq.parity.gates.schema import BoundBaseline, BoundSet
    from clefq.parity.rejudge import Rejudged

STEP_SUMMARY = "GITHUB_STEP_SUMMARY"


def command(
    target: Annotated[
        str,
        typer.Argument(
            metavar="DIR_OR_JSON",
            help="Report folder, run folder or parity.json; with --freeze a gate file, or "
            "release, smoke, strict, labels, coherence.",
        ),
    ],
    freeze: Annotated[
        bool, typer.Option("--freeze", help="Bind the gate file to --set and --baseline.")
    ] = False,
    eval_set: Annotated[
        str | None,
        typer.Option("--set", metavar="SET", help="(freeze) Set folder, or a set of the run."),
    ] = None,
    baseline: Annotated[
        str | None,
        typer.Option(
            "--baseline",
            metavar="X",
            help="(freeze) The baseline's predictions file, checkpoint, or variant of the run.",
        ),
    ] = None,
    supersedes: Annotated[
        Path | None,
        typer.Option("--supersedes", metavar="FILE", help="(freeze) The gate file it replaces."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="(freeze) Default: NAME.SET.yaml here."),
    ] = None,
    junit: Annotated[
        Path | None, typer.Option("--junit", metavar="FILE", help="Write JUnit XML.")
    ] = None,
    summary: Annotated[
        Path | None,
        typer.Option(
            "--summary", metavar="FILE", help=f"Append Markdown (default: ${STEP_SUMMARY})."
        ),
    ] = None,
    inconclusive_ok: Annotated[
        bool,
        typer.Option("--inconclusive-ok", help="JUnit: inconclusive gates are skipped tests."),
    ] = False,
    run: Run = None,
    json_output: Json = False,
    quiet: Quiet = False,
) -> None:
    """Judge stored reports again, or freeze a gate file.

    Reports are judged by the gates that they embed: from the predictions where they lie, else
    from the stored bounds, and it says which. The worst verdict is the exit code. A report
    whose predictions were changed since is invalid.

    With --freeze, binds a gate template to one eval set and one baseline: commit the file
    before any candidate is run, and every report can show that the gates came first.
    """
    from clefq.console import Console

    console = Console(json_output=json_output, quiet=quiet)
    if freeze:
        _refuse({"--junit": junit, "--summary": summary}, "--freeze")
        _freeze((target, eval_set, baseline), (out, supersedes), run, console)
        return
    given = {"--set": eval_set, "--baseline": baseline, "--out": out, "--supersedes": supersedes}
    _refuse(given, None)
    _judge(Path(target), (junit, summary), not inconclusive_ok, console)


def _refuse(given: dict[str, Any], mode: str | None) -> None:
    from clefq.errors import InputError

    for name, value in given.items():
        if value is not None:
            where = f"does not go with {mode}" if mode else "needs --freeze"
            raise InputError(f"{name} {where}.", fix="see `clefq gate --help`.")


def _judge(
    target: Path,
    files: tuple[Path | None, Path | None],
    inconclusive_fails: bool,
    console: Console,
) -> None:
    from clefq.ci.summary import append_summary
    from clefq.parity.gates.verdict import EXIT_CODES, worst
    from clefq.parity.rejudge import find_reports, rejudge
    from clefq.parity.report.junit import junit_xml
    from clefq.parity.report.markdown import report_markdown
    from clefq.store.atomic import write_text

    paths = find_reports(target)
    found = []
    with console.progress("judge", len(paths)) as advance:
        for path in paths:
            found.append(rejudge(path))
            advance(1)
    junit, summary = files
    if junit is not None:
        documents = [item.document for item in found]
        write_text(junit, junit_xml(documents, inconclusive_fails=inconclusive_fails))
    append_summary(summary, (report_markdown(item.document) for item in found))
    word = worst([item.word for item in found])
    code = int(EXIT_CODES[word])
    console.result(
        {"verdict": word, "exit_code": code, "reports": [_report_json(item) for item in found]},
        _report_text(found),
    )
    raise typer.Exit(code)


def _report_json(item: Rejudged) -> dict[str, Any]:
    return {
        "report": str(item.path),
        "eval_set": item.document["eval_set"],
        "candidate": item.document["candidate"]["variant"],
        "judged_from": item.judged_from,
        "stored_verdict": item.stored_word,
        "verdict": item.document["verdict"],
        "gates": item.document["gates"],
    }


def _report_text(found: Sequence[Rejudged]) -> RenderableType:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from clefq.cli.parity_table import STYLES, reason_lines

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for name in ("set", "candidate", "verdict", "judged from"):
        table.add_column(name, overflow="fold")
    rows = []
    several = len({item.document["eval_set"]["name"] for item in found}) > 1
    for item in found:
        changed = "" if item.word == item.stored_word else f" (was {item.stored_word})"
        table.add_row(
            Text(item.document["eval_set"]["name"]),
            Text(item.document["candidate"]["variant"]),
            Text(item.word.upper() + changed, style=STYLES[item.word]),
            item.judged_from,
        )
        rows.append(_candidate(item, several))
    return Group(table, *reason_lines(rows))


def _candidate(item: Rejudged, several: bool) -> dict[str, Any]:
    """One report as a row of a comparison; with its set's name where there are several."""
    from clefq.parity.gates.rows import broken_advisory, qualifiers

    name = item.document["candidate"]["variant"]
    verdict = item.document["verdict"]
    return {
        "variant": f"{name} on {item.document['eval_set']['name']}" if several else name,
        "verdict": item.word,
        **{key: verdict[key] for key in ("sentence", "next_step", "reasons")},
        "qualifiers": qualifiers(item.document),
        "advisory": broken_advisory(item.document),
    }


def _freeze(
    names: tuple[str, str | None, str | None],
    files: tuple[Path | None, Path | None],
    run: Path | None,
    console: Console,
) -> None:
    from clefq.errors import InputError
    from clefq.names.run_folder import find_run
    from clefq.parity.gates.freeze import FreezeJob, freeze

    template, eval_set, baseline = names
    if eval_set is None or baseline is None:
        raise InputError(
            "--freeze needs --set and --baseline.",
            fix="for example: clefq gate release --freeze --set SET --baseline bf16",
        )
    folder = find_run(run)
    bound_set = _bound_set(eval_set, folder)
    frozen = freeze(
        FreezeJob(
            template, bound_set, _bound_baseline(baseline, bound_set, folder), files[0], files[1]
        )
    )
    console.result(_frozen_json(frozen), _frozen_text(frozen))


def _bound_set(name: str, run: RunFolder | None) -> BoundSet:
    from clefq.names.run_folder import find_set
    from clefq.parity.gates.schema import BoundSet
    from clefq.store.sets import open_set

    found = open_set(find_set(name, run))
    return BoundSet(found.name, found.sha256())


def _bound_baseline(name: str, bound: BoundSet, run: RunFolder | None) -> BoundBaseline:
    from clefq.names.predictions import is_predictions
    from clefq.parity.gates.freeze import baseline_of
    from clefq.parity.gates.schema import BoundBaseline
    from clefq.store.predictions import read_meta

    if is_predictions(name):
        return baseline_of(read_meta(Path(name)), bound)
    if run is not None and run.predictions(bound.name, name).is_file():
        return baseline_of(read_meta(run.predictions(bound.name, name)), bound)
    from clefq.clef.checkpoint import checkpoint_sha256
    from clefq.names.models import find_model

    model = find_model(name, run)
    return BoundBaseline(model.model_id, model.revision, checkpoint_sha256(model.folder))


def _frozen_json(frozen: Frozen) -> dict[str, Any]:
    from dataclasses import asdict

    return {**asdict(frozen), "path": str(frozen.path)}


def _frozen_text(frozen: Frozen) -> str:
    identity = frozen.baseline.model_sha256 or frozen.baseline.model_revision or ""
    return "\n".join(
        [
            f"gates     {frozen.path}  {frozen.sha256[:12]}",
            f"set       {frozen.eval_set.name}  {frozen.eval_set.sha256[:12]}",
            f"baseline  {frozen.baseline.model_id}  {identity[:12]}",
            "next      commit it before any candidate is run:",
            f"          git add {frozen.path} && git commit -m 'Freeze gates'",
            f"          then judge with --gates {frozen.path}",
        ]
    )
