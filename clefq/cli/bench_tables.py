"""What `clefq bench` prints, at 80 columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from clefq.bench.load_report import LoadRow
    from clefq.bench.measuring import Measured
    from clefq.bench.offline import OfflineReport
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


def offline_text(report: OfflineReport) -> RenderableType:
    """The comparison table of checkpoints and engines."""
    first = report.rows[0]
    parts: list[RenderableType] = []
    for index, speed in enumerate(first.speeds):
        what = speed.records + (" tokens" if speed.records.isdecimal() else "")
        parts += [Text() if parts else Text(first.device, "bold"), _speeds(report, index, what)]
    parts += [Text(), _costs(report.rows)]
    passes = "1 pass" if report.runs == 1 else f"median of {report.runs} passes"
    parts.append(Text(f"{passes}; {_versions(report.rows)}", "dim"))
    parts += [Text(f"note: {line}", "yellow") for line in report.warnings]
    return Group(*parts)


def _speeds(report: OfflineReport, index: int, what: str) -> Table:
    table = _table(f"{what}", "ran as", "records/s", "tokens/s", "ratio", "alone p50", "p95")
    cells = [cell for cell in report.cells if cell.records == report.rows[0].speeds[index].records]
    for row, cell in zip(report.rows, cells, strict=True):
        alone = row.speeds[index].latency
        times = ("–", "–") if alone is None else (_ms(alone.median), _ms(alone.p95))
        table.add_row(
            row.name,
            _ran_as(row),
            _rate(cell.records_per_second),
            f"{cell.tokens_per_second:,.0f}",
            f"{cell.ratio:.2f}×",
            f"{times[0]} ms",
            f"{times[1]} ms",
        )
    return table


def _costs(rows: Sequence[Measured]) -> Table:
    table = _table("", "start-up", "peak memory", "weights loaded", "on disk")
    for row in rows:
        peak = row.peak_bytes if row.device_peak_bytes is None else row.device_peak_bytes
        weights = "–" if row.weight_bytes is None else _bytes(row.weight_bytes)
        table.add_row(
            row.name, f"{row.start_seconds:.1f} s", _bytes(peak), weights, _bytes(row.disk_bytes)
        )
    return table


def _ran_as(row: Measured) -> str:
    return row.arithmetic if row.kernels == "real" else f"{row.arithmetic} sim."


def _versions(rows: Sequence[Measured]) -> str:
    return ", ".join(dict.fromkeys(f"{row.engine} {row.engine_version}" for row in rows))


def _bytes(count: int) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"


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
