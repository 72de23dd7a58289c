"""Rows of a user's table: CSV, TSV, Excel, JSON Lines or Parquet, streamed.

A table that is not what it seems to be (another delimiter, another encoding, no header, a header
that names a column twice, a quotation mark that is never closed) is an error that names the key
of the definition that reads it, because every one of them loses or shifts cells without a word.
"""

from __future__ import annotations

import codecs
import csv
import datetime
import decimal
import itertools
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from clefq.data.labels import plain_space, whole_number
from clefq.data.readers import NOT_UTF8, Row, csv_row, is_unicode, json_row
from clefq.errors import DefinitionError, missing_extra

TEXT_KINDS = (".csv", ".tsv", ".jsonl", ".ndjson")
KINDS = (".csv", ".tsv", ".xlsx", ".jsonl", ".ndjson", ".parquet")
DELIMITERS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
# A cell of a header is shorter than this.
LONGEST_NAME = 60
# Rows that are looked at to tell a header from a first row of data.
LOOKED_AT = 50
SEPARATOR_LINE = re.compile(r"sep=(.)\s*")


@dataclass(frozen=True, slots=True)
class TableForm:
    """What a definition says about the form of its file; None is the usual.

    Attributes:
        encoding: Encoding of a text file; UTF-8.
        delimiter: Between two cells; a comma, in `.tsv` a tab.
        header: Names of the columns of a CSV or Excel file without header.
        sheet: Sheet of an Excel file; the only one.
    """

    encoding: str | None = None
    delimiter: str | None = None
    header: tuple[str, ...] | None = None
    sheet: str | None = None

    def fault(self, kind: str) -> str | None:
        """A key that a file of this kind cannot have, or None."""
        belongs = {
            "encoding": TEXT_KINDS,
            "delimiter": (".csv", ".tsv"),
            "header": (".csv", ".tsv", ".xlsx"),
            "sheet": (".xlsx",),
        }
        for name, kinds in belongs.items():
            if getattr(self, name) is not None and kind not in kinds:
                return f"{name} belongs to {', '.join(kinds)}"
        if self.delimiter is not None and len(self.delimiter) != 1:
            return 'delimiter must be one character ("\\t" for a tab)'
        return None


def table_rows(
    path: Path, form: TableForm | None = None, wanted: Sequence[str] = ()
) -> Iterator[Row]:
    """Rows as dicts of column → value.

    Args:
        path: The table.
        form: What the definition says about it.
        wanted: Columns that the definition names.

    Raises:
        DefinitionError: The file is missing, of another kind, or not of this form.
    """
    if not path.is_file():
        raise DefinitionError(
            f"no file {path}.", fix="paths in a definition are relative to the definition's folder."
        )
    form = form or TableForm()
    kind = path.suffix.lower()
    if kind not in KINDS:
        raise DefinitionError(f"{path} is none of {', '.join(KINDS)}.", fix="convert it to one.")
    fault = form.fault(kind)
    if fault is not None:
        raise DefinitionError(f"{path}: {fault}.", fix="take it out of the definition.")
    if kind in (".csv", ".tsv"):
        usual = "\t" if kind == ".tsv" else ","
        return _csv_rows(_Csv(path, form, form.delimiter or usual, tuple(wanted)))
    if kind in (".jsonl", ".ndjson"):
        return _json_rows(path, form)
    rows = _excel_rows(path, form, wanted) if kind == ".xlsx" else _parquet_rows(path, wanted)
    return rows


def _json_rows(path: Path, form: TableForm) -> Iterator[Row]:
    encoding = _encoding(path, form)
    if encoding == "utf-8-sig":
        with path.open("rb") as lines:
            for number, line in enumerate((line for line in lines if line.strip()), start=1):
                yield json_row(path.name, number, line)
        return
    with path.open(encoding=encoding, errors="replace") as text:
        for number, words in enumerate((line for line in text if line.strip()), start=1):
            yield json_row(path.name, number, words.encode())


def _encoding(path: Path, form: TableForm) -> str:
    """The codec of a text file.

    Raises:
        DefinitionError: Unknown, or the file's own bytes contradict it.
    """
    with path.open("rb") as file:
        start = file.read(4)
    if form.encoding is None:
        if start[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) or b"\0" in start:
            raise DefinitionError(
                f"{path} is not UTF-8, but UTF-16.", fix=_encoding_fix(path, "utf-16")
            )
        return "utf-8-sig"
    try:
        name = codecs.lookup(form.encoding).name
        "".encode(form.encoding)
    except LookupError as error:
        raise DefinitionError(
            f"encoding {form.encoding!r} is unknown.",
            fix="usual ones are utf-8, cp1252 (Windows), latin-1 and utf-16.",
        ) from error
    if name in ("utf-8", "utf-8-sig", "ascii"):
        return "utf-8-sig"
    if start[:3] == codecs.BOM_UTF8 or (not name.startswith("utf") and _is_utf8(path)):
        raise DefinitionError(
            f"{path} is UTF-8 beyond doubt; as {form.encoding} its letters would be garbled.",
            fix="leave encoding out.",
        )
    return form.encoding


