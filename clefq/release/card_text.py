"""A card as text: written, written again around the publisher's own words, read, and compared.

---
(YAML front matter)
---
<!-- clefq:card {"variant": …} -->
# Title
<!-- clefq:verdict -->
…
<!-- /clefq:verdict -->
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

import yaml

from clefq.errors import InputError
from clefq.release.card import SECTIONS, Card, CardOptions
from clefq.store.yaml_text import load_yaml

_HEADER = re.compile(r"^<!-- clefq:card (?P<json>\{.*\}) -->$")
_BEGIN = re.compile(r"^<!-- clefq:(?P<name>[a-z]+) -->$")
_FIX = "write it again with `clefq card` (move your own text away first)."
_SHOWN = 60


@dataclass(frozen=True, slots=True)
class Section:
    """A section as it stands in a file.

    Attributes:
        line: Line number of its first line of text.
        lines: Its lines.
    """

    line: int
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class WrittenCard:
    """A card file in its parts.

    Attributes:
        path: The file.
        front: Front matter.
        header: What it was made for.
        sections: Name → section.
        lines: All lines of the file.
    """

    path: Path
    front: Mapping[str, Any]
    header: Mapping[str, Any]
    sections: Mapping[str, Section]
    lines: tuple[str, ...]

    @property
    def options(self) -> CardOptions:
        """The publisher's options that the card was made with.

        Raises:
            InputError: The header holds something else.
        """
        try:
            overrides = tuple(str(name) for name in self.header["overrides"])
            return CardOptions(self.header["base_model"], self.header["repo"], overrides)
        except (InputError, KeyError, TypeError) as error:
            raise InputError(f"{self.path}: the clefq:card line is malformed.", fix=_FIX) from error


def card_text(card: Card) -> str:
    """A new card."""
    return _joined(card.front, card.header, [card.title, "", *_body(card)])


def _body(card: Card) -> Iterator[str]:
    for name in SECTIONS:
        yield from _marked(name, card.sections[name])
        yield ""


def _marked(name: str, text: str) -> list[str]:
    return [f"<!-- clefq:{name} -->", *text.splitlines(), f"<!-- /clefq:{name} -->"]


def _joined(front: Mapping[str, Any], header: Mapping[str, Any], body: Sequence[str]) -> str:
    head = yaml.safe_dump(dict(front), sort_keys=False, allow_unicode=True)
    mark = f"<!-- clefq:card {json.dumps(dict(header), sort_keys=True)} -->"
    return "\n".join([f"---\n{head}---", mark, "", *body]).rstrip("\n") + "\n"


def updated_text(card: Card, old: WrittenCard) -> str:
    """An existing card with its sections written again; all other text stays.

    Sections that are no longer there are added at the end. Keys of the front matter that clefq
    does not write stay as they are.
    """
    owned = {"license", "license_name", "license_link", "base_model", "base_model_relation"}
    kept = {key: value for key, value in old.front.items() if key not in {*card.front, *owned}}
    body: list[str] = []
    done: set[str] = set()
    lines = iter(old.lines[_body_start(old.lines) :])
    for line in lines:
        begin = _BEGIN.match(line)
        if begin is None or begin["name"] not in card.sections:
            body.append(line)
            continue
        name = begin["name"]
        body += _marked(name, card.sections[name])
        done.add(name)
        for skipped in lines:
            if skipped == f"<!-- /clefq:{name} -->":
                break
    for name in SECTIONS:
        if name not in done:
            body += ["", *_marked(name, card.sections[name])]
    return _joined({**card.front, **kept}, card.header, body)


def _body_start(lines: Sequence[str]) -> int:
    at = next(index for index, line in enumerate(lines) if _HEADER.match(line)) + 1
    while at < len(lines) and not lines[at]:
        at += 1
    return at


def read_card(path: Path) -> WrittenCard:
    """Reads a card.

    Raises:
        InputError: Missing, or not a card that `clefq card` wrote.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        raise InputError(f"cannot read {path}: {reason}.", fix="write it: clefq card") from error
    lines = tuple(text.splitlines())
    front = _front(lines, path)
    headers = [match for line in lines if (match := _HEADER.match(line))]
    if len(headers) != 1:
        raise InputError(f"{path} was not written by `clefq card`.", fix="move it away, or --out.")
    try:
        header = json.loads(headers[0]["json"])
    except ValueError as error:
        raise InputError(f"{path}: the clefq:card line is malformed.", fix=_FIX) from error
    return WrittenCard(path, front, header, _sections(lines, path), lines)


