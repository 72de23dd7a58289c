"""From a request's bytes to an answer's: everything between the socket and the engines."""

from __future__ import annotations

import asyncio
import gc
import hashlib
import hmac
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from starlette.responses import Response

from clefq.clef.encoding import EncodeSpec, RecordTooLongError
from clefq.clef.json_values import Fault, render
from clefq.errors import InputError, RecordError
from clefq.serving.http import errors
from clefq.serving.http.admission import Admission, Ticket
from clefq.serving.http.answers import Style, Usage, encode_json, response_body
from clefq.serving.http.backend import Backend, EngineDown, Scores
from clefq.serving.http.body import check_head, decompress
from clefq.serving.http.errors import ApiError
from clefq.serving.http.images import read_images
from clefq.serving.http.metrics import Metrics
from clefq.serving.http.observation import Observation
from clefq.serving.http.request import Ask, parse_ask
from clefq.serving.http.settings import DIALECTS, Dialect, ServerSettings
from clefq.serving.layout import LayoutError, split_flat

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from starlette.datastructures import Headers
    from starlette.requests import Request

    from clefq.serving.prompts import PromptMaker
    from clefq.serving.runtime import Prompt

DIALECT_HEADER = "x-clefq-dialect"
PRECISION_HEADER = "x-clefq-precision"
PRECISIONS = ("rounded", "full")
# More than a token of any usual text has.
_CHARS_PER_TOKEN = 32
# Seconds after which a client of a server that starts or drains should come back.
_COME_BACK = {"retry-after": "5"}

_T = TypeVar("_T")


class ClientGoneError(Exception):
    """The client closed its connection before it had its answer."""


@dataclass(frozen=True, slots=True)
class _Prepared:
    ask: Ask
    prompt: Prompt


