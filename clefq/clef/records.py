"""Records: a state, typed questions about it, optional media and gold labels.

A record is one line of `records.jsonl`. Parsing is strict and reports every fault of a record at
once; what is ambiguous (doubled keys, criteria of the wrong kind, non-finite numbers) is refused
rather than guessed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from clefq.clef.json_values import DuplicateKeyError, Fault, json_faults, load_json
from clefq.errors import RecordError

JSON = Any

QUESTION_TYPES: dict[str, int] = {"noul": 0, "choice": 1, "score": 2}
NOUL_DESCRIPTIONS: dict[str, JSON] = {
    "true": "The proposition is true or the answer is yes.",
    "false": "The proposition is false or the answer is no.",
}

_MAX_FAULTS = 50
_RECORD_KEYS = ("id", "cohort", "state", "questions", "images", "videos", "gold", "cohorts")
_QUESTION_KEYS = ("type", "instructions", "criteria")
_RECORD_FIX = (
    'a record is {"id", "cohort", "state", "questions": {id: {"type", "instructions"?, '
    '"criteria"?}}, "images"?, "videos"?, "gold"?, "cohorts"?}.'
)


@dataclass(frozen=True, slots=True)
class Option:
    """One allowed answer of a question.

    Attributes:
        id: Option id: `"true"`/`"false"`, a choice's name, or a level index as a string.
        description: Any JSON value; None means that the prompt shows no description.
    """

    id: str
    description: JSON


@dataclass(frozen=True, slots=True)
class Question:
    """One typed question.

    Attributes:
        id: Question id, unique within its record.
        type: `noul`, `choice` or `score`.
        instructions: Any JSON value; None or `""` falls back to the question id in the prompt.
        criteria: noul: None or an object with `true` and/or `false`; choice: object of option id
            to description, in the author's order; score: list of levels, lowest first.
    """

    id: str
    type: str
    instructions: JSON = None
    criteria: JSON = None

    @property
    def options(self) -> tuple[Option, ...]:
        """Allowed answers in prompt order, which is the canonical order everywhere in clefq.

        noul: true, false. choice: by code point of the option id. score: by level.
        """
        if self.type == "noul":
            given = self.criteria or {}
            return tuple(
                Option(key, given.get(key, default)) for key, default in NOUL_DESCRIPTIONS.items()
            )
        if self.type == "choice":
            return tuple(Option(key, self.criteria[key]) for key in sorted(self.criteria))
        return tuple(Option(str(level), text) for level, text in enumerate(self.criteria))

    @property
    def option_ids(self) -> tuple[str, ...]:
        """Option ids in canonical (prompt) order."""
        if self.type == "noul":
            return ("true", "false")
        if self.type == "choice":
            return tuple(sorted(self.criteria))
        return tuple(str(level) for level in range(len(self.criteria)))

    @property
    def type_id(self) -> int:
        """Index of the type in the head's type embedding: noul 0, choice 1, score 2."""
        return QUESTION_TYPES[self.type]


@dataclass(frozen=True, slots=True)
class Record:
    """One record of a set, or one request.

    Attributes:
        id: Unique, non-empty id within the set.
        cohort: Group that slices report on, for example the source task.
        state: Any JSON value.
        questions: At least one, in prompt order.
        images: Paths relative to the set folder, in prompt order.
        videos: Paths relative to the set folder, in prompt order.
        gold: Question id to option id; questions without gold are absent.
        cohorts: Further groups that slices report on: name, such as `language`, to value.
    """

    id: str
    cohort: str
    state: JSON
    questions: tuple[Question, ...]
    images: tuple[str, ...] = ()
    videos: tuple[str, ...] = ()
    gold: Mapping[str, str] = field(default_factory=dict)
    cohorts: Mapping[str, str] = field(default_factory=dict)


