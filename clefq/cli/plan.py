"""`clefq plan`: how many questions a gate needs, and what the present set can decide."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clefq.cli.options import Json, Quiet

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from clefq.parity.gates.schema import GateFile
    from clefq.parity.plan_gates import Assumptions, PlanRow


def command(
    report: Annotated[
        Path | None,
        typer.Argument(
            metavar="REPORT", help="parity.json or report folder whose figures are taken."
        ),
    ] = None,
    gates: Annotated[
        str | None,
        typer.Option("--gates", metavar="FILE", help="Default: the report's own, or release."),
    ] = None,
    margin: Annotated[
        float | None,
        typer.Option("--margin", metavar="M", help="Plan an accuracy margin, such as 0.02."),
    ] = None,
    floor: Annotated[
        float | None,
        typer.Option("--floor", metavar="F", help="Plan an agreement floor, such as 0.98."),
    ] = None,
    half_width: Annotated[
        float | None,
        typer.Option("--half-width", metavar="H", help="Plan the accuracy interval's half-width."),
    ] = None,
    questions: Annotated[
        int | None,
        typer.Option("--questions", metavar="N", min=1, help="Questions of the present set."),
    ] = None,
    discordance: Annotated[
        float | None,
        typer.Option(
            "--discordance", metavar="P", help="Share that exactly one model has right (0.057)."
        ),
    ] = None,
    difference: Annotated[
        float | None,
        typer.Option("--difference", metavar="D", help="True accuracy difference (0)."),
    ] = None,
    deff: Annotated[
        float | None,
        typer.Option("--deff", metavar="X", help="Design effect of questions in a record (1)."),
    ] = None,
    confidence: Annotated[
        float, typer.Option("--confidence", metavar="C", help="One-sided, for --margin, --floor.")
    ] = 0.975,
    power: Annotated[float, typer.Option("--power", metavar="P", help="Wanted power.")] = 0.8,
    json_output: Json = False,
    quiet: Quiet = False,
) -> None:
    """Say how many questions decide the gates.

    And what the present set can and cannot decide, from a report's own figures or from
    assumptions: the smallest set that still decides, or how many more questions it takes. Figures
    are fractions: 2 points are 0.02. Questions of one record resemble each other: --deff says how
    much.
    """
    from clefq.console import Console
    from clefq.errors import InputError

    console = Console(json_output=json_output, quiet=quiet)
    if not 0 < power < 1:
        raise InputError(f"--power is {power:g}, expected more than 0 and less than 1.")
    document, path = _document(report)
    single = (margin, floor, half_width)
    given = {
        "discordance": discordance, "difference": difference, "deff": deff, "questions": questions
    }  # fmt: skip
    assumed = _assumptions(document, path, power, given)
    own = any(value is not None for value in single)
    changed = any(value is not None for value in given.values())
    if own:
        rows = _single_rows(single, assumed, confidence)
    else:
        rows = _gate_rows(_gates(gates, document), document, assumed, changed)
    total = None if document is None or own or changed else document["coverage"]["expected"]
    curves = [] if document is None or own or changed or gates else _operating(document)
    console.result(
        {**_json(rows, assumed, total), "operating": curves}, _text(rows, assumed, total, curves)
    )


def _document(report: Path | None) -> tuple[dict[str, Any] | None, str]:
    if report is None:
        return None, "assumed"
    from clefq.errors import InputError
    from clefq.parity.rejudge import find_reports
    from clefq.parity.report.parity_json import read_parity

    paths = find_reports(report)
    if len(paths) > 1:
        raise InputError(
            f"{report} holds {len(paths)} reports.", fix=f"name one, such as {paths[0]}."
        )
    return read_parity(paths[0]), str(paths[0])


def _assumptions(
    document: dict[str, Any] | None, path: str, power: float, given: dict[str, Any]
) -> Assumptions:
    from dataclasses import replace

    from clefq.parity.plan_gates import Assumptions, assumptions_of

    base = Assumptions(power=power)
    if document is not None:
        base = assumptions_of(document, power, path)
    return replace(base, **{key: value for key, value in given.items() if value is not None})


def _gates(name: str | None, document: dict[str, Any] | None) -> GateFile:
    from clefq.parity.gates.files import load_gates
    from clefq.parity.gates.schema import parse_gates

    if name is None and document is not None:
        return parse_gates(document["gate_file"]["text"].encode("utf-8"), "the report's gate file")
    return load_gates(name or "release").gates


def _gate_rows(
    gates: GateFile, document: dict[str, Any] | None, assumed: Assumptions, changed: bool
) -> list[PlanRow]:
    from clefq.parity.plan_gates import plan_from_assumptions, plan_from_report

    if document is not None and not changed:
        return list(plan_from_report(gates, document, assumed.power))
    return list(plan_from_assumptions(gates, assumed, document))


def _single_rows(
    single: tuple[float | None, float | None, float | None],
    assumed: Assumptions,
    confidence: float,
) -> list[PlanRow]:
    from clefq.parity.gates.planning import questions_for_half_width
    from clefq.parity.gates.schema import Gate, GateFile
    from clefq.parity.plan_gates import PlanRow, plan_from_assumptions

    margin, floor, half_width = single
    gates = []
    if margin is not None:
        gates.append(
            Gate("margin", "accuracy_delta", "at_least", margin, None, None, confidence, 1)
        )
    if floor is not None:
        gates.append(Gate("floor", "agreement", "at_least", None, floor, None, confidence, 1))
    rows = list(plan_from_assumptions(GateFile("plan", "plan", tuple(gates)), assumed))
    if half_width is not None:
        two_sided = 2 * confidence - 1
        needed = questions_for_half_width(assumed.discordance, half_width, two_sided, assumed.deff)
        have = assumed.questions
        note = f"±{100 * half_width:g} pt at {100 * two_sided:g}%"
        decided = None if have is None else have >= needed
        rows.append(
            PlanRow("half-width", "accuracy_delta", half_width, needed, have, decided, note)
        )
    return rows


def _json(rows: Sequence[PlanRow], assumed: Assumptions, total: int | None) -> dict[str, Any]:
    from dataclasses import asdict

    from clefq.parity.plan_gates import smallest_set

    return {
        "assumptions": asdict(assumed),
        "rows": [row.to_json() for row in rows],
        "set": None
        if total is None
        else {"questions": total, "decides_at": smallest_set(rows, total)},
    }


def _operating(document: dict[str, Any]) -> list[dict[str, Any]]:
    """How likely the report's own set passes its own gates, by the true loss."""
    return list((document["details"] or {}).get("operating") or ())