def _is_utf8(path: Path) -> bool:
    """Whether a file holds letters beyond ASCII and all of them are UTF-8."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    beyond = False
    with path.open("rb") as file:
        try:
            while block := file.read(1 << 20):
                beyond = beyond or not block.isascii()
                decoder.decode(block)
            decoder.decode(b"", final=True)
        except UnicodeDecodeError:
            return False
    return beyond


def _encoding_fix(path: Path, encoding: str) -> str:
    return (
        f"write `encoding: {encoding}` below `file`, or convert it: "
        f"`iconv -f {encoding.upper()} -t UTF-8 {path.name} > utf8-{path.name}`."
    )


def not_utf8_fix(file: str) -> str:
    """What to do about rows that are not UTF-8; most such files come from Windows."""
    return _encoding_fix(Path(file), "cp1252")


@dataclass(frozen=True, slots=True)
class _Csv:
    """A CSV file that is being read: where it lies, its form, and the columns that are wanted."""

    path: Path
    form: TableForm
    delimiter: str
    wanted: tuple[str, ...]

    def lines(self) -> Iterator[tuple[int, list[str] | str, int]]:
        """Line number, the cells or why there are none, and the lines that they took."""
        encoding = _encoding(self.path, self.form)
        errors = "surrogateescape" if encoding == "utf-8-sig" else "replace"
        with self.path.open(encoding=encoding, errors=errors, newline="") as text:
            reader = csv.reader(text, delimiter=self.delimiter, strict=True)
            while True:
                line = reader.line_num + 1
                try:
                    cells = next(reader)
                except StopIteration:
                    return
                except csv.Error as error:
                    if "end of data" in str(error):
                        raise self._open_quote(line, reader.line_num) from error
                    yield line, f"not CSV: {error}", reader.line_num - line + 1
                    continue
                if cells:
                    yield line, cells, 1

    def _open_quote(self, line: int, last: int) -> DefinitionError:
        return DefinitionError(
            f"{self.path}:{line}: a quotation mark opens a cell and is never closed; it would "
            f"swallow {last - line:,} lines.",
            fix="double the quotation marks inside quoted cells, or take this one out.",
        )


def _csv_rows(table: _Csv) -> Iterator[Row]:
    lines = table.lines()
    first = next(lines, None)
    if first is None:
        raise DefinitionError(f"{table.path} is empty.")
    # `sep=;` is how Excel's CSV names its delimiter
    stated = SEPARATOR_LINE.fullmatch(table.delimiter.join(first[1])) if first[0] == 1 else None
    if stated is not None and table.form.delimiter is None:
        lines = replace(table, delimiter=stated.group(1)).lines()
        next(lines, None)
        first = next(lines, first)
    cells = first[1]
    if isinstance(cells, str):
        raise DefinitionError(f"{table.path}:{first[0]}: {cells}.", fix="mend the first line.")
    names = _header(table, cells, lines)
    rest = lines if table.form.header is None else itertools.chain([first], lines)
    number = 0
    for _, line, taken in rest:
        if isinstance(line, str):
            for _ in range(taken):  # every line that went with it is a row that is lost
                number += 1
                yield Row(table.path.name, number, None, line)
            continue
        number += 1
        yield csv_row(table.path.name, number, names, line)


def _header(table: _Csv, first: list[str], lines: Iterator[Any]) -> list[str]:
    """Names of the columns; refuses a first line that is none, or none by this delimiter."""
    path, form = table.path, table.form
    if not all(map(is_unicode, first)):
        raise DefinitionError(
            f"the first line of {path} is {NOT_UTF8}.", fix=not_utf8_fix(str(path))
        )
    if form.header is not None:
        if set(table.wanted) <= set(map(plain_space, first)):
            raise DefinitionError(
                f"{path} has a header of its own: {_shown(first)}.",
                fix="leave header out of the definition.",
            )
        _refuse_twice(path, form.header, table.wanted)
        return list(form.header)
    names = [plain_space(name) for name in first]
    if not set(table.wanted) <= set(names):
        _explain(table, names)
    _refuse_twice(path, names, table.wanted)
    return names


def _explain(table: _Csv, names: Sequence[str]) -> None:
    """Raises where wanted columns lack because the file has another form than it is read in."""
    other = _other_delimiter(table, names)
    if other is not None:
        key = "\\t" if other == "\t" else other
        raise DefinitionError(
            f"{table.path} is separated by {DELIMITERS[other]}, not by "
            f"{DELIMITERS.get(table.delimiter, repr(table.delimiter))}.",
            fix=f'write `delimiter: "{key}"` below `file`.',
        )
    if not set(table.wanted) & set(names) and _like_data(table, names):
        given = ", ".join(f"column_{number}" for number in range(1, len(names) + 1))
        raise DefinitionError(
            f"{table.path} has no header: its first line is {_shown(names)}.",
            fix=f"name its columns with `header: [{given}]` below `file`.",
        )


def _other_delimiter(table: _Csv, names: Sequence[str]) -> str | None:
    """A delimiter that finds the wanted columns, or splits what this one leaves whole."""
    counts = {}
    for other in DELIMITERS:
        if other == table.delimiter:
            continue
        try:
            cells = next(replace(table, delimiter=other).lines())[1]
        except (DefinitionError, StopIteration):
            continue
        if isinstance(cells, list):
            if set(table.wanted) <= {plain_space(cell) for cell in cells}:
                return other
            counts[other] = len(cells)
    best = max(counts, key=lambda other: counts[other], default=None)
    return best if best is not None and len(names) == 1 and counts[best] > 1 else None


def _like_data(table: _Csv, first: Sequence[str]) -> bool:
    """Whether a first line holds what no header does: a number, nothing, a long or a known text."""
    if any(not c or whole_number(c) is not None or len(c) > LONGEST_NAME for c in first):
        return True
    rows = [cells for _, cells, _ in itertools.islice(table.lines(), 1, 1 + LOOKED_AT)]
    columns = zip(*(row for row in rows if len(row) == len(first)), strict=True)
    return any(
        name in map(plain_space, column) for name, column in zip(first, columns, strict=False)
    )


def _refuse_twice(path: Path, names: Sequence[str], wanted: Sequence[str]) -> None:
    counts = Counter(names)
    twice = [name for name in wanted if counts[name] > 1]
    if twice:
        raise DefinitionError(
            f"{path} has {counts[twice[0]]} columns of the name {twice[0]!r}.",
            fix="rename all but one.",
        )


def _shown(cells: Sequence[str]) -> str:
    text = ", ".join(repr(cell) for cell in cells)
    return text if len(text) <= 100 else text[:99] + "…"


def _excel_rows(path: Path, form: TableForm, wanted: Sequence[str]) -> Iterator[Row]:
    lines = _sheet(path, form)
    first = next(lines, [])
    names = list(form.header or ["" if cell is None else plain_space(str(cell)) for cell in first])
    if form.header is not None:
        lines = itertools.chain([first], lines)
    elif not set(wanted) & set(names) and any(isinstance(c, int | float) for c in first):
        given = ", ".join(f"column_{number}" for number in range(1, len(first) + 1))
        raise DefinitionError(
            f"{path} has no header: its first row is {_shown([str(c) for c in first])}.",
            fix=f"name its columns with `header: [{given}]` below `file`.",
        )
    _refuse_twice(path, names, wanted)
    for number, cells in enumerate(lines, start=1):
        if len(cells) != len(names):
            fault = f"{len(cells)} columns instead of {len(names)}"
            yield Row(path.name, number, None, fault)
        elif any(cell is not None for cell in cells):
            yield Row(path.name, number, dict(zip(names, cells, strict=True)))


def _sheet(path: Path, form: TableForm) -> Iterator[list[Any]]:
    """The cells of one sheet, row by row."""
    import zipfile

    import pandas as pd

    try:
        with pd.ExcelFile(path, engine="openpyxl") as book:
            sheets = [str(name) for name in book.sheet_names]
            if form.sheet not in sheets and (form.sheet is not None or len(sheets) > 1):
                raise DefinitionError(
                    f"{path} has the sheets {', '.join(map(repr, sheets))}.",
                    fix="name one with `sheet:` below `file`.",
                )
            frame = pd.read_excel(
                book, sheet_name=form.sheet or sheets[0], header=None, dtype=object, na_filter=False
            )
    except ImportError as error:
        raise missing_extra("openpyxl", "excel") from error
    except (ValueError, KeyError, OSError, zipfile.BadZipFile) as error:
        raise DefinitionError(f"{path} is not a whole Excel file.", fix="save it again.") from error
    for cells in frame.itertuples(index=False, name=None):
        yield [None if cell == "" else plain_value(cell) for cell in cells]


def _parquet_rows(path: Path, wanted: Sequence[str]) -> Iterator[Row]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(path)
    except (pa.ArrowInvalid, OSError) as error:
        raise DefinitionError(f"{path} is not a whole Parquet file.") from error
    _refuse_twice(path, file.schema_arrow.names, wanted)
    number = 0
    for batch in file.iter_batches(batch_size=4096):
        for value in batch.to_pylist():
            number += 1
            yield Row(path.name, number, plain_value(value))


def plain_value(value: Any) -> Any:
    """The JSON form of a cell: times as ISO 8601, exact decimals as text, NaN as nothing."""
    if isinstance(value, dict):
        return {key: plain_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain_value(item) for item in value]
    if value is None or (isinstance(value, float) and value != value):
        return None
    if isinstance(value, datetime.datetime | datetime.date | datetime.time):
        return value.isoformat() if value == value else None  # NaT differs from itself
    if isinstance(value, decimal.Decimal | datetime.timedelta):
        return str(value)
    return value
