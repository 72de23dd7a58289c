"""The engines behind a server: one queue, least-loaded routing, restarts, deadlines, drain."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from clefq.clef.checkpoint import checkpoint_sha256
from clefq.errors import ClefqError
from clefq.serving.fleet.process import EngineFailed, EngineProcess, Launch, resident_bytes
from clefq.serving.fleet.queueing import EngineLoad, Room, least_loaded, restart_delay
from clefq.serving.fleet.spec import FleetSpec
from clefq.serving.fleet.wire import Abort, EngineAnswer, EngineAsk, Ready
from clefq.serving.http.backend import EngineDown, Scores, ServerInfo, State

if TYPE_CHECKING:
    from clefq.serving.runtime import Prompt

# A prompt is sent to this many engines at most: once, and once more if the first one died.
MAX_TRIES = 2
# An engine that has run this long is not failing in a row any more.
_HEALTHY_SECONDS = 300.0
_WATCH_SECONDS = 0.5
_TOGETHER_SECONDS = 0.002


@dataclass(slots=True, eq=False)
class _Request:
    """One prompt on its way."""

    ask: EngineAsk
    future: asyncio.Future[EngineAnswer]
    arrived: float
    tries: int = 0
    sent: float = 0.0
    slot: _Slot | None = None


@dataclass(slots=True, eq=False)
class _Slot:
    """An engine's place: its process now, and what that process has to answer."""

    number: int
    launch: Launch
    process: EngineProcess | None = None
    ready: Ready | None = None
    requests: dict[int, _Request] = field(default_factory=dict)
    tokens: int = 0
    restarts: int = 0
    heard: float = 0.0
    answered: int = 0
    batches: int = 0

    def load(self) -> EngineLoad | None:
        return None if self.ready is None else EngineLoad(self.tokens, len(self.requests))