def parse_record(value: object, where: str) -> Record:
    """Checks a decoded JSON value and makes it a record.

    Args:
        value: What `json.loads` gave.
        where: Place for the message, for example `records.jsonl:17`.

    Raises:
        RecordError: Lists every fault of the record.
    """
    if not isinstance(value, dict):
        raise RecordError(f"{where}: a record must be a JSON object.", fix=_RECORD_FIX)
    faults = json_faults(value)
    if faults:
        # Deeper checks could trip over values that are not JSON at all.
        raise _record_error(where, faults)
    faults += _unknown_keys(value, _RECORD_KEYS)
    for key in ("id", "cohort"):
        if not isinstance(value.get(key), str) or not value[key]:
            faults.append(f"{key!r} must be a non-empty string")
    if "state" not in value:
        faults.append("'state' is missing")
    questions, question_faults = parse_questions(value.get("questions"))
    faults += question_faults
    images = _paths(value, "images", faults)
    videos = _paths(value, "videos", faults)
    gold = _gold(value, {question.id: question for question in questions}, faults)
    cohorts = value.get("cohorts", {})
    faults += [f"'cohorts' {fault}" for fault in cohorts_faults(cohorts)]
    if faults:
        raise _record_error(where, faults, value.get("id"))
    head = (value["id"], value["cohort"], value["state"])
    return Record(*head, questions, images, videos, gold, cohorts)


def cohorts_faults(value: object) -> list[str]:
    """Every fault of a record's further cohorts.

    Their names become the keys of slices, `cohort.NAME=VALUE`, and hold no `=` therefore.
    """
    if not isinstance(value, Mapping):
        return ["must be an object of name to value"]
    faults = [
        f"names {name!r}, which must be text without '='"
        for name in value
        if not isinstance(name, str) or not name.strip() or "=" in name
    ]
    return faults + [
        f"has {name!r} as {text!r}, which must be text that is not empty"
        for name, text in value.items()
        if not isinstance(text, str) or not text
    ]


def parse_questions(value: object) -> tuple[tuple[Question, ...], list[str]]:
    """Checks the `questions` object of a record.

    Returns:
        The sound questions in the given order, and every fault found (empty when all are sound).
    """
    questions, faults = check_questions(value)
    return questions, [
        f"question {fault.path[0]!r}: {fault.message}"
        if fault.path
        else f"'questions' {fault.message}"
        for fault in faults
    ]


def check_questions(value: object) -> tuple[tuple[Question, ...], list[Fault]]:
    """Checks a `questions` object and says where each fault is.

    Returns:
        The sound questions in the given order, and every fault, its path counted from `value`.
    """
    if not isinstance(value, dict) or not value:
        return (), [Fault((), "must be a non-empty object of question id to question")]
    questions: list[Question] = []
    faults: list[Fault] = []
    for question_id, body in value.items():
        found = _question_faults(question_id, body)
        faults += [Fault((question_id, *fault.path), fault.message) for fault in found]
        if not found:
            instructions, criteria = body.get("instructions"), body.get("criteria")
            questions.append(Question(question_id, body["type"], instructions, criteria))
    return tuple(questions), faults


def record_to_json(record: Record) -> dict[str, JSON]:
    """The JSON object of a record; `parse_record` of it gives the record back.

    The line form is `clefq.plain_files.compact_json` of it, which sorts keys: a record read from
    a set therefore has its questions in id order.
    """
    value: dict[str, JSON] = {
        "id": record.id,
        "cohort": record.cohort,
        "state": record.state,
        "questions": {question.id: _question_to_json(question) for question in record.questions},
    }
    if record.images:
        value["images"] = list(record.images)
    if record.videos:
        value["videos"] = list(record.videos)
    if record.gold:
        value["gold"] = dict(record.gold)
    if record.cohorts:
        value["cohorts"] = dict(record.cohorts)
    return value


def iter_records(path: Path) -> Iterator[Record]:
    """Streams a `records.jsonl` file in order.

    Raises:
        RecordError: The file is missing or empty; or a line is not UTF-8, not JSON, not a sound
            record, or repeats an id. Names file and line.
    """
    first_line: dict[str, int] = {}
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if not line.strip():
                    continue
                where = f"{path}:{number}"
                record = parse_line(line, where)
                if record.id in first_line:
                    raise RecordError(
                        f"{where}: id {record.id!r} was already used on line "
                        f"{first_line[record.id]}.",
                        fix="give every record its own id.",
                    )
                first_line[record.id] = number
                yield record
    except OSError as error:
        raise RecordError(
            f"cannot read {path}: {error.strerror or error}.",
            fix="point at a set folder made by `clefq build`.",
        ) from error
    if not first_line:
        raise RecordError(f"{path} holds no records.", fix="build the set again (`clefq build`).")


def parse_line(line: bytes, where: str) -> Record:
    """One line of a `records.jsonl`.

    Raises:
        RecordError: It is not UTF-8, not JSON, or not a sound record.
    """
    return parse_record(_decode_line(line, where), where)


