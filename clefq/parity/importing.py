"""Probabilities that other tools computed become a predictions file, checked against the set.

Three forms are read. JSON Lines, one question a line: `{"record_id", "question_id",
"probabilities": {option: p}}` (or `"logprobs"`); JSON Lines, one record a line, as a SystemOne
server answers: `{"record_id", "answers": {question: {...}}}`; and CSV, one option a row, with the
columns `record_id, question_id, option_id` and `probability` or `logprob`. Optional beside them:
`input_tokens`, `truncated_tokens`, `error`.

Options, order, cohort, type and gold come from the set, never from the file. What is no answer
(NaN, a sum that is off) becomes a row with an error and counts against coverage.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from clefq.clef.records import Question, Record
from clefq.errors import PredictionsError
from clefq.store.predictions import ARROW_SCHEMA

MAX_FAULTS = 10
SUM_SLACK = 1e-3
# this many questions whose every probability is a multiple of one decimal step were rounded
ROUNDED_FROM = 20
NOT_ANSWERED = "no answer in the imported file"

Key = tuple[str, str]


@dataclass(slots=True)
class Answer:
    """What a file says about one question.

    Attributes:
        where: `file:line`, for messages.
        values: Option id → probability, or natural log of it.
        logs: Whether `values` are logs.
        error: Why there is no answer, or None.
        input_tokens: Tokens of the prompt; 0 where the file does not say.
        truncated_tokens: Tokens cut off the state.
    """

    where: str
    values: dict[str, float] = field(default_factory=dict)
    logs: bool = False
    error: str | None = None
    input_tokens: int = 0
    truncated_tokens: int = 0


@dataclass(frozen=True, slots=True)
class ImportSummary:
    """What an import found.

    Attributes:
        questions: Questions of the set.
        answered: Those with a valid answer.
        missing: Those that the file lacks.
        failed: Those whose answer is unusable or an error.
        renormalised: Those whose sum was off one by up to 1e-3 and was divided out.
    """

    questions: int
    answered: int
    missing: int
    failed: int
    renormalised: int


def read_answers(path: Path) -> dict[Key, Answer]:
    """Reads a `.csv` or `.jsonl` file.

    Returns:
        (record id, question id) → answer.

    Raises:
        PredictionsError: Missing, of neither form, or malformed; lists up to ten faults.
    """
    readers = {".csv": _read_csv, ".jsonl": _read_jsonl, ".ndjson": _read_jsonl}
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise PredictionsError(f"{path} ends in neither .csv nor .jsonl.", fix="rename it.")
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            return reader(path, file)
    except FileNotFoundError as error:
        raise PredictionsError(f"no file {path}.") from error
    except (UnicodeDecodeError, IsADirectoryError) as error:
        raise PredictionsError(f"{path} is not a UTF-8 text file.") from error


def import_answers(
    records: Iterable[Record], answers: Mapping[Key, Answer], quantum: float | None
) -> tuple[pd.DataFrame, ImportSummary]:
    """Builds a predictions frame for a set.

    Args:
        records: The set's records.
        answers: What the file says; questions that it lacks become rows with an error.
        quantum: Rounding step of the probabilities; they are then kept as they are. Without one,
            sums that are off by up to 1e-3 are divided out.

    Raises:
        PredictionsError: Answers to questions that the set lacks, or options that differ from
            the set's.
    """
    rows: list[dict[str, Any]] = []
    faults: list[str] = []
    counts = {"missing": 0, "failed": 0, "renormalised": 0}
    unused = set(answers)
    for record in records:
        for question in record.questions:
            key = (record.id, question.id)
            unused.discard(key)
            answer = answers.get(key)
            if answer is None:
                counts["missing"] += 1
                answer = Answer("", error=NOT_ANSWERED)
            elif answer.error is None and set(answer.values) != set(question.option_ids):
                faults.append(_option_fault(answer, key, question))
                continue
            logprobs, error, divided = _logprobs(answer, question.option_ids, quantum)
            counts["failed"] += error is not None and answer.error != NOT_ANSWERED
            counts["renormalised"] += divided
            rows.append(_row(record, question, answer, (logprobs, error)))
    faults += [
        f"{answers[key].where}: the set has no question {key[0]}/{key[1]}" for key in sorted(unused)
    ]
    if faults:
        raise PredictionsError(
            f"{len(faults)} answers do not belong to this set.",
            fix="import the file with the set it was made on.",
            faults=_first(faults),
        )
    frame = pd.DataFrame(rows, columns=ARROW_SCHEMA.names)
    answered = len(rows) - counts["missing"] - counts["failed"]
    return frame, ImportSummary(len(rows), answered, **counts)


def rounding_step(answers: Mapping[Key, Answer]) -> float | None:
    """The decimal step of which every probability is a multiple, or None.

    Looks at probabilities only (not logs), down to six decimals; fewer than 20 questions decide
    nothing.
    """
    given = [a for a in answers.values() if a.values and not a.logs]
    if len(given) < ROUNDED_FROM:
        return None
    values = np.array([p for a in given for p in a.values.values()])
    values = values[np.isfinite(values)]
    for decimals in range(1, 7):
        scaled = values * 10**decimals
        if bool(np.all(np.abs(scaled - np.rint(scaled)) < 1e-6)):
            return float(f"1e-{decimals}")
    return None


def _logprobs(
    answer: Answer, option_ids: tuple[str, ...], quantum: float | None
) -> tuple[list[float] | None, str | None, bool]:
    """Logs in canonical order, or the reason why there are none, and whether a sum was divided."""
    if answer.error is not None:
        return None, answer.error, False
    values = np.array([answer.values[option] for option in option_ids])
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        probabilities = np.exp(values) if answer.logs else values
        logs = values if answer.logs else np.log(values)
    if not bool(np.isfinite(probabilities).all()):
        return None, "probabilities hold NaN or infinities", False
    if bool((probabilities < 0).any()):
        return None, "a probability is negative", False
    off = abs(math.fsum(probabilities) - 1.0)
    slack = SUM_SLACK if quantum is None else len(option_ids) * quantum / 2 + 1e-12
    if off > slack:
        return None, f"probabilities sum to {math.fsum(probabilities):.6g}", False
    if quantum is not None:
        return logs.tolist(), None, False
    # twice: the first division leaves a rounding error in the logs of a long list
    for _ in range(2):
        logs = logs - math.log(math.fsum(np.exp(logs)))
    return logs.tolist(), None, off > 1e-9


def _row(
    record: Record,
    question: Question,
    answer: Answer,
    outcome: tuple[list[float] | None, str | None],
) -> dict[str, Any]:
    return {
        "record_id": record.id,
        "cohort": record.cohort,
        "question_id": question.id,
        "question_type": question.type,
        "option_ids": list(question.option_ids),
        "logprobs": outcome[0],
        "gold": record.gold.get(question.id),
        "input_tokens": answer.input_tokens,
        "truncated_tokens": answer.truncated_tokens,
        "error": outcome[1],
    }


def _option_fault(answer: Answer, key: Key, question: Question) -> str:
    extra = sorted(set(answer.values) - set(question.option_ids))
    lacking = sorted(set(question.option_ids) - set(answer.values))
    parts = []
    if extra:
        parts.append(f"unknown {', '.join(map(repr, extra[:3]))}")
    if lacking:
        parts.append(f"missing {', '.join(map(repr, lacking[:3]))}")
    return f"{answer.where}: options of {key[0]}/{key[1]} differ: {'; '.join(parts)}"


class _Faults:
    """Faults of one file; raised together, ten at most."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.found: list[str] = []

    def add(self, line: int, text: str) -> None:
        self.found.append(f"{self.path}:{line}: {text}")

    def raise_if_any(self) -> None:
        if self.found:
            raise PredictionsError(
                f"{self.path} has {len(self.found)} malformed lines.", faults=_first(self.found)
            )


