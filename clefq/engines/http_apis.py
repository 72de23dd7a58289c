"""The APIs that serve Clef: where each is asked, in what words, and what it is known not to take.

One row an API, with the public source of its limits. What an API is known not to take is refused
before a request is made, as an error of the record's rows; what it does to a prompt without saying
so (`cuts_at`) is looked for in its answers by `clefq.engines.http_prompts`.
"""

from __future__ import annotations

import base64
import mimetypes
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from clefq.errors import InputError
from clefq.plain_files import compact_json

if TYPE_CHECKING:
    from clefq.clef.records import Question, Record

SYSTEMONE_PATH = "/v1/systemone"
DECISIONS_PATH = "/v1/decisions"
RUN_PATH = "/ai/run/"
CLOUDFLARE = "https://api.cloudflare.com/client/v4"
MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class ApiLimits:
    """What an API takes at most; None where nothing is known.

    Attributes:
        questions: Questions of a request.
        options: Options of a choice.
        levels: Levels of a score.
        images: Images of a request; 0 where it takes none.
        image_bytes: Bytes of one image.
        images_bytes: Bytes of all images.
        cuts_at: Prompt tokens beyond which the state is cut without a word.
    """

    questions: int | None = None
    options: int | None = None
    levels: int | None = None
    images: int | None = None
    image_bytes: int | None = None
    images_bytes: int | None = None
    cuts_at: int | None = None


@dataclass(frozen=True, slots=True)
class Api:
    """One API.

    Attributes:
        name: As `--api` names it.
        title: Whose it is.
        path: Behind the base URL.
        keys: Environment variables of the token, the first that is set counts.
        limits: What it takes.
        form: `systemone`, or `decisions` for OpenAI's Decisions API.
        text_only: Whether descriptions and levels must be text, which it would render otherwise
            than the release.
        asks: Whether every question needs instructions: the question's id is sent where it has
            none, which is what the release falls back to.
        plain_values: Whether states and descriptions must be text, objects or lists: any other
            state is sent as the text that the release renders.
        source: Where its limits are published.
    """

    name: str
    title: str
    path: str = SYSTEMONE_PATH
    keys: tuple[str, ...] = ("CLEFQ_API_KEY",)
    limits: ApiLimits = ApiLimits()
    form: Literal["systemone", "decisions"] = "systemone"
    text_only: bool = False
    asks: bool = False
    plain_values: bool = False
    source: str = ""


APIS: dict[str, Api] = {
    api.name: api
    for api in (
        Api(
            "systemone", "clefq serve, and servers like the release's", source="docs/server-api.md"
        ),
        Api(
            "typesafe",
            "TypeSafe's System One",
            keys=("CLEFQ_API_KEY", "TYPESAFE_API_KEY"),
            limits=ApiLimits(options=255, levels=10, images=0),
            plain_values=True,
            source="https://docs.typesafe.ai (API reference)",
        ),
        Api(
            "workers-ai",
            "Cloudflare Workers AI",
            path=RUN_PATH,
            keys=("CLEFQ_API_KEY", "CLOUDFLARE_API_TOKEN"),
            limits=ApiLimits(64, 255, 10, 4, 4 * MIB, 8 * MIB),
            asks=True,
            plain_values=True,
            source="https://developers.cloudflare.com/workers-ai/models/clef/",
        ),
        Api(
            "vllm",
            "vLLM's own /v1/systemone",
            limits=ApiLimits(questions=64, options=26, levels=10, cuts_at=16_384),
            text_only=True,
            source="vLLM 0.33.0, entrypoints/openai/decisions",
        ),
        Api(
            "sglang",
            "SGLang's /v1/systemone",
            limits=ApiLimits(options=255, levels=10, cuts_at=16_384),
            asks=True,
            plain_values=True,
            source="SGLang 0.5.23, entrypoints/systemone",
        ),
        Api(
            "decisions",
            "OpenAI-style /v1/decisions, as vLLM serves it",
            path=DECISIONS_PATH,
            limits=ApiLimits(questions=64, options=26, levels=10, images=0, cuts_at=16_384),
            form="decisions",
            text_only=True,
            source="vLLM 0.33.0, entrypoints/openai/decisions",
        ),
    )
}
AUTO = "auto"