def _text(
    rows: Sequence[PlanRow],
    assumed: Assumptions,
    total: int | None,
    curves: Sequence[dict[str, Any]],
) -> RenderableType:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from clefq.parity.gates.formatting import count
    from clefq.parity.report.details import operating_lines

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("gate", overflow="fold")
    table.add_column("limit", justify="right", no_wrap=True)
    table.add_column("has", justify="right", no_wrap=True)
    table.add_column("decides at", justify="right", no_wrap=True)
    table.add_column("", overflow="fold")
    for row in sorted(rows, key=lambda row: not row.required):
        limit = f"{row.limit:g}".replace("-", "−")
        note = row.note if row.required else f"advisory: {row.note}"
        table.add_row(Text(row.gate), limit, count(row.have), count(row.needed), Text(note))
    parts: list[RenderableType] = [table]
    parts.append(
        Text(
            f"questions; discordance {assumed.discordance:.3g}, design effect {assumed.deff:.2f}, "
            f"power {assumed.power:.0%} ({assumed.source})"
        )
    )
    parts += [Text(f"{name}: {text}") for name, text in operating_lines(curves)]
    if total is not None:
        parts.append(Text(_whole(rows, total)))
        return Group(*parts)
    rest = [row.gate for row in rows if row.decided is False]
    if rest:
        parts.append(Text(f"the present set does not decide: {', '.join(rest)}"))
    return Group(*parts)


def _whole(rows: Sequence[PlanRow], total: int) -> str:
    """What the whole set would have to be, in one line."""
    from clefq.parity.plan_gates import smallest_set

    size = smallest_set(rows, total)
    if size is None:
        stuck = [row.gate for row in rows if row.required and row.needed is None]
        return f"no size of the set decides it: {', '.join(stuck) or 'nothing is required'}"
    failing = any(row.required and row.failing for row in rows)
    what = "shows the failure" if failing else "decides every required gate"
    if size > total:
        return (
            f"a set that {what}: about {size - total:,} more questions than these {total:,} "
            "(if the figures stay)"
        )
    if size == total:
        return f"the smallest set that still {what}: all of these {total:,} questions"
    return f"the smallest set that still {what}: about {size:,} of these {total:,} questions"