def _first(faults: list[str]) -> list[str]:
    more = len(faults) - MAX_FAULTS
    return faults if more <= 0 else [*faults[:MAX_FAULTS], f"and {more} more"]


def _read_csv(path: Path, file: Iterable[str]) -> dict[Key, Answer]:
    reader = csv.DictReader(file)
    columns = set(reader.fieldnames or ())
    value = next((name for name in ("probability", "logprob") if name in columns), None)
    lacking = sorted({"record_id", "question_id", "option_id"} - columns)
    if value is None or lacking:
        names = [*lacking, *([] if value else ["probability"])]
        raise PredictionsError(f"{path} lacks the columns {', '.join(names)}.")
    faults, answers = _Faults(path), dict[Key, Answer]()
    for row in reader:
        line = reader.line_num
        key = (row["record_id"] or "", row["question_id"] or "")
        answer = answers.setdefault(key, Answer(f"{path}:{line}", logs=value == "logprob"))
        try:
            _add_option(answer, row, value)
        except ValueError as error:
            faults.add(line, str(error))
    faults.raise_if_any()
    return answers


def _add_option(answer: Answer, row: Mapping[str, str | None], value: str) -> None:
    error = row.get("error")
    if error:
        answer.error = error
        return
    option = row["option_id"]
    if not option:
        raise ValueError("option_id is empty")
    if option in answer.values:
        raise ValueError(f"option {option!r} appears twice")
    answer.values[option] = _number(row[value], value)
    answer.input_tokens = _tokens(row.get("input_tokens") or 0, "input_tokens")
    answer.truncated_tokens = _tokens(row.get("truncated_tokens") or 0, "truncated_tokens")


