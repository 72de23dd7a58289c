"""Runs a prediction in another environment's interpreter.

The parent writes the job as JSON to the child's stdin; the child's last line on stdout is its
summary or its error, as JSON. Notes and progress go to stderr, which both share. The child
writes the predictions file itself, so that nothing is lost in between.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from clefq.console import Console
from clefq.engines.base import EngineSpec
from clefq.engines.models import ModelRef
from clefq.engines.predict import PredictJob, PredictSummary, predict_set
from clefq.engines.select import python_for
from clefq.errors import ClefqError, ExitCode


def job_to_json(job: PredictJob) -> dict[str, Any]:
    """A job as JSON, paths as strings."""
    value = asdict(job)
    for key in ("set_path", "out"):
        value[key] = str(Path(value[key]).absolute())
    value["model"]["folder"] = str(Path(value["model"]["folder"]).absolute())
    return value


def job_from_json(value: dict[str, Any]) -> PredictJob:
    """The job that `job_to_json` wrote."""
    model = value["model"]
    return PredictJob(
        model=ModelRef(**{**model, "folder": Path(model["folder"])}),
        set_path=Path(value["set_path"]),
        out=Path(value["out"]),
        engine=value["engine"],
        spec=EngineSpec(**value["spec"]),
        url=value["url"],
    )


def run_elsewhere(job: PredictJob, console: Console) -> PredictSummary:
    """Runs the job where its engine is installed.

    Raises:
        MissingDependencyError: No environment has the engine.
        ClefqError: What the child reported, or that it died.
    """
    python = python_for(job.engine)
    console.note(f"running {job.engine} with {python}")
    command = [str(python), "-m", "clefq.engines.worker"]
    if console.quiet:
        command.append("--quiet")
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        output, _ = child.communicate(json.dumps(job_to_json(job)))
    except KeyboardInterrupt:
        # The terminal sent Ctrl-C to the child as well; let it put its journal in order.
        child.wait(timeout=30)
        raise
    lines = output.strip().splitlines()
    try:
        reply = json.loads(lines[-1]) if lines else {}
    except json.JSONDecodeError:
        reply = {}
    if "summary" in reply:
        return PredictSummary(**reply["summary"])
    if "error" in reply:
        error = ClefqError(reply["error"], fix=reply["fix"], faults=reply["faults"])
        error.exit_code = ExitCode(reply["exit_code"])
        raise error
    raise ClefqError(
        f"{job.engine} ended with exit code {child.returncode} and no result.",
        fix="read its messages above; the same command resumes.",
    )


def main() -> int:
    """The child: reads a job from stdin, runs it, answers on stdout."""
    job = job_from_json(json.load(sys.stdin))
    # Engines and their own processes print to stdout as they please: all of that goes to stderr,
    # and the answer to the real stdout.
    answer = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    try:
        summary = predict_set(job, Console(quiet="--quiet" in sys.argv))
    except ClefqError as error:
        reply: dict[str, Any] = {
            "error": error.message,
            "fix": error.fix,
            "faults": list(error.faults),
            "exit_code": int(error.exit_code),
        }
        print(json.dumps(reply), file=answer, flush=True)
        return int(error.exit_code)
    except KeyboardInterrupt:
        return 130
    print(json.dumps({"summary": asdict(summary)}), file=answer, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
