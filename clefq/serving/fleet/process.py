"""One engine's process as the front process sees it: started, spoken to, and never left behind."""

from __future__ import annotations

import asyncio
import ctypes
import os
import re
import signal
import socket
import subprocess
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from clefq.errors import ClefqError
from clefq.serving.fleet.wire import Channel, EngineAnswer, Failed, Message, Ready, Start, Stop

# Lines of an engine's output that are kept, and that are shown when it dies.
_KEPT_LINES = 400
_SHOWN_LINES = 30
_LONGEST_LINE = 1 << 20
_POLL_SECONDS = 0.05
_FIX = "--verbose shows vLLM's own log; `clefq doctor MODEL` what this machine can run."
_LAST_WORDS_SECONDS = 2.0
_PR_SET_CHILD_SUBREAPER = 36
_PAGE = os.sysconf("SC_PAGE_SIZE")
_ERROR = re.compile(r"(?:^|[\s.])([A-Z]\w*(?:Error|Exception|Interrupt)): (.+)$")
# What vLLM says on top of the error that matters.
_WRAPPERS = (
    "Engine core initialization failed",
    "EngineCore encountered an issue",
    "See root cause",
)


class EngineFailed(ClefqError):
    """An engine's process ended, or did not come up."""


@dataclass(frozen=True, slots=True)
class Launch:
    """How to start an engine's process.

    Attributes:
        command: Program and arguments; file descriptor numbers are appended.
        environment: Its whole environment.
    """

    command: Sequence[str]
    environment: Mapping[str, str]


