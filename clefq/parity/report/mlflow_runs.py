"""Reports as runs of an MLflow experiment: figures as metrics, provenance as parameters, files.

One run a candidate. A report that was logged before, by its digest, is not logged again.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clefq.errors import ClefqError, MissingDependencyError
from clefq.parity.report.parity_json import read_parity

DIGEST = "clefq.digest"
_PROVENANCE = (
    "model_id",
    "model_revision",
    "model_sha256",
    "scheme",
    "arithmetic",
    "kernels",
    "engine",
    "engine_version",
    "device",
)
_BATCH = 100  # parameters that the server takes at once


@dataclass(frozen=True, slots=True)
class Logged:
    """What became of one report.

    Attributes:
        path: Its `parity.json`.
        run_id: The run.
        new: Whether it was made now.
    """

    path: Path
    run_id: str
    new: bool


def log_reports(
    paths: Sequence[Path], tracking_uri: str | None, experiment: str | None
) -> list[Logged]:
    """Logs reports.

    Args:
        paths: Their `parity.json` files.
        tracking_uri: Of the MLflow server or store, or None for MLflow's own default.
        experiment: Its name, or None for `clefq/SET`.

    Raises:
        MissingDependencyError: MLflow is not installed.
        ClefqError: MLflow refuses.
    """
    try:
        from mlflow.exceptions import MlflowException
        from mlflow.tracking import MlflowClient
    except ImportError as error:
        raise MissingDependencyError("MLflow", "pip install 'clefq[mlflow]'") from error
    try:
        client = MlflowClient(tracking_uri=tracking_uri)
        return [_log(client, path, experiment) for path in paths]
    except MlflowException as error:
        raise ClefqError(
            f"MLflow refuses: {' '.join(str(error).split())[:300]}",
            fix="check --tracking-uri and --experiment.",
        ) from error


def _log(client: Any, path: Path, experiment: str | None) -> Logged:
    document = read_parity(path)
    name = experiment or f"clefq/{document['eval_set']['name']}"
    found = client.get_experiment_by_name(name)
    experiment_id = client.create_experiment(name) if found is None else found.experiment_id
    digest = str(document["provenance"]["digest"])
    known = client.search_runs([experiment_id], filter_string=f"tags.`{DIGEST}` = '{digest}'")
    if known:
        return Logged(path, str(known[0].info.run_id), new=False)
    variant = str(document["candidate"]["variant"])
    tags = {DIGEST: digest, "clefq.verdict": str(document["verdict"]["word"])}
    run_id = str(client.create_run(experiment_id, run_name=variant, tags=tags).info.run_id)
    _fill(client, run_id, document)
    client.log_artifacts(run_id, str(path.parent))
    client.set_terminated(run_id)
    return Logged(path, run_id, new=True)


def _fill(client: Any, run_id: str, document: Mapping[str, Any]) -> None:
    from mlflow.entities import Metric, Param

    now = int(time.time() * 1000)
    metrics = [Metric(key, value, now, 0) for key, value in run_metrics(document)]
    params = [Param(key, value) for key, value in run_params(document)]
    for at in range(0, max(len(metrics), len(params)), _BATCH):
        client.log_batch(run_id, metrics=metrics[at : at + _BATCH], params=params[at : at + _BATCH])


def run_metrics(document: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Name and value of every overall figure and its bounds, and of the verdict."""
    yield "exit_code", float(document["verdict"]["exit_code"])
    yield "coverage_share", float(document["coverage"]["share"])
    for name, figure in document["metrics"].items():
        for part in ("estimate", "lower", "upper"):
            if figure[part] is not None:
                key = name if part == "estimate" else f"{name}.{part}"
                yield _key(key), float(figure[part])
    for gate in document["gates"]:
        yield _key(f"gate.{gate['name']}"), float(gate["status"] == "pass")


def run_params(document: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Name and value of what was compared, and by which gates."""
    yield "eval_set", str(document["eval_set"]["name"])
    yield "eval_set_sha256", str(document["eval_set"]["sha256"])
    yield "gates", str(document["gate_file"]["name"])
    yield "gates_sha256", str(document["gate_file"]["sha256"])
    yield "clefq_version", str(document["provenance"]["clefq_version"])
    for role in ("baseline", "candidate"):
        for key in _PROVENANCE:
            value = document[role][key]
            if value is not None:
                yield f"{role}.{key}", str(value)


def _key(name: str) -> str:
    """A name that MLflow takes, without a slash: its file store makes folders of those."""
    return re.sub(r"[^\w. -]", "_", name.replace("@", "_at_"))
