"""What a user named comes out as it was named."""

from __future__ import annotations

import pytest

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


def test_a_long_value_is_shown_whole(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    long = "/".join(["folder"] * 20)
    Console().result(None, name_table([("set", long), ("records", "1")]))
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert "".join(line.removeprefix("set").strip() for line in lines[:-1]) == long
