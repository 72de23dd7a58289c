"""A set made of what an imported file says of its own questions."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from clefq.clef.records import Record, parse_record
from clefq.errors import PredictionsError
from clefq.importing.answers import ONLY, Answer, Key, first_faults
from clefq.plain_files import sha256_file
from clefq.store.sets import SetDraft, SourceInfo, write_set

QUESTION_ID = "answer"


def write_new_set(folder: Path, answers: Mapping[Key, Answer], source: Path) -> int:
    """Writes a set of the questions that a file describes, in the file's order.

    Where the file does not hold a state, the set's is the record's id alone: such a set can be
    judged on, and not predicted. Errors of whole records, whose questions nobody knows, have no
    place in it.

    Args:
        folder: The set folder, which must not be there.
        answers: What the file says.
        source: The file, for the manifest.

    Returns:
        Number of records.

    Raises:
        PredictionsError: A question is not described, or not one that a record can hold.
    """
    bodies: dict[str, dict[str, Any]] = {}
    faults: list[str] = []
    for (record, question), answer in answers.items():
        if question is None:
            continue
        if answer.asked is None or not _says(answer.asked.question):
            faults.append(f"{answer.where}: the file does not say what was asked")
            continue
        asked = answer.asked
        state = {"id": record} if asked.state is None else asked.state
        body = bodies.setdefault(
            record,
            {"id": record, "cohort": asked.cohort, "state": state, "questions": {}, "gold": {}},
        )
        name = QUESTION_ID if question == ONLY else question
        body["questions"][name] = dict(asked.question)
        if asked.gold is not None:
            body["gold"][name] = asked.gold
    if faults:
        raise PredictionsError(
            f"{source}: {len(faults)} questions are not described, so no set can be made of it.",
            fix="give the set that the answers were made on: --eval SET.",
            faults=first_faults(faults),
        )
    records: list[Record] = [parse_record(body, f"{source}") for body in bodies.values()]
    info = SourceInfo(
        source=source.name,
        split="",
        origin="user",
        revision=None,
        files={source.name: sha256_file(source)},
        licence="unknown",
        attribution=None,
        rows_read=len(answers),
        taken=len(records),
    )
    definition = {"imported": source.name}
    write_set(folder, records, {}, SetDraft("eval", folder.name, definition, (info,)))
    return len(records)


def _says(question: object) -> bool:
    return isinstance(question, Mapping) and bool(question)
