"""Every `clefq …` in README and docs names a command and options that there are."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from clefq.cli.main import app
from tests.docs.markdown import blocks, inline

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
GROUP = typer.main.get_command(app)
# where a command may begin in a line of code
_START = re.compile(r"(?:^|&& |; |run: |- |\$ |\()clefq (?=[a-z-])")
_END = re.compile(r"\s(?:&&|\||;|>)\s|\s#\s|\)$")
_PLACEHOLDERS = ("…", "...", "COMMAND")


def commands(page: Path) -> Iterator[tuple[int, str]]:
    """Line number and text of every command in a page's code blocks."""
    for block in blocks(page):
        if block.language == "python":
            continue
        code = re.sub(r" *\\\n\s*", " ", block.code)
        for offset, line in enumerate(code.splitlines()):
            for start in _START.finditer(line):
                yield block.line + offset, "clefq " + _END.split(line[start.end() :] + " ")[0]


def find(words: list[str]) -> tuple[Any, list[str]]:
    """The command that words name, and the words behind its name."""
    command: Any = GROUP
    while hasattr(command, "commands"):
        name = words[0] if words else ""
        assert name in command.commands, f"no command {name!r}"
        command, words = command.commands[name], words[1:]
    return command, words


def check(text: str, *, whole: bool) -> None:
    """Fails where a command line could not be what its author meant.

    Args:
        text: `clefq NAME …`.
        whole: Whether required options must be there, which inline code leaves out.
    """
    # brackets around what may be left out
    words = [word.strip("[]") for word in shlex.split(text, comments=True)[1:]]
    if words[0] in ("--version", "--help", *_PLACEHOLDERS):
        return
    if not whole and len(words) == 1 and hasattr(GROUP.commands.get(words[0]), "commands"):
        return  # a group of commands by its name
    command, words = find(words)
    options = {name: o for o in command.params for name in (*o.opts, *o.secondary_opts)}
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    given, seen = [], set()
    rest = iter(words)
    for word in rest:
        if word in _PLACEHOLDERS:
            whole = False
        elif word.startswith("-") and word != "-":
            name, _, value = word.partition("=")
            if name in ("-h", "--help"):
                return
            assert name in options, f"no option {name}"
            seen.add(options[name].name)
            if not options[name].is_flag and not value:
                assert next(rest, None) is not None or not whole, f"{name} needs a value"
        else:
            given.append(word)
    if any(argument.nargs == -1 for argument in arguments):
        return
    assert len(given) <= len(arguments), f"too many arguments: {' '.join(given)}"
    if whole:
        needed = sum(argument.required for argument in arguments)
        assert len(given) >= needed, "an argument is missing"
        missing = {o.opts[0] for o in options.values() if o.required and o.name not in seen}
        missing -= {a.opts[0] for a in arguments}
        from_environment = {o.opts[0] for o in options.values() if o.envvar}
        assert not missing - from_environment, f"{', '.join(missing)} is missing"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_are_ones_that_there_are(page: Path) -> None:
    wrong = []
    found = [(line, text, True) for line, text in commands(page)]
    found += [(line, text, False) for line, text in inline(page) if text.startswith("clefq ")]
    for line, text, whole in found:
        try:
            check(text, whole=whole)
        except (AssertionError, ValueError) as error:
            wrong.append(f"{page.name}:{line}: {text}: {str(error).splitlines()[0]}")
    assert wrong == []


def test_the_check_finds_what_is_wrong() -> None:
    check("clefq predict MODEL --eval SET", whole=True)
    check("clefq predict …", whole=True)
    for text in (
        "clefq quantise MODEL",
        "clefq predict MODEL --eval SET --fast",
        "clefq predict MODEL",
        "clefq predict --eval SET",
        "clefq predict MODEL OTHER --eval SET",
        "clefq predict MODEL --eval",
    ):
        with pytest.raises(AssertionError):
            check(text, whole=True)


def test_commands_are_found_wherever_they_stand(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "`clefq plan` inline\n\n    clefq audit X\n\n```bash\ncd run && clefq gate report  # x\n"
        "clefq parity --baseline a \\\n    --candidate b | tee log\n```\n\n```yaml\n"
        "    - clefq ci\n```\n",
        encoding="utf-8",
    )
    assert [text.strip() for _, text in commands(page)] == [
        "clefq audit X",
        "clefq gate report",
        "clefq parity --baseline a --candidate b",
        "clefq ci",
    ]
    assert list(inline(page)) == [(1, "clefq plan")]


def test_readme_and_docs_show_many_commands() -> None:
    assert sum(len(list(commands(page))) for page in PAGES) > 60


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_nothing_is_left_to_be_filled_in(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert re.findall(r"^[A-Z]{4,}$|\b(?:TODO|TBD|FIXME|XXX)\b", text, re.MULTILINE) == []
