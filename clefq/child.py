"""A piece of work in another interpreter: JSON lines in on stdin, JSON lines out on stdout.

The one way in which a step runs outside of this process: a prediction in the serving
environment, a measurement, an engine beside others, llm-compressor. The parent writes a line a
job and reads a line a result; notes and progress go to stderr. A child ends when its stdin does,
so that it never outlives a killed parent.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

from clefq.console import Console
from clefq.errors import ClefqError, ExitCode

_RESULT = "result"
_STOP_SECONDS = 20


class ChildDied(ClefqError):
    """A child ended without a result.

    Attributes:
        code: Its exit code; negative: the signal that ended it.
    """

    def __init__(self, what: str, code: int) -> None:
        super().__init__(
            f"{what} ended with exit code {code} and no result.",
            fix="read its messages above; the same command resumes.",
        )
        self.code = code


class Child:
    """A process that runs `python -m module`; it calls `answer_parent` or `serve_parent`.

    Args:
        python: The interpreter.
        module: What it runs.
        what: Name of the work, for messages.
        environment: Its environment variables, or None for this process's.
        quiet: Whether its notes are left out.
        piped: Whether its stderr is read line by line with `said`, instead of shared.
    """

    def __init__(
        self,
        python: Path | str,
        module: str,
        what: str,
        environment: Mapping[str, str] | None = None,
        quiet: bool = False,
        piped: bool = False,
    ) -> None:
        self._what = what
        self._process = subprocess.Popen(
            [str(python), "-m", module, *(["--quiet"] if quiet else [])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE if piped else None,
            env=None if environment is None else dict(environment),
            text=True,
            errors="replace",
        )

    def send(self, value: Any) -> None:
        """Hands it a job, a JSON value."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # its end shows when it is read from
            self._process.stdin.write(json.dumps(value) + "\n")
            self._process.stdin.flush()

    def said(self, listen: Callable[[str], None]) -> None:
        """Hands on every line of its stderr until it closes it (with `piped`)."""
        assert self._process.stderr is not None
        for line in self._process.stderr:
            listen(line)

    def receive(self) -> Any:
        """Waits for its next result, a JSON value.

        Raises:
            ChildDied: It ended without one.
            ClefqError: What it reported.
        """
        assert self._process.stdout is not None
        for line in self._process.stdout:
            reply = _reply(line)
            if _RESULT in reply:
                return reply[_RESULT]
            if "error" in reply:
                raise error_from_json(reply)
        raise ChildDied(self._what, self._process.wait())

    def wait(self, seconds: float) -> None:
        """Gives it time to end by itself."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)

    def close(self, seconds: float = _STOP_SECONDS) -> None:
        """Ends it; harmless when called twice.

        Args:
            seconds: How long it may take by itself.
        """
        with suppress(BrokenPipeError):
            if self._process.stdin is not None:
                self._process.stdin.close()
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for stream in (self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()


def _reply(line: str) -> dict[str, Any]:
    """A line of stdout as a reply; what a library printed while it was imported is none."""
    try:
        value = json.loads(line)
    except json.JSONDecodeError:
        return {}
    return value if isinstance(value, dict) else {}


def run_child(python: Path, module: str, job: Any, console: Console, what: str) -> Any:
    """Runs one job in a process of its own.

    Args:
        python: The interpreter.
        module: What it runs; it calls `answer_parent`.
        job: JSON value for the child.
        console: Its `quiet` is handed on.
        what: Name of the work, for messages.

    Returns:
        The child's result, a JSON value.

    Raises:
        ChildDied: It ended without a result.
        ClefqError: What the child reported.
    """
    child = Child(python, module, what, quiet=console.quiet)
    try:
        child.send(job)
        return child.receive()
    except KeyboardInterrupt:
        # The terminal sent Ctrl-C to the child as well; let it put its files in order.
        child.wait(30)
        raise
    finally:
        child.close()


def take_stdout() -> TextIO:
    """The real stdout, for answers alone.

    Engines and their own processes print to stdout as they please: from now on that is stderr.
    """
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return answers


def error_to_json(error: ClefqError) -> dict[str, Any]:
    """An error as the child's answer."""
    return {
        "error": error.message,
        "fix": error.fix,
        "faults": list(error.faults),
        "exit_code": int(error.exit_code),
    }


def error_from_json(value: dict[str, Any]) -> ClefqError:
    """The error that `error_to_json` wrote."""
    error = ClefqError(value["error"], fix=value["fix"], faults=value["faults"])
    error.exit_code = ExitCode(value["exit_code"])
    return error


def answer_parent(work: Callable[[Any, Console], Any]) -> int:
    """The child's main for one job: reads it, does it, answers; returns the exit code.

    It ends at once when its parent is gone.
    """
    done = threading.Event()

    def once(job: Any, answer: Callable[[Any], None]) -> None:
        threading.Thread(target=_end_with_parent, args=(done,), daemon=True).start()
        try:
            result = work(job, Console(quiet="--quiet" in sys.argv))
        finally:
            done.set()
        answer(result)

    return serve_parent(once)


def serve_parent(work: Callable[[Any, Callable[[Any], None]], None]) -> int:
    """The child's main: hands on the first job and how to answer; returns the exit code.

    Args:
        work: Does the job; it may read further ones, a line each, from stdin until that ends,
            and answer as often as it likes.
    """
    job = json.loads(sys.stdin.readline() or "null")
    answers = take_stdout()

    def answer(value: Any) -> None:
        print(json.dumps({_RESULT: value}), file=answers, flush=True)

    try:
        work(job, answer)
    except ClefqError as error:
        print(json.dumps(error_to_json(error)), file=answers, flush=True)
        return int(error.exit_code)
    except KeyboardInterrupt:
        return 130
    return 0


def _end_with_parent(done: threading.Event) -> None:
    # not sys.stdin: its lock, held by a waiting thread, breaks the interpreter's own end
    while os.read(0, 1 << 16):
        pass
    if not done.is_set():
        os._exit(1)
