"""Several vLLM engines side by side, each in a process of its own with its own GPUs or cores.

Records are cut into the windows that one engine would run, longest first; whichever copy is free
takes the next window. The copies run the same checkpoint on the same kind of device, so that a
window's results do not depend on which of them ran it, and a run may be resumed with another
number of copies.

A copy that dies gives its window back, to be run after all others by whichever copy is free, and
is started again, a bounded number of times. The run ends when no copy is left: what was answered
is in the journal by then.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from clefq.child import Child, ChildDied
from clefq.clef.records import record_to_json
from clefq.engines.base import EngineInfo, EngineSpec, RecordResult
from clefq.engines.journal import result_from_json
from clefq.engines.vllm_engine import MAX_IMAGES, encode_jobs, serve_settings, windows_of
from clefq.errors import CheckpointError, ClefqError
from clefq.serving.fleet.devices import engine_environments, visible_gpus
from clefq.serving.prompts import PromptMaker

if TYPE_CHECKING:
    from clefq.clef.records import Record

MODULE = "clefq.engines.vllm_copy"
RESTARTS = 3  # of one copy; a machine where it dies more often has another fault
_STOP_SECONDS = 20

Window = Sequence["Record"]


class VllmCopies:
    """One checkpoint under several vLLM engines.

    Args:
        folder: A checkpoint folder.
        spec: How to run it; `copies` engines.

    Raises:
        CheckpointError: Not a whole Clef checkpoint, or one that this vLLM cannot run.
        InputError: More GPUs than there are, or a dtype or device that vLLM does not run here.
    """

    def __init__(self, folder: Path, spec: EngineSpec) -> None:
        settings = serve_settings(spec)
        gpus = visible_gpus(os.environ)
        environments = engine_environments(settings, spec.copies, os.environ, gpus)
        job = {"folder": str(folder.absolute()), "spec": asdict(replace(spec, copies=1))}
        copies: list[_Copy] = []
        try:
            for number, environment in enumerate(environments):
                copies.append(_Copy(number, environment, job))
                if number == 0 and gpus:
                    # the others then find its compiled kernels
                    copies[0].hello()
            self._begin(PromptMaker(folder, MAX_IMAGES), spec, copies)
        except BaseException:
            for copy in copies:
                copy.close()
            raise

    def _begin(self, maker: PromptMaker, spec: EngineSpec, copies: Sequence[_Copy]) -> None:
        """Waits until every engine is loaded.

        Raises:
            CheckpointError: They run otherwise from each other.
        """
        self._spec, self._maker, self._copies = spec, maker, copies
        hellos = [copy.hello() for copy in copies]
        for number, hello in enumerate(hellos):
            if hello != hellos[0]:
                raise CheckpointError(
                    f"engine {number} runs {_kind(hello)}, engine 0 runs {_kind(hellos[0])}.",
                    fix="run on one kind of device and one version of vLLM.",
                )
        for copy in copies:
            copy.expected = hellos[0]
        self._window = int(hellos[0]["window"])
        self.info = EngineInfo(**hellos[0]["info"])

    def predict(
        self, records: Sequence[Record], media_root: Path | None = None
    ) -> Iterator[Sequence[RecordResult]]:
        """See `Engine.predict`: windows come as they are done.

        Raises:
            ClefqError: What a copy reported, or why the last one was given up.
        """
        jobs, failed = encode_jobs(self._maker.prompt, records, media_root, self._spec)
        if failed:
            yield failed
        found = [job.record for job in jobs]
        windows = [found[i : i + self._window] for i in range(0, len(found), self._window)]
        waiting = _Waiting(windows)
        done: SimpleQueue[list[RecordResult] | ClefqError | _GivenUp] = SimpleQueue()
        alive = [copy for copy in self._copies if copy.alive]
        for copy in alive:
            work = (copy, waiting, done, media_root)
            threading.Thread(target=_work, args=work, daemon=True).start()
        left, working = len(windows), len(alive)
        while left:
            results = done.get()
            if isinstance(results, _GivenUp):
                working -= 1
                if not working:
                    raise results.cause
            elif isinstance(results, ClefqError):
                raise results
            else:
                left -= 1
                yield results

    def windows(
        self, records: Sequence[Record], media_root: Path | None = None
    ) -> list[list[Record]]:
        """See `VllmEngine.windows`."""
        return windows_of(self._maker.prompt, records, media_root, self._spec, self._window)

    def close(self) -> None:
        """Ends the engines; harmless when called twice."""
        for copy in self._copies:
            copy.close()


def _work(
    copy: _Copy,
    waiting: _Waiting,
    done: SimpleQueue[list[RecordResult] | ClefqError | _GivenUp],
    media_root: Path | None,
) -> None:
    """Runs windows on one copy until there is none, or the copy has died too often."""
    while True:
        window = waiting.take()
        if window is None:
            return
        try:
            done.put(copy.run(window, media_root))
        except ChildDied as death:
            waiting.give_back(window)
            cause = copy.restart(death)
            if cause is not None:
                done.put(_GivenUp(cause))
                return
        except ClefqError as error:
            waiting.finish()
            done.put(error)
            return
        else:
            waiting.finish()


@dataclass(frozen=True, slots=True)
class _GivenUp:
    """A copy that works no more, and why."""

    cause: ClefqError


class _Waiting:
    """Windows that no copy runs; those given back come last, so that they hold up no others."""

    def __init__(self, windows: Sequence[Window]) -> None:
        self._windows = deque(windows)
        self._running = 0
        self._changed = threading.Condition()

    def take(self) -> Window | None:
        """The next window; waits while one that runs may still be given back; None at the end."""
        with self._changed:
            while not self._windows and self._running:
                self._changed.wait()
            if not self._windows:
                return None
            self._running += 1
            return self._windows.popleft()

    def finish(self) -> None:
        with self._changed:
            self._running -= 1
            self._changed.notify_all()

    def give_back(self, window: Window) -> None:
        with self._changed:
            self._windows.append(window)
            self._running -= 1
            self._changed.notify_all()


class _Copy:
    """One engine's process, and its successors."""

    def __init__(self, number: int, environment: Mapping[str, str], job: Any) -> None:
        self._what = f"vllm engine {number}"
        self._environment = environment
        self._job = job
        self._restarts = 0
        self._closed = False
        self.alive = True
        self.expected: Any = None  # what its successors must say too
        self._start()

    def _start(self) -> None:
        self._hello: Any = None
        self._child = self._new_child()
        self._child.send(self._job)

    def _new_child(self) -> Any:
        return Child(sys.executable, MODULE, self._what, self._environment)

    def hello(self) -> Any:
        """Waits until the model is loaded; says what runs."""
        if self._hello is None:
            self._hello = self._child.receive()
        return self._hello

    def run(self, records: Window, root: Path | None) -> list[RecordResult]:
        """Runs one window."""
        place = None if root is None else str(root.absolute())
        self._child.send({"records": [record_to_json(record) for record in records], "root": place})
        return [result_from_json(value) for value in self._child.receive()]

    def restart(self, death: ClefqError) -> ClefqError | None:
        """Starts the engine again after its death; says why when that is in vain.

        One that comes back otherwise, on another kind of node for example, is started again too.
        """
        cause: ClefqError = death
        while self._restarts < RESTARTS and not self._closed:
            self._restarts += 1
            _say(f"{cause.message} It is started again ({self._restarts} of {RESTARTS}).")
            self._child.close(0)
            self._start()
            try:
                hello = self.hello()
                if self.expected in (None, hello):
                    return None
                cause = CheckpointError(
                    f"{self._what} runs {_kind(hello)} now, the run began with "
                    f"{_kind(self.expected)}."
                )
            except ClefqError as error:
                cause = error
        if not self._closed:
            _say(f"{cause.message} It is given up.")
        self.alive = False
        return cause

    def close(self) -> None:
        self._closed = True
        self._child.close(_STOP_SECONDS if self._hello is not None else 0)


def _kind(hello: Mapping[str, Any]) -> str:
    info = hello["info"]
    names = ("engine_version", "arithmetic", "kernels", "dtype", "device")
    return f"{' '.join(str(info[name]) for name in names)} in windows of {hello['window']}"


def _say(text: str) -> None:
    print(f"clefq: {text}", file=sys.stderr, flush=True)
