"""What a command prints: progress and notes on stderr, the result on stdout.

With `--json` stdout carries exactly one JSON document; with `--quiet` notes and bars are silent.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from typing import Any

from rich.console import Console as RichConsole
from rich.console import RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

Advance = Callable[[int], None]


class Console:
    """Output of one command.

    Args:
        json_output: Write one JSON document to stdout instead of text.
        quiet: No notes and no progress bars.
    """

    def __init__(self, *, json_output: bool = False, quiet: bool = False) -> None:
        self.json_output = json_output
        self.quiet = quiet
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, TextIOWrapper):
                # an arrow that a terminal's encoding lacks is no reason to fail
                stream.reconfigure(errors="replace")
        # names and paths are the user's: a [bold] or :x: in them is no markup
        self._err = RichConsole(
            stderr=True, quiet=quiet, highlight=False, markup=False, emoji=False
        )
        self._out = RichConsole(highlight=False, markup=False, emoji=False)

    def note(self, text: RenderableType) -> None:
        """A line, or a few, about what is going on; never part of the result."""
        self._err.print(text)

    @contextmanager
    def progress(self, label: str, total: int | None) -> Iterator[Advance]:
        """A progress bar on stderr; yields a function of finished units. None: total unknown."""
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeRemainingColumn(compact=True),
        )
        shown = not self.quiet and self._err.is_terminal
        with Progress(*columns, console=self._err, disable=not shown, transient=True) as bars:
            task = bars.add_task(label, total=total)
            yield lambda count: bars.update(task, advance=count)

    def result(self, value: Any, text: RenderableType) -> None:
        """The command's result: `value` as JSON with `--json`, otherwise `text`."""
        if self.json_output:
            utf8 = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
            json.dump(value, sys.stdout, indent=2, sort_keys=True, ensure_ascii=not utf8)
            sys.stdout.write("\n")
        else:
            self._out.print(text)


def name_table(rows: Iterable[tuple[str, str]]) -> Table:
    """Names and their values, a line each; a long value folds within its column."""
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True, style="dim")
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(name, value)
    return table


def size_text(count: int) -> str:
    """Bytes as people read them: decimal GB from 100 MB on, MB below."""
    return f"{count / 1e9:.2f} GB" if count >= 1e8 else f"{count / 1e6:.2f} MB"
