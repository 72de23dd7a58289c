"""The set itself, held against predictions: ids, cohorts, types, options, their order, and gold.

Two files can agree with each other and still not be about the set: rows exchanged on both sides,
gold rewritten to the candidate's answers, records edited after predicting. Only the set tells.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic_core import from_json, to_json

from clefq.clef.records import iter_records, parse_line, parse_record, record_to_json
from clefq.plain_files import compact_json
from clefq.store.list_columns import plain_values
from clefq.store.predictions import Predictions
from clefq.store.sets import RECORDS_FILE, open_set
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
_KEYS = {*_NAMES, "state", "questions", "images", "videos"}
_CHUNK = 65_536  # rows of a file that are Python values at a time
_KNOWN = 4_096  # different sets of questions that are remembered
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
        columns: One list each of record ids, question ids and `COLUMNS`: cohort, type, option ids
            in prompt order, gold, further cohorts as JSON; a question a place, in the set's order.
        copies: Records whose content is that of an earlier record, whatever their ids.
    """

    sha256: str
    columns: tuple[list[Any], ...]
    copies: int
    _places: dict[Key, int] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def of(cls, sha256: str, rows: Mapping[Key, Row], copies: int = 0) -> SetTruth:
        """From one row a question."""
        both = [(*key, *row) for key, row in rows.items()]
        columns = tuple(list(column) for column in zip(*both, strict=True))
        return cls(sha256, columns or ([],) * (2 + len(COLUMNS)), copies)

    @property
    def n_questions(self) -> int:
        """Questions of the set."""
        return len(self.columns[0])

    def find(self, key: Key) -> Row | None:
        """What the set says of a question, or None where it has no such question."""
        if not self._places:
            keys = zip(self.columns[0], self.columns[1], strict=True)
            self._places.update((key, place) for place, key in enumerate(keys))
        place = self._places.get(key)
        if place is None:
            return None
        cohort, kind, options, gold, cohorts = (column[place] for column in self.columns[2:])
        return cohort, kind, options, gold, cohorts


def read_truth(path: Path) -> SetTruth:
    """Reads a set folder.

    Raises:
        InputError: No set folder, or its records or images were changed after it was built.
        RecordError: A record is malformed.
    """
    folder = open_set(path)
    columns: tuple[list[Any], ...] = tuple([] for _ in range(2 + len(COLUMNS)))
    contents: set[int] = set()
    copies = 0
    for record_id, content, rows in _records(folder.path / RECORDS_FILE):
        if parse_variant_id(record_id) is None:  # without their states many variants are alike
            copies += content in contents
            contents.add(content)
        for row in rows:
            for column, value in zip(columns, row, strict=True):
                column.append(value)
    return SetTruth(folder.manifest.sha256, columns, copies)


def _records(path: Path) -> Iterator[tuple[str, int, list[tuple[Any, ...]]]]:
    """Of each record its id, the hash of its content, and a row for each question.

    The bytes are those of the manifest's hash, which `clefq build` and every engine read strictly,
    so that only what the truth needs is looked at here; what looks odd is read strictly again.
    """
    known = _KnownQuestions()
    ids: set[str] = set()
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            value = _plain(line) or record_to_json(parse_line(line, f"{path}:{number}"))
            if value["id"] in ids:
                for _ in iter_records(path):  # names both lines
                    pass
            ids.add(value["id"])
            yield value["id"], *known.rows_of(value, f"{path}:{number}")


def _plain(line: bytes) -> dict[str, Any] | None:
    """A record's JSON, or None where it is not plainly one."""
    try:
        value = from_json(line, allow_inf_nan=False)
        gold, cohorts = value.get("gold") or {}, value.get("cohorts") or {}
        texts = (value["id"], value["cohort"], *cohorts.values(), *gold.values())
        sound = (
            value.keys() <= _KEYS
            and value.keys() >= {"state", "questions"}
            and gold.keys() <= value["questions"].keys()
            and all(isinstance(text, str) and text for text in texts)
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    return value if sound else None


class _KnownQuestions:
    """Questions repeat from record to record: each kind is parsed once."""

    def __init__(self) -> None:
        self._asked: dict[bytes, tuple[int, tuple[tuple[str, str, tuple[str, ...]], ...]]] = {}
        self._texts: dict[Any, Any] = {}  # equal texts are held once

    def rows_of(self, value: dict[str, Any], where: str) -> tuple[int, list[tuple[Any, ...]]]:
        """The hash of a record's content, and a row for each question.

        Raises:
            RecordError: The questions or their gold are malformed.
        """
        of_questions, asked = self._questions(value, where)
        state, gold, cohorts = value["state"], value.get("gold") or {}, value.get("cohorts")
        content = hash(
            (
                of_questions,
                state if isinstance(state, str) else hash(compact_json(state)),
                *(tuple(value.get(key) or ()) for key in ("images", "videos")),
            )
        )
        further = compact_json(cohorts) if cohorts else None
        rows = []
        for question, kind, options in asked:
            right = gold.get(question)
            if right is not None and right not in options:
                parse_record(value, where)  # says so
            row = (question, value["cohort"], kind, options, right, further)
            rows.append((value["id"], *(self._texts.setdefault(one, one) for one in row)))
        return content, rows

    def _questions(
        self, value: dict[str, Any], where: str
    ) -> tuple[int, tuple[tuple[str, str, tuple[str, ...]], ...]]:
        key = to_json(value["questions"])
        if key not in self._asked:
            record = parse_record(value, where)
            if len(self._asked) >= _KNOWN:
                self._asked.clear()
            self._asked[key] = (
                hash(compact_json(record_to_json(record)["questions"])),
                tuple((q.id, q.type, q.option_ids) for q in record.questions),
            )
        return self._asked[key]


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
    for start in range(0, len(frame), _CHUNK):
        part = frame.iloc[start : start + _CHUNK]
        columns = [plain_values(part[name]) for name in ("record_id", "question_id", *known)]
        options = 2 + known.index("option_ids")
        columns[options] = list(map(tuple, columns[options]))
        expected = [column[start : start + _CHUNK] for column in truth.columns[: len(columns)]]
        # as a file has them that a run wrote: every question, in the set's order
        if columns != expected:
            yield from _differing_rows(truth, columns, known)


def _differing_rows(
    truth: SetTruth, columns: Sequence[Sequence[Any]], known: Sequence[str]
) -> Iterator[tuple[str, str]]:
    for record, question, *row in zip(*columns, strict=True):
        expected = truth.find((record, question))
        where = f"{record}/{question}"
        if expected is None:
            yield "rows that it does not hold", where
            continue
        for name, value, right in zip(known, row, expected[: len(known)], strict=True):
            if value != right and not (right is None and _missing(value)):
                yield _WORDS[name], where


def _missing(value: object) -> bool:
    return not isinstance(value, str | tuple)  # None, NaN and NA all stand for null in a frame
