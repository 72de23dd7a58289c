"""A user's own table: CSV, Excel, JSON Lines or Parquet, with the mapping in the definition.

Each row becomes a record: columns make the state, and every question names the column that holds
its right answer (`clefq.data.labels` reads it). Rows that do not fit are reported with their
number.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from clefq.clef.records import Question, Record
from clefq.data.labels import (
    MAX_CELLS,
    YES_NO,
    Column,
    GoldAs,
    Reading,
    cell_text,
    plain_number,
    plain_space,
    read_column,
    whole_number,
)
from clefq.data.personal import PersonalFields
from clefq.data.readers import Row, RowError
from clefq.data.sources.base import Example, ReadSpec, Source, named_file
from clefq.data.tables import TableForm, table_rows
from clefq.errors import DefinitionError
from clefq.plain_files import stable_key
from clefq.store.reading import Stored

MOST_COLUMNS = 30
ONE_ANSWER = "a question has one right answer: ask one true/false question a label (docs/data.md)."


@dataclass(frozen=True, slots=True)
class QuestionMap(Stored):
    """One question of every record.

    Attributes:
        type: `noul`, `choice` or `score`.
        instructions: What is asked; any JSON value.
        criteria: As in a record. A choice without criteria offers every value that its gold
            column holds.
        gold: Column with the right answer, or None when there is none.
        values: Cell → option id (for a score: a level's text or index), where they differ.
        missing: Cells that mean "no answer", as an empty one does.
        gold_as: How numbers of the column are read, where more than one reading fits: `text` (the
            option's own text), `index0` (counted from 0) or `index1` (counted from 1).
        required: Whether a row without an answer is refused; otherwise only its gold is missing.
    """

    type: Literal["noul", "choice", "score"]
    instructions: Any = None
    criteria: Any = None
    gold: str | None = None
    values: Mapping[str, str] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    gold_as: GoldAs | None = None
    required: bool = True


@dataclass(frozen=True, slots=True)
class Options(Stored):
    """The mapping.

    Attributes:
        file: CSV, TSV, Excel, JSON Lines or Parquet, relative to the definition.
        state: A column, whose value is the state, or several, which become an object.
        questions: Question id → its mapping, in prompt order of the ids.
        id: Column with the record's id; None numbers the rows.
        cohort: Column with the cohort; None puts all in one.
        cohorts: Further columns that reports slice by, each as `cohort.COLUMN=VALUE`; a row with an
            empty cell is in none of a column's slices.
        images: Column with a path, or a list of paths, relative to the file.
        drop: Fields that are taken out of the state, at any depth.
        hash: Fields that are replaced by a keyed hash, also where they are the id or cohort.
        licence: Licence of the data, for the manifest.
        encoding: Encoding of a text file; None is UTF-8.
        delimiter: Between two cells of a CSV file; None is a comma (a tab in `.tsv`).
        header: Names of the columns of a file that has no header.
        sheet: Sheet of an Excel file that has several.
    """

    file: str
    state: str | tuple[str, ...]
    questions: Mapping[str, QuestionMap]
    id: str | None = None
    cohort: str | None = None
    cohorts: tuple[str, ...] = ()
    images: str | None = None
    drop: tuple[str, ...] = ()
    hash: tuple[str, ...] = ()
    licence: str = "the user's own"
    encoding: str | None = None
    delimiter: str | None = None
    header: tuple[str, ...] | None = None
    sheet: str | None = None

    def rows(self, path: Path) -> Iterator[Row]:
        """The file's rows as dicts of column → value."""
        form = TableForm(self.encoding, self.delimiter, self.header, self.sheet)
        return table_rows(path, form, _named(self))


def read(spec: ReadSpec) -> Iterator[Row]:
    """Rows as {cells, readings, folder}: the cells by column, how each gold column is read."""
    options: Options = spec.options
    _check(options)
    path = spec.folder / options.file
    readings = _readings(path, options)
    personal = PersonalFields(options.drop, options.hash)
    rows = _with_columns(path, options)
    for row in personal.watched(rows, lambda cells: cells):
        if row.fault is not None:
            yield row
            continue
        value = {"cells": row.value, "readings": readings, "folder": path.parent}
        yield Row(row.file, row.number, {**value, "number": row.number})


def _with_columns(path: Path, options: Options) -> Iterator[Row]:
    """The rows; at their end, whether every column that the mapping names was in one of them."""
    columns: dict[str, None] = {}
    missing = _named(options)
    for row in options.rows(path):
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
    names = (options.id, options.cohort, *options.cohorts, *state, options.images, *golds)
    return list(dict.fromkeys(name for name in names if name is not None))


def _check(options: Options) -> None:
    faults = []
    if not options.questions:
        faults.append("questions is empty")
    for name, question in options.questions.items():
        faults += [f"questions.{name}{fault}" for fault in _question_faults(question)]
    PersonalFields(options.drop, options.hash)
    alone = [("id", options.id), ("cohort", options.cohort), ("images", options.images)]
    if isinstance(options.state, str):
        alone.append(("state", options.state))
    alone += [("cohorts", name) for name in options.cohorts]
    faults += [f"cohorts names {name!r}, with '='" for name in options.cohorts if "=" in name]
    faults += [
        f"drop names {column}, the {what}" for what, column in alone if column in options.drop
    ]
    if options.images is not None and options.images in options.hash:
        faults.append(f"hash names {options.images}, the images")
    if faults:
        raise DefinitionError(f"{options.file}: {faults[0]}.", faults=faults[1:])


def _question_faults(question: QuestionMap) -> Iterator[str]:
    criteria = question.criteria
    if question.type == "score" and not isinstance(criteria, list):
        yield ".criteria must list the levels from the lowest"
        return
    if question.type == "choice" and criteria is None and question.gold is None:
        yield " needs criteria, or a gold column that gives them"
        return
    yield from _criteria_faults(question)
    yield from _value_faults(question)
    both = sorted(set(question.values) & set(question.missing))
    if both:
        yield f" has {', '.join(both)} both in values and in missing"
    if question.gold_as is not None and (question.type == "noul" or criteria is None):
        yield ".gold_as belongs to a score, or to a choice with criteria"


def _criteria_faults(question: QuestionMap) -> Iterator[str]:
    """Names that YAML did not read as text, and names that stand twice."""
    criteria = question.criteria
    if question.type == "noul" or criteria is None:
        return
    if not isinstance(criteria, list | dict):
        yield ".criteria must be a list or a mapping of options"
        return
    texts = (str, int, float) if isinstance(criteria, list) and question.type == "choice" else str
    for option in criteria:
        if isinstance(option, bool):
            yield f".criteria holds {str(option).lower()}: put yes, no, on and off in quotes"
        elif question.type == "choice" and not isinstance(option, texts):
            yield f".criteria holds {option!r}, which is not text; quote it"
        elif isinstance(option, str) and option != plain_space(option):
            yield f".criteria holds {option!r}, with space around it"
    twice = [text for text, count in Counter(_options(question)).items() if text and count > 1]
    if twice:
        yield f".criteria names {', '.join(map(repr, twice))} twice"


def _value_faults(question: QuestionMap) -> Iterator[str]:
    """Options that `values` names and the question does not have."""
    options = _options(question)
    if question.type == "choice" and not options:
        return
    for cell, target in question.values.items():
        if question.type == "noul":
            known = target.casefold() in YES_NO
        else:
            number = whole_number(target) if question.type == "score" else None
            known = target in options or (number is not None and 0 <= number <= len(options))
        if not known:
            yield f".values maps {cell!r} to {target!r}, which is none of its options"


def _options(question: QuestionMap) -> tuple[str | None, ...]:
    """Option names in the order of the definition; None for a level that is no text."""
    if question.type == "noul" or not isinstance(question.criteria, list | dict):
        return ()
    return tuple(_option_text(option) for option in question.criteria)


def _option_text(option: Any) -> str | None:
    if isinstance(option, bool) or not isinstance(option, str | int | float):
        return None
    return str(option)


def _column(name: str, question: QuestionMap) -> Column:
    values = {_plain(cell): plain_space(text) for cell, text in question.values.items()}
    return Column(
        question=name,
        name=str(question.gold),
        type=question.type,
        options=_options(question),
        named=isinstance(question.criteria, dict),
        values=values,
        missing=frozenset(map(_plain, question.missing)),
        gold_as=question.gold_as,
    )


def _plain(cell: str) -> str:
    return plain_number(plain_space(cell))


def _readings(path: Path, options: Options) -> dict[str, Reading]:
    """Question id → how its gold column is read; every fault of every column at once."""
    columns = {
        name: _column(name, question)
        for name, question in options.questions.items()
        if question.gold is not None
    }
    found = _cells(path, options, columns)
    faults: list[str] = []
    readings = {name: read_column(column, found[name], faults) for name, column in columns.items()}
    if faults:
        raise DefinitionError(
            f"{path}: {faults[0]}.",
            fix="say in the definition what is meant; docs/data.md explains the keys.",
            faults=faults[1:],
        )
    return readings


def _cells(path: Path, options: Options, columns: Mapping[str, Column]) -> dict[str, Counter[str]]:
    """Question id → text of every different cell of its gold column, with its count."""
    found: dict[str, Counter[str]] = {name: Counter() for name in columns}
    if not columns:
        return found
    for row in options.rows(path):
        if row.fault is not None:
            continue
        for name, column in columns.items():
            try:
                cell = cell_text(row.value.get(column.name))
            except RowError as error:
                raise DefinitionError(
                    f"{path} row {row.number}: {column.name} {error}.", fix=ONE_ANSWER
                ) from error
            if cell is not None:
                found[name][cell] += 1
                _check_number(path, column, found[name])
    return found


def _check_number(path: Path, column: Column, cells: Counter[str]) -> None:
    if len(cells) > MAX_CELLS:
        raise DefinitionError(
            f"{path}: the column {column.name} holds more than {MAX_CELLS:,} different values, "
            f"too many for the right answers of {column.question}.",
            fix="name another column as gold, or give the options as criteria and mend the cells.",
        )


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
        reading = value["readings"].get(name)
        question = _question(name, mapping, reading)
        answer = None if reading is None else _answer(question, mapping, reading, cells)
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
        cohorts=_cohorts(cells, options, personal),
    )
    first = next(iter(gold.values()), "")
    yield Example(record, label=first, media=media)


def _cohorts(cells: dict[str, Any], options: Options, personal: PersonalFields) -> dict[str, str]:
    found = {}
    for name in sorted(options.cohorts):
        try:
            text = cell_text(cells.get(name))
        except RowError as error:
            raise RowError(f"{name} {error}") from error
        if text is not None:
            found[name] = personal.clean_field(name, text)
    return found


def _state(cells: dict[str, Any], options: Options, personal: PersonalFields) -> Any:
    names = (options.state,) if isinstance(options.state, str) else options.state
    missing = [name for name in names if name not in cells]
    if missing:
        raise RowError(f"no column {missing[0]!r}")
    if all(_empty(cells[name]) for name in names):
        raise RowError(f"{', '.join(names)}: empty text")
    if isinstance(options.state, str):
        return personal.clean_field(options.state, cells[options.state])
    return personal.clean({name: cells[name] for name in names})


def _empty(value: Any) -> bool:
    return value in (None, [], {}) or (isinstance(value, str) and not plain_space(value))


def _question(name: str, mapping: QuestionMap, reading: Reading | None) -> Question:
    criteria = mapping.criteria
    if criteria is None and reading is not None and mapping.type == "choice":
        criteria = dict.fromkeys(reading.options)
    if mapping.type == "choice" and isinstance(criteria, list):
        criteria = dict.fromkeys(map(_option_text, criteria))
    return Question(name, mapping.type, mapping.instructions, criteria)


def _answer(
    question: Question, mapping: QuestionMap, reading: Reading, cells: dict[str, Any]
) -> str | None:
    column = str(mapping.gold)
    cell = cell_text(cells.get(column))
    if cell is None or cell in reading.missing:
        if mapping.required:
            how = f"{cell!r}, which means no answer" if cell is not None else "empty"
            raise RowError(f"{column} is {how if column in cells else 'missing'}")
        return None
    answer = reading.answers.get(cell)
    if answer is None:
        hint = reading.hints.get(cell)
        more = f" ({hint})" if hint else ""
        raise RowError(f"{column} is {cell!r}, no option of {question.id}{more}")
    return answer


def _required(cells: dict[str, Any], column: str | None) -> str:
    try:
        text = cell_text(cells.get(str(column)))
    except RowError as error:
        raise RowError(f"{column} {error}") from error
    if text is None:
        raise RowError(f"{column} is {'empty' if column in cells else 'missing'}")
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
