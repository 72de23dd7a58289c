"""Reads original files row by row; a row that cannot be read is a fault, never a silent loss."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clefq.clef.json_values import DuplicateKeyError, load_json
from clefq.errors import DefinitionError

NOT_UTF8 = "not UTF-8"

csv.field_size_limit(min(sys.maxsize, 2**31 - 1))


@dataclass(frozen=True, slots=True)
class Row:
    """One row of an original file.

    Attributes:
        file: Path relative to the source's folder.
        number: Row number from 1; headers do not count.
        value: The row in the source's normal form; None when `fault` is set.
        fault: Why the row cannot be used, or None.
    """

    file: str
    number: int
    value: Any
    fault: str | None = None


class RowError(Exception):
    """A row that a source refuses; its message is the reason in the report."""


def csv_rows(
    folder: Path, file: str, columns: Sequence[str] | None = None, delimiter: str = ","
) -> Iterator[Row]:
    """Rows of a CSV file as dicts.

    Args:
        folder: Folder of the source.
        file: Path in it.
        columns: Names of the columns of a file without header; None reads the header.
        delimiter: Between two cells.
    """
    with _open(folder, file).open(encoding="utf-8", errors="surrogateescape", newline="") as lines:
        reader = csv.reader(lines, delimiter=delimiter)
        names = list(columns) if columns is not None else next(reader, [])
        if columns is None and names:
            names[0] = names[0].removeprefix("\ufeff")
        number = 0
        while True:
            try:
                cells = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                number += 1
                yield Row(file, number, None, f"not CSV: {error}")
                continue
            if not cells:
                continue
            number += 1
            yield csv_row(file, number, names, cells)


def csv_row(file: str, number: int, names: Sequence[str], cells: Sequence[str]) -> Row:
    """One line of CSV as a row."""
    if len(cells) != len(names):
        return Row(file, number, None, f"{len(cells)} columns instead of {len(names)}")
    if any(not is_unicode(cell) for cell in cells):
        return Row(file, number, None, NOT_UTF8)
    return Row(file, number, dict(zip(names, cells, strict=True)))


def jsonl_rows(folder: Path, file: str) -> Iterator[Row]:
    """Rows of a JSON Lines file; each must be an object."""
    with _open(folder, file).open("rb") as lines:
        number = 0
        for line in lines:
            if not line.strip():
                continue
            number += 1
            yield json_row(file, number, line)


def json_row(file: str, number: int, line: bytes) -> Row:
    """One line of JSON Lines as a row."""
    try:
        text = line.decode("utf-8-sig" if number == 1 else "utf-8")
        value = _decoded(text)
    except UnicodeDecodeError:
        return Row(file, number, None, NOT_UTF8)
    except DuplicateKeyError as error:
        return Row(file, number, None, str(error))
    except (ValueError, RecursionError):
        return Row(file, number, None, "not JSON")
    if not isinstance(value, dict):
        return Row(file, number, None, "not a JSON object")
    return Row(file, number, value)


def _decoded(text: str) -> Any:
    """A line's value; a doubled key is a fault, NaN in a column that nobody reads is none."""
    try:
        return load_json(text)
    except (DuplicateKeyError, json.JSONDecodeError):
        raise
    except ValueError:
        return json.loads(text)


def json_file(folder: Path, file: str) -> Any:
    """A whole JSON file.

    Raises:
        DefinitionError: The file is missing or not JSON.
    """
    path = _open(folder, file)
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise DefinitionError(f"{path} is not valid JSON: {error}.") from error


def text_field(value: dict[str, Any], name: str) -> str:
    """A non-empty text field of a row.

    Raises:
        RowError: The field is missing, empty or not text.
    """
    item = value.get(name)
    if item is None:
        raise RowError(f"{name} is missing")
    if not isinstance(item, str):
        raise RowError(f"{name} is not text")
    if not item.strip():
        raise RowError(f"{name} is empty")
    return item


def is_unicode(text: str) -> bool:
    """Whether every byte of the text could be decoded."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _open(folder: Path, file: str) -> Path:
    path = folder / file
    if not path.is_file():
        raise DefinitionError(
            f"no file {path}.", fix="give the folder of the original files with --data-dir."
        )
    return path
