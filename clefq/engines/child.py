"""A piece of work in another interpreter: a job in on stdin, its result out on stdout, as JSON.

The parent writes the job to the child's stdin; the child's last line on stdout is its result or
its error. Notes and progress go to stderr, which both share.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

from clefq.console import Console
from clefq.errors import ClefqError, ExitCode

_RESULT = "result"


def run_child(python: Path, module: str, job: Any, console: Console, what: str) -> Any:
    """Runs `python -m module`, which calls `answer_parent`.

    Args:
        python: The interpreter.
        module: What it runs.
        job: JSON value for the child.
        console: Its `quiet` is handed on.
        what: Name of the work, for messages.

    Returns:
        The child's result, a JSON value.

    Raises:
        ClefqError: What the child reported, or that it died.
    """
    command = [str(python), "-m", module]
    if console.quiet:
        command.append("--quiet")
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        output, _ = child.communicate(json.dumps(job))
    except KeyboardInterrupt:
        # The terminal sent Ctrl-C to the child as well; let it put its files in order.
        child.wait(timeout=30)
        raise
    lines = output.strip().splitlines()
    try:
        reply = json.loads(lines[-1]) if lines else {}
    except json.JSONDecodeError:
        reply = {}
    if _RESULT in reply:
        return reply[_RESULT]
    if "error" in reply:
        raise error_from_json(reply)
    raise ClefqError(
        f"{what} ended with exit code {child.returncode} and no result.",
        fix="read its messages above; the same command resumes.",
    )


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
    """The child's main: reads the job, does the work, answers; returns the exit code."""
    job = json.load(sys.stdin)
    answer = take_stdout()
    try:
        result = work(job, Console(quiet="--quiet" in sys.argv))
    except ClefqError as error:
        print(json.dumps(error_to_json(error)), file=answer, flush=True)
        return int(error.exit_code)
    except KeyboardInterrupt:
        return 130
    print(json.dumps({_RESULT: result}), file=answer, flush=True)
    return 0
