"""What `POST /v1/systemone` takes and answers, as models: FastAPI makes the API's page of them.

The models describe, and tests hold them against what the server does. Bodies are read by
`clefq.serving.http.request` all the same: pydantic would read them faster (a small one in 6 instead
of 28 µs), and would take doubled keys, of which one answer would be lost, without a word.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, create_model

from clefq.serving.http.settings import Limits

Probability = Annotated[float, Field(ge=0, le=1)]
Confidence = Annotated[
    float,
    Field(
        ge=0,
        le=1,
        description="release: the top probability. typesafe: the hosted API's formula, 0 for a "
        "uniform guess.",
    ),
]
_TEXT = "Text, or any JSON value, which the model reads as JSON."


class Closed(BaseModel):
    """A model without further fields."""

    model_config = ConfigDict(extra="forbid")


class NoulAnswer(Closed):
    """Whether it is true."""

    type: Literal["noul"]
    noul: Probability


class ChoiceAnswer(Closed):
    """Which one."""

    type: Literal["choice"]
    choice: str
    confidence: Confidence
    probabilities: dict[str, Probability]


class ScoreAnswer(Closed):
    """How much."""

    type: Literal["score"]
    score: Annotated[float, Field(ge=0)]
    confidence: Confidence
    legend: dict[str, JsonValue]
    probabilities: dict[str, Probability]


class Usage(Closed):
    """Tokens of a request."""

    input_tokens: Annotated[int, Field(ge=0)]
    output_tokens: Literal[0]
    x_truncated_tokens: Annotated[
        int | None, Field(ge=1, description="Cut from the end of the state, where any were.")
    ] = None


class SystemOneResponse(Closed):
    """The answers, one per question id, in the request's order."""

    model: Annotated[
        str,
        Field(description="release: as in the request. typesafe: the served model's name."),
    ]
    answers: dict[str, NoulAnswer | ChoiceAnswer | ScoreAnswer]
    usage: Usage


class ModelEntry(BaseModel):
    """A name of the model, in the form of OpenAI's API."""

    id: str
    object: Literal["model"]
    created: Annotated[int, Field(description="Unix time, seconds.")]
    owned_by: str
    root: Annotated[str, Field(description="The name that answers state.")]
    max_model_len: Annotated[int, Field(description="Most tokens of a prompt.")]
    clefq: Annotated[
        dict[str, JsonValue],
        Field(
            description="What runs: engine and version, kernels, arithmetic as executed, dtype, "
            "device, and the checkpoint's scheme and sha256."
        ),
    ]


class HostedModel(BaseModel):
    """The same name, in the form of the hosted API."""

    name: str
    description: str
    release_date: str


class ModelList(BaseModel):
    """The names that the model goes by, in both forms."""

    object: Literal["list"]
    data: list[ModelEntry]
    models: list[HostedModel]


class Health(BaseModel):
    """How the server is."""

    status: Literal["starting", "ready", "draining"]


def request_model(limits: Limits) -> type[BaseModel]:
    """The model of a body.

    Args:
        limits: Stated in it.
    """
    identifier = Annotated[str, Field(min_length=1, max_length=limits.max_id_chars)]
    text = Annotated[JsonValue, Field(description=_TEXT)]

    class Truth(Closed):
        true: text = None
        false: text = None

    kinds = (
        _question(
            "noul", "Is it true? Answered with the probability of true.", Truth | None, Field(None)
        ),
        _question(
            "choice",
            "Which one? `criteria`: option id to description, which may be null.",
            dict[identifier, text],
            Field(min_length=2, max_length=limits.max_options),
        ),
        _question(
            "score",
            "How much? `criteria`: the levels, lowest first.",
            list[text],
            Field(min_length=2, max_length=limits.max_levels),
        ),
    )
    question: Any = kinds[0] | kinds[1] | kinds[2]
    images = (
        f"Base64 texts or data URLs of {', '.join(limits.image_formats)} files, each at most "
        f"{limits.max_image_bytes:,} bytes and {limits.max_image_pixels:,} pixels, together "
        f"{limits.max_images_bytes:,} bytes and {limits.max_images_pixels:,} pixels. Remote URLs "
        "are refused."
    )
    fields: dict[str, Any] = {
        "model": (
            str,
            _optional("A name from /v1/models; the served model when left out.", min_length=1),
        ),
        "state": (
            JsonValue,
            Field(
                description="What the questions are about: any JSON value. The typesafe dialect "
                "takes text, an object or a list."
            ),
        ),
        "questions": (
            dict[identifier, question],
            Field(
                min_length=1,
                max_length=limits.max_questions,
                description="Question id to question, in the order in which they are asked.",
            ),
        ),
        "images": (
            list[Annotated[str, Field(min_length=1)]] | None,
            _optional(images, max_length=limits.max_images),
        ),
        "assets": (
            dict[identifier, Asset] | None,
            _optional(
                "Images by name, as the hosted API has them; their names in texts become "
                "`[image N]`. Not together with `images`.",
                max_length=limits.max_images,
            ),
        ),
        "videos": (
            list[JsonValue] | None,
            _optional("Not supported: anything but an empty list is refused.", max_length=0),
        ),
        "media_kwargs": (
            dict[str, JsonValue] | None,
            _optional("Not supported: the checkpoint's settings are used.", max_length=0),
        ),
    }
    made: type[BaseModel] = create_model(
        "SystemOneRequest", __config__=ConfigDict(extra="allow", protected_namespaces=()), **fields
    )
    return made


class Asset(BaseModel):
    """An image of the hosted API's form: a part of a multipart body, or base64."""

    type: Literal["image"] | None = None
    part: str | None = None
    data_base64: str | None = None


def _question(kind: str, description: str, criteria: Any, field: Any) -> type[BaseModel]:
    field.description = description.partition(" `criteria`: ")[2] or None
    fields: dict[str, Any] = {
        "type": (Literal[kind], ...),
        "instructions": (
            JsonValue,
            Field(None, description="What to decide; the question id when left out."),
        ),
        "criteria": (criteria, field),
    }
    made: type[BaseModel] = create_model(
        f"{kind.capitalize()}Question",
        __config__=ConfigDict(extra="forbid", title=kind),
        __doc__=description,
        **fields,
    )
    return made


def _optional(description: str, **limits: Any) -> Any:
    return Field(None, description=description, **limits)