def _read_jsonl(path: Path, file: Iterable[str]) -> dict[Key, Answer]:
    faults, answers = _Faults(path), dict[Key, Answer]()
    for line, text in enumerate(file, start=1):
        if not text.strip():
            continue
        try:
            for key, answer in _parse_line(json.loads(text), f"{path}:{line}"):
                if key in answers:
                    raise ValueError(f"{key[0]}/{key[1]} appears twice")
                answers[key] = answer
        except (ValueError, RecursionError) as error:  # json.JSONDecodeError is one
            faults.add(line, str(error))
    faults.raise_if_any()
    return answers


def _parse_line(value: Any, where: str) -> Iterator[tuple[Key, Answer]]:
    if not isinstance(value, dict) or not isinstance(value.get("record_id"), str):
        raise ValueError("needs an object with a string record_id")
    record = value["record_id"]
    tokens = [_tokens(value.get(name, 0), name) for name in ("input_tokens", "truncated_tokens")]
    if "answers" in value:
        if not isinstance(value["answers"], dict):
            raise ValueError("answers is no object")
        for question, answer in value["answers"].items():
            yield (record, question), Answer(where, _answer_values(answer), False, None, *tokens)
        return
    if not isinstance(value.get("question_id"), str):
        raise ValueError("needs question_id, or answers")
    error = value.get("error")
    logs = "logprobs" in value
    values = {} if error else _values(value.get("logprobs" if logs else "probabilities"))
    answer = Answer(where, values, logs, str(error) if error else None, *tokens)
    yield (record, value["question_id"]), answer


def _answer_values(answer: Any) -> dict[str, float]:
    """Probabilities of a SystemOne answer."""
    if isinstance(answer, dict) and answer.get("type") == "noul":
        yes = _number(answer.get("noul"), "noul")
        return {"true": yes, "false": 1.0 - yes}
    return _values(answer.get("probabilities") if isinstance(answer, dict) else None)


def _values(value: Any) -> dict[str, float]:
    if not isinstance(value, dict) or not value:
        raise ValueError("needs probabilities or logprobs: an object from option id to number")
    return {option: _number(number, f"option {option!r}") for option, number in value.items()}


def _number(value: Any, what: str) -> float:
    if value is None:
        return math.nan
    if isinstance(value, bool):
        raise ValueError(f"{what} is {value}, expected a number")
    try:
        return float(value)
    except (TypeError, ValueError):
        raise ValueError(f"{what} is {value!r}, expected a number") from None


def _tokens(value: Any, what: str) -> int:
    number = _number(value, what)
    if not (number >= 0 and number == int(number)):
        raise ValueError(f"{what} is {value!r}, expected a whole number")
    return int(number)
