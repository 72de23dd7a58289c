"""A user's own table: CSV, JSON Lines or Parquet, with the mapping in the definition.

Each row becomes a record: columns make the state, and every question names the column that holds
its right answer. Rows that do not fit are reported with their number.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from clefq.clef.records import Question, Record
from clefq.data.hashed import stable_key
from clefq.data.personal import PersonalFields
from clefq.data.readers import Row, RowError
from clefq.data.sources.base import Example, ReadSpec, Source, named_file
from clefq.data.tables import table_rows
from clefq.errors import DefinitionError

MAX_OPTIONS = 255
MOST_COLUMNS = 30
YES_NO = {"true": "true", "yes": "true", "1": "true", "false": "false", "no": "false", "0": "false"}


@dataclass(frozen=True, slots=True)
class QuestionMap:
    """One question of every record.

    Attributes:
        type: `noul`, `choice` or `score`.
        instructions: What is asked; any JSON value.
        criteria: As in a record. A choice without criteria offers every value that its gold
            column holds.
        gold: Column with the right answer, or None when there is none.
        values: Cell → option id, where they differ.
        required: Whether a row without an answer is refused; otherwise only its gold is missing.
    """

    type: Literal["noul", "choice", "score"]
    instructions: Any = None
    criteria: Any = None
    gold: str | None = None
    values: Mapping[str, str] = field(default_factory=dict)
    required: bool = True


@dataclass(frozen=True, slots=True)
class Options:
    """The mapping.

    Attributes:
        file: CSV, TSV, JSON Lines or Parquet, relative to the definition.
        state: A column, whose value is the state, or several, which become an object.
        questions: Question id → its mapping, in prompt order of the ids.
        id: Column with the record's id; None numbers the rows.
        cohort: Column with the cohort; None puts all in one.
        images: Column with a path, or a list of paths, relative to the file.
        drop: Fields that are taken out of the state, at any depth.
        hash: Fields that are replaced by a keyed hash, also where they are the id or cohort.
        licence: Licence of the data, for the manifest.
    """

    file: str
    state: str | tuple[str, ...]
    questions: Mapping[str, QuestionMap]
    id: str | None = None
    cohort: str | None = None
    images: str | None = None
    drop: tuple[str, ...] = ()
    hash: tuple[str, ...] = ()
    licence: str = "the user's own"


def read(spec: ReadSpec) -> Iterator[Row]:
    """Rows as {cells, seen, folder}: the cells by column, the values of open choices."""
    options: Options = spec.options
    _check(options)
    path = spec.folder / options.file
    seen = _open_choices(path, options)
    personal = PersonalFields(options.drop, options.hash)
    rows = _with_columns(path, options)
    for row in personal.watched(rows, lambda cells: cells):
        if row.fault is not None:
            yield row
            continue
        value = {"cells": row.value, "seen": seen, "folder": path.parent, "number": row.number}
        yield Row(row.file, row.number, value)


def _with_columns(path: Path, options: Options) -> Iterator[Row]:
    """The rows; at their end, whether every column that the mapping names was in one of them."""
    columns: dict[str, None] = {}
    missing = _named(options)
    for row in table_rows(path):
        if missing and row.fault is None:
            columns.update(dict.fromkeys(row.value))
            missing = [name for name in missing if name not in row.value]
        yield row
    if columns and missing:
        more = len(columns) - MOST_COLUMNS
        has = ", ".join(list(columns)[:MOST_COLUMNS]) + (f" and {more:,} more" if more > 0 else "")
        raise DefinitionError(
            f"no column {', '.join(map(repr, missing))} in {path}; it has {has}.",
            fix="mend the name in the definition.",
        )


def _named(options: Options) -> list[str]:
    """The columns that the mapping names, in its order."""
    state = (options.state,) if isinstance(options.state, str) else options.state
    golds = (question.gold for question in options.questions.values())
    names = (options.id, options.cohort, *state, options.images, *golds)
    return list(dict.fromkeys(name for name in names if name is not None))


def _check(options: Options) -> None:
    faults = []
    if not options.questions:
        faults.append("questions is empty")
    for name, question in options.questions.items():
        if question.type == "score" and not isinstance(question.criteria, list):
            faults.append(f"questions.{name}.criteria must list the levels from the lowest")
        if question.type == "choice" and question.criteria is None and question.gold is None:
            faults.append(f"questions.{name} needs criteria, or a gold column that gives them")
    PersonalFields(options.drop, options.hash)
    alone = [("id", options.id), ("cohort", options.cohort), ("images", options.images)]
    if isinstance(options.state, str):
        alone.append(("state", options.state))
    faults += [
        f"drop names {column}, the {what}" for what, column in alone if column in options.drop
    ]
    if options.images is not None and options.images in options.hash:
        faults.append(f"hash names {options.images}, the images")
    if faults:
        raise DefinitionError(f"{options.file}: {faults[0]}.", faults=faults[1:])


def _open_choices(path: Path, options: Options) -> dict[str, tuple[str, ...]]:
    """Question id → sorted options, for choices whose options are the values of the column."""
    wanted = {
        name: question
        for name, question in options.questions.items()
        if question.type == "choice" and question.criteria is None
    }
    found: dict[str, set[str]] = {name: set() for name in wanted}
    if not wanted:
        return {}
    for row in table_rows(path):
        if row.fault is not None:
            continue
        for name, question in wanted.items():
            answer = _cell(row.value, str(question.gold))
            if answer is not None:
                found[name].add(question.values.get(answer, answer))
                if len(found[name]) > MAX_OPTIONS:
                    raise DefinitionError(
                        f"{path}: column {question.gold} holds more than {MAX_OPTIONS} values, "
                        f"too many options for {name}.",
                        fix="give the options as criteria, or map rare ones with values.",
                    )
    return {name: tuple(sorted(options)) for name, options in found.items()}


def from_hub(row: Mapping[str, Any]) -> dict[str, Any]:
    """A local file."""
    raise RowError("not on the hub")


def build(value: dict[str, Any], record_id: str, options: Options) -> Iterable[Example]:
    """One record per row."""
    cells = value["cells"]
    personal = PersonalFields(options.drop, options.hash)
    key = f"row-{value['number']:06d}"
    if options.id:
        key = personal.clean_field(options.id, _required(cells, options.id))
    cohort = "user"
    if options.cohort:
        cohort = personal.clean_field(options.cohort, _required(cells, options.cohort))
    questions, gold = [], {}
    for name, mapping in sorted(options.questions.items()):
        question = _question(name, mapping, value["seen"])
        answer = _answer(question, mapping, cells)
        questions.append(question)
        if answer is not None:
            gold[name] = answer
    media = _images(cells, options, value["folder"], key)
    record = Record(
        id=key,
        cohort=cohort,
        state=_state(cells, options, personal),
        questions=tuple(questions),
        images=tuple(media),
        gold=gold,
    )
    first = next(iter(gold.values()), "")
    yield Example(record, label=first, media=media)


def _state(cells: dict[str, Any], options: Options, personal: PersonalFields) -> Any:
    if isinstance(options.state, str):
        if options.state not in cells:
            raise RowError(f"no column {options.state!r}")
        return personal.clean_field(options.state, cells[options.state])
    missing = [name for name in options.state if name not in cells]
    if missing:
        raise RowError(f"no column {missing[0]!r}")
    return personal.clean({name: cells[name] for name in options.state})


def _question(name: str, mapping: QuestionMap, seen: dict[str, tuple[str, ...]]) -> Question:
    criteria = mapping.criteria
    if name in seen:
        criteria = dict.fromkeys(seen[name])
    if mapping.type == "choice" and isinstance(criteria, list):
        criteria = dict.fromkeys(map(str, criteria))
    return Question(name, mapping.type, mapping.instructions, criteria)


def _answer(question: Question, mapping: QuestionMap, cells: dict[str, Any]) -> str | None:
    if mapping.gold is None:
        return None
    cell = _cell(cells, mapping.gold)
    if cell is None:
        if mapping.required:
            raise RowError(f"{mapping.gold} is missing")
        return None
    answer = mapping.values.get(cell)
    if answer is None:
        answer = _default_answer(question, cell)
    if answer not in question.option_ids:
        raise RowError(f"{mapping.gold} is {cell!r}, no option of {question.id}")
    return answer


def _default_answer(question: Question, cell: str) -> str:
    if question.type == "noul":
        return YES_NO.get(cell.lower(), cell)
    if question.type == "score" and cell not in question.option_ids:
        levels = [level if isinstance(level, str) else None for level in question.criteria]
        return str(levels.index(cell)) if cell in levels else cell
    return cell


def _cell(cells: dict[str, Any], column: str) -> str | None:
    """Text of a cell; None when it is missing or empty."""
    value = cells.get(column)
    if value is None:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    text = str(value).strip()
    return text or None


def _required(cells: dict[str, Any], column: str | None) -> str:
    text = _cell(cells, str(column))
    if text is None:
        raise RowError(f"{column} is missing")
    return text


def _images(
    cells: dict[str, Any], options: Options, folder: Path, key: str
) -> dict[str, Path | bytes]:
    if options.images is None:
        return {}
    value = cells.get(options.images)
    paths = value if isinstance(value, list) else [value] if value else []
    media: dict[str, Path | bytes] = {}
    for number, relative in enumerate(paths):
        path = folder / str(relative)
        if not path.is_file():
            raise RowError(f"no image {relative!r}")
        name = f"images/{stable_key('image', key)[:8].hex()}-{number}{path.suffix.lower()}"
        media[name] = path
    return media


SOURCE = Source(
    name="user",
    title="The user's own table",
    licence="the user's own",
    attribution=None,
    revision=None,
    splits={},
    hub=None,
    read=read,
    from_hub=from_hub,
    build=build,
    options=Options,
    files=named_file,
    origin="user",
)
