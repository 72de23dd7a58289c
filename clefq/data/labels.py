"""How the cells of a gold column become option ids: one reading a column, or an error.

A right answer that is read wrongly looks like a model's mistake, so nothing is guessed. All cells
of a column are looked at together: where two readings fit (a level's text or its index, an index
from 0 or from 1) the definition has to choose one with `gold_as`, and what looks like one option
in two spellings, like "no answer" or like several labels is refused until the definition maps it.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from clefq.data.readers import RowError

GoldAs = Literal["text", "index0", "index1"]

MAX_OPTIONS = 255
# More different cells than this are no labels.
MAX_CELLS = 1000
SHOWN = 6

YES_NO = {
    **dict.fromkeys(("true", "t", "yes", "y", "1"), "true"),
    **dict.fromkeys(("false", "f", "no", "n", "0"), "false"),
}
# Cells that tables write where there is nothing.
_NOTHING = (
    "n/a na #n/a n.a. nan nat null none nil undefined <na> - -- --- \u2013 \u2014 ? . #ref! "
    "#value! #name? #div/0!"
)
NOTHING_WORDS = frozenset(_NOTHING.split())
_NUMBER = re.compile(r"[+-]?\d+(\.0+)?")
_BETWEEN_LABELS = re.compile(r"\s*[;|,/]\s*")


@dataclass(frozen=True, slots=True)
class Column:
    """What the definition says about a gold column.

    Attributes:
        question: Question id.
        name: Name of the column.
        type: `noul`, `choice` or `score`.
        options: Option ids in the order of the definition: the names of a choice, the texts of a
            score's levels (None where a level is no text); empty for a choice that offers what
            the column holds.
        named: Whether the options of a choice are keys of a mapping, not items of a list.
        values: Cell → option, from the definition.
        missing: Cells that mean "no answer", from the definition.
        gold_as: The reading that the definition chose, or None.
    """

    question: str
    name: str
    type: str
    options: tuple[str | None, ...] = ()
    named: bool = False
    values: Mapping[str, str] = field(default_factory=dict)
    missing: frozenset[str] = frozenset()
    gold_as: GoldAs | None = None

    @property
    def open(self) -> bool:
        """Whether the column's own values are the options."""
        return self.type == "choice" and not self.options

    def meant(self, cell: str) -> str | None:
        """What the definition says that a cell means: an option, itself, or None for nothing."""
        names = (cell, plain_number(cell))
        if not self.missing.isdisjoint(names):
            return None
        return next((self.values[name] for name in names if name in self.values), cell)


@dataclass(frozen=True, slots=True)
class Reading:
    """How one column is read.

    Attributes:
        answers: Cell → option id.
        missing: Cells that mean "no answer".
        hints: Cell that fits no option → what it may have meant.
        options: Option ids that an open choice found, sorted.
    """

    answers: Mapping[str, str]
    missing: frozenset[str] = frozenset()
    hints: Mapping[str, str] = field(default_factory=dict)
    options: tuple[str, ...] = ()


def cell_text(value: Any) -> str | None:
    """Text of a cell; None when it is missing, empty or not a number.

    Raises:
        RowError: The cell holds a list or an object.
    """
    if value is None or (isinstance(value, float) and value != value):
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple | dict):
        kind = "an object" if isinstance(value, dict) else "a list"
        raise RowError(f"holds {kind}, where one value belongs")
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return plain_space(str(value)) or None


def quoted(text: str) -> str:
    """A text as YAML reads it, what cannot be seen written out."""
    plain = text.isprintable() and "'" not in text
    return f"'{text}'" if plain else json.dumps(text)


def plain_space(text: str) -> str:
    """Without space at both ends, no-break and zero-width space included."""
    return text.strip("\ufeff\u200b\u200c\u200d\u2060 ").strip().strip("\ufeff\u200b\u2060")


