"""`clefq doctor`: what this machine can run, and the command for what is missing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from clefq.cli.options import Json, Quiet

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

    from clefq.doctor.facts import Facts
    from clefq.doctor.findings import Finding

Model = Annotated[
    str | None,
    typer.Argument(
        metavar="MODEL", help="Compare with its needs: a folder, a variant, a hub id or nano."
    ),
]
Online = Annotated[
    bool, typer.Option("--online", help="Also ask whether the hub answers; nothing else does.")
]


def command(
    model: Model = None, online: Online = False, json_output: Json = False, quiet: Quiet = False
) -> None:
    """Say what this machine can run, and what it lacks.

    Each lack comes with the command that mends it. Exits with 0 whatever is lacking: what you do
    not need is no fault, and `--json` lists the lacks for scripts; with 2 where MODEL is no Clef
    checkpoint.
    """
    from clefq.console import Console
    from clefq.doctor.findings import diagnose
    from clefq.doctor.probe import probe

    console = Console(json_output=json_output, quiet=quiet)
    console.note("looking at this machine; importing torch may take a while")
    facts = probe(_known(model), online=online)
    found = diagnose(facts)
    console.result(to_json(facts, found), render(facts, found))


def _known(model: str | None) -> str | None:
    """What is on this machine by its folder, anything else as it stands."""
    from clefq.names.models import find_here
    from clefq.names.run_folder import find_run

    here = None if model is None else find_here(model, find_run(None))
    return model if here is None else str(here.folder)


def to_json(facts: Facts, found: list[Finding]) -> dict[str, Any]:
    """Facts, findings and what runs, for machines."""
    from dataclasses import asdict

    from clefq.doctor.arithmetic import arithmetic
    from clefq.doctor.findings import can_run

    body = asdict(facts)
    for name in ("working", "serving"):
        if body[name] is not None:
            del body[name]["requires"]  # long, and judged under `pins`
    return {
        "findings": [asdict(item) for item in found],
        "arithmetic": arithmetic(facts),
        "can_run": can_run(found),
        "facts": body,
    }


_STYLE = {"ok": "green", "lacking": "bold red", "not needed": "dim"}


def render(facts: Facts, found: list[Finding]) -> RenderableType:
    """The findings as text of at most 80 columns, what to do at the end."""
    from rich.console import Group
    from rich.text import Text

    from clefq.doctor.findings import ACCELERATOR

    parts: list[RenderableType] = []
    for section in dict.fromkeys(item.section for item in found):
        items = [item for item in found if item.section == section]
        parts += [Text(section, "bold"), *_section(items)]
        if section == ACCELERATOR:
            parts += _arithmetic(facts)
    return Group(*parts, *_closing(found))


def _section(items: list[Finding]) -> Iterator[RenderableType]:
    from rich.table import Table
    from rich.text import Text

    for item in items:
        table = Table.grid(padding=(0, 2, 0, 0))
        for width in (12, 18):
            table.add_column(min_width=width, no_wrap=True)
        table.add_column(overflow="fold")
        state = Text(f"  {item.state}", _STYLE[item.state])
        table.add_row(state, item.name, Text(item.text))
        yield table
        if item.fix:
            yield Text(f"    fix: {continued(item.fix, 67)}", "bold")


def continued(command: str, width: int) -> str:
    """A command over several lines that can be pasted as they stand."""
    import textwrap

    lines = textwrap.wrap(command, width, break_long_words=False, break_on_hyphens=False)
    return " \\\n         ".join(lines)


def _arithmetic(facts: Facts) -> list[RenderableType]:
    from rich.table import Table
    from rich.text import Text

    from clefq.doctor.arithmetic import arithmetic, where_real

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    vllm = "vllm" if facts.serving is not None else "vllm (once installed)"
    for name in ("  checkpoint", vllm, "transformers"):
        table.add_column(name, overflow="fold")
    for scheme, runs in arithmetic(facts).items():
        table.add_row(f"  {scheme}", runs["vllm"], runs["transformers"])
    where = where_real(facts)
    return [table, Text(f"  {where}", "dim")] if where else [table]


def _closing(found: list[Finding]) -> list[RenderableType]:
    from rich.text import Text

    from clefq.doctor.findings import can_run

    parts: list[RenderableType] = [Text("can run", "bold")]
    for name, answer in can_run(found).items():
        style = {"yes": "green", "no": "bold red"}.get(answer, "yellow")
        parts.append(Text.assemble("  ", (f"{answer:<12}", style), name))
    count = sum(item.state == "lacking" for item in found)
    text = f"{count} lacking: see `fix` above." if count else "nothing is lacking."
    return [*parts, Text(text)]
