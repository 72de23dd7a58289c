"""From a request's bytes to an answer's: everything between the socket and the engines."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from starlette.responses import Response

from clefq.clef.encoding import EncodeSpec, RecordTooLongError
from clefq.clef.json_values import Fault, render
from clefq.errors import InputError, RecordError
from clefq.serving.http import errors
from clefq.serving.http.admission import Admission, Ticket
from clefq.serving.http.answers import Style, TokenUsage, encode_json, response_body
from clefq.serving.http.backend import Backend, EngineDown, Scores
from clefq.serving.http.body import BodyForm, check_head, decompress
from clefq.serving.http.clients import Clients
from clefq.serving.http.errors import ApiError
from clefq.serving.http.images import Picture, load_picture, read_pictures
from clefq.serving.http.length import refuse_hopeless
from clefq.serving.http.metrics import Metrics
from clefq.serving.http.multipart import read_form
from clefq.serving.http.observation import Observation
from clefq.serving.http.request import Ask, parse_ask
from clefq.serving.http.settings import DIALECTS, Dialect, ServerSettings
from clefq.serving.image_tokens import ImageShapeError
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
# Bytes from which on a body is read and encoded behind the others.
_LARGE_BODY = 256 * 1024
_LOW_PRIORITY = 10
# Seconds after which a client of a server that starts or drains should come back.
_COME_BACK = {"retry-after": "5"}

_T = TypeVar("_T")


class ClientGoneError(Exception):
    """The client closed its connection before it had its answer."""


@dataclass(frozen=True, slots=True)
class _Prepared:
    ask: Ask
    prompt: Prompt
    files: tuple[Picture, ...]


@dataclass(frozen=True, slots=True)
class ServedModel:
    """What answers, changed as a whole: a prompt is for the engines of its own checkpoint.

    Attributes:
        backend: The engines.
        prompts: Of the same checkpoint.
    """

    backend: Backend
    prompts: PromptMaker


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
        self.model = ServedModel(backend, prompts)
        self._users: Counter[int] = Counter()
        self._freed = asyncio.Event()
        self.settings = settings
        self.admission = Admission(
            settings.max_pending, settings.max_pending_bytes, max_reading=settings.max_reading
        )
        self.clients = Clients(settings.tokens)
        self.metrics = Metrics(lambda: self.model.backend, self.admission, registry)
        self._hosts = frozenset(host.lower() for host in settings.allowed_hosts)
        self._pool = ThreadPoolExecutor(settings.threads, thread_name_prefix="clefq-http")
        # what takes seconds, behind everything that does not
        self._slow_pool = ThreadPoolExecutor(
            settings.image_threads, thread_name_prefix="clefq-slow", initializer=_yield_to_others
        )

    @property
    def backend(self) -> Backend:
        """The engines that answer now."""
        return self.model.backend

    async def warm(self) -> None:
        """Loads what the first request would otherwise wait for.

        Raises:
            CheckpointError: Images may be sent, and the folder has no processor settings.
        """
        await self._run(_warm_softmax)
        await self.warm_model(self.model)
        # What is loaded by now stays. A full collection would go through all of it, and hold every
        # request up for 0.2 s whenever a large body was read.
        gc.collect()
        gc.freeze()

    async def warm_model(self, model: ServedModel) -> None:
        """Loads what the first image of a model would otherwise wait for.

        Raises:
            CheckpointError: Images may be sent, and the folder has no processor settings.
        """
        if self.settings.limits.max_images and model.prompts.max_images:
            await self._run(model.prompts.image_tokens)

    def close(self) -> None:
        """Ends the threads, and lets the interpreter collect what `warm` has frozen.

        Extension modules whose objects are still there when it ends complain at length, below the
        error that the user should read.
        """
        for pool in (self._pool, self._slow_pool):
            pool.shutdown(wait=False, cancel_futures=True)
        gc.unfreeze()

    def dialect(self, headers: Headers) -> Dialect:
        """The dialect that a request asks for; the server's own where it names no sound one."""
        wanted = headers.get(DIALECT_HEADER, "").strip().lower()
        return next((name for name in DIALECTS if name == wanted), self.settings.dialect)

    def authorize(self, headers: Headers) -> str:
        """Checks the host and, where the server asks for one, the bearer token; says who it is.

        Raises:
            ApiError: Another host, no token, or a wrong one.
        """
        self._check_host(headers)
        return self.clients.token_of(headers).name

    def check_open(self, model: ServedModel | None = None) -> None:
        """Whether requests are taken now.

        Raises:
            ApiError: Starting or draining.
        """
        state = (model or self.model).backend.state
        if state != "ready":
            raise _unavailable(f"the server is {state}")

    async def answer(self, request: Request, seen: Observation) -> Response:
        """Answers `POST /v1/systemone`.

        Raises:
            ApiError: Anything that is answered with an error.
            ClientGoneError: There is nobody left to answer.
        """
        self._check_host(request.headers)
        token = self.clients.token_of(request.headers)
        seen.client_name = token.name
        self.clients.take(token)
        style = self._style(request.headers)
        self.check_open()
        form = check_head(request.headers, self.settings.limits.max_body_bytes)
        with self.admission.read(seen.body.hurry) as ticket:
            raw = await self._read(seen, ticket)
            # a request belongs to the model that runs when it has arrived
            with self._using(self.model) as model:
                self.check_open(model)
                prepared = await self._prepare_all(model, raw, form, style.dialect, ticket, seen)
                del raw
                scores = await self._score(request, model, prepared.prompt, seen)
                with seen.stage("answer"):
                    body = await self._run(lambda: self._body(model, prepared, scores, style))
            seen.input_tokens = scores.input_tokens
            ticket.answered = True
        return Response(body, media_type="application/json")

    @contextmanager
    def _using(self, model: ServedModel) -> Iterator[ServedModel]:
        """Counts a request to a model, from its choice on: it may be encoded for long."""
        self._users[id(model)] += 1
        try:
            yield model
        finally:
            self._users[id(model)] -= 1
            self._freed.set()

    async def released(self, model: ServedModel) -> None:
        """Returns once no request is for a model any more that is no longer `self.model`."""
        while self._users[id(model)]:
            self._freed.clear()
            await self._freed.wait()
        del self._users[id(model)]

    def _check_host(self, headers: Headers) -> None:
        if not self._hosts:
            return
        host = headers.get("host", "").lower()
        name = host if host.endswith("]") else host.rpartition(":")[0] or host
        if host not in self._hosts and name not in self._hosts:
            raise ApiError.of(errors.WRONG_HOST, "this host name is not served here")

    async def _read(self, seen: Observation, ticket: Ticket) -> bytes:
        with seen.stage("read"):
            most = self.settings.limits.max_body_bytes
            raw = await seen.body.read(most, self.settings.body_seconds, ticket.charge)
        ticket.enter()
        return raw

    async def _prepare_all(
        self,
        model: ServedModel,
        raw: bytes,
        form: BodyForm,
        dialect: Dialect,
        ticket: Ticket,
        seen: Observation,
    ) -> _Prepared:
        """Checks and encodes, and decodes the images."""
        # a large one must not keep the others waiting
        pool = self._pool if len(raw) <= _LARGE_BODY else self._slow_pool
        with seen.stage("encode"):
            prepared = await self._run(
                lambda: self._prepare(model, raw, form, dialect, ticket), pool
            )
        seen.questions = len(prepared.ask.record.questions)
        seen.images = len(prepared.files)
        seen.truncated_tokens = prepared.prompt.encoded.truncated_tokens
        if not prepared.files:
            return prepared
        with seen.stage("images"):
            fit = model.prompts.image_tokens().fit
            images = [
                await self._run(partial(load_picture, picture, fit, ticket), self._slow_pool)
                for picture in prepared.files
            ]
        return replace(prepared, prompt=replace(prepared.prompt, images=tuple(images)), files=())

    def _style(self, headers: Headers) -> Style:
        for name, known in ((DIALECT_HEADER, DIALECTS), (PRECISION_HEADER, PRECISIONS)):
            value = headers.get(name)
            if value is not None and value.strip().lower() not in known:
                message = f"header {name} must be one of {', '.join(known)}"
                raise ApiError.of(errors.INVALID_HEADER, message)
        full = headers.get(PRECISION_HEADER, "").strip().lower() == "full"
        return Style(self.dialect(headers), full)

    def _prepare(
        self, model: ServedModel, raw: bytes, form: BodyForm, dialect: Dialect, ticket: Ticket
    ) -> _Prepared:
        limits = self.settings.limits
        text = decompress(raw, form.encoding, limits.max_body_bytes)
        if form.encoding != "identity":
            ticket.charge(len(text))
        info = model.backend.info
        limits = replace(limits, max_images=min(limits.max_images, info.max_images))
        files: dict[str, bytes] = {}
        if form.boundary is not None:
            text, files = read_form(text, form.boundary, limits.max_images)
        ask = parse_ask(text, dialect, limits, files)
        if ask.model is not None and ask.model not in info.names:
            message = f"the model {ask.model!r} is not served here; see /v1/models"
            raise ApiError.of(errors.NO_MODEL, message, "model")
        pictures = read_pictures(ask.images, limits)
        # the base64 texts are of no more use, and are most of what a request holds
        ask = replace(ask, images=())
        spec = EncodeSpec(info.max_length, self.settings.truncate_state)
        try:
            refuse_hopeless(model.prompts.tokenizer, ask, spec)
            sizes = [picture.size for picture in pictures]
            return _Prepared(ask, model.prompts.sized_prompt(ask.record, sizes, spec), pictures)
        except ImageShapeError as error:
            raise ApiError.of(
                errors.INVALID_REQUEST, error.message, "images", error.number
            ) from error
        except RecordTooLongError as error:
            raise _too_long(error) from error
        except RecordError as error:
            raise _encode_fault(error, _field_of(error, ask)) from error
        except InputError as error:
            raise _encode_fault(error, "images") from error

    async def _score(
        self, request: Request, model: ServedModel, prompt: Prompt, seen: Observation
    ) -> Scores:
        scoring = asyncio.ensure_future(model.backend.score(prompt, seen.id))
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

    def _body(self, model: ServedModel, prepared: _Prepared, scores: Scores, style: Style) -> bytes:
        encoded = prepared.prompt.encoded
        try:
            logits = split_flat(scores.flat, encoded)
        except LayoutError as error:
            if len(scores.flat):
                raise
            message = "the engine cannot place these questions in the prompt"
            raise ApiError.of(errors.INVALID_REQUEST, message, "questions") from error
        usage = TokenUsage(scores.input_tokens, encoded.truncated_tokens)
        given = prepared.ask.model
        # the release repeats the request's name, the hosted API states the model behind it
        name = given if given and style.dialect == "release" else model.backend.info.names[0]
        questions = prepared.ask.record.questions
        return encode_json(response_body(name, questions, logits, usage, style))

    async def _run(self, work: Callable[[], _T], pool: ThreadPoolExecutor | None = None) -> _T:
        return await asyncio.get_running_loop().run_in_executor(pool or self._pool, work)


def _yield_to_others() -> None:
    """Lowers the priority of the thread that calls it, where the system has one per thread."""
    with suppress(OSError, AttributeError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LOW_PRIORITY)


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
