"""Reports as MLflow runs: against a fake client, and MLflow's own where it is installed."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from clefq.errors import ClefqError, MissingDependencyError
from clefq.parity.comparison import FROM_PREDICTIONS, provenance
from clefq.parity.report.files import ReportSpec, write_reports
from clefq.parity.report.mlflow_runs import DIGEST, log_reports, run_metrics, run_params
from clefq.parity.report.parity_json import read_parity
from clefq.parity.report.summary import Sizes
from tests.parity.factory import Design, make_pair
from tests.parity.test_labels import judge


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("report") / "r"
    found = judge(make_pair(Design(records=30)))
    write_reports(out, [found], ReportSpec(provenance(FROM_PREDICTIONS), Sizes()))
    return out / "nvfp4" / "parity.json"


class Store:
    """What the fake server holds."""

    def __init__(self) -> None:
        self.experiments: dict[str, str] = {}
        self.runs: dict[str, dict[str, Any]] = {}
        self.refuses = False


class RefusalError(Exception):
    """Stands for MlflowException."""


class FakeClient:
    """The methods of MLflow's client that are used, with their signatures."""

    store: Store

    def __init__(self, tracking_uri: str | None = None) -> None:
        self.store.experiments.setdefault("uri", str(tracking_uri))

    def get_experiment_by_name(self, name: str) -> Any:
        if self.store.refuses:
            raise RefusalError("no\nserver")
        if name not in self.store.experiments:
            return None
        return SimpleNamespace(experiment_id=self.store.experiments[name])

    def create_experiment(self, name: str) -> str:
        return self.store.experiments.setdefault(name, "7")

    def search_runs(self, experiment_ids: list[str], filter_string: str) -> list[Any]:
        assert experiment_ids == ["7"]
        digest = filter_string.partition("'")[2].rstrip("'")
        return [
            SimpleNamespace(info=SimpleNamespace(run_id=run_id))
            for run_id, run in self.store.runs.items()
            if run["tags"][DIGEST] == digest
        ]

    def create_run(self, experiment_id: str, run_name: str, tags: dict[str, str]) -> Any:
        run_id = f"run{len(self.store.runs)}"
        self.store.runs[run_id] = {"name": run_name, "tags": tags, "metrics": {}, "params": {}}
        return SimpleNamespace(info=SimpleNamespace(run_id=run_id))

    def log_batch(self, run_id: str, metrics: list[Any], params: list[Any]) -> None:
        assert len(metrics) <= 1000
        assert len(params) <= 100
        run = self.store.runs[run_id]
        run["metrics"] |= {metric.key: metric.value for metric in metrics}
        run["params"] |= {param.key: param.value for param in params}

    def log_artifacts(self, run_id: str, local_dir: str) -> None:
        self.store.runs[run_id]["files"] = sorted(p.name for p in Path(local_dir).iterdir())

    def set_terminated(self, run_id: str) -> None:
        self.store.runs[run_id]["done"] = True


def _metric(key: str, value: float, timestamp: int, step: int) -> Any:
    return SimpleNamespace(key=key, value=value, timestamp=timestamp, step=step)


def _param(key: str, value: str) -> Any:
    return SimpleNamespace(key=key, value=value)


def fake_mlflow(store: Store) -> dict[str, Any]:
    client = type("Client", (FakeClient,), {"store": store})
    return {
        "mlflow": SimpleNamespace(),
        "mlflow.exceptions": SimpleNamespace(MlflowException=RefusalError),
        "mlflow.tracking": SimpleNamespace(MlflowClient=client),
        "mlflow.entities": SimpleNamespace(Metric=_metric, Param=_param),
    }


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Store:
    found = Store()
    for name, module in fake_mlflow(found).items():
        monkeypatch.setitem(sys.modules, name, module)
    return found


def test_a_report_becomes_one_run_and_only_once(report: Path, store: Store) -> None:
    first = log_reports([report], "http://m", None)
    assert log_reports([report], "http://m", None) == [
        type(first[0])(report, first[0].run_id, new=False)
    ]
    assert store.experiments == {"uri": "http://m", "clefq/synthetic": "7"}
    (run,) = store.runs.values()
    document = read_parity(report)
    figure = document["metrics"]["agreement"]
    assert run["metrics"]["agreement"] == figure["estimate"]
    assert run["metrics"]["agreement.lower"] == figure["lower"]
    assert run["metrics"]["threshold_flips_at_0.5"] >= 0
    assert run["metrics"]["gate.accuracy"] in (0.0, 1.0)
    assert run["params"]["candidate.scheme"] == "nvfp4"
    assert run["tags"]["clefq.verdict"] == document["verdict"]["word"]
    assert (run["name"], run["done"]) == ("nvfp4", True)
    assert {"parity.json", "report.html", "flips.parquet"} <= set(run["files"])


def test_a_server_that_refuses_is_one_line(report: Path, store: Store) -> None:
    store.refuses = True
    with pytest.raises(ClefqError, match="MLflow refuses: no server"):
        log_reports([report], None, "x")


def test_without_mlflow_the_command_says_what_to_install(
    report: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "mlflow.exceptions", None)
    with pytest.raises(MissingDependencyError) as caught:
        log_reports([report], None, None)
    assert "clefq[mlflow]" in str(caught.value)


@pytest.mark.skipif(find_spec("mlflow") is None, reason="MLflow is not installed")
def test_mlflow_s_own_client_takes_all_of_it(
    report: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # a local folder, without a database
    from mlflow.tracking import MlflowClient

    uri = (tmp_path / "runs").as_uri()
    (logged,) = log_reports([report], uri, "e")
    assert not log_reports([report], uri, "e")[0].new
    run = MlflowClient(tracking_uri=uri).get_run(logged.run_id)
    document = read_parity(report)
    assert run.data.metrics == pytest.approx(dict(run_metrics(document)))
    assert run.data.params == dict(run_params(document))
    assert run.info.status == "FINISHED"
