"""The tables that the command prints, 80 columns wide."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from clefq.console import name_table, size_text
from clefq.parity.gates.formatting import NONE
from clefq.parity.statistics.metric import Metric
from clefq.sensitivity.paired import PairedDifference
from clefq.sensitivity.schema import (
    RECIPE_FILE,
    REPORT_FILE,
    BlockResult,
    LayoutResult,
    Sensitivity,
    searched,
    worst_first,
)

MOST_ROWS = 16


def report_text(
    found: Sensitivity, out: Path, model: str, calibration: Path | None = None
) -> RenderableType:
    """What a person reads in the terminal.

    Args:
        found: The result.
        out: Folder that it lies in.
        model: What `clefq quantize` takes for the model: its folder or hub id.
        calibration: Folder of the calibration set, where one was given.
    """
    tables = (Text(), block_table(found), Text(), layout_table(found), Text())
    tail = _tail(found, out, _next_command(found, out, model, calibration))
    return Group(*map(Text, _head(found)), *tables, name_table(tail))


def _head(found: Sensitivity) -> list[str]:
    data, engine = found.eval_set, found.engine
    accuracy = found.baseline_accuracy
    bf16 = "" if accuracy is None else f", BF16 accuracy {accuracy:.4f}"
    return [
        f"{found.model['model_id']} on {data['name']}: {data['records']:,} records, "
        f"{data['questions']:,} questions{bf16}",
        f"{engine['kernels']} kernels, {engine['device']}; KL(BF16 || variant) in thousandths "
        "of a nat",
    ]


def block_table(found: Sensitivity) -> Table:
    """KL, interval and changed answers of every block and scheme; the worst of many blocks."""
    names = worst_first(found)
    by = {(result.block, result.scheme): result for result in found.blocks}
    schemes = list(dict.fromkeys(result.scheme for result in found.blocks))
    title = "one block quantized, the rest BF16"
    if len(names) > MOST_ROWS:
        title += f" (the worst {MOST_ROWS} of {len(names)})"
    table = _table(title, gap=1)
    table.add_column("block", no_wrap=True, overflow="fold")
    for scheme in schemes:
        table.add_column(f"{scheme}, flips", justify="right", no_wrap=True)
    for name in names[:MOST_ROWS]:
        table.add_row(name, *(_cell(by[name, scheme]) for scheme in schemes))
    return table


def _cell(result: BlockResult) -> str:
    return f"{milli(result.damage.kl).replace(', ', ',')} {result.damage.flips:>2}"


def layout_table(found: Sensitivity) -> Table:
    """Every layout: size, estimated speed, predicted and measured damage."""
    title = "layouts, smallest first; • none is better in size, speed and measured KL"
    table = _table(title, gap=1)
    table.add_column("layout", no_wrap=True)
    for name in ("size", "speed", "predicted", "measured KL", "flips", "agree"):
        table.add_column(name, justify="right", no_wrap=True)
    for layout in sorted(found.layouts, key=lambda item: (item.nbytes, item.name)):
        table.add_row(*layout_row(layout), style="bold" if layout.origin == "searched" else "")
    return table


def layout_row(layout: LayoutResult) -> Sequence[str]:
    """One row of the layout table."""
    damage = layout.measured
    kl = flips = agreement = NONE
    if damage is not None:
        kl, flips = milli(damage.kl), f"{damage.flips}"
        share = damage.agreement.estimate
        agreement = NONE if share is None else f"{100 * share:.2f}%"
    predicted = milli(layout.predicted_kl, bounds=False)
    size, speed = size_text(layout.nbytes), f"{layout.speedup:.2f}×"
    name = f"{layout.name} •" if layout.on_front else layout.name
    return name, size, speed, predicted, kl, flips, agreement


def milli(metric: Metric, *, bounds: bool = True) -> str:
    """A KL in thousandths, with its interval."""
    if metric.estimate is None:
        return "infinite" if metric.n_infinite else NONE
    text = short(1000 * metric.estimate)
    if not bounds:
        return text
    if metric.lower is None or metric.upper is None:
        return f"{text} [no bounds]"
    return f"{text} [{short(1000 * metric.lower, 2)}, {short(1000 * metric.upper, 2)}]"


def short(value: float, digits: int = 3) -> str:
    """That many significant digits, no exponent, no more than three decimals."""
    if value <= 0:
        return "0"
    whole = math.floor(math.log10(value)) + 1
    return f"{value:,.{min(3, max(0, digits - whole))}f}"


def _table(title: str, gap: int = 2) -> Table:
    return Table(
        box=None,
        title=title,
        title_justify="left",
        title_style="dim",
        pad_edge=False,
        padding=(0, gap, 0, 0),
    )


def _next_command(found: Sensitivity, out: Path, model: str, calibration: Path | None) -> str:
    words = ["clefq", "quantize", model, "--recipe", str(out / RECIPE_FILE)]
    if found.calibration is not None:
        words += ["--calibration", "SET" if calibration is None else str(calibration)]
    return shlex.join([*words, "--out", "DIR"])


def _tail(found: Sensitivity, out: Path, command: str) -> Iterable[tuple[str, str]]:
    effort = found.effort
    share = effort.layer_passes / max(1, effort.full_passes)
    line = f"{effort.variants} variants for {share:.0%} of as many full runs"
    if effort.resumed:
        line += f"; {effort.resumed} were done already"
    yield "effort", line
    assumed = ", ".join(f"{name} {value:g}×" for name, value in found.speeds.items())
    yield "speed", f"estimated, not measured: {assumed}"
    best = searched(found)
    if found.budget is not None and best is not None:
        size = size_text(best.nbytes)
        yield "budget", f"{found.budget.given}: {size}, estimated {best.speedup:.2f}×"
    yield "report", f"{out / REPORT_FILE}"
    if found.recipe is not None:
        yield "recipe", f"{out / RECIPE_FILE}"
        yield "next", command
        yield "", "then predict and judge it on a set that was not searched on"


def paired_text(found: Sequence[PairedDifference]) -> RenderableType:
    """One variant against others, on the terminal; nothing in it is hidden for being a loss."""
    first = found[0]
    size = "" if first.nbytes is None else f" ({size_text(first.nbytes)})"
    title = f"{first.variant}{size} minus each other, {first.kl.n_questions:,} questions"
    table = _table(title, gap=1)
    table.add_column("other", no_wrap=True)
    for name in ("KL, nats/1000", "answers kept, pt", "accuracy, pt"):
        table.add_column(name, justify="right", no_wrap=True)
    for item in found:
        table.add_row(
            item.other + ("*" if item.fair is False else ""),
            signed(item.kl, 1000, 3),
            signed(item.agreement, 100, 2),
            signed(item.accuracy, 100, 2),
        )
    lines = ["better: KL below zero, the others above; 95% intervals, paired, by record"]
    if any(item.fair is False for item in found):
        lines.append("* takes fewer bytes: not a comparison at equal size")
    for name in dict.fromkeys(name for item in found for name in item.searched):
        lines.append(f"{name} was searched on this very set: it looks better here than it is")
    return Group(table, Text(), *map(Text, lines))


def signed(metric: Metric, factor: float, decimals: int) -> str:
    """A difference with its sign and interval."""
    if metric.estimate is None:
        return NONE
    text = f"{factor * metric.estimate:+.{decimals}f}"
    if metric.lower is not None and metric.upper is not None:
        low, high = factor * metric.lower, factor * metric.upper
        text += f" [{low:+.{decimals}f},{high:+.{decimals}f}]"
    return text.replace("-", "−")