def named_api(name: str) -> Api | None:
    """The API of a name; None for `auto`.

    Raises:
        InputError: There is no such API.
    """
    if name == AUTO:
        return None
    if name not in APIS:
        raise InputError(f"unknown API {name!r}.", fix=f"use auto, {', '.join(APIS)}.")
    return APIS[name]


def api_of_url(url: str) -> Api | None:
    """The API that an address gives away, or None where the server must be asked."""
    parts = urlsplit(url)
    if parts.hostname == "api.cloudflare.com" or RUN_PATH in parts.path:
        return APIS["workers-ai"]
    if parts.path.rstrip("/").endswith(DECISIONS_PATH):
        return APIS["decisions"]
    host = parts.hostname or ""
    return APIS["typesafe"] if host == "typesafe.ai" or host.endswith(".typesafe.ai") else None


def api_of_models(listing: Any) -> Api:
    """The API of a server by what `/v1/models` says, `systemone` where it says nothing."""
    entries = listing.get("data") if isinstance(listing, dict) else None
    for entry in entries if isinstance(entries, list) else ():
        owner = entry.get("owned_by") if isinstance(entry, dict) else None
        if owner in ("vllm", "sglang"):
            return APIS[owner]
    return APIS["systemone"]


def split_url(url: str, api: Api | None, model: str) -> tuple[str, str]:
    """Base address and path of the endpoint.

    An address that ends in an endpoint's path is taken as it is, whatever the API.

    Args:
        url: As it was given.
        api: The API, where it is known.
        model: Name of the model, which is part of Workers AI's path.

    Raises:
        InputError: No http address.
    """
    address = url.rstrip("/")
    if not address.startswith(("http://", "https://")):
        raise InputError(f"--url {url!r} is no http address.", fix="give http://HOST:PORT.")
    for path in (SYSTEMONE_PATH, DECISIONS_PATH):
        if address.endswith(path):
            return address.removesuffix(path), path
    if RUN_PATH in address:
        base, _, rest = address.partition(RUN_PATH)
        return base, RUN_PATH + rest
    path = SYSTEMONE_PATH if api is None else api.path
    return address, path + (hosted_name(model) if path == RUN_PATH else "")


def hosted_name(model: str) -> str:
    """A model's name at Workers AI."""
    return model if model.startswith("@") else f"@cf/cloudflare/{model}"


def fault_of(api: Api, record: Record, root: Path) -> str | None:
    """Why an API is known not to take a record, or None.

    Args:
        api: The API.
        record: What would be asked.
        root: Folder that image paths are relative to.
    """
    limits = api.limits
    if record.videos:
        return "videos are not supported by this engine."
    if limits.questions is not None and len(record.questions) > limits.questions:
        return f"{api.name} takes at most {limits.questions} questions, not {len(record.questions)}"
    found = next(filter(None, (_question_fault(api, q) for q in record.questions)), None)
    return found or _image_fault(api, record, root)


def _question_fault(api: Api, question: Question) -> str | None:
    limits, count = api.limits, len(question.option_ids)
    if question.type == "choice" and limits.options is not None and count > limits.options:
        return f"{api.name} takes at most {limits.options} options; {question.id} has {count}"
    if question.type == "score" and limits.levels is not None and count > limits.levels:
        return f"{api.name} takes at most {limits.levels} levels; {question.id} has {count}"
    if api.plain_values and question.criteria is not None:
        given = question.criteria
        values = given if isinstance(given, list) else [v for v in given.values() if v is not None]
        if not all(_is_plain(api, value) for value in values):
            return f"{api.name} takes text, objects and lists; {question.id} has other descriptions"
    return _text_fault(api, question) if api.text_only else None


def _text_fault(api: Api, question: Question) -> str | None:
    """Where the API would write another prompt than the release does."""
    if question.type == "noul" and api.form == "decisions":
        if question.criteria:
            return f"{api.name} has no descriptions of true and false; {question.id} has them"
        return None
    if question.type == "noul" and None in (question.criteria or {}).values():
        return f"{api.name} cannot leave a description of {question.id} out"
    texts = [option.description for option in question.options]
    allowed = str if question.type == "score" else (str, type(None))
    if not all(isinstance(text, allowed) for text in texts):
        return f"{api.name} takes descriptions as text; {question.id} has others"
    return None


