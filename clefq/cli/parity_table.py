"""The comparison as a table of at most 80 columns, and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from clefq.parity.gates.choosing import Duel
from clefq.parity.gates.formatting import MARKS, NONE, count
from clefq.parity.gates.rows import figure_row
from clefq.parity.gates.verdict import EXIT_CODES, worst

STYLES = {"pass": "green", "fail": "red", "inconclusive": "yellow", "invalid": "magenta"}
Result = tuple[Path, Mapping[str, Any]]
_REASONS = 3


def comparison_json(results: Sequence[Result]) -> dict[str, Any]:
    """The JSON document of `clefq parity --json`.

    Args:
        results: Report folder and `summary.json` value of every set.
    """
    word = worst([summary["verdict"] for _, summary in results])
    return {
        "verdict": word,
        "exit_code": int(EXIT_CODES[word]),
        "sets": [{**summary, "report_folder": str(folder)} for folder, summary in results],
    }


def comparison_text(results: Sequence[Result]) -> RenderableType:
    """The tables, why and what next for every candidate, and the reports' paths."""
    parts: list[RenderableType] = []
    for folder, summary in results:
        parts += [_heading(summary), _table(summary), *reason_lines(summary["candidates"])]
        parts += [Text(line) for line in (*_choice(summary), *_other_reports(summary))]
        parts.append(Text(f"report  {_near(folder) / 'index.html'}"))
    return Group(*parts)


def _choice(summary: Mapping[str, Any]) -> Iterator[str]:
    """The pairs of candidates and the recommendation, where that was asked."""
    found = summary.get("choice")
    if found is None:
        return
    yield from (f"    {Duel(**pair).text}" for pair in found["pairs"])
    yield f"choice: {found['recommended'] or 'none'}: {found['reason']}"


def _other_reports(summary: Mapping[str, Any]) -> Iterator[str]:
    """What became of reports of candidates that were not judged now."""
    if summary.get("kept"):
        yield f"kept in the report, as nothing of theirs changed: {', '.join(summary['kept'])}"
    for variant, why in summary.get("removed", {}).items():
        yield f"removed from the report: {variant}, because {why}; judge it again"


def _near(folder: Path) -> Path:
    """The path as seen from the current folder, where it lies below it."""
    here = Path.cwd()
    full = folder.resolve()
    return full.relative_to(here) if full.is_relative_to(here) else folder


def _heading(summary: Mapping[str, Any]) -> Text:
    base, gates = summary["baseline"], summary["gate_file"]
    bound = "" if gates["bound"] else " (template)"
    asked = next((row["agreement"] for row in summary["candidates"] if row["agreement"]), None)
    counted = "" if asked is None else f"{count(asked['n_questions'])} questions, "
    accuracy = _cell("accuracy_baseline", base["accuracy"])
    return Text(
        f"{summary['eval_set']['name']}: {counted}against {base['variant']} ({accuracy} right), "
        f"gates {gates['name']}{bound}"
    )


def _table(summary: Mapping[str, Any]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("candidate", overflow="fold")
    for name in ("accuracy", "Δ", "agreement", "KL", "TV"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    for row in summary["candidates"]:
        table.add_row(
            row["variant"],
            _cell("accuracy_candidate", row["accuracy"]),
            *(_cell(name, row[name]) for name in ("accuracy_delta", "agreement", "kl", "tv")),
            Text(row["verdict"].upper(), style=STYLES[row["verdict"]]),
        )
    return table


def _cell(name: str, metric: Mapping[str, Any] | None) -> str:
    """A figure as everywhere, without the words that a narrow column has no room for."""
    return NONE if metric is None else figure_row(name, metric).figure


def reason_lines(rows: Sequence[Mapping[str, Any]]) -> list[Text]:
    """Why each verdict is what it is, for the terminal; what all share is said once.

    Args:
        rows: Candidates as in `summary.json`: `variant`, `verdict`, `sentence`, `next_step`,
            `qualifiers`, `reasons`, `advisory`.
    """
    if not rows:
        return []
    shared = [t for t in rows[0]["qualifiers"] if all(t in row["qualifiers"] for row in rows)]
    found = [Text(line) for row in rows for line in _reasons(row, shared)]
    if shared:
        which = "the verdict is" if len(rows) == 1 else "all verdicts are"
        found.append(Text(f"{which} {', '.join(shared)}"))
    return found


def _reasons(row: Mapping[str, Any], shared: Sequence[str]) -> Iterator[str]:
    """The candidate's sentence, why, what advisory gates it breaks, and what next."""
    word, reasons, advisory = row["verdict"], row["reasons"], row["advisory"]
    beside = [text for text in row["qualifiers"] if text not in shared]
    if word == "pass" and not beside and not advisory:
        return
    said = f" ({', '.join(beside)})" if beside else ""
    yield f"{MARKS[word]} {row['variant']}{said}: {row['sentence']}"
    yield from (f"    {reason}" for reason in reasons[:_REASONS])
    if len(reasons) > _REASONS:
        yield f"    and {len(reasons) - _REASONS} more, in the report"
    yield from (f"    advisory, broken: {line}" for line in advisory[:_REASONS])
    if len(advisory) > _REASONS:
        yield f"    and {len(advisory) - _REASONS} more advisory gates are broken"
    if word != "pass":
        yield f"    next: {row['next_step']}"
