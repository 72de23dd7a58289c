"""`clefq flips`: the changed answers of a report, to read."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clefq.cli.options import Json, Quiet, Run

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from clefq.parity.report.changed import ChangedAnswer
    from clefq.store.sets import SetFolder


def command(
    report: Annotated[
        Path,
        typer.Argument(metavar="REPORT", help="A candidate's report folder, or its parity.json."),
    ],
    slices: Annotated[
        list[str] | None,
        typer.Option(
            "--slice",
            metavar="KEY=VALUE",
            help="Only those in this slice, such as cohort=mail, question=ID or "
            "gold=ID/OPTION; repeated: in all of them.",
        ),
    ] = None,
    text: Annotated[
        bool, typer.Option("--text", help="Show them here, a page each, instead of writing files.")
    ] = False,
    eval_set: Annotated[
        str | None,
        typer.Option(
            "--eval", metavar="SET", help="The set with the texts (default: the run folder's)."
        ),
    ] = None,
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="Where the HTML page and CSV file go.")
    ] = Path(),
    run: Run = None,
    json_output: Json = False,
    quiet: Quiet = False,
) -> None:
    """Read every changed answer: state, options, both probabilities, right answer.

    Writes `flips.SET.VARIANT.html` and `.csv`; with `--text` nothing is written. The texts are
    those of your records: mind who reads the files.
    """
    from clefq.console import Console
    from clefq.parity.report.changed import csv_text, in_slices, pages, read_changed
    from clefq.parity.report.html_page import flips_html
    from clefq.parity.report.parity_json import read_parity
    from clefq.store.atomic import write_text

    console = Console(json_output=json_output, quiet=quiet)
    path = _only_report(report)
    document = read_parity(path)
    folder = _set_of(document, path, eval_set, run)
    if folder is None:
        console.note("the set is not here: texts are missing (give it with --eval SET)")
    records = None if folder is None else folder.records()
    wanted = slices or []
    changed = in_slices(read_changed(path, document, records), wanted, document["slices"])
    if text and not json_output:
        _page("\n".join(pages(changed)) or "no changed answer\n")
        return
    files = []
    if not text:
        name = f"flips.{document['eval_set']['name']}.{document['candidate']['variant']}"
        html = flips_html(document, changed, wanted, folder is not None)
        for suffix, content in (("html", html), ("csv", csv_text(changed))):
            files.append(out / f"{name}.{suffix}")
            write_text(files[-1], content)
    console.result(_json(changed, files), _text(changed, files, document))


def _only_report(report: Path) -> Path:
    from clefq.errors import InputError
    from clefq.parity.rejudge import find_reports

    found = find_reports(report)
    if len(found) > 1:
        raise InputError(
            f"{report} holds several reports:",
            fix=f"choose one: clefq flips {found[0].parent}",
            faults=[str(path.parent) for path in found],
        )
    return found[0]


def _set_of(
    document: Mapping[str, Any], path: Path, name: str | None, root: Path | None
) -> SetFolder | None:
    """The set of a report: as given, or that of the run folder around it."""
    from clefq.errors import InputError
    from clefq.names.run_folder import RunFolder, find_run, find_set, own_sets
    from clefq.store.sets import open_set

    known = document["eval_set"]
    if name is not None:
        folder = open_set(find_set(name, find_run(root)))
        if folder.manifest.sha256 != known["sha256"]:
            raise InputError(
                f"{folder.path} is not the set of this report "
                f"({folder.manifest.sha256[:12]}, the report's is {known['sha256'][:12]}).",
                fix="give the set that was judged.",
            )
        return folder
    parents = path.resolve().parents
    places = [root] if root is not None else [*parents[3:4], Path.cwd()]
    for place in places:
        if (place / "sets").is_dir():
            found = own_sets(RunFolder(place)).get(known["name"])
            if found is not None:
                folder = open_set(found)
                if folder.manifest.sha256 == known["sha256"]:
                    return folder
    return None


def _page(text: str) -> None:
    import sys

    import click

    if sys.stdout.isatty():
        click.echo_via_pager(text)
    else:
        typer.echo(text)


def _effects(changed: Sequence[ChangedAnswer]) -> str:
    tally = Counter(item.effect for item in changed)
    return ", ".join(f"{count:,} {effect}" for effect, count in tally.most_common()) or "none"


def _json(changed: Sequence[ChangedAnswer], files: Sequence[Path]) -> dict[str, Any]:
    from dataclasses import asdict

    rows = [
        {
            **item.flip,
            "effect": item.effect,
            "state": item.state,
            "instructions": item.instructions,
            "cohorts": dict(item.cohorts),
            "option_rows": [asdict(option) for option in item.options],
        }
        for item in changed
    ]
    return {"files": [str(path) for path in files], "changed": rows}


def _text(
    changed: Sequence[ChangedAnswer], files: Sequence[Path], document: Mapping[str, Any]
) -> Any:
    from clefq.console import name_table

    rows = [("changed", f"{len(changed):,} of {document['flips'].get('count', 0):,} answers")]
    rows.append(("effect", _effects(changed)))
    rows += [("file", str(path)) for path in files]
    return name_table(rows)
