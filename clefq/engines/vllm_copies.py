"""Several vLLM engines side by side, each in a process of its own with its own GPUs or cores.

Records are cut into the windows that one engine would run, longest first; whichever copy is free
takes the next window. The copies run the same checkpoint on the same kind of device, so that a
window's results do not depend on which of them ran it, and a run may be resumed with another
number of copies.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from clefq.clef.records import record_to_json
from clefq.engines.base import EngineInfo, EngineSpec, RecordResult
from clefq.engines.child import error_from_json
from clefq.engines.journal import result_from_json
from clefq.engines.vllm_engine import MAX_IMAGES, encode_jobs, serve_settings
from clefq.errors import ClefqError
from clefq.serving.fleet.devices import engine_environments, visible_gpus
from clefq.serving.prompts import PromptMaker

if TYPE_CHECKING:
    from clefq.clef.records import Record

COMMAND = (sys.executable, "-m", "clefq.engines.vllm_copy")
_STOP_SECONDS = 20


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
        self._spec = spec
        self._maker = PromptMaker(folder, MAX_IMAGES)
        job = {"folder": str(folder.absolute()), "spec": asdict(replace(spec, copies=1))}
        self._children: list[_Child] = []
        try:
            for number, environment in enumerate(environments):
                self._children.append(_Child(number, environment, job))
                if number == 0 and gpus:
                    # the others then find its compiled kernels
                    self._children[0].hello()
            hellos = [child.hello() for child in self._children]
        except BaseException:
            self.close()
            raise
        self._window = int(hellos[0]["window"])
        self.info = EngineInfo(**hellos[0]["info"])

    def predict(
        self, records: Sequence[Record], media_root: Path | None = None
    ) -> Iterator[Sequence[RecordResult]]:
        """See `Engine.predict`: windows come as they are done."""
        jobs, failed = encode_jobs(self._maker.prompt, records, media_root, self._spec)
        if failed:
            yield failed
        found = [job.record for job in jobs]
        windows = [found[i : i + self._window] for i in range(0, len(found), self._window)]
        done: SimpleQueue[list[RecordResult] | BaseException] = SimpleQueue()
        waiting = iter(windows)
        lock = threading.Lock()

        def work(child: _Child) -> None:
            while True:
                with lock:
                    window = next(waiting, None)
                if window is None:
                    return
                try:
                    done.put(child.run(window, media_root))
                except BaseException as error:
                    done.put(error)
                    return

        for child in self._children:
            threading.Thread(target=work, args=(child,), daemon=True).start()
        for _ in windows:
            results = done.get()
            if isinstance(results, BaseException):
                raise results
            yield results

    def close(self) -> None:
        """Ends the engines; harmless when called twice."""
        for child in self._children:
            child.close()


class _Child:
    """One engine's process: a JSON line in, a JSON line out."""

    def __init__(self, number: int, environment: Mapping[str, str], job: Any) -> None:
        self._number = number
        self._hello: Any = None
        self._process = subprocess.Popen(
            COMMAND,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=dict(environment),
            text=True,
        )
        self._write(job)

    def hello(self) -> Any:
        """Waits until the model is loaded; says what runs."""
        if self._hello is None:
            self._hello = self._read()
        return self._hello

    def run(self, records: Sequence[Record], root: Path | None) -> list[RecordResult]:
        """Runs one window."""
        place = None if root is None else str(root.absolute())
        self._write({"records": [record_to_json(record) for record in records], "root": place})
        return [result_from_json(value) for value in self._read()["results"]]

    def close(self) -> None:
        with suppress(BrokenPipeError):
            if self._process.stdin is not None:
                self._process.stdin.close()
        try:
            self._process.wait(_STOP_SECONDS if self._hello is not None else 0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def _write(self, value: Any) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # its end shows when it is read from
            self._process.stdin.write(json.dumps(value) + "\n")
            self._process.stdin.flush()

    def _read(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise ClefqError(
                f"vllm engine {self._number} ended with exit code {self._process.wait()} and no "
                "result.",
                fix="read its messages above; the same command resumes.",
            )
        reply = json.loads(line)
        if "error" in reply:
            raise error_from_json(reply)
        return reply
