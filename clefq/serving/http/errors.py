"""What a caller did wrong, and how each dialect says it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from clefq.clef.json_values import Fault
from clefq.serving.http.settings import Dialect

MISSING = "this field is required"

# Faults listed in one answer, and characters of a message: what a caller sent is not sent back
# to them at full length.
_MOST_FAULTS = 20
_LONGEST = 300
_LONGEST_KEY = 120


@dataclass(frozen=True, slots=True)
class ErrorKind:
    """One kind of error.

    Attributes:
        type: Its name in the answer.
        status: HTTP status.
        meaning: One line, for the API's description.
        typesafe_status: Where the typesafe dialect answers with another status.
        typesafe_type: Where the typesafe dialect has another name for it.
    """

    type: str
    status: int
    meaning: str
    typesafe_status: int | None = None
    typesafe_type: str | None = None


INVALID_JSON = ErrorKind("invalid_json", 400, "The body is not sound JSON in UTF-8.", 422)
INVALID_REQUEST = ErrorKind("invalid_request", 422, "A field is missing, malformed or too large.")
INVALID_HEADER = ErrorKind("invalid_header", 400, "A header has a value that is not known here.")
UNSUPPORTED = ErrorKind("unsupported", 400, "Videos, or fields of other APIs that change answers.")
UNAUTHENTICATED = ErrorKind("authentication_error", 401, "No bearer token, or a wrong one.")
NO_MODEL = ErrorKind(
    "model_not_found", 404, "The model is not served here.", typesafe_type="not_found"
)
WRONG_HOST = ErrorKind("wrong_host", 421, "The Host header names none of --allowed-hosts.")
NO_ROUTE = ErrorKind("not_found", 404, "There is no such route.")
WRONG_METHOD = ErrorKind("method_not_allowed", 405, "The route has no such method.")
BAD_HTTP = ErrorKind("bad_http", 400, "Not HTTP/1.1; the connection is closed.")
HEAD_TOO_SLOW = ErrorKind("request_timeout", 408, "The request's head did not arrive in time.")
HEAD_TOO_LARGE = ErrorKind("head_too_large", 431, "The request's head is too large.")
TOO_MANY_CONNECTIONS = ErrorKind("unavailable", 503, "Every connection is at work.")
TOO_SLOW = ErrorKind("request_timeout", 408, "The body did not arrive in time.")
BODY_TOO_LARGE = ErrorKind("body_too_large", 413, "The body, its text or an image is too large.")
TOO_LONG = ErrorKind("prompt_too_long", 413, "The prompt has more tokens than the model takes.")
WRONG_MEDIA = ErrorKind("unsupported_media_type", 415, "Not a plain JSON body.")
OVERLOADED = ErrorKind(
    "overloaded", 429, "Too many requests wait; see Retry-After.", typesafe_type="rate_limit_error"
)
INTERNAL = ErrorKind("internal_error", 500, "A defect of the server; its log has the request id.")
UNAVAILABLE = ErrorKind("unavailable", 503, "Starting, draining, or no engine could answer.")

ASK_KINDS = (
    INVALID_JSON, INVALID_REQUEST, INVALID_HEADER, UNSUPPORTED, UNAUTHENTICATED, NO_MODEL,
    TOO_SLOW, WRONG_HOST, BODY_TOO_LARGE, TOO_LONG, WRONG_MEDIA, OVERLOADED, INTERNAL, UNAVAILABLE,
)  # fmt: skip
"""What `POST /v1/systemone` may answer."""


class ApiError(Exception):
    """An error that is answered.

    Args:
        kind: Which.
        faults: What is wrong and where, paths counted from the body; at least one. A path is
            empty where no field is at fault.
        headers: Further headers of the answer.
    """

    def __init__(
        self, kind: ErrorKind, faults: Sequence[Fault], headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(kind.type)
        self.kind = kind
        self.faults = tuple(faults)
        self.headers = dict(headers or {})

    @classmethod
    def of(
        cls,
        kind: ErrorKind,
        message: str,
        *path: str | int,
        headers: Mapping[str, str] | None = None,
    ) -> ApiError:
        """An error with one fault."""
        return cls(kind, (Fault(path, message),), headers)

    def status(self, dialect: Dialect) -> int:
        """HTTP status in a dialect."""
        if dialect == "typesafe" and self.kind.typesafe_status is not None:
            return self.kind.typesafe_status
        return self.kind.status

    def body(self, dialect: Dialect) -> dict[str, Any]:
        """The JSON body in a dialect."""
        shown = self.faults[:_MOST_FAULTS]
        if dialect == "release":
            return _release_body(self.kind, shown, len(self.faults) - len(shown))
        if self.status(dialect) == 422:
            return {"detail": [_detail(self.kind, fault) for fault in shown]}
        message = _with_field(shown[0])
        error_type = self.kind.typesafe_type or self.kind.type
        return {"detail": {"error_type": error_type, "message": message}}


class FieldFault(BaseModel):
    """One of several faults."""

    field: str
    message: str


class ErrorInfo(BaseModel):
    """What was wrong, and where."""

    type: str
    message: str
    field: str | None = Field(None, description="As `questions.tone.criteria`.")
    faults: list[FieldFault] | None = Field(None, description="All, where there are several.")
    more_faults: int | None = None


class ReleaseError(BaseModel):
    """An error in the release dialect."""

    model_config = ConfigDict(extra="forbid")
    error: ErrorInfo


class TypesafeFault(BaseModel):
    """A fault as the hosted API states it."""

    loc: list[str | int]
    msg: str
    type: str


class TypesafeFaults(BaseModel):
    """An invalid body in the typesafe dialect."""

    model_config = ConfigDict(extra="forbid")
    detail: list[TypesafeFault]


class TypesafeInfo(BaseModel):
    """What went wrong, as the hosted API states it."""

    error_type: str
    message: str


class TypesafeError(BaseModel):
    """Any other error in the typesafe dialect."""

    model_config = ConfigDict(extra="forbid")
    detail: TypesafeInfo


ErrorBody = ReleaseError | TypesafeFaults | TypesafeError
"""What `ApiError.body` gives, for the API's page."""


