"""The API's description: bodies, headers and errors, as JSON Schema that tools can test against."""

from __future__ import annotations

from typing import Any

from clefq.serving.http import errors
from clefq.serving.http.errors import ErrorKind
from clefq.serving.http.service import DIALECT_HEADER, PRECISION_HEADER, PRECISIONS
from clefq.serving.http.settings import DIALECTS, Limits

Schema = dict[str, Any]

TITLE = "clefq: SystemOne server"
DESCRIPTION = """\
Typed questions about a state, answered by a Clef decision model with one probability per allowed
option. One prefill answers all questions of a request; no token is generated.

**Dialects.** `release` (default) answers as the model's release code does: `confidence` is the
top probability, numbers have four decimals, errors are `{"error": {"type", "message", "field"}}`.
`typesafe` answers as the hosted API: its confidence formula, unrounded numbers, 422 with
`{"detail": [{"loc", "msg", "type"}]}` for validation and `{"detail": {"error_type", "message"}}`
for everything else. The server has one by default; the header `x-clefq-dialect` chooses per
request. The header `x-clefq-precision: full` leaves the numbers of either unrounded.
"""
ASK_SUMMARY = "Answer typed questions about a state"


def request_schema(limits: Limits) -> Schema:
    """The body of `POST /v1/systemone`.

    Args:
        limits: Stated in the schema.
    """
    return {
        "type": "object",
        "required": ["state", "questions"],
        "properties": {
            "model": {
                "type": "string",
                "minLength": 1,
                "description": "A name from /v1/models; the served model when left out.",
            },
            "state": {
                "description": "What the questions are about: any JSON value. The typesafe "
                "dialect takes text, an object or a list."
            },
            "questions": {
                "type": "object",
                "description": "Question id to question, in the order in which they are asked.",
                "minProperties": 1,
                "maxProperties": limits.max_questions,
                "propertyNames": {"minLength": 1, "maxLength": limits.max_id_chars},
                "additionalProperties": _question(limits),
            },
            "images": {
                "type": ["array", "null"],
                "description": f"Base64 texts or data URLs of {', '.join(limits.image_formats)} "
                f"files, each at most {limits.max_image_bytes:,} bytes and "
                f"{limits.max_image_pixels:,} pixels, {limits.max_images_bytes:,} bytes together. "
                "Remote URLs are refused.",
                "maxItems": limits.max_images,
                "items": {"type": "string", "minLength": 1},
            },
            "videos": {
                "type": ["array", "null"],
                "description": "Not supported: anything but an empty list is refused.",
                "maxItems": 0,
            },
            "media_kwargs": {"type": ["object", "null"], "maxProperties": 0,
                             "description": "Not supported: the checkpoint's settings are used."},
            "assets": {"type": ["object", "null"], "maxProperties": 0,
                       "description": "Not supported: send `images`."},
        },
        "additionalProperties": True,
    }  # fmt: skip


def ask_operation(limits: Limits) -> Schema:
    """What FastAPI is told of `POST /v1/systemone` beyond its path."""
    return {
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {
                    "schema": request_schema(limits),
                    "examples": {"support": {"value": EXAMPLE}},
                }
            },
        },
        "parameters": [
            _header(DIALECT_HEADER, DIALECTS, "How to answer; the server's own when left out."),
            _header(PRECISION_HEADER, PRECISIONS, "`full`: numbers are not rounded."),
            {
                "name": "x-request-id",
                "in": "header",
                "required": False,
                "schema": {"type": "string"},
                "description": "Sent back, and written to the access log; made up when it is left "
                "out, longer than 128 characters or not plain text.",
            },
        ],
    }


def ask_responses() -> dict[int | str, Schema]:
    """Status to response of `POST /v1/systemone`."""
    found: dict[int | str, Schema] = {
        200: {
            "description": "The answers, one per question id, in the request's order.",
            "headers": _answer_headers(),
            "content": {"application/json": {"schema": _RESPONSE}},
        }
    }
    found |= error_responses(errors.ASK_KINDS)
    return found


def error_responses(kinds: tuple[ErrorKind, ...]) -> dict[int | str, Schema]:
    """Status to response for kinds of errors."""
    meanings: dict[int, list[str]] = {}
    for kind in kinds:
        line = f"`{kind.type}`: {kind.meaning}"
        meanings.setdefault(kind.status, []).append(line)
        if kind.typesafe_status is not None:
            meanings.setdefault(kind.typesafe_status, []).append(f"typesafe dialect: {line}")
    return {
        status: {
            "description": " ".join(lines),
            "headers": _id_header() | (_RETRY if status in (429, 503) else {}),
            "content": {"application/json": {"schema": ERROR}},
        }
        for status, lines in sorted(meanings.items())
    }


def _question(limits: Limits) -> Schema:
    text = {"description": "Text, or any JSON value, which the model reads as JSON."}
    instructions = text | {"description": "What to decide; the question id when left out."}
    noul = _question_type(
        "noul",
        "Is it true? Answered with the probability of true.",
        instructions,
        {
            "type": ["object", "null"],
            "properties": {"true": text, "false": text},
            "additionalProperties": False,
        },
    )
    choice = _question_type(
        "choice",
        "Which one? `criteria`: option id to description, which may be null.",
        instructions,
        {
            "type": "object",
            "minProperties": 2,
            "maxProperties": limits.max_options,
            "propertyNames": {"minLength": 1, "maxLength": limits.max_id_chars},
            "additionalProperties": text,
        },
    )
    score = _question_type(
        "score",
        "How much? `criteria`: the levels, lowest first.",
        instructions,
        {"type": "array", "minItems": 2, "maxItems": limits.max_levels, "items": text},
    )
    for schema in (choice, score):
        schema["required"].append("criteria")
    return {"oneOf": [noul, choice, score]}