class Fleet:
    """Implements `clefq.serving.http.backend.Backend` over engine processes.

    Args:
        spec: What to run.
        log: Called with one line per event that an operator wants to see.
        on_give_up: Called where no engine is left and restarts have failed too often.
    """

    def __init__(
        self,
        spec: FleetSpec,
        log: Callable[[str], None],
        on_give_up: Callable[[BaseException], None] | None = None,
    ) -> None:
        self._spec = spec
        self._log = log
        self._on_give_up = on_give_up
        self._start_message = spec.start
        self._room = Room.of(spec.start.settings)
        self._slots = [_Slot(number, launch) for number, launch in enumerate(spec.launches)]
        self._queue: deque[_Request] = deque()
        self._numbers = itertools.count(1)
        self._counts = {"retried": 0, "unanswered": 0, "aborted": 0}
        self._starting: asyncio.Task[None] | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._info: ServerInfo | None = None
        self._draining = False
        self._closed: asyncio.Task[None] | None = None
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def info(self) -> ServerInfo:
        """See `Backend.info`."""
        assert self._info is not None, "no engine has been ready yet"
        return self._info

    @property
    def state(self) -> State:
        """See `Backend.state`; `starting` again while every engine is being replaced."""
        if self._draining:
            return "draining"
        alive = any(slot.ready is not None for slot in self._slots)
        return "ready" if alive and self._info is not None else "starting"

    @property
    def in_flight(self) -> int:
        """Prompts accepted and not yet answered."""
        return len(self._queue) + sum(len(slot.requests) for slot in self._slots)

    @property
    def engines(self) -> list[tuple[int, int | None, Ready | None]]:
        """Per engine: number, process id, and what it runs."""
        return [
            (slot.number, slot.process.pid if slot.process else None, slot.ready)
            for slot in self._slots
        ]

    async def start(self) -> None:
        """See `Backend.start`; called again, it waits for the same start.

        Raises:
            ClefqError: An engine could not be started; the others are stopped then.
        """
        if self._starting is None:
            self._starting = asyncio.create_task(self._start_all())
        await asyncio.shield(self._starting)

    async def score(self, prompt: Prompt, request_id: str) -> Scores:
        """See `Backend.score`; while draining, what was let in before is still answered."""
        if self._closed is not None or self._info is None:
            raise EngineDown("no engine is running")
        number = next(self._numbers)
        # pixels are copied here, which takes its time
        ask = (
            await asyncio.to_thread(EngineAsk.of, number, prompt)
            if prompt.images
            else (EngineAsk.of(number, prompt))
        )
        # not the loop's clock, which uvloop keeps in milliseconds
        future: asyncio.Future[EngineAnswer] = asyncio.get_running_loop().create_future()
        request = _Request(ask, future, time.monotonic())
        self._queue.append(request)
        self._idle.clear()
        self._dispatch()
        try:
            async with asyncio.timeout(self._spec.timeouts.request):
                answer = await request.future
        except TimeoutError:
            self._counts["unanswered"] += 1
            raise EngineDown(
                f"no answer within {self._spec.timeouts.request:.0f} s (request {request_id})"
            ) from None
        except EngineDown:
            self._counts["unanswered"] += 1
            raise
        finally:
            self._forget(request)
        done = time.monotonic()
        if answer.refused is not None:
            self._log(f"request {request_id}: the engine refused its prompt: {answer.refused}")
        return Scores(
            flat=np.frombuffer(answer.flat, dtype=np.float32),
            input_tokens=answer.input_tokens,
            queue_seconds=request.sent - request.arrived,
            engine_seconds=done - request.sent,
        )

    def begin_drain(self) -> None:
        """From now on `state` says `draining`; what was accepted goes on."""
        self._draining = True

    async def idle(self) -> None:
        """Returns once nothing is in flight."""
        await self._idle.wait()

    async def drain(self) -> None:
        """See `Backend.drain`."""
        self.begin_drain()
        await self.idle()
        await self.close()

    async def close(self) -> None:
        """Stops the engines at once; what is unanswered fails. Idempotent."""
        self.begin_drain()
        if self._closed is None:
            self._closed = asyncio.create_task(self._close())
        await asyncio.shield(self._closed)

    def gauges(self) -> Mapping[str, float]:
        """See `Backend.gauges`."""
        values: dict[str, float] = {
            "engines": len(self._slots),
            "engines_alive": sum(slot.ready is not None for slot in self._slots),
            "engine_restarts": sum(slot.restarts for slot in self._slots),
            "queued": len(self._queue),
        }
        for slot in self._slots:
            label = f"{{{slot.number}}}"
            values[f"in_flight{label}"] = len(slot.requests)
            values[f"tokens_in_flight{label}"] = slot.tokens
            values[f"prompts_answered{label}"] = slot.answered
            values[f"batches{label}"] = slot.batches
            if slot.process is not None and slot.process.pid is not None:
                values[f"engine_memory_bytes{label}"] = resident_bytes(slot.process.pid)
        for name, count in self._counts.items():
            values[f"prompts_{name}"] = count
        return values

    async def _start_all(self) -> None:
        first = self._slots[:1] if self._spec.first_alone else self._slots
        try:
            for group in (first, self._slots[len(first) :]):
                async with asyncio.TaskGroup() as starts:
                    for slot in group:
                        starts.create_task(self._start(slot))
                    if group is first:
                        starts.create_task(self._hash())
        except BaseExceptionGroup as errors:
            await self._stop_engines()
            raise _first_error(errors) from None
        self._info = self._server_info()
        self._tasks = [asyncio.create_task(self._supervise(slot)) for slot in self._slots]
        self._tasks.append(asyncio.create_task(self._watch()))

    async def _hash(self) -> None:
        """Hashes the checkpoint while the engines load it; restarts are held against that."""
        start = self._start_message
        if start.fingerprint is None:
            return
        sha256 = await asyncio.to_thread(checkpoint_sha256, start.folder)
        self._start_message = replace(start, sha256=sha256)

    async def _start(self, slot: _Slot) -> None:
        slot.process = EngineProcess(
            slot.number,
            slot.launch,
            on_answer=lambda answer: self._answered(slot, answer),
            on_line=lambda line: self._log(f"engine {slot.number}: {line}"),
            verbose=self._spec.start.verbose,
        )
        ready = await slot.process.start(self._start_message, self._spec.timeouts.start)
        load, warm = ready.load_seconds, ready.warm_seconds
        self._log(f"engine {slot.number}: loaded in {load:.0f} s, warm {warm:.0f} s later.")
        slot.heard = time.monotonic()
        slot.ready = ready

    async def _supervise(self, slot: _Slot) -> None:
        """Keeps one engine running, until the fleet is closed."""
        failures = 0
        while True:
            assert slot.process is not None
            started = time.monotonic()
            if slot.ready is not None:
                error: ClefqError = await slot.process.listen()
                slot.ready = None
                self._give_back(slot, error)
            failures = 1 if time.monotonic() - started > _HEALTHY_SECONDS else failures + 1
            await slot.process.close(0)
            if self._hopeless(failures, error):
                return
            delay = restart_delay(failures)
            self._log(f"{error.message} Restarting in {delay:.0f} s.")
            await asyncio.sleep(delay)
            slot.restarts += 1
            try:
                await self._start(slot)
                self._dispatch()
            except EngineFailed as failed:
                error = failed
                for line in slot.process.unseen_lines():
                    self._log(f"engine {slot.number}: {line}")

    def _hopeless(self, failures: int, error: ClefqError) -> bool:
        """Whether to end the server: nothing runs, and restarts have failed too often."""
        most = self._spec.max_restarts
        # the first failure is that of an engine that ran
        if not most or failures <= most or any(slot.ready is not None for slot in self._slots):
            return False
        self._log(f"{error.message} {most} restarts have failed: giving up.")
        if self._on_give_up is not None:
            self._on_give_up(error)
        return True

    def _dispatch(self) -> None:
        """Sends what has room somewhere, in order of arrival."""
        while self._queue:
            request = self._queue[0]
            loads = [slot.load() for slot in self._slots]
            number = least_loaded(loads, request.ask.tokens, self._room)
            if number is None:
                return
            self._queue.popleft()
            self._send(self._slots[number], request)

    def _send(self, slot: _Slot, request: _Request) -> None:
        assert slot.process is not None
        now = time.monotonic()
        if not slot.requests:
            slot.heard = now
        request.slot = slot
        request.tries += 1
        request.sent = now
        slot.requests[request.ask.number] = request
        slot.tokens += request.ask.tokens
        slot.process.send(request.ask)

    def _answered(self, slot: _Slot, answer: EngineAnswer) -> None:
        now = time.monotonic()
        # answers of one step of the engine arrive together
        slot.batches += now - slot.heard > _TOGETHER_SECONDS or not slot.answered
        slot.answered += 1
        slot.heard = now
        request = slot.requests.get(answer.number)
        if request is None:
            return  # its client went away in the meantime
        self._detach(request)
        if not request.future.done():
            request.future.set_result(answer)
        self._dispatch()

    def _detach(self, request: _Request) -> None:
        if request.slot is not None:
            del request.slot.requests[request.ask.number]
            request.slot.tokens -= request.ask.tokens
            request.slot = None

    def _forget(self, request: _Request) -> None:
        """Called when nobody waits any more, whatever the reason."""
        if request.slot is not None:
            assert request.slot.process is not None
            request.slot.process.send(Abort(request.ask.number))
            self._counts["aborted"] += 1
            self._detach(request)
            self._dispatch()
        else:
            with suppress(ValueError):
                self._queue.remove(request)
        if self.in_flight == 0:
            self._idle.set()

    def _give_back(self, slot: _Slot, error: ClefqError) -> None:
        """Puts what a dead engine had to answer at the head of the queue, once."""
        for request in reversed(list(slot.requests.values())):
            self._detach(request)
            if request.tries < MAX_TRIES:
                self._counts["retried"] += 1
                self._queue.appendleft(request)
            elif not request.future.done():
                request.future.set_exception(EngineDown(f"two engines died: {error.message}"))
        self._dispatch()

    async def _watch(self) -> None:
        """Ends engines that have work and say nothing."""
        limit = self._spec.timeouts.stall
        while True:
            await asyncio.sleep(_WATCH_SECONDS)
            now = time.monotonic()
            for slot in self._slots:
                if slot.ready is None or not slot.requests or now - slot.heard < limit:
                    continue
                assert slot.process is not None
                slot.process.kill(f"it answered nothing for {limit:.0f} s")

    async def _close(self) -> None:
        tasks = [*self._tasks, *([self._starting] if self._starting is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for request in [*self._queue, *(r for s in self._slots for r in s.requests.values())]:
            if not request.future.done():
                request.future.set_exception(EngineDown("the server stops"))
        await self._stop_engines()

    async def _stop_engines(self) -> None:
        for slot in self._slots:
            slot.ready = None
        await asyncio.gather(
            *(s.process.close(self._spec.timeouts.stop) for s in self._slots if s.process)
        )

    def _server_info(self) -> ServerInfo:
        ready = [slot.ready for slot in self._slots if slot.ready is not None]
        kinds = {(one.engine_version, one.kernels, one.arithmetic) for one in ready}
        if len(kinds) > 1:
            self._log(f"warning: the engines differ: {sorted(kinds)}")
        settings = self._spec.start.settings
        first = ready[0]
        return ServerInfo(
            names=self._spec.card.names,
            created=self._spec.card.created,
            engine="vllm",
            engine_version=first.engine_version,
            kernels=first.kernels,
            arithmetic=first.arithmetic,
            dtype="bfloat16",
            device=first.device,
            scheme=self._spec.card.scheme,
            max_length=settings.max_length,
            max_images=settings.max_images,
            sha256=self._start_message.sha256,
        )


def _first_error(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    for error in errors.exceptions:
        if isinstance(error, ClefqError):
            return error
    return errors.exceptions[0]
