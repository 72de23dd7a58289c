"""Code in Markdown pages: blocks with their language and heading, and inline code."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_FENCE = re.compile(r"^ {0,3}(`{3,}|:{3,})\s*(\S*)\s*$")
_INLINE = re.compile(r"`([^`\n]+)`")


@dataclass(frozen=True)
class Block:
    """A code block.

    Attributes:
        page: The file.
        line: Line number of its first line of code.
        heading: The heading above it.
        language: What stands behind the fence, or "indented".
        code: Its text.
    """

    page: Path
    line: int
    heading: str
    language: str
    code: str


def blocks(page: Path) -> list[Block]:
    """All code blocks of a page, fenced and indented."""
    found: list[Block] = []
    heading, language, start = "", "", 0
    fence: str | None = None
    code: list[str] = []
    lines = page.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate([*lines, "", "end"], 1):
        match = _FENCE.match(line)
        if fence is not None:
            if match and match[1] == fence and not match[2]:
                found.append(Block(page, start, heading, language, "\n".join(code)))
                fence, code = None, []
            else:
                code.append(line)
        elif match:
            if code:
                found.append(Block(page, start, heading, "indented", "\n".join(code)))
            fence, language, start, code = match[1], match[2], number + 1, []
        elif line.startswith("    ") and (code or not lines[number - 2].strip()):
            start = start if code else number
            code.append(line[4:])
        else:
            if code and line.strip():
                found.append(Block(page, start, heading, "indented", "\n".join(code)))
                code = []
            if line.startswith("#"):
                heading = line.lstrip("# ")
    return found


def inline(page: Path) -> Iterator[tuple[int, str]]:
    """Inline code outside of blocks: line number and text."""
    inside: str | None = None
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        match = _FENCE.match(line)
        if inside is not None:
            inside = None if match and match[1] == inside and not match[2] else inside
        elif match:
            inside = match[1]
        elif not line.startswith("    "):
            for found in _INLINE.finditer(line):
                yield number, found[1]
