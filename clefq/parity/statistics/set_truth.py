"""The set itself, held against predictions: ids, cohorts, types, options, their order, and gold.

Two files can agree with each other and still not be about the set: rows exchanged on both sides,
gold rewritten to the candidate's answers, records edited after predicting. Only the set tells.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from clefq.clef.records import Record, record_to_json
from clefq.plain_files import compact_json
from clefq.store.list_columns import plain_values
from clefq.store.predictions import Predictions
from clefq.store.sets import open_set
from clefq.store.variant_links import parse_variant_id

COLUMNS = ("cohort", "question_type", "option_ids", "gold", "cohorts")
_WORDS = {
    "cohort": "cohort",
    "question_type": "question type",
    "option_ids": "options or their order",
    "gold": "gold",
    "cohorts": "further cohorts",
}
_EXAMPLES = 3
_NAMES = ("id", "cohort", "gold", "cohorts")  # what is no content
# how every sentence of `differences` begins
OF_THE_SET = tuple(
    f"the {role} {what}"
    for role in ("baseline", "candidate")
    for what in ("was predicted on", "differs from the set in")
)
Key = tuple[str, str]
Row = tuple[str, str, tuple[str, ...], str | None, str | None]


@dataclass(frozen=True, slots=True)
class SetTruth:
    """What the set says of each of its questions.

    Attributes:
        sha256: The set's hash, from its bytes.
        rows: (record id, question id) → cohort, type, option ids in prompt order, gold,
            further cohorts as JSON.
        copies: Records whose content is that of an earlier record, whatever their ids.
    """

    sha256: str
    rows: Mapping[Key, Row]
    copies: int

    @property
    def n_questions(self) -> int:
        """Questions of the set."""
        return len(self.rows)


def read_truth(path: Path) -> SetTruth:
    """Reads a set folder.

    Raises:
        InputError: No set folder, or its records or images were changed after it was built.
        RecordError: A record is malformed.
    """
    folder = open_set(path)
    rows: dict[Key, Row] = {}
    seen: set[int] = set()
    copies = 0
    for record in folder.records():
        cohorts = compact_json(dict(record.cohorts)) if record.cohorts else None
        if parse_variant_id(record.id) is None:  # without their states many variants are alike
            content = hash(_content(record))
            copies += content in seen
            seen.add(content)
        for question in record.questions:
            rows[record.id, question.id] = (
                record.cohort,
                question.type,
                question.option_ids,
                record.gold.get(question.id),
                cohorts,
            )
    return SetTruth(folder.manifest.sha256, rows, copies)


def _content(record: Record) -> str:
    value = record_to_json(record)
    return compact_json({k: value[k] for k in value if k not in _NAMES})


def differences(truth: SetTruth, predictions: Predictions, role: str) -> list[str]:
    """Where a predictions file is not about this set, one sentence a kind; empty where it is.

    A question that the file lacks is no difference: it counts against coverage.

    Args:
        truth: The set.
        predictions: The file.
        role: `baseline` or `candidate`, for the sentences.
    """
    if predictions.meta.eval_set_sha256 != truth.sha256:
        return [
            f"the {role} was predicted on {predictions.meta.eval_set_sha256[:12]}, the set here "
            f"is {truth.sha256[:12]}"
        ]
    found: dict[str, list[str]] = {}
    for kind, where in _differing(truth, predictions):
        found.setdefault(kind, []).append(where)
    return [
        f"the {role} differs from the set in {kind}: {', '.join(places[:_EXAMPLES])}"
        + (f" and {len(places) - _EXAMPLES:,} more" if len(places) > _EXAMPLES else "")
        for kind, places in found.items()
    ]


def _differing(truth: SetTruth, predictions: Predictions) -> Iterator[tuple[str, str]]:
    frame = predictions.frame
    known = COLUMNS if "cohorts" in frame else COLUMNS[:-1]  # an older file does not have them
    columns = [plain_values(frame[name]) for name in ("record_id", "question_id", *known)]
    for record, question, *row in zip(*columns, strict=True):
        expected = truth.rows.get((record, question))
        where = f"{record}/{question}"
        if expected is None:
            yield "rows that it does not hold", where
            continue
        if tuple(row[2]) == expected[2] and _rest(row) == _rest(expected[: len(known)]):
            continue
        for name, value, right in zip(known, row, expected[: len(known)], strict=True):
            given = tuple(value) if name == "option_ids" else value
            if given != right and not (right is None and _missing(given)):
                yield _WORDS[name], where


def _rest(row: Sequence[object]) -> list[object]:
    return [*row[:2], *row[3:]]


def _missing(value: object) -> bool:
    return not isinstance(value, str | tuple)  # None, NaN and NA all stand for null in a frame