class EngineProcess:
    """A running engine.

    Args:
        number: Of the engine, for messages.
        launch: How to start it.
        on_answer: Called with each answer.
        on_line: Called with each line of its output once it is ready, or at once if `verbose`.
        verbose: Show its output while it loads.
    """

    def __init__(
        self,
        number: int,
        launch: Launch,
        on_answer: Callable[[EngineAnswer], None],
        on_line: Callable[[str], None],
        *,
        verbose: bool = False,
    ) -> None:
        self._number = number
        self._launch = launch
        self._on_answer = on_answer
        self._on_line = on_line
        self._show = self._verbose = verbose
        self._lines: deque[str] = deque(maxlen=_KEPT_LINES)
        self._process: subprocess.Popen[bytes] | None = None
        self._ready = False
        self._channel: Channel | None = None
        self._lifeline: int | None = None
        self._failure: Failed | None = None
        self._output: asyncio.Task[None] | None = None
        self._gone: asyncio.Task[int] | None = None
        self._cause: str | None = None

    async def start(self, start: Start, timeout: float) -> Ready:
        """Starts the process and waits until its engine is warm.

        Raises:
            EngineFailed: It could not load, died on the way, or took longer than `timeout`.
        """
        try:
            await self._spawn()
        except OSError as error:  # no memory, no file descriptors
            raise EngineFailed(
                f"engine {self._number}: its process cannot be started: {error.strerror}."
            ) from error
        self.send(start)
        try:
            async with asyncio.timeout(timeout):
                message = await self._receive()
        except TimeoutError:
            raise EngineFailed(
                f"engine {self._number} was not ready within {timeout:.0f} s.",
                fix="start with --verbose to see what it does, or --eager to skip compilation.",
            ) from None
        if isinstance(message, Ready):
            self._show = self._ready = True
            return message
        if isinstance(message, Failed):
            self._failure = message
        raise await self._died()

    async def listen(self) -> EngineFailed:
        """Hands on answers until the engine is gone; says why it went."""
        while (message := await self._receive()) is not None:
            if isinstance(message, EngineAnswer):
                self._on_answer(message)
            elif isinstance(message, Failed):
                self._failure = message
        return await self._died()

    def send(self, message: Message) -> None:
        """Sends without waiting; a dead engine swallows it."""
        if self._channel is not None:
            self._channel.send(message)

    def kill(self, cause: str) -> None:
        """Ends an engine that no longer answers."""
        self._cause = self._cause or cause
        self._signal_group(signal.SIGKILL)

    async def close(self, timeout: float) -> None:
        """Asks the engine to stop, ends it after `timeout` seconds, and reaps its processes.

        One that is still loading would not listen, and has nothing to lose: it is ended at once.
        """
        if self._process is not None:
            if self._ready:
                self._show = self._verbose  # how it takes itself apart is no news
                self.send(Stop())
                with suppress(TimeoutError):
                    async with asyncio.timeout(timeout):
                        await self._exit()
            # the core and its workers are in the group of the process that started them
            self._signal_group(signal.SIGKILL)
            await self._exit()
            await self._reap()
        if self._output is not None:
            self._output.cancel()
            await asyncio.gather(self._output, return_exceptions=True)
        if self._channel is not None:
            self._channel.close()
        if self._lifeline is not None:
            os.close(self._lifeline)
            self._lifeline = None

    @property
    def pid(self) -> int | None:
        """Process id, which is also that of its process group."""
        return None if self._process is None else self._process.pid

    async def _spawn(self) -> None:
        adopt_orphans()
        with ExitStack() as ours_on_failure, ExitStack() as theirs:
            ours, their_end = socket.socketpair()
            theirs.callback(their_end.close)
            ours_on_failure.callback(ours.close)
            watched, self._lifeline = os.pipe()
            theirs.callback(os.close, watched)
            printed, printing = os.pipe()
            theirs.callback(os.close, printing)
            ours_on_failure.callback(os.close, printed)
            # not asyncio's own: there a process counts as running while a child holds its output
            self._process = subprocess.Popen(
                [*self._launch.command, str(their_end.fileno()), str(watched)],
                stdin=subprocess.DEVNULL,
                stdout=printing,
                stderr=subprocess.STDOUT,
                env=dict(self._launch.environment),
                pass_fds=(their_end.fileno(), watched),
                # Ctrl-C in a terminal is for the front process alone
                start_new_session=True,
            )
            ours_on_failure.pop_all()
        self._gone = asyncio.create_task(self._exited(self._process))
        self._channel = await Channel.over(ours)
        self._output = asyncio.create_task(self._read_output(os.fdopen(printed, "rb")))

    async def _exited(self, process: subprocess.Popen[bytes]) -> int:
        while (code := process.poll()) is None:
            await asyncio.sleep(_POLL_SECONDS)
        return code

    async def _exit(self) -> int:
        """Waits for the process; gives its exit code."""
        assert self._gone is not None
        return await asyncio.shield(self._gone)

    async def _receive(self) -> Message | None:
        """The next message; None when the process is gone, whoever keeps its socket open."""
        assert self._channel is not None
        assert self._gone is not None
        message = asyncio.ensure_future(self._channel.receive())
        try:
            await asyncio.wait((message, self._gone), return_when=asyncio.FIRST_COMPLETED)
            if not message.done():
                # what it said last may still be on its way
                await asyncio.wait((message,), timeout=0.2)
            return message.result() if message.done() else None
        finally:
            message.cancel()

    async def _read_output(self, pipe: BinaryIO) -> None:
        reader = asyncio.StreamReader(limit=_LONGEST_LINE)
        loop = asyncio.get_running_loop()
        transport, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), pipe
        )
        try:
            while True:
                try:
                    raw = await reader.readline()
                except ValueError:  # a line beyond the limit
                    continue
                if not raw:
                    return
                line = raw.decode(errors="replace").rstrip()
                self._lines.append(line)
                if self._show and line:
                    self._on_line(line)
        finally:
            transport.close()

    async def _died(self) -> EngineFailed:
        assert self._output is not None
        if self._failure is not None:
            # it has said why; let it print the rest
            assert self._gone is not None
            await asyncio.wait((self._gone,), timeout=_LAST_WORDS_SECONDS)
        self._signal_group(signal.SIGKILL)
        code = await self._exit()
        await asyncio.wait((self._output,), timeout=_LAST_WORDS_SECONDS)
        if self._failure is not None:
            message = f"engine {self._number}: {self._failure.message}"
            return EngineFailed(message, fix=self._failure.fix)
        cause = self._cause or root_cause(self._lines) or _how_it_ended(code)
        message = f"engine {self._number}: {cause}"
        return EngineFailed(message if message.endswith(".") else message + ".", fix=_FIX)

    def unseen_lines(self) -> list[str]:
        """What an engine that did not come up printed last, unless it was shown at once."""
        return [] if self._show else [line for line in self._lines if line][-_SHOWN_LINES:]

    def _signal_group(self, signum: int) -> None:
        if self._process is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signum)

    async def _reap(self) -> None:
        """Waits for the descendants that were left to this process, so that none stays a zombie."""
        assert self._process is not None
        for _ in range(100):
            try:
                pid, _ = os.waitpid(-self._process.pid, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                await asyncio.sleep(0.05)


def adopt_orphans() -> None:
    """Makes orphaned descendants children of this process, as they are of PID 1 in a container."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def resident_bytes(pid: int) -> int:
    """Memory of a process and of all below it; 0 once they are gone."""
    total = 0
    waiting = [pid]
    while waiting:
        here = Path(f"/proc/{waiting.pop()}")
        with suppress(OSError, ValueError, IndexError):
            total += int((here / "statm").read_text().split()[1]) * _PAGE
            for thread in (here / "task").iterdir():
                waiting += map(int, (thread / "children").read_text().split())
    return total


def root_cause(lines: Sequence[str] | deque[str]) -> str | None:
    """The last error in an engine's output that is not merely about another error.

    Args:
        lines: Its output, oldest first.
    """
    for line in reversed(lines):
        match = _ERROR.search(line)
        if match is not None and not any(words in line for words in _WRAPPERS):
            return f"{match[1]}: {match[2]}"[:300]
    return None


def _how_it_ended(code: int) -> str:
    if code < 0:
        return f"its process was ended by {signal.Signals(-code).name}"
    return f"its process ended with exit code {code}"