def _decode_line(line: bytes, where: str) -> object:
    try:
        return load_json(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise RecordError(f"{where}: not UTF-8.", fix="save the file as UTF-8.") from error
    except DuplicateKeyError as error:
        raise RecordError(f"{where}: {error}.", fix="keep one of the two.") from error
    except json.JSONDecodeError as error:
        raise RecordError(
            f"{where}: not valid JSON: {error.msg} at column {error.colno}.",
            fix="write one JSON object per line.",
        ) from error
    except (ValueError, RecursionError) as error:
        raise RecordError(
            f"{where}: cannot be read as JSON: {error}.", fix="write plain, finite, shallow JSON."
        ) from error


def _record_error(where: str, faults: list[str], record_id: object = None) -> RecordError:
    place = f"{where} (record {record_id!r})" if isinstance(record_id, str) else where
    rest = faults[1:_MAX_FAULTS]
    if len(faults) > _MAX_FAULTS:
        rest.append(f"and {len(faults) - _MAX_FAULTS} more faults")
    return RecordError(f"{place}: {faults[0]}.", fix=_RECORD_FIX, faults=rest)


def _unknown_keys(value: dict[str, JSON], known: tuple[str, ...]) -> list[str]:
    extra = [repr(key) for key in value if key not in known]
    return [f"unknown key {', '.join(extra)}"] if extra else []


def _question_faults(question_id: object, body: object) -> list[Fault]:
    if not isinstance(question_id, str) or not question_id:
        return [Fault((), "the question id must be a non-empty string")]
    if not isinstance(body, dict):
        return [Fault((), "must be an object")]
    faults = [Fault((), message) for message in _unknown_keys(body, _QUESTION_KEYS)]
    kind = body.get("type")
    if not isinstance(kind, str) or kind not in QUESTION_TYPES:
        message = f"type {kind!r} is not one of {', '.join(QUESTION_TYPES)}"
        return [*faults, Fault(("type",), message)]
    wrong = _criteria_fault(kind, body.get("criteria"))
    return [*faults, Fault(("criteria",), wrong)] if wrong else faults


def _criteria_fault(kind: str, criteria: object) -> str | None:
    if kind == "noul":
        if criteria is None:
            return None
        if not isinstance(criteria, dict) or not set(criteria) <= {"true", "false"}:
            return "criteria of a noul question may only describe 'true' and 'false'"
        return None
    if criteria is None:
        return f"a {kind} question needs criteria"
    if kind == "choice":
        if not isinstance(criteria, dict):
            return "criteria of a choice question must be an object of option id to description"
        if not all(isinstance(key, str) and key for key in criteria):
            return "option ids must be non-empty strings"
    elif not isinstance(criteria, list):
        return "criteria of a score question must be a list of levels, lowest first"
    if len(criteria) < 2:
        return f"has {len(criteria)} option(s), needs at least two"
    return None


def _paths(value: dict[str, JSON], key: str, faults: list[str]) -> tuple[str, ...]:
    paths = value.get(key)
    if paths is None:
        return ()
    if not isinstance(paths, list) or not all(isinstance(path, str) and path for path in paths):
        faults.append(f"{key!r} must be a list of paths relative to the set")
        return ()
    for path in paths:
        if path.startswith(("/", "\\")) or ".." in path.replace("\\", "/").split("/"):
            faults.append(f"{key!r}: {path!r} must lie inside the set")
    return tuple(paths)


def _gold(
    value: dict[str, JSON], questions: dict[str, Question], faults: list[str]
) -> dict[str, str]:
    gold = value.get("gold")
    if gold is None:
        return {}
    if not isinstance(gold, dict):
        faults.append("'gold' must be an object of question id to option id")
        return {}
    asked = value.get("questions")
    for question_id, option in gold.items():
        if not isinstance(asked, dict) or question_id not in asked:
            faults.append(f"gold for {question_id!r}, which is no question of the record")
        elif question_id in questions and option not in questions[question_id].option_ids:
            faults.append(
                f"gold {option!r} of question {question_id!r} is none of its option ids "
                f"({_listed(questions[question_id].option_ids)})"
            )
    return gold


def _listed(ids: tuple[str, ...], limit: int = 6) -> str:
    shown = ", ".join(repr(option) for option in ids[:limit])
    return shown if len(ids) <= limit else f"{shown}, … {len(ids)} in all"


def _question_to_json(question: Question) -> dict[str, JSON]:
    value: dict[str, JSON] = {"type": question.type}
    if question.instructions is not None:
        value["instructions"] = question.instructions
    if question.criteria is not None:
        value["criteria"] = question.criteria
    return value
