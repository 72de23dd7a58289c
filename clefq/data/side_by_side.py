"""Two models' answers side by side, for a spreadsheet: one question a row, with what was asked.

Texts that a spreadsheet would run as a formula get an apostrophe before them.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from clefq.clef.records import Record
from clefq.errors import PredictionsError
from clefq.plain_files import compact_json, harmless_cell
from clefq.store.atomic import atomic_file
from clefq.store.predictions import Predictions
from clefq.store.sets import SetFolder

COLUMNS = (
    "record_id",
    "cohort",
    "question_id",
    "question_type",
    "instructions",
    "options",
    "gold",
    "baseline_choice",
    "baseline_probability",
    "candidate_choice",
    "candidate_probability",
    "changed",
    "baseline_right",
    "candidate_right",
    "total_variation",
    "baseline_error",
    "candidate_error",
    "state",
)
# what a spreadsheet's cell holds at most
LONGEST_CELL = 32_767

Row = Mapping[str, Any]


def write_side_by_side(
    path: Path,
    sides: tuple[Predictions, Predictions],
    folder: SetFolder,
    *,
    changed_only: bool = False,
) -> int:
    """Writes the table as CSV in UTF-8 with a byte-order mark, atomically.

    Args:
        path: The file.
        sides: The baseline's and the candidate's predictions.
        folder: The set that both were made on.
        changed_only: Leave out the questions whose choice is the same.

    Returns:
        Number of rows.

    Raises:
        PredictionsError: A file was made on another set.
    """
    for side in sides:
        if side.meta.eval_set_sha256 != folder.manifest.sha256:
            raise PredictionsError(
                f"{side.path} was made on another set than {folder.path}.",
                fix="name the set that the predictions were made on.",
            )
    count = 0
    with atomic_file(path) as partial, partial.open("w", encoding="utf-8-sig", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for row in side_by_side(sides, folder):
            if row["changed"] or not changed_only:
                writer.writerow([_cell(row[column]) for column in COLUMNS])
                count += 1
    return count


def side_by_side(
    sides: tuple[Predictions, Predictions], folder: SetFolder
) -> Iterator[dict[str, Any]]:
    """The rows, in the set's order; an unanswered question has no choice and counts as changed."""
    found = [_by_question(side) for side in sides]
    roles = zip(("baseline", "candidate"), sides, strict=True)
    # chosen labels alone say nothing of their probability
    unknown = {f"{role}_probability": None for role, side in roles if side.meta.labels}
    for record in folder.records():
        for question in record.questions:
            key = (record.id, question.id)
            rows = [side.get(key) for side in found]
            answers = [_answer(row) for row in rows]
            yield {
                **_asked(record, question.id),
                **_side("baseline", rows[0], answers[0], record.gold.get(question.id)),
                **_side("candidate", rows[1], answers[1], record.gold.get(question.id)),
                **unknown,
                "changed": answers[0][0] is None or answers[0][0] != answers[1][0],
                "total_variation": _distance(sides, answers),
            }


def _by_question(side: Predictions) -> dict[tuple[str, str], Row]:
    rows: list[Any] = side.frame.to_dict("records")
    return {(row["record_id"], row["question_id"]): row for row in rows}


Answer = tuple[str | None, dict[str, float]]


def _answer(row: Row | None) -> Answer:
    """The chosen option, the first among equals, and all probabilities."""
    if row is None or isinstance(row["error"], str):
        return None, {}
    values = np.exp(np.asarray(row["logprobs"], dtype=np.float64))
    return row["option_ids"][int(np.argmax(values))], dict(
        zip(row["option_ids"], values.tolist(), strict=True)
    )


def _distance(sides: tuple[Predictions, Predictions], answers: list[Answer]) -> float | None:
    one, other = (answer[1] for answer in answers)
    if not one or one.keys() != other.keys() or any(side.meta.labels for side in sides):
        return None
    return sum(abs(one[option] - other[option]) for option in one) / 2


def _asked(record: Record, question_id: str) -> dict[str, Any]:
    question = next(q for q in record.questions if q.id == question_id)
    return {
        "record_id": record.id,
        "cohort": record.cohort,
        "question_id": question.id,
        "question_type": question.type,
        "instructions": question.instructions,
        "options": " | ".join(question.option_ids),
        "gold": record.gold.get(question.id),
        "state": record.state,
    }


def _side(role: str, row: Row | None, answer: Answer, gold: str | None) -> dict[str, Any]:
    choice, values = answer
    error = "no row" if row is None else row["error"]
    return {
        f"{role}_choice": choice,
        f"{role}_probability": None if choice is None else values[choice],
        f"{role}_right": None if gold is None else choice == gold,
        f"{role}_error": error if isinstance(error, str) else None,
    }


def _cell(value: Any) -> Any:
    """Numbers as they are, truth as 1 and 0, everything else as harmless text that fits a cell."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, int | float):
        return value
    text = harmless_cell(value if isinstance(value, str) else compact_json(value))
    return text if len(text) <= LONGEST_CELL else text[: LONGEST_CELL - 1] + "…"
