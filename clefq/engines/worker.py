"""Runs a prediction in another environment's interpreter.

The child writes the predictions file itself, so that nothing is lost in between.
"""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from clefq.child import answer_parent, run_child
from clefq.console import Console
from clefq.engines.base import EngineSpec
from clefq.engines.http_engine import HttpOptions
from clefq.engines.predict import PredictJob, PredictSummary, predict_set
from clefq.engines.select import python_for
from clefq.names.models import ModelRef


def job_to_json(job: PredictJob) -> dict[str, Any]:
    """A job as JSON, paths as strings."""
    value = asdict(job)
    counting = value["http"]["count_with"]
    value["http"]["count_with"] = None if counting is None else str(Path(counting).absolute())
    for key in ("set_path", "out"):
        value[key] = str(Path(value[key]).absolute())
    value["model"]["folder"] = str(Path(value["model"]["folder"]).absolute())
    return value


def job_from_json(value: dict[str, Any]) -> PredictJob:
    """The job that `job_to_json` wrote."""
    model, http = value["model"], value["http"]
    counting = http["count_with"]
    return PredictJob(
        model=ModelRef(**{**model, "folder": Path(model["folder"])}),
        set_path=Path(value["set_path"]),
        out=Path(value["out"]),
        engine=value["engine"],
        spec=EngineSpec(**value["spec"]),
        url=value["url"],
        again=value["again"],
        shard=value["shard"],
        http=HttpOptions(**{**http, "count_with": None if counting is None else Path(counting)}),
    )


def run_elsewhere(job: PredictJob, console: Console) -> PredictSummary:
    """Runs the job where its engine is installed.

    Raises:
        MissingDependencyError: No environment has the engine.
        ClefqError: What the child reported, or that it died.
    """
    python = python_for(job.engine)
    console.note(f"running {job.engine} with {python}")
    reply = run_child(python, "clefq.engines.worker", job_to_json(job), console, job.engine)
    return PredictSummary(**reply)


def _work(value: dict[str, Any], console: Console) -> dict[str, Any]:
    return asdict(predict_set(job_from_json(value), console))


if __name__ == "__main__":
    sys.exit(answer_parent(_work))