def _image_fault(api: Api, record: Record, root: Path) -> str | None:
    limits = api.limits
    if limits.images is not None and len(record.images) > limits.images:
        return f"{api.name} takes {limits.images or 'no'} images, not {len(record.images)}"
    paths = [root / image for image in record.images]
    sizes = [path.stat().st_size for path in paths if path.is_file()]
    if limits.image_bytes is not None and any(size > limits.image_bytes for size in sizes):
        return f"{api.name} takes images of at most {limits.image_bytes // MIB} MiB"
    if limits.images_bytes is not None and sum(sizes) > limits.images_bytes:
        return f"{api.name} takes images of {limits.images_bytes // MIB} MiB in all"
    return None


def request_body(
    record: Record, model: str, root: Path, api: Api = APIS["systemone"]
) -> dict[str, Any]:
    """The JSON body that asks a server for a record, images as data URLs.

    Args:
        record: What to ask.
        model: Name that the server knows the model by.
        root: Folder that image paths are relative to.
        api: In whose words.

    Raises:
        InputError: The record has videos, or an image is missing.
    """
    from clefq.clef.records import record_to_json

    if record.videos:
        raise InputError("videos are not supported by this engine.")
    if api.form == "decisions":
        return _decisions_body(record, model)
    questions: Any = record_to_json(record)["questions"]
    for name, question in questions.items():
        given = question.get("instructions")
        if api.asks and given in (None, ""):
            question["instructions"] = name
        elif given is not None and (api.text_only or not _is_plain(api, given)):
            question["instructions"] = _text(given)
    state: Any = record.state if _is_plain(api, record.state) else _text(record.state)
    body: dict[str, Any] = {"model": model, "state": state, "questions": questions}
    if record.images:
        body["images"] = [_data_url(root / image) for image in record.images]
    return body


def _decisions_body(record: Record, model: str) -> dict[str, Any]:
    questions = []
    for question in record.questions:
        body: dict[str, Any] = {
            "type": "predicate" if question.type == "noul" else question.type,
            "name": question.id,
            "instructions": _text(question.instructions or question.id),
        }
        if question.type == "choice":
            body["choices"] = [
                {"value": o.id, "description": o.description or ""} for o in question.options
            ]
        elif question.type == "score":
            body["levels"] = [{"label": option.description} for option in question.options]
        questions.append(body)
    return {"model": model, "input": _text(record.state), "questions": questions}


def _is_plain(api: Api, value: Any) -> bool:
    """Whether an API takes a value as it is."""
    return not api.plain_values or isinstance(value, str | dict | list)


def _text(value: Any) -> str:
    """As the release renders it."""
    return value if isinstance(value, str) else compact_json(value)


def _data_url(path: Path) -> str:
    try:
        data = base64.b64encode(path.read_bytes()).decode("ascii")
    except OSError as error:
        raise InputError(f"no image {path}.") from error
    return f"data:{mimetypes.guess_type(path.name)[0] or 'image/png'};base64,{data}"


def unwrapped(reply: Mapping[str, Any]) -> Mapping[str, Any]:
    """What is inside Cloudflare's envelope; any other reply as it is.

    Raises:
        ValueError: The envelope says that the request failed.
    """
    if "answers" in reply or "success" not in reply:
        return reply
    if reply["success"] is not True or not isinstance(reply.get("result"), dict):
        raise ValueError(" ".join(str(reply.get("errors")).split())[:200])
    result: Mapping[str, Any] = reply["result"]
    return result


def systemone_reply(record: Record, reply: Mapping[str, Any]) -> Mapping[str, Any]:
    """A reply of a Decisions API in SystemOne's words: its answers are a list, in our order."""
    answers = reply.get("answers")
    if not isinstance(answers, list):
        return reply
    pairs = zip(record.questions, answers, strict=False)
    return {**reply, "answers": {q.id: _systemone_answer(q, a) for q, a in pairs}}


def _systemone_answer(question: Question, answer: Any) -> Any:
    if not isinstance(answer, dict):
        return answer
    if answer.get("type") == "predicate":
        return {"type": "noul", "noul": answer.get("probability")}
    given = answer.get("probabilities")
    if not isinstance(given, list):
        return answer
    items = [item for item in given if isinstance(item, dict)]
    values = {str(item.get("value")): item.get("probability") for item in items}
    return {"type": answer.get("type"), "probabilities": values}