def _front(lines: Sequence[str], path: Path) -> dict[str, Any]:
    if not lines or lines[0] != "---" or "---" not in lines[1:]:
        raise InputError(f"{path} has no front matter.", fix=_FIX)
    end = lines.index("---", 1)
    try:
        value = load_yaml("\n".join(lines[1:end]))
    except yaml.YAMLError as error:
        raise InputError(f"{path}: the front matter is not YAML.", fix=_FIX) from error
    if not isinstance(value, dict):
        raise InputError(f"{path}: the front matter is no mapping.", fix=_FIX)
    return value


def _sections(lines: Sequence[str], path: Path) -> dict[str, Section]:
    found: dict[str, Section] = {}
    for index, line in enumerate(lines):
        begin = _BEGIN.match(line)
        if begin is None:
            continue
        name, end = begin["name"], f"<!-- /clefq:{begin['name']} -->"
        if name in found or end not in lines[index:]:
            raise InputError(f"{path}: the section {name} is doubled or does not end.", fix=_FIX)
        found[name] = Section(index + 2, tuple(lines[index + 1 : lines.index(end, index)]))
    return found


def compare(written: WrittenCard, card: Card) -> list[str]:
    """Where a card says something else than its evidence, one line each.

    Args:
        written: The card as it stands.
        card: What the evidence gives now.
    """
    name = written.path.name
    found = [
        f"{name}: front matter: {key} is {written.front.get(key)!r}, expected {value!r}"
        for key, value in card.front.items()
        if written.front.get(key) != value
    ]
    # the hub shows a model-index as results
    extra = {"base_model", "base_model_relation", "license", "model-index"} & written.front.keys()
    found += [
        f"{name}: front matter: {key} is {written.front[key]!r}, which no evidence gives"
        for key in sorted(extra - card.front.keys())
    ]
    if written.header.get("variant") != card.header["variant"]:
        found.append(f"{name} is the card of {written.header.get('variant')}")
    for section, text in card.sections.items():
        there = written.sections.get(section)
        if there is None:
            found.append(f"{name} lacks the section {section}")
        else:
            found += [f"{name}:{fault}" for fault in _line_faults(there, text.splitlines())]
    return found


def _line_faults(there: Section, wanted: Sequence[str]) -> Iterator[str]:
    matcher = SequenceMatcher(None, there.lines, wanted, autojunk=False)
    for kind, a, b, c, d in matcher.get_opcodes():
        if kind == "equal":
            continue
        for ours, theirs in zip(range(a, b), range(c, d), strict=False):
            yield f"{there.line + ours} {_apart(there.lines[ours], wanted[theirs])}"
        for ours in range(a + min(b - a, d - c), b):
            if there.lines[ours].strip():
                yield f"{there.line + ours} says {_cut(there.lines[ours])}, which no evidence gives"
        for theirs in range(c + min(b - a, d - c), d):
            if wanted[theirs].strip():
                yield f"{there.line + b} lacks {_cut(wanted[theirs])}"


def _apart(ours: str, theirs: str) -> str:
    """The words in which two lines differ."""
    one, other = ours.split(), theirs.split()
    while one and other and one[0] == other[0]:
        one, other = one[1:], other[1:]
    while one and other and one[-1] == other[-1]:
        one, other = one[:-1], other[:-1]
    said = _cut(" ".join(one)) if one else "nothing"
    return f"says {said}, the evidence {_cut(' '.join(other)) if other else 'nothing'}"


def _cut(text: str) -> str:
    text = text.strip()
    return f'"{text}"' if len(text) <= _SHOWN else f'"{text[: _SHOWN - 1]}…"'