def spelling(text: str) -> str:
    """What two spellings of one label have in common: no case, width, or kind of space."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    kept = "".join(" " if c == "_" else c for c in folded if unicodedata.category(c) != "Cf")
    number = whole_number(kept.strip())
    return " ".join(kept.split()) if number is None else str(number)


def whole_number(text: str) -> int | None:
    """The number that a text such as `3` or `3.0` stands for; None for `007` and all else."""
    if not _NUMBER.fullmatch(text):
        return None
    whole = text.partition(".")[0]
    number = int(whole)
    return number if whole.lstrip("+") == str(number) else None


def plain_number(text: str) -> str:
    """`3` for `3.0`; any other text as it is."""
    number = whole_number(text)
    return text if number is None else str(number)


def read_column(column: Column, cells: Mapping[str, int], faults: list[str]) -> Reading:
    """Chooses the one reading of a column.

    Args:
        column: What the definition says.
        cells: Text of every different cell → how often it occurs.
        faults: Every reason why there is not exactly one reading is appended.
    """
    meant = {cell: column.meant(cell) for cell in cells}
    wanted = {cell: text for cell, text in meant.items() if text is not None}
    missing = frozenset(meant.keys() - wanted.keys())
    if column.open:
        return replace(_read_open(column, wanted, cells, faults), missing=missing)
    if column.type == "noul":
        found = _read_noul(column, wanted, faults)
    else:
        found = _read_closed(column, wanted, faults)
    answers = {cell: found[text] for cell, text in wanted.items() if text in found}
    hints = {cell: _hint(column, cell) for cell in wanted if cell not in answers}
    return Reading(answers, missing, {cell: hint for cell, hint in hints.items() if hint})


def _read_noul(column: Column, wanted: Mapping[str, str], faults: list[str]) -> dict[str, str]:
    found = {}
    strange = []
    for cell, text in wanted.items():
        number = whole_number(text)
        answer = YES_NO.get(text.casefold() if number is None else str(number))
        if answer is not None:
            found[text] = answer
        elif number is not None:
            strange.append(cell)
    if strange:
        numbers = sorted((c for c in wanted if whole_number(c) is not None), key=_by_number)
        faults.append(
            f"{_place(column)} holds the numbers {_listed(numbers)}: say which is true, as in "
            f"`values: {{{numbers[0]!r}: 'true', {numbers[-1]!r}: 'false'}}`"
        )
    return found


def _read_closed(column: Column, wanted: Mapping[str, str], faults: list[str]) -> dict[str, str]:
    """Text → option id for a score, or a choice whose options the definition names."""
    texts = set(wanted.values())
    readings = _readings(column, texts)
    if column.gold_as is not None:
        return readings[column.gold_as]
    chosen = _choose(column, texts, readings)
    if chosen is not None:
        return readings[chosen]
    faults.append(_two_readings(column, texts, readings))
    return {}


def _readings(column: Column, texts: Iterable[str]) -> dict[GoldAs, dict[str, str]]:
    """Every way to read the texts of a column: text → option id, for those that fit."""
    ids = [_option_id(column, index) for index in range(len(column.options))]
    by_text = {option: ids[i] for i, option in enumerate(column.options) if option is not None}
    by_number = {
        number: option_id
        for option, option_id in by_text.items()
        if (number := whole_number(option)) is not None
    }
    found: dict[GoldAs, dict[str, str]] = {"text": {}, "index0": {}, "index1": {}}
    for text in texts:
        number = whole_number(text)
        if text in by_text:
            found["text"][text] = by_text[text]
        elif number is not None and number in by_number:
            found["text"][text] = by_number[number]
        if number is None and text in by_text:  # has no other reading
            found["index0"][text] = found["index1"][text] = by_text[text]
        if number is not None and 0 <= number < len(ids):
            found["index0"][text] = ids[number]
        if number is not None and 1 <= number <= len(ids):
            found["index1"][text] = ids[number - 1]
    return found


def _option_id(column: Column, index: int) -> str:
    return str(index) if column.type == "score" else str(column.options[index])


def _choose(
    column: Column, texts: set[str], readings: Mapping[GoldAs, Mapping[str, str]]
) -> GoldAs | None:
    """The one reading that fits, or None where two do."""
    numbers = {text for text in texts if whole_number(text) is not None}
    named = numbers & set(readings["text"])
    if not numbers or (column.type == "choice" and column.named):
        return "text"
    if numbers == named:
        same = all(readings["index0"].get(t) == readings["text"][t] for t in numbers)
        return "text" if same or not _covers(readings["index0"], numbers) else None
    if named:
        covered = any(_covers(readings[way], numbers) for way in ("index0", "index1"))
        return None if covered else "text"
    if not any(text in readings[way] for way in ("index0", "index1") for text in numbers):
        return "text"
    if column.type == "choice":
        return None
    values = {whole_number(text) for text in numbers}
    return "index0" if 0 in values and len(column.options) not in values else None


def _covers(reading: Mapping[str, str], texts: Iterable[str]) -> bool:
    return all(text in reading for text in texts)


_WORDS: dict[GoldAs, str] = {
    "text": "as the option's text",
    "index0": "as an index from 0",
    "index1": "as an index from 1",
}


def _two_readings(
    column: Column, texts: set[str], readings: Mapping[GoldAs, Mapping[str, str]]
) -> str:
    numbers = sorted((t for t in texts if whole_number(t) is not None), key=_by_number)
    ways: list[GoldAs] = []
    for way in _WORDS:
        outcome = {text: readings[way].get(text) for text in numbers}
        known = [{text: readings[other].get(text) for text in numbers} for other in ways]
        if outcome not in known and any(outcome.values()):
            ways.append(way)
    shown = "; ".join(
        f"`gold_as: {way}` ({_WORDS[way]}): {_shown_reading(column, numbers, readings[way])}"
        for way in ways
    )
    return (
        f"{_place(column)} holds {_listed(numbers)}, which can be read in {len(ways)} ways; "
        f"choose one: {shown}"
        if len(ways) > 1
        else f"{_place(column)} holds {_listed(numbers)}, no option's name; if they count the "
        f"options, say so: {shown}"
    )


def _shown_reading(column: Column, numbers: Sequence[str], reading: Mapping[str, str]) -> str:
    parts = [f"{text} is {_named(column, reading.get(text))}" for text in numbers[:SHOWN]]
    return ", ".join(parts) + (", …" if len(numbers) > SHOWN else "")


def _named(column: Column, option_id: str | None) -> str:
    if option_id is None:
        return "nothing"
    if column.type != "score":
        return repr(option_id)
    level = column.options[int(option_id)]
    return f"level {option_id}" if level is None else repr(level)


def _read_open(
    column: Column, wanted: Mapping[str, str], cells: Mapping[str, int], faults: list[str]
) -> Reading:
    """A choice that offers what its column holds: every value must be an option of its own."""
    options = sorted(set(wanted.values()))
    if len(options) > MAX_OPTIONS:
        faults.append(
            f"{_place(column)} holds more than {MAX_OPTIONS} values, too many options: give the "
            "options as `criteria`, or map rare ones with `values`"
        )
        return Reading({})
    counts: Counter[str] = Counter()
    for cell, option in wanted.items():
        counts[option] += cells[cell]
    meant = set(column.values.values())
    faults += [f"{_place(column)}: {fault}" for fault in _open_faults(options, counts, meant)]
    return Reading(wanted, options=tuple(options))


def _open_faults(
    options: Sequence[str], counts: Mapping[str, int], meant: set[str]
) -> Iterator[str]:
    groups: dict[str, list[str]] = {}
    for option in options:
        plain = spelling(option)
        groups.setdefault(YES_NO.get(plain, plain), []).append(option)
    for spellings in groups.values():
        if len(spellings) > 1 and not meant.issuperset(spellings):
            usual = max(spellings, key=lambda option: counts[option])
            rest = [option for option in spellings if option != usual]
            listed = ", ".join(
                f"{quoted(option)} ({counts[option]:,})" for option in [usual, *rest]
            )
            mapping = ", ".join(f"{quoted(option)}: {quoted(usual)}" for option in rest)
            yield f"{listed} look like one option: `values: {{{mapping}}}`, or map each to itself"
    for option in options:
        if option in meant:
            continue
        if spelling(option) in NOTHING_WORDS:
            yield (
                f"{option!r} ({counts[option]:,}) looks like no answer: "
                f"`missing: [{quoted(option)}]`, or if it is an option: "
                f"`values: {{{quoted(option)}: {quoted(option)}}}`"
            )
        elif several_labels(option, options):
            yield (
                f"{option!r} ({counts[option]:,}) looks like several labels: ask one true/false "
                f"question a label, or `values: {{{quoted(option)}: {quoted(option)}}}`"
            )


def several_labels(text: str, options: Iterable[str | None]) -> bool:
    """Whether a text is a list, or joins other options by `;`, `|`, `,` or `/`."""
    if text.startswith("[") and text.endswith("]"):
        return True
    parts = _BETWEEN_LABELS.split(text)
    known = {spelling(option) for option in options if option is not None and option != text}
    return len(parts) > 1 and all(spelling(part) in known for part in parts)


def _hint(column: Column, cell: str) -> str:
    """What a cell that fits no option may have meant, or an empty text."""
    options = ("true", "false") if column.type == "noul" else column.options
    like = [option for option in options if option is not None and _alike(option, cell)]
    if len(like) == 1:
        return f"for {like[0]!r}: `values: {{{quoted(cell)}: {quoted(like[0])}}}`"
    if spelling(cell) in NOTHING_WORDS:
        return f"if it means no answer: `missing: [{quoted(cell)}]`"
    if several_labels(cell, options):
        return "it looks like several labels: ask one true/false question a label"
    return ""


def _alike(option: str, cell: str) -> bool:
    truth = YES_NO.get(option.casefold())
    same_truth = truth is not None and truth == YES_NO.get(cell.casefold())
    return same_truth or spelling(option) == spelling(cell)


def _place(column: Column) -> str:
    return f"{column.question}: the column {column.name}"


def _listed(cells: Sequence[str]) -> str:
    more = len(cells) - 2 * SHOWN
    shown = ", ".join(cells[: 2 * SHOWN])
    return shown if more <= 0 else f"{shown} and {more} more"


def _by_number(text: str) -> int:
    return whole_number(text) or 0
