"""Requests that a SystemOne server has answered, from its access log (JSON Lines).

A line is a request body (`state`, `questions`, perhaps `images`), or an object with the body
under `request` and the answer under `response`. Answers are a model's, not truth: they become
gold only when the definition says `gold: answers`, which then measures agreement with that model.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from clefq.clef.records import Question, Record
from clefq.data.personal import PersonalFields
from clefq.data.readers import Row, RowError
from clefq.data.sources.base import Example, ReadSpec, Source, named_file
from clefq.data.tables import table_rows
from clefq.plain_files import stable_key
from clefq.store.reading import Stored

_KINDS = {b"\x89PNG": ".png", b"\xff\xd8\xff": ".jpg", b"GIF8": ".gif", b"RIFF": ".webp"}


@dataclass(frozen=True, slots=True)
class Options(Stored):
    """Options of a definition.

    Attributes:
        file: The log, JSON Lines, relative to the definition.
        gold: `none`, or `answers` to take the logged model's answers.
        cohort: Cohort of all records.
        drop: Fields that are taken out of the state, at any depth.
        hash: Fields that are replaced by a keyed hash.
    """

    file: str
    gold: Literal["none", "answers"] = "none"
    cohort: str = "access_log"
    drop: tuple[str, ...] = ()
    hash: tuple[str, ...] = ()


def read(spec: ReadSpec) -> Iterator[Row]:
    """Rows as {number, line}."""
    personal = PersonalFields(spec.options.drop, spec.options.hash)
    rows = table_rows(spec.folder / spec.options.file)
    for row in personal.watched(rows, _state_of):
        if row.fault is not None:
            yield row
        else:
            yield Row(row.file, row.number, {"number": row.number, "line": row.value})


def _state_of(line: dict[str, Any]) -> Any:
    body = line.get("request", line)
    return body.get("state") if isinstance(body, dict) else None


def from_hub(row: Mapping[str, Any]) -> dict[str, Any]:
    """A local file."""
    raise RowError("not on the hub")


def build(value: dict[str, Any], record_id: str, options: Options) -> Iterable[Example]:
    """One record per request."""
    line = value["line"]
    body = line.get("request", line)
    if not isinstance(body, dict) or "state" not in body:
        raise RowError("no state: not a SystemOne request")
    asked = body.get("questions")
    if not isinstance(asked, dict) or not asked:
        raise RowError("no questions: not a SystemOne request")
    if body.get("videos"):
        raise RowError("a request with a video")
    questions = [_question(name, question) for name, question in asked.items()]
    key = str(line.get("id") or line.get("request_id") or f"request-{value['number']:06d}")
    media = _media(body.get("images") or [], key)
    gold = _gold(line, questions) if options.gold == "answers" else {}
    record = Record(
        id=key,
        cohort=options.cohort,
        state=PersonalFields(options.drop, options.hash).clean(body["state"]),
        questions=tuple(questions),
        images=tuple(media),
        gold=gold,
    )
    # without gold, requests of the same schema are the strata
    label = next(iter(gold.values()), ",".join(sorted(asked)))
    yield Example(record, label=label, media=media)


def _question(name: str, value: object) -> Question:
    if not isinstance(value, dict) or not isinstance(value.get("type"), str):
        raise RowError(f"question {name!r} has no type")
    return Question(name, value["type"], value.get("instructions"), value.get("criteria"))


def _gold(line: dict[str, Any], questions: list[Question]) -> dict[str, str]:
    response = line.get("response")
    answers = response.get("answers") if isinstance(response, dict) else None
    if not isinstance(answers, dict):
        raise RowError("no answers in the response")
    return {question.id: _top(question, answers.get(question.id)) for question in questions}


def _top(question: Question, answer: Any) -> str:
    try:
        if question.type == "noul":
            return "true" if float(answer["noul"]) >= 0.5 else "false"
        probabilities = answer["probabilities"]
        return max(question.option_ids, key=lambda option: float(probabilities[option]))
    except (KeyError, TypeError, ValueError) as error:
        raise RowError(f"the answer to {question.id!r} cannot be read") from error


def _media(images: list[Any], key: str) -> dict[str, bytes]:
    media = {}
    for number, image in enumerate(images):
        text = image.get("data", image.get("url")) if isinstance(image, dict) else image
        if not isinstance(text, str) or text.startswith(("http:", "https:")):
            raise RowError("an image that the log does not hold")
        try:
            data = base64.b64decode(text.split(",", 1)[-1], validate=True)
        except binascii.Error as error:
            raise RowError("an image that is not base64") from error
        suffix = next((end for magic, end in _KINDS.items() if data.startswith(magic)), None)
        if suffix is None:
            raise RowError("an image that is neither PNG, JPEG, GIF nor WebP")
        media[f"images/{stable_key('image', key)[:8].hex()}-{number}{suffix}"] = data
    return media


SOURCE = Source(
    name="access_log",
    title="Requests of a SystemOne server",
    licence="the user's own",
    attribution=None,
    revision=None,
    splits={},
    hub=None,
    read=read,
    from_hub=from_hub,
    build=build,
    options=Options,
    files=named_file,
    origin="user",
)
