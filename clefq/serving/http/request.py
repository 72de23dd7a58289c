"""A SystemOne body: checked field by field, every fault named, nothing converted."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from clefq.clef.json_values import DuplicateKeyError, Fault, find_faults, load_json
from clefq.clef.records import Question, Record, check_questions
from clefq.serving.http.errors import (
    BODY_TOO_LARGE,
    INVALID_JSON,
    INVALID_REQUEST,
    MISSING,
    UNSUPPORTED,
    ApiError,
)
from clefq.serving.http.multipart import place_assets
from clefq.serving.http.settings import Dialect, Limits

# Fields of other APIs: to ignore them would change answers without a word.
_REFUSED = {
    "media_kwargs": "media_kwargs are not supported; the checkpoint's own settings are used",
}


@dataclass(frozen=True, slots=True)
class Ask:
    """One request, sound except for its images, which are not decoded yet.

    Attributes:
        model: The model's name as given; None when it was left out.
        record: State and questions; it names as many images as there are.
        images: Base64 texts, data URLs and, from a multipart body, files; in prompt order.
        chars: Of the body's JSON: no text in it is longer.
    """

    model: str | None
    record: Record
    images: tuple[str | bytes, ...]
    chars: int = 0


def parse_ask(
    raw: bytes, dialect: Dialect, limits: Limits, files: Mapping[str, bytes] = MappingProxyType({})
) -> Ask:
    """Reads a body.

    Args:
        raw: The body's JSON, decompressed.
        dialect: `typesafe` also holds the text fields to the hosted API's types.
        limits: What a request may hold.
        files: Further parts of a multipart body, by name.

    Raises:
        ApiError: Not JSON, too large, unsupported, or with every fault of its fields.
    """
    body = _load(raw, limits)
    images = body.get("images")
    images = [] if images is None else images
    # a list is all that the media could be in; anything else is a fault, found below
    media = sum(len(item) for item in images if isinstance(item, str)) if _is_list(images) else 0
    if len(raw) - media > limits.max_text_bytes:
        raise ApiError.of(
            BODY_TOO_LARGE, f"the body has more than {limits.max_text_bytes} bytes without images"
        )
    faults = find_faults(body)
    if faults:  # deeper checks could trip over values that are not JSON at all
        raise ApiError(INVALID_REQUEST, faults)
    _refuse_unsupported(body)
    placed = place_assets(body, files, limits.max_images)
    faults += _top_faults(body, dialect)
    faults += _image_faults(images, limits)
    questions, question_faults = _questions(body, dialect, limits)
    faults += question_faults
    if faults:
        raise ApiError(INVALID_REQUEST, faults)
    sources = (*images, *placed)
    names = tuple(f"image-{number}" for number in range(len(sources)))
    record = Record("request", "request", body["state"], questions, names)
    return Ask(body.get("model"), record, sources, len(raw) - media)


def _load(raw: bytes, limits: Limits) -> dict[str, Any]:
    if raw.count(b",") >= limits.max_values:
        raise ApiError.of(BODY_TOO_LARGE, f"the body has more than {limits.max_values} values")
    try:
        value = load_json(raw.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise ApiError.of(INVALID_JSON, f"not UTF-8 at byte {error.start}") from error
    except DuplicateKeyError as error:
        raise ApiError.of(INVALID_JSON, str(error)) from error
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise ApiError.of(INVALID_JSON, f"not valid JSON: {error.msg} at {place}") from error
    except RecursionError as error:
        raise ApiError.of(INVALID_JSON, "nested too deeply") from error
    except ValueError as error:  # NaN, Infinity, or an integer of thousands of digits
        # the interpreter's own words for the last name a function of its own
        why = "an integer has too many digits" if "digits" in str(error) else str(error)
        raise ApiError.of(INVALID_JSON, f"not valid JSON: {why}") from error
    if not isinstance(value, dict):
        raise ApiError.of(INVALID_REQUEST, "the body must be a JSON object")
    return value


def _refuse_unsupported(body: dict[str, Any]) -> None:
    if body.get("videos"):
        raise ApiError.of(UNSUPPORTED, "videos are not supported; send images", "videos")
    for name, message in _REFUSED.items():
        value = body.get(name)
        if value is not None and value != {}:
            raise ApiError.of(UNSUPPORTED, message, name)


def _top_faults(body: dict[str, Any], dialect: Dialect) -> Iterator[Fault]:
    model = body.get("model", "left out")
    if not isinstance(model, str) or not model:
        yield Fault(("model",), "must be a non-empty string")
    if "state" not in body:
        yield Fault(("state",), MISSING)
    elif dialect == "typesafe":
        yield from _text_fault(body["state"], "state")
    if not isinstance(body.get("videos"), list | None):
        yield Fault(("videos",), "must be a list")


def _image_faults(images: object, limits: Limits) -> Iterator[Fault]:
    if not isinstance(images, list):
        yield Fault(("images",), "must be a list of base64 texts or data URLs")
        return
    if len(images) > limits.max_images:
        yield Fault(("images",), f"has {len(images)} images, at most {limits.max_images}")
        return
    for number, image in enumerate(images):
        if not isinstance(image, str) or not image:
            yield Fault(("images", number), "must be base64 text or a data URL")


def _questions(
    body: dict[str, Any], dialect: Dialect, limits: Limits
) -> tuple[tuple[Question, ...], list[Fault]]:
    if "questions" not in body:
        return (), [Fault(("questions",), MISSING)]
    asked = body["questions"]
    if isinstance(asked, dict) and len(asked) > limits.max_questions:
        message = f"has {len(asked)} questions, at most {limits.max_questions}"
        return (), [Fault(("questions",), message)]
    questions, found = check_questions(asked)
    faults = [Fault(("questions", *fault.path), fault.message) for fault in found]
    for question in questions:
        faults += _limit_faults(question, limits)
        if dialect == "typesafe":
            faults += _type_faults(question)
    return questions, faults


def _limit_faults(question: Question, limits: Limits) -> Iterator[Fault]:
    place = ("questions", question.id)
    if len(question.id) > limits.max_id_chars:
        yield Fault(place, f"the id has more than {limits.max_id_chars} characters")
    if question.type == "noul":
        return
    name, most = (
        ("options", limits.max_options)
        if question.type == "choice"
        else ("levels", limits.max_levels)
    )
    count = len(question.criteria)
    if count > most:
        yield Fault((*place, "criteria"), f"has {count} {name}, at most {most}")
    elif any(len(option) > limits.max_id_chars for option in question.option_ids):
        message = f"an option id has more than {limits.max_id_chars} characters"
        yield Fault((*place, "criteria"), message)


def _type_faults(question: Question) -> Iterator[Fault]:
    """The hosted API takes text, objects and lists; a level must not be null either."""
    place = ("questions", question.id)
    if question.instructions is not None:
        yield from _text_fault(question.instructions, *place, "instructions")
    criteria = question.criteria
    if isinstance(criteria, dict):
        for option, description in criteria.items():
            if description is not None:
                yield from _text_fault(description, *place, "criteria", option)
    elif isinstance(criteria, list):
        for number, level in enumerate(criteria):
            yield from _text_fault(level, *place, "criteria", number)


def _text_fault(value: object, *path: str | int) -> Iterator[Fault]:
    if not isinstance(value, str | dict | list):
        yield Fault(path, "must be text, an object or a list")


def _is_list(value: object) -> bool:
    return isinstance(value, list)
