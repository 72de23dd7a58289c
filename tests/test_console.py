"""What a user named comes out as it was named."""

from __future__ import annotations

import time

import pytest
from rich.console import Group, RenderableType
from rich.text import Text

from clefq.console import Console, name_table

PATH = "runs/[bold]a[/nothing]/:smile:/[x]"


def test_names_are_no_markup(capsys: pytest.CaptureFixture[str]) -> None:
    console = Console()
    console.note(f"reading {PATH}")
    console.result(None, f"folder  {PATH}")
    console.result(None, name_table([("file", PATH)]))
    shown = capsys.readouterr()
    assert shown.err == f"reading {PATH}\n"
    assert [line.rstrip() for line in shown.out.splitlines()] == [
        f"folder  {PATH}",
        f"file  {PATH}",
    ]


LONG = "/".join(["folder"] * 20)
COMMAND = f"clefq parity --baseline bf16 --candidate {LONG} --eval sets/x"


@pytest.mark.parametrize("columns", [40, 80])
@pytest.mark.parametrize(
    "text",
    [
        name_table([("set", LONG), ("records", "1")]),
        Group(Text(f"the report is in {LONG}, and more is to be said of it than fits")),
        f"  it failed, as it often does on such a machine; run `{COMMAND}` and look again",
        f"a line of words that is rather long, longer than any terminal is wide\nnext: {COMMAND}",
        f"check   {COMMAND}",
    ],
)
def test_paths_and_commands_are_never_broken(
    text: RenderableType,
    columns: int,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    Console().result(None, text)
    lines = capsys.readouterr().out.splitlines()
    assert sum(LONG in line for line in lines) == 1
    if COMMAND in str(text):
        assert sum(COMMAND in line for line in lines) == 1
    assert all(len(line) <= columns for line in lines if LONG not in line)


def test_words_go_on_below_their_own_beginning(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    Console().result(None, Text("  one two three four five six seven eight nine", "red"))
    Console().result(None, name_table([("a", "1 2 3 4 5 6 7 8 9 10 11 12 13 14"), ("bcd", "")]))
    assert capsys.readouterr().out.splitlines() == [
        "  one two three four five six",
        "  seven eight nine",
        "a    1 2 3 4 5 6 7 8 9 10 11",
        "     12 13 14",
        "bcd",
    ]


def test_a_log_is_not_wrapped_and_hears_once_a_minute(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setattr("clefq.console.LOG_SECONDS", 0.02)
    console = Console()
    console.note(f"predicting with {COMMAND}")
    with console.progress("judge", 8) as advance:
        advance(2)
        time.sleep(0.1)
    first, *rest = capsys.readouterr().err.splitlines()
    assert first == f"predicting with {COMMAND}"
    assert rest and set(rest) == {"judge: 2 of 8 after 0 min, about 0 min left"}
    with Console(quiet=True).progress("judge", 8):
        time.sleep(0.05)
    with console.progress("quick", 1) as advance:
        advance(1)
    assert capsys.readouterr().err == ""
