"""Closed- and open-loop load on one server, in one thread.

Closed loop: N clients, each asks again as soon as it is answered; a slow server is then asked
less often. Open loop: requests fall due at random moments (Poisson) whatever the server does, and
latency counts from the moment a request was due, so that a server that stalls is charged for
everybody who came meanwhile (no coordinated omission).
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import aiohttp

from clefq.bench.replies import ReplyChecker
from clefq.bench.wire import Reply, ServerAddress, WireError

REFUSED = 429
# Seconds that a closed-loop client rests after a failure: a dead server is not asked in a spin.
_REST = 0.05
_LONGEST_REST = 5.0


@dataclass(frozen=True, slots=True)
class Load:
    """How hard to load a server; exactly one of the two is given.

    Attributes:
        clients: Closed loop: requests in flight at all times.
        rate: Open loop: mean requests per second.
    """

    clients: int | None = None
    rate: float | None = None

    @property
    def name(self) -> str:
        """Name in tables."""
        if self.clients is None:
            return f"{self.rate:g}/s"
        return f"{self.clients} client{'' if self.clients == 1 else 's'}"


@dataclass(frozen=True, slots=True)
class LoadSpec:
    """What all loads of a run share.

    Attributes:
        duration: Seconds that are measured.
        warmup: Seconds before them that are not.
        timeout: Seconds after which a request counts as failed, from when it was due.
        connections: Most open connections of an open loop; what is due beyond waits, on the
            server's account.
        seed: Of the arrivals.
    """

    duration: float = 30.0
    warmup: float = 5.0
    timeout: float = 60.0
    connections: int = 512
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Target:
    """A server and what it is asked.

    Attributes:
        address: The server.
        requests: Bodies of requests, asked in turn.
        judge: Reads the replies; knows the requests by their index.
    """

    address: ServerAddress
    requests: Sequence[bytes]
    judge: ReplyChecker


@dataclass(slots=True)
class Sample:
    """One request.

    Attributes:
        due: When it was to be sent, on the clock of `time.perf_counter`.
        sent: When it was.
        ended: When it was answered or had failed.
        outcome: HTTP status as text, or the word of `WireError`.
        fault: Of `Verdict`, for status 200.
        tokens: Input tokens, for status 200.
        worst: Of `Verdict`.
        retry_after: Whether a refusal said when to come back.
        timing: `Server-Timing` as it was sent.
        late: Seconds from due to when the generator got to it (open loop): its own fault, while
            waiting for a connection is the server's.
    """

    due: float
    sent: float
    ended: float
    outcome: str
    fault: str = ""
    tokens: int = 0
    worst: float | None = None
    retry_after: bool = False
    timing: str = ""
    late: float = 0.0


@dataclass(slots=True)
class Run:
    """What one load gave.

    Attributes:
        load: The load.
        start: When the measured time began, on the clock of the samples.
        end: When it ended.
        samples: All requests, those of the warm-up included.
        cpu: CPU seconds of this process during the run; its own share of a bottleneck.
        wall: Seconds from the first request to the last answer.
    """

    load: Load
    start: float
    end: float
    samples: list[Sample] = field(default_factory=list)
    cpu: float = 0.0
    wall: float = 0.0


def run_load(
    target: Target, load: Load, spec: LoadSpec, tick: Callable[[int], object] = int
) -> Run:
    """Loads the server and returns every request's fate.

    Args:
        target: The server and the requests.
        load: How hard.
        spec: How long.
        tick: Called once a second with 1.
    """
    return asyncio.run(_run(target, load, spec, tick))


async def _run(target: Target, load: Load, spec: LoadSpec, tick: Callable[[int], object]) -> Run:
    begun, cpu = time.perf_counter(), time.process_time()
    run = Run(load, begun + spec.warmup, begun + spec.warmup + spec.duration)
    ticker = asyncio.create_task(_ticks(tick))
    try:
        async with target.address.session(load.clients or spec.connections) as session:
            driver = _Driver(target, session, spec, run)
            await (driver.closed(load.clients) if load.clients else driver.open(load.rate or 1.0))
    finally:
        ticker.cancel()
    run.wall, run.cpu = time.perf_counter() - begun, time.process_time() - cpu
    return run


async def _ticks(tick: Callable[[int], object]) -> None:
    while True:
        await asyncio.sleep(1)
        tick(1)


class _Driver:
    def __init__(
        self, target: Target, session: aiohttp.ClientSession, spec: LoadSpec, run: Run
    ) -> None:
        self._target = target
        self._session = session
        self._spec = spec
        self._run = run
        self._draw = random.Random(spec.seed)
        self._order: list[int] = []

    def _next(self) -> int:
        """Index of the next request: all of them in random order, again and again."""
        if not self._order:
            self._order = list(range(len(self._target.requests)))
            self._draw.shuffle(self._order)
        return self._order.pop()

    async def closed(self, clients: int) -> None:
        await asyncio.gather(*(self._client() for _ in range(clients)))

    async def _client(self) -> None:
        while (now := time.perf_counter()) < self._run.end:
            reply = await self._ask(now)
            rest = _rest(reply)
            if rest:
                await asyncio.sleep(min(rest, max(0.0, self._run.end - time.perf_counter())))

    async def open(self, rate: float) -> None:
        places = asyncio.Semaphore(self._spec.connections)
        running: set[asyncio.Task[None]] = set()
        due = time.perf_counter()
        while True:
            due += self._draw.expovariate(rate)
            if due >= self._run.end:
                break
            # also where it is late already: what is in flight must go on
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            task = asyncio.create_task(self._arrive(due, places))
            running.add(task)
            task.add_done_callback(running.discard)
        await asyncio.gather(*running)

    async def _arrive(self, due: float, places: asyncio.Semaphore) -> None:
        late = time.perf_counter() - due
        try:
            async with asyncio.timeout(max(0.0, self._spec.timeout - late)):
                await places.acquire()
        except TimeoutError:
            now = time.perf_counter()
            self._run.samples.append(Sample(due, now, now, "timeout", late=late))
            return
        try:
            await self._ask(due, late)
        finally:
            places.release()

    async def _ask(self, due: float, late: float = 0.0) -> Reply | None:
        index = self._next()
        sent = time.perf_counter()
        sample = Sample(due, sent, sent, "", late=late)
        self._run.samples.append(sample)
        reply = None
        try:
            timeout = max(0.0, due + self._spec.timeout - sent)
            body = self._target.requests[index]
            reply = await self._target.address.ask(self._session, body, timeout)
            sample.ended = time.perf_counter()
            sample.outcome = str(reply.status)
        except WireError as error:
            sample.ended = time.perf_counter()
            sample.outcome = str(error)
            return None
        sample.retry_after = reply.status == REFUSED and "retry-after" in reply.headers
        sample.timing = reply.headers.get("server-timing", "")
        if reply.status == 200:
            verdict = self._target.judge.judge(index, reply.body)
            sample.fault, sample.tokens = verdict.fault, verdict.tokens
            sample.worst = verdict.worst
        return reply


def _rest(reply: Reply | None) -> float:
    """Seconds that a client waits before it asks again."""
    if reply is not None and reply.status == 200:
        return 0.0
    asked = "" if reply is None else reply.headers.get("retry-after", "")
    try:
        return min(max(float(asked), _REST), _LONGEST_REST)
    except ValueError:
        return _REST