def dotted(path: Sequence[str | int]) -> str:
    """A path as text: `questions.tone.criteria`, `images[1]`."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        else:
            text += f".{_clean(step, _LONGEST_KEY)}" if text else _clean(step, _LONGEST_KEY)
    return _clean(text)


def _release_body(kind: ErrorKind, faults: Sequence[Fault], more: int) -> dict[str, Any]:
    first = faults[0]
    error: dict[str, Any] = {"type": kind.type, "message": _with_field(first)}
    if first.path:
        error["field"] = dotted(first.path)
    if len(faults) > 1:
        error["faults"] = [
            {"field": dotted(fault.path), "message": _clean(fault.message)} for fault in faults
        ]
    if more:
        error["more_faults"] = more
    return {"error": error}


def _detail(kind: ErrorKind, fault: Fault) -> dict[str, Any]:
    loc = [step if isinstance(step, int) else _clean(step, _LONGEST_KEY) for step in fault.path]
    code = {"invalid_json": "json_invalid"}.get(kind.type, "value_error")
    if fault.message == MISSING:
        code = "missing"
    return {"loc": ["body", *loc], "msg": _clean(fault.message), "type": code}


def _with_field(fault: Fault) -> str:
    place = dotted(fault.path)
    return _clean(f"{place}: {fault.message}" if place else fault.message)


def _clean(text: str, most: int = _LONGEST) -> str:
    cut = text if len(text) <= most else f"{text[:most]}…"
    # a lone surrogate, which has no UTF-8 form, may be the very thing that is reported
    return cut.encode("utf-8", "backslashreplace").decode("utf-8")