def _question_type(name: str, description: str, instructions: Schema, criteria: Schema) -> Schema:
    return {
        "type": "object",
        "title": name,
        "description": description,
        "required": ["type"],
        "properties": {
            "type": {"const": name},
            "instructions": instructions,
            "criteria": criteria,
        },
        "additionalProperties": False,
    }


def _header(name: str, values: tuple[str, ...], description: str) -> Schema:
    return {
        "name": name,
        "in": "header",
        "required": False,
        "schema": {"type": "string", "enum": list(values)},
        "description": description,
    }


def _id_header() -> Schema:
    return {"x-request-id": {"schema": {"type": "string"}, "description": "Of this request."}}


def _answer_headers() -> Schema:
    return _id_header() | {
        "server-timing": {
            "schema": {"type": "string"},
            "description": "Milliseconds of encode, queue, engine and answer.",
        },
        "x-clefq-truncated-tokens": {
            "schema": {"type": "string"},
            "description": "Tokens cut from the end of the state, where any were.",
        },
    }


_RETRY: Schema = {
    "retry-after": {"schema": {"type": "string"}, "description": "Seconds to wait."}
}  # fmt: skip
_PROBABILITY: Schema = {"type": "number", "minimum": 0, "maximum": 1}
_PROBABILITIES: Schema = {"type": "object", "additionalProperties": _PROBABILITY}
_CONFIDENCE: Schema = _PROBABILITY | {
    "description": "release: the top probability. typesafe: the hosted API's formula, 0 for a "
    "uniform guess."
}


def _answer(name: str, properties: Schema) -> Schema:
    return {
        "type": "object",
        "title": f"{name} answer",
        "required": ["type", *properties],
        "properties": {"type": {"const": name}, **properties},
        "additionalProperties": False,
    }


_RESPONSE: Schema = {
    "type": "object",
    "required": ["model", "answers", "usage"],
    "properties": {
        "model": {
            "type": "string",
            "description": "release: as in the request. typesafe: the served model's name.",
        },
        "answers": {
            "type": "object",
            "additionalProperties": {
                "oneOf": [
                    _answer("noul", {"noul": _PROBABILITY}),
                    _answer(
                        "choice",
                        {
                            "choice": {"type": "string"},
                            "confidence": _CONFIDENCE,
                            "probabilities": _PROBABILITIES,
                        },
                    ),
                    _answer(
                        "score",
                        {
                            "score": {"type": "number", "minimum": 0},
                            "confidence": _CONFIDENCE,
                            "legend": {"type": "object"},
                            "probabilities": _PROBABILITIES,
                        },
                    ),
                ]
            },
        },
        "usage": {
            "type": "object",
            "required": ["input_tokens", "output_tokens"],
            "properties": {
                "input_tokens": {"type": "integer", "minimum": 0},
                "output_tokens": {"const": 0},
                "x_truncated_tokens": {"type": "integer", "minimum": 1},
            },
            "additionalProperties": False,
        },
    },
    "additionalProperties": False,
}

_TEXT: Schema = {"type": "string"}
ERROR: Schema = {
    "oneOf": [
        {
            "type": "object",
            "title": "release",
            "required": ["error"],
            "properties": {
                "error": {
                    "type": "object",
                    "required": ["type", "message"],
                    "properties": {
                        "type": _TEXT,
                        "message": _TEXT,
                        "field": _TEXT | {"description": "As `questions.tone.criteria`."},
                        "faults": {
                            "type": "array",
                            "description": "All faults, where there are several.",
                            "items": {
                                "type": "object",
                                "required": ["field", "message"],
                                "properties": {"field": _TEXT, "message": _TEXT},
                            },
                        },
                        "more_faults": {"type": "integer"},
                    },
                }
            },
            "additionalProperties": False,
        },
        {
            "type": "object",
            "title": "typesafe, 422",
            "required": ["detail"],
            "properties": {
                "detail": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "required": ["loc", "msg", "type"],
                        "properties": {
                            "loc": {"type": "array", "items": {"type": ["string", "integer"]}},
                            "msg": _TEXT,
                            "type": _TEXT,
                        },
                    },
                }
            },
            "additionalProperties": False,
        },
        {
            "type": "object",
            "title": "typesafe, other",
            "required": ["detail"],
            "properties": {
                "detail": {
                    "type": "object",
                    "required": ["error_type", "message"],
                    "properties": {"error_type": _TEXT, "message": _TEXT},
                }
            },
            "additionalProperties": False,
        },
    ]
}

EXAMPLE: Schema = {
    "model": "clef",
    "state": {"ticket": "I was charged twice for March and want my money back."},
    "questions": {
        "refund": {"type": "noul", "instructions": "Does the customer ask for a refund?"},
        "team": {
            "type": "choice",
            "instructions": "Which team should handle it?",
            "criteria": {"billing": "Payments and invoices", "technical": "Bugs and outages"},
        },
        "anger": {
            "type": "score",
            "instructions": "How angry is the customer?",
            "criteria": ["calm", "annoyed", "furious"],
        },
    },
}
