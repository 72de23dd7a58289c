"""CSV: one option a row, one probability a row, or one chosen option a row."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from clefq.errors import PredictionsError
from clefq.importing.answers import ONLY, Answer, Asked, Key
from clefq.importing.values import Gathered, number, tokens

Row = Mapping[str, str | None]
OPTIONS_BETWEEN = "|"


def read_csv(path: Path, file: Iterable[str], choice: str | None) -> dict[Key, Answer]:
    """Reads a CSV.

    Columns `record_id` (or `id`) and `question_id`, which may be missing where every record has
    one question, and one of: `option_id` with `probability` or `logprob`; `probability` alone,
    that of `true`; `choice`, the option that was chosen. Beside them `error`, `input_tokens`,
    `truncated_tokens`, and what describes the question: `options` (with `|` between them), `gold`,
    `state`, `cohort`, `instructions`.

    Args:
        path: For messages.
        file: Its lines.
        choice: Name of the column of chosen options, or None for `choice`.

    Raises:
        PredictionsError: Columns are missing, or rows malformed.
    """
    # a state may be long
    csv.field_size_limit(2**31 - 1)
    reader = csv.DictReader(file)
    columns = set(reader.fieldnames or ())
    form = _Form(columns, choice)
    if form.lacking:
        raise PredictionsError(f"{path} lacks the columns {', '.join(form.lacking)}.")
    gathered = Gathered(path)
    for row in reader:
        line = reader.line_num
        with gathered.reading(line):
            form.add(gathered, row, f"{path}:{line}")
    return gathered.result()


class _Form:
    """Which of the three forms a table has."""

    def __init__(self, columns: set[str], choice: str | None) -> None:
        self.id = "record_id" if "record_id" in columns else "id"
        self.value = next((name for name in ("probability", "logprob") if name in columns), None)
        self.choice = choice or ("choice" if "choice" in columns else None)
        self.long = self.choice is None and "option_id" in columns
        self.lacking = [] if self.id in columns else ["record_id"]
        if self.choice is not None:
            self.lacking += [self.choice] if self.choice not in columns else []
        elif self.value is None:
            self.lacking.append("probability (or logprob, or choice)")
        elif self.value == "logprob" and not self.long:
            self.lacking.append("option_id")

    def add(self, gathered: Gathered, row: Row, where: str) -> None:
        record, question = row[self.id] or "", row.get("question_id") or ONLY
        if not record:
            raise ValueError(f"{self.id} is empty")
        key = (record, question)
        if self.long:
            answer = gathered.answers.setdefault(key, Answer(where, logs=self.value == "logprob"))
            _add_option(answer, row, self.value or "")
            return
        answer = Answer(where, error=row.get("error") or None, asked=self._asked(row))
        _count(answer, row)
        if answer.error is None and self.choice is not None:
            answer.label, answer.naming = row[self.choice] or "", "texts"
        elif answer.error is None:
            true = number(row[self.value or ""], "probability")
            answer.values, answer.single = {"true": true, "false": 1.0 - true}, True
        gathered.add(key, answer)

    def _asked(self, row: Row) -> Asked:
        """The question, where the table describes it."""
        question: dict[str, Any] = {} if self.choice is not None else {"type": "noul"}
        names = [name.strip() for name in (row.get("options") or "").split(OPTIONS_BETWEEN)]
        if names != [""]:
            question = {"type": "choice", "criteria": dict.fromkeys(names)}
        if row.get("instructions"):
            question["instructions"] = row["instructions"]
        cohort = row.get("cohort") or "imported"
        return Asked(question, row.get("state") or None, cohort, row.get("gold") or None)


def _add_option(answer: Answer, row: Row, value: str) -> None:
    error = row.get("error")
    if error:
        answer.error = error
        return
    option = row["option_id"]
    if not option:
        raise ValueError("option_id is empty")
    if option in answer.values:
        raise ValueError(f"option {option!r} appears twice")
    answer.values[option] = number(row[value], value)
    _count(answer, row)


def _count(answer: Answer, row: Row) -> None:
    answer.input_tokens = tokens(row.get("input_tokens") or 0, "input_tokens")
    answer.truncated_tokens = tokens(row.get("truncated_tokens") or 0, "truncated_tokens")
