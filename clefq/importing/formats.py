"""Which format a file has: by its name, or by the keys of its first line."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clefq.errors import InputError, PredictionsError
from clefq.importing.answers import Answer, Key
from clefq.importing.lines import read_decision_index, read_jsonl
from clefq.importing.lm_eval import read_lm_eval
from clefq.importing.openai import read_openai
from clefq.importing.tables import read_csv


@dataclass(frozen=True, slots=True)
class ImportSpec:
    """How to read a file.

    Attributes:
        format: A key of `FORMATS`, or `auto`.
        choice: Column of the chosen options in a CSV, or None.
        id: How an lm-eval sample names its record, or None.
    """

    format: str = "auto"
    choice: str | None = None
    id: str | None = None


Read = Callable[[Path, Iterable[str], ImportSpec], dict[Key, Answer]]
FORMATS: dict[str, Read] = {
    "csv": lambda path, file, spec: read_csv(path, file, spec.choice),
    "jsonl": lambda path, file, _: read_jsonl(path, file),
    "decision-index": lambda path, file, _: read_decision_index(path, file),
    "lm-eval": lambda path, file, spec: read_lm_eval(path, file, spec.id),
    "openai": lambda path, file, _: read_openai(path, file),
}
_LINES = (".jsonl", ".ndjson")


def read_answers(path: Path, spec: ImportSpec | None = None) -> dict[Key, Answer]:
    """Reads a file of another tool.

    Returns:
        (record id, question id) → answer; see `clefq.importing.answers.Key`.

    Raises:
        InputError: There is no such format, or an option that it does not take.
        PredictionsError: Missing, of no known form, or malformed; lists up to ten faults.
    """
    spec = spec or ImportSpec()
    if spec.format not in ("auto", *FORMATS):
        raise InputError(f"unknown format {spec.format!r}.", fix=f"use auto, {', '.join(FORMATS)}.")
    try:
        name = detect(path) if spec.format == "auto" else spec.format
        _check_options(name, spec)
        with path.open(encoding="utf-8-sig", newline="") as file:
            return FORMATS[name](path, file, spec)
    except FileNotFoundError as error:
        raise PredictionsError(f"no file {path}.") from error
    except (UnicodeDecodeError, IsADirectoryError) as error:
        raise PredictionsError(f"{path} is not a UTF-8 text file.") from error


def detect(path: Path) -> str:
    """The format's name: CSV by the file's name, the others by the keys of the first line.

    Raises:
        PredictionsError: The file's name ends in neither `.csv` nor `.jsonl`.
    """
    suffix = path.suffix.lower()
    if suffix == ".csv":
        return "csv"
    if suffix not in _LINES:
        raise PredictionsError(
            f"{path} ends in neither .csv nor .jsonl.", fix="rename it, or give --from FORMAT."
        )
    with path.open(encoding="utf-8-sig") as file:
        text = next((line for line in file if line.strip()), "")
    try:
        return _by_keys(json.loads(text))
    except (ValueError, RecursionError):
        return "jsonl"  # whose reader names the fault


def _by_keys(value: Any) -> str:
    keys = set(value) if isinstance(value, dict) else set()
    if "run_id" in keys and keys & {"status", "response"}:
        return "decision-index"
    if "doc_id" in keys and keys & {"resps", "filtered_resps"}:
        return "lm-eval"
    completion = keys & {"custom_id", "choices"} or (
        "response" in keys and "record_id" not in keys and "answers" not in keys
    )
    return "openai" if completion and "answers" not in keys else "jsonl"


def _check_options(name: str, spec: ImportSpec) -> None:
    faults = []
    if spec.choice is not None and name != "csv":
        faults.append("--choice names a column of a CSV")
    if spec.id is not None and name != "lm-eval":
        faults.append("--id is for lm-eval samples")
    if faults:
        raise InputError(f"{faults[0]}; this file is {name}.", faults=faults[1:])