class Service:
    """A SystemOne server without its socket.

    Args:
        backend: The engines.
        prompts: Of the same checkpoint.
        settings: Dialect, limits, tokens.
        registry: See `Metrics`.
    """

    def __init__(
        self,
        backend: Backend,
        prompts: PromptMaker,
        settings: ServerSettings,
        registry: CollectorRegistry | None = None,
    ) -> None:
        self.backend = backend
        self.settings = settings
        self.admission = Admission(settings.max_pending, settings.max_pending_bytes)
        self.metrics = Metrics(backend, self.admission, registry)
        self._prompts = prompts
        self._pool = ThreadPoolExecutor(settings.threads, thread_name_prefix="clefq-http")
        # digests have one length, so that comparing them takes one time
        self._tokens = tuple(_digest(token) for token in settings.bearer_tokens)

    async def warm(self) -> None:
        """Loads what the first request would otherwise wait for.

        Raises:
            CheckpointError: Images may be sent, and the folder has no processor settings.
        """
        await self._run(_warm_softmax)
        if self.settings.limits.max_images and self._prompts.max_images:
            await self._run(self._prompts.image_tokens)
        # What is loaded by now stays. A full collection would go through all of it, and hold every
        # request up for 0.2 s whenever a large body was read.
        gc.collect()
        gc.freeze()

    def close(self) -> None:
        """Ends the threads, and lets the interpreter collect what `warm` has frozen.

        Extension modules whose objects are still there when it ends complain at length, below the
        error that the user should read.
        """
        self._pool.shutdown(wait=False, cancel_futures=True)
        gc.unfreeze()

    def dialect(self, headers: Headers) -> Dialect:
        """The dialect that a request asks for; the server's own where it names no sound one."""
        wanted = headers.get(DIALECT_HEADER, "").strip().lower()
        return next((name for name in DIALECTS if name == wanted), self.settings.dialect)

    def authorize(self, headers: Headers) -> None:
        """Checks the bearer token, where the server asks for one.

        Raises:
            ApiError: None given, or a wrong one.
        """
        if not self._tokens:
            return
        scheme, _, token = headers.get("authorization", "").partition(" ")
        given = _digest(token.strip())
        # every token is compared, whichever matches
        matches = [hmac.compare_digest(given, known) for known in self._tokens]
        if scheme.lower() != "bearer" or not any(matches):
            raise ApiError.of(
                errors.UNAUTHENTICATED,
                "give the server's token as `Authorization: Bearer TOKEN`",
                headers={"www-authenticate": "Bearer"},
            )

    def check_open(self) -> None:
        """Refuses while the server starts or drains.

        Raises:
            ApiError: It does.
        """
        state = self.backend.state
        if state != "ready":
            raise _unavailable(f"the server is {state}")

    async def answer(self, request: Request, seen: Observation) -> Response:
        """Answers `POST /v1/systemone`.

        Raises:
            ApiError: Anything that is answered with an error.
            ClientGoneError: There is nobody left to answer.
        """
        self.authorize(request.headers)
        style = self._style(request.headers)
        self.check_open()
        encoding = check_head(request.headers, self.settings.limits.max_body_bytes)
        with self.admission.enter() as ticket:
            prepared = await self._take(encoding, style.dialect, ticket, seen)
            scores = await self._score(request, prepared.prompt, seen)
            with seen.stage("answer"):
                body = await self._run(lambda: self._body(prepared, scores, style))
            seen.input_tokens = scores.input_tokens
            ticket.answered = True
        return Response(body, media_type="application/json")

    async def _take(
        self, encoding: str, dialect: Dialect, ticket: Ticket, seen: Observation
    ) -> _Prepared:
        """Reads, checks and encodes; the body is gone when this returns."""
        most = self.settings.limits.max_body_bytes
        with seen.stage("read"):
            raw = await seen.body.read(most, self.settings.body_seconds, ticket.charge)
        with seen.stage("encode"):
            prepared = await self._run(lambda: self._prepare(raw, encoding, dialect, ticket))
        seen.questions = len(prepared.ask.record.questions)
        seen.images = len(prepared.ask.record.images)
        seen.truncated_tokens = prepared.prompt.encoded.truncated_tokens
        return prepared

    def _style(self, headers: Headers) -> Style:
        for name, known in ((DIALECT_HEADER, DIALECTS), (PRECISION_HEADER, PRECISIONS)):
            value = headers.get(name)
            if value is not None and value.strip().lower() not in known:
                message = f"header {name} must be one of {', '.join(known)}"
                raise ApiError.of(errors.INVALID_HEADER, message)
        full = headers.get(PRECISION_HEADER, "").strip().lower() == "full"
        return Style(self.dialect(headers), full)

    def _prepare(self, raw: bytes, encoding: str, dialect: Dialect, ticket: Ticket) -> _Prepared:
        limits = self.settings.limits
        text = decompress(raw, encoding, limits.max_body_bytes)
        if encoding != "identity":
            ticket.charge(len(text))
        info = self.backend.info
        limits = replace(limits, max_images=min(limits.max_images, info.max_images))
        ask = parse_ask(text, dialect, limits)
        if ask.model is not None and ask.model not in info.names:
            message = f"the model {ask.model!r} is not served here; see /v1/models"
            raise ApiError.of(errors.NO_MODEL, message, "model")
        images = read_images(ask.images, limits, ticket.charge)
        # the base64 texts are of no more use, and are most of what a request holds
        ask = replace(ask, images=())
        spec = EncodeSpec(info.max_length, self.settings.truncate_state)
        self._refuse_hopeless(ask, spec)
        try:
            return _Prepared(ask, self._prompts.prompt(ask.record, images, spec))
        except RecordTooLongError as error:
            raise _too_long(error) from error
        except RecordError as error:
            raise _encode_fault(error, _field_of(error, ask)) from error
        except InputError as error:
            raise _encode_fault(error, "images") from error

    def _refuse_hopeless(self, ask: Ask, spec: EncodeSpec) -> None:
        """Refuses a state that is far too long by its first part: to count all of it takes seconds.

        What follows the part changes only its last token, and twice the limit leaves room for
        texts of unusual tokens.
        """
        text = render(ask.record.state)
        most = _CHARS_PER_TOKEN * spec.max_length
        if spec.truncate_state or len(text) <= most:
            return
        if len(self._prompts.tokenizer.encode(text[:most])) > 2 * spec.max_length:
            message = f"the prompt takes more than {2 * spec.max_length} tokens"
            raise ApiError.of(
                errors.TOO_LONG, f"{message}, the limit is {spec.max_length}", "state"
            )

    async def _score(self, request: Request, prompt: Prompt, seen: Observation) -> Scores:
        scoring = asyncio.ensure_future(self.backend.score(prompt, seen.id))
        gone = asyncio.ensure_future(_disconnected(request))
        try:
            await asyncio.wait(
                {scoring, gone},
                timeout=self.settings.answer_seconds,
                return_when=asyncio.FIRST_COMPLETED,
            )
            if not scoring.done():
                if gone.done():
                    raise ClientGoneError
                raise _unavailable("no engine answered in time")
            scores = scoring.result()
        except EngineDown as error:
            raise _unavailable(str(error) or "no engine could answer") from error
        finally:
            for task in (scoring, gone):
                task.cancel()
                # an exception that nobody is left to see is not reported as lost
                task.add_done_callback(lambda done: done.cancelled() or done.exception())
        seen.stages["queue"] = scores.queue_seconds
        seen.stages["engine"] = scores.engine_seconds
        return scores

    def _body(self, prepared: _Prepared, scores: Scores, style: Style) -> bytes:
        encoded = prepared.prompt.encoded
        try:
            logits = split_flat(scores.flat, encoded)
        except LayoutError as error:
            if len(scores.flat):
                raise
            message = "the engine cannot place these questions in the prompt"
            raise ApiError.of(errors.INVALID_REQUEST, message, "questions") from error
        usage = Usage(scores.input_tokens, encoded.truncated_tokens)
        given = prepared.ask.model
        # the release repeats the request's name, the hosted API states the model behind it
        model = given if given and style.dialect == "release" else self.backend.info.names[0]
        questions = prepared.ask.record.questions
        return encode_json(response_body(model, questions, logits, usage, style))

    async def _run(self, work: Callable[[], _T]) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)


