"""What `clefq bench` prints, at 80 columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clefq.bench.load_report import LoadRow
    from clefq.bench.server import ServerReport


def server_text(report: ServerReport) -> RenderableType:
    """The comparison table of a load run, and what stands out in it."""
    spec = report.spec
    parts: list[RenderableType] = [
        Text(f"{report.url}  {report.model}", "bold"),
        Text(
            f"{report.n_records:,} records ({report.records}); each row {spec.duration:g} s "
            f"after {spec.warmup:g} s of warm-up",
            "dim",
        ),
        _server_table(report.rows),
    ]
    for row in report.rows:
        if row.errors:
            kinds = ", ".join(f"{name} ×{count:,}" for name, count in row.errors.items())
            parts.append(Text(f"{row.load}: failed: {kinds}", "red"))
        if row.refused:
            parts.append(
                Text(
                    f"{row.load}: refused (429): {row.refused:,}, "
                    f"{row.refused_with_retry_after:,} of them with Retry-After"
                )
            )
    parts += [_checked(report), *_server_timing(report.rows)]
    parts += [Text(f"note: {line}", "yellow") for line in report.warnings]
    return Group(*parts)


def _server_table(rows: Sequence[LoadRow]) -> Table:
    table = _table("load", "req/s", "tokens/s", "p50 ms", "p95 ms", "p99 ms", "ok", "429", "failed")
    for row in rows:
        took = row.latency
        times = ["–"] * 3 if took is None else [_ms(t) for t in (took.median, took.p95, took.p99)]
        table.add_row(
            row.load,
            _rate(row.requests_per_second),
            f"{row.tokens_per_second:,.0f}",
            *times,
            f"{row.answered:,}",
            f"{row.refused:,}",
            Text(f"{row.failed:,}", "red" if row.failed else ""),
        )
    return table


def _checked(report: ServerReport) -> Text:
    """One line on whether the answers are right."""
    wrong: dict[str, int] = {}
    for row in report.rows:
        for name, count in row.faults.items():
            wrong[name] = wrong.get(name, 0) + count
    lost = sum(row.lost for row in report.rows)
    checked = sum(row.checked for row in report.rows)
    found = ", ".join(f"{name} ×{count:,}" for name, count in sorted(wrong.items()))
    style = "bold red" if wrong or lost else "green"
    if report.tolerance is None:
        text = f"wrong answers: {found}" if wrong else "every answer has its record's questions"
    else:
        worst = max((row.worst for row in report.rows if row.worst is not None), default=0.0)
        verdict = found or "none wrong, none swapped"
        text = (
            f"{checked:,} answers compared (±{report.tolerance:g}): {verdict}; "
            f"largest difference {worst:.4f}"
        )
    return Text(f"{text}; {lost:,} lost", style)


def _server_timing(rows: Sequence[LoadRow]) -> list[RenderableType]:
    names = list(dict.fromkeys(name for row in rows for name in row.server_timing))
    if not names:
        return []
    table = _table("median ms, as the server says", *names)
    for row in rows:
        values = [row.server_timing.get(name) for name in names]
        table.add_row(row.load, *("–" if value is None else _ms(value) for value in values))
    return [Text(), table]


def _table(first: str, *rest: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column(first, no_wrap=True)
    for name in rest:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _ms(seconds: float) -> str:
    """Milliseconds with three digits that matter."""
    value = 1e3 * seconds
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.1f}"
