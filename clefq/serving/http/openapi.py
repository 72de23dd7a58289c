"""The API's description: what FastAPI is told of routes that read their requests themselves."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine
from typing import Annotated, Any, Literal

from fastapi import Body, Header, Security
from fastapi.routing import APIRoute
from fastapi.security import HTTPBearer
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from clefq.serving.http import errors
from clefq.serving.http.errors import ErrorKind
from clefq.serving.http.models import SystemOneResponse, request_model
from clefq.serving.http.service import DIALECT_HEADER, PRECISION_HEADER
from clefq.serving.http.settings import Dialect, Limits

Precision = Literal["rounded", "full"]

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
BEARER = Security(HTTPBearer(auto_error=False, description="Where the server has tokens."))


class UnreadRoute(APIRoute):
    """A route whose parameters are for the API's page alone: its endpoint gets the request.

    The service reads headers and body itself, since limits come before parsing.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Calls the endpoint with nothing but the request."""
        endpoint = self.endpoint

        async def handler(request: Request) -> Response:
            answer: Response = await endpoint(request)
            return answer

        return handler


def describe_ask(endpoint: Callable[..., Any], limits: Limits) -> None:
    """Gives the endpoint of `POST /v1/systemone` the parameters that the page shows.

    Args:
        endpoint: Called with the request alone, whatever it is said to take.
        limits: Stated in the body's model.
    """
    body = Body(openapi_examples={"support": {"value": EXAMPLE}})
    values = {
        "request": Request,
        "body": Annotated[request_model(limits), body],
        "dialect": _header(DIALECT_HEADER, Dialect, "How to answer; the server's own if left out."),
        "precision": _header(PRECISION_HEADER, Precision, "`full`: numbers are not rounded."),
        "request_id": _header(
            "x-request-id",
            str,
            "Sent back, and in the access log; made up when it is left out, longer than 128 "
            "characters or not plain text.",
        ),
        "trace": _header("traceparent", str, "W3C Trace Context; its ids are in the access log."),
    }
    kind = inspect.Parameter.KEYWORD_ONLY
    endpoint.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter(name, kind, annotation=value) for name, value in values.items()]
    )


def multipart_body() -> Schema:
    """The other form of the body, which FastAPI is told beside the model."""
    description = "The JSON, and a part for each image that its `assets` name."
    schema = {
        "type": "object",
        "description": description,
        "required": ["request"],
        "properties": {"request": {"$ref": "#/components/schemas/SystemOneRequest"}},
        "additionalProperties": {"type": "string", "contentMediaType": "image/*"},
    }
    return {"requestBody": {"content": {"multipart/form-data": {"schema": schema}}}}


def ask_responses() -> dict[int | str, Schema]:
    """Status to response of `POST /v1/systemone`."""
    found = responses(SystemOneResponse, *errors.ASK_KINDS)
    found[200]["headers"] = _ANSWER_HEADERS
    return found


def responses(answer: type[BaseModel], *kinds: ErrorKind) -> dict[int | str, Schema]:
    """Status to response of a route.

    Args:
        answer: With 200.
        kinds: Of errors that it may answer.
    """
    meanings: dict[int, list[str]] = {}
    for kind in kinds:
        line = f"`{kind.type}`: {kind.meaning}"
        meanings.setdefault(kind.status, []).append(line)
        if kind.typesafe_status is not None:
            meanings.setdefault(kind.typesafe_status, []).append(f"typesafe dialect: {line}")
    found: dict[int | str, Schema] = {200: {"model": answer}}
    for status, lines in sorted(meanings.items()):
        found[status] = {
            "model": errors.ErrorBody,
            "description": " ".join(lines),
            "headers": _ID | (_RETRY if status in (429, 503) else {}),
        }
    return found


def _header(name: str, kind: Any, description: str) -> Any:
    return Annotated[kind, Header(alias=name, description=description, default_factory=str)]


def _stated(description: str) -> Schema:
    return {"schema": {"type": "string"}, "description": description}


_ID = {"x-request-id": _stated("Of this request.")}
_RETRY = {"retry-after": _stated("Seconds to wait.")}
_ANSWER_HEADERS = _ID | {
    "server-timing": _stated("Milliseconds of encode, images, queue, engine and answer."),
    "x-clefq-truncated-tokens": _stated("Tokens cut from the end of the state, where any were."),
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