def _warm_softmax() -> None:
    import numpy as np

    from clefq.clef.records import Question
    from clefq.serving.probabilities import as_released

    as_released(Question("warm", "noul"), np.zeros(2, dtype=np.float32))


async def _disconnected(request: Request) -> None:
    """Returns when the client has closed its connection; its body must have been read."""
    while True:
        message: Any = await request.receive()
        if message["type"] == "http.disconnect":
            return


def _too_long(error: RecordTooLongError) -> ApiError:
    if error.fixed > error.limit:
        message = f"questions and images alone take {error.fixed} tokens"
        path = "questions"
    else:
        message = f"the prompt takes {error.tokens} tokens"
        path = "state"
    return ApiError.of(errors.TOO_LONG, f"{message}, the limit is {error.limit}", path)


def _field_of(error: RecordError, ask: Ask) -> str:
    """The field of a text that cannot be encoded: empty instructions, or a media placeholder."""
    pads = ("<|image_pad|>", "<|video_pad|>")
    in_state = any(pad in render(ask.record.state) for pad in pads)
    return "state" if in_state and "placeholder" in error.message else "questions"


def _encode_fault(error: InputError, path: str) -> ApiError:
    message = error.message.removeprefix("record 'request'").lstrip(": ")
    return ApiError(errors.INVALID_REQUEST, (Fault((path,), message),))


def _unavailable(message: str) -> ApiError:
    return ApiError.of(errors.UNAVAILABLE, message, headers=_COME_BACK)


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
