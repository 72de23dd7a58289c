"""What a command prints: progress and notes on stderr, the result on stdout.

With `--json` stdout carries exactly one JSON document; with `--quiet` notes and bars are silent.
Lines are wrapped between words, never inside a path or a command: what is shown can be copied.
Where no terminal is, notes are not wrapped at all, and long steps say once a minute how far they
are.
"""

from __future__ import annotations

import json
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from typing import Any

from rich.console import Console as RichConsole
from rich.console import ConsoleOptions, Group, RenderableType, RenderResult
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

Advance = Callable[[int], None]
LOG_SECONDS = 60.0
# a `command` or a word; what ends a line as a command does ("next: clefq …"), to its end
_PIECE = re.compile(r"(?:`[^`]*`|[^\s`]|`)+")
_COMMAND = re.compile(r"(?:^\s*|\s\s|: )((?:clefq|cd|git|pip|export) \S.*)$")


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
        if isinstance(text, str) and not self._err.is_terminal:
            self._err.print(text, soft_wrap=True)
        else:
            self._err.print(_unbroken(text), crop=False)

    @contextmanager
    def progress(self, label: str, total: int | None) -> Iterator[Advance]:
        """A progress bar on stderr; yields a function of finished units. None: total unknown.

        Where no terminal is, a line a minute instead.
        """
        if not self._err.is_terminal:
            with _Log(label, total).told(self.note) as advance:
                yield advance
            return
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeRemainingColumn(compact=True),
        )
        with Progress(*columns, console=self._err, disable=self.quiet, transient=True) as bars:
            task = bars.add_task(label, total=total)
            yield lambda count: bars.update(task, advance=count)

    def result(self, value: Any, text: RenderableType) -> None:
        """The command's result: `value` as JSON with `--json`, otherwise `text`."""
        if self.json_output:
            utf8 = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
            json.dump(value, sys.stdout, indent=2, sort_keys=True, ensure_ascii=not utf8)
            sys.stdout.write("\n")
        else:
            self._out.print(_unbroken(text), crop=False)


class _Log:
    """How far a step is, for a log: a line a minute, so nothing of a short one.

    Args:
        label: What is going on.
        total: Units in all, or None.
    """

    def __init__(self, label: str, total: int | None) -> None:
        self._label, self._total, self._done = label, total, 0
        self._started = time.monotonic()

    def advance(self, count: int) -> None:
        """Counts finished units."""
        self._done += count

    def line(self) -> str:
        """How far it is."""
        minutes = (time.monotonic() - self._started) / 60
        if self._total is None:
            return f"{self._label}: {self._done:,} after {minutes:.0f} min"
        text = f"{self._label}: {self._done:,} of {self._total:,} after {minutes:.0f} min"
        if 0 < self._done < self._total:
            text += f", about {minutes * (self._total / self._done - 1):.0f} min left"
        return text

    @contextmanager
    def told(self, note: Callable[[str], None]) -> Iterator[Advance]:
        """Says the line once a minute while the step runs, even where nothing is finished."""
        over = threading.Event()

        def tell() -> None:
            while not over.wait(LOG_SECONDS):
                note(self.line())

        teller = threading.Thread(target=tell, daemon=True)
        teller.start()
        try:
            yield self.advance
        finally:
            over.set()
            teller.join()


def _unbroken(found: RenderableType) -> RenderableType:
    """The same, its text wrapped between words only."""
    if isinstance(found, Group):
        return Group(*map(_unbroken, found.renderables))
    if isinstance(found, Text):
        return Flow(found)
    return Flow(Text(found)) if isinstance(found, str) else found


class Flow:
    """Text whose lines break between words, not in paths and `commands`, which stay whole.

    Args:
        text: The text.
        hanging: Columns by which continued lines are indented beyond their first one.
    """

    def __init__(self, text: Text, hanging: int = 0) -> None:
        self._text, self._hanging = text, hanging

    def __rich_console__(self, console: RichConsole, options: ConsoleOptions) -> RenderResult:
        """The lines, none of them cut."""
        for line in self._text.split("\n", allow_blank=True):
            indent = len(line.plain) - len(line.plain.lstrip()) + self._hanging
            breaks = _breaks(line.plain, options.max_width, indent)
            for index, part in enumerate(line.divide(breaks)):
                part.rstrip()
                shown = part if index == 0 else Text(" " * indent) + part
                shown.no_wrap, shown.overflow = True, "ignore"
                yield shown


def _breaks(line: str, width: int, indent: int) -> list[int]:
    """Where a line is broken: positions of the words that begin another one."""
    found: list[int] = []
    start, room = 0, width
    for begin, end in _pieces(line):
        # what is longer than any line gains nothing by one of its own
        longer = end - begin > width - indent and begin - start <= indent
        if end - start > room and line[start:begin].strip() and not longer:
            found.append(begin)
            start, room = begin, width - indent
    return found


def _pieces(line: str) -> Iterator[tuple[int, int]]:
    """Begin and end of what is not broken."""
    command = _COMMAND.search(line)
    stop = len(line) if command is None else command.start(1)
    for piece in _PIECE.finditer(line[:stop]):
        yield piece.span()
    if command is not None:
        yield command.span(1)


def name_table(rows: Iterable[tuple[str, str]]) -> Group:
    """Names and their values, a line each; a long value goes on below itself."""
    listed = list(rows)
    width = max((len(name) for name, _ in listed), default=0) + 2
    return Group(
        *(
            Flow(Text.assemble((name.ljust(width), "dim"), value), hanging=width)
            for name, value in listed
        )
    )


def size_text(count: int) -> str:
    """Bytes as people read them: decimal GB from 100 MB on, MB below."""
    return f"{count / 1e9:.2f} GB" if count >= 1e8 else f"{count / 1e6:.2f} MB"
