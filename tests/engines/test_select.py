"""Which engine runs where."""

from __future__ import annotations

import sys
from dataclasses import fields, replace
from pathlib import Path

import pytest

from clefq.console import Console
from clefq.engines import select
from clefq.engines.base import EngineSpec
from clefq.engines.http_engine import HttpOptions
from clefq.engines.predict import PredictJob, PredictSummary, predict_set
from clefq.engines.worker import job_from_json, job_to_json, run_elsewhere
from clefq.errors import ClefqError, ExitCode, InputError, MissingDependencyError
from clefq.names.models import ModelRef
from clefq.serving.fleet import devices

QUIET = Console(quiet=True)


@pytest.fixture
def no_environments(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine without vLLM and without the serving environment."""
    monkeypatch.delenv("CLEFQ_SERVE_PYTHON", raising=False)
    monkeypatch.setattr(select, "_CHECKOUT", tmp_path)
    monkeypatch.setattr(select, "find_spec", lambda _: None)


def test_engines_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert select.parse_engine("vllm") == "vllm"
    with pytest.raises(InputError, match="unknown engine 'tgi'") as caught:
        select.parse_engine("tgi")
    assert caught.value.fix == "use one of transformers, vllm, http."


def test_what_is_missing_is_named_with_its_command(no_environments: None) -> None:
    with pytest.raises(MissingDependencyError) as caught:
        select.python_for("vllm")
    assert caught.value.fix == "run `make setup-serve`."
    with pytest.raises(MissingDependencyError) as caught:
        select.python_for("transformers")
    assert ".[quantize]" in str(caught.value.fix)


def test_the_serving_environment_is_found(
    no_environments: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    python = tmp_path / ".venv-serve" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch()
    assert select.python_for("vllm") == python
    monkeypatch.setenv("CLEFQ_SERVE_PYTHON", sys.executable)
    assert select.python_for("vllm") == Path(sys.executable)
    monkeypatch.setenv("CLEFQ_SERVE_PYTHON", "/nowhere/python")
    with pytest.raises(InputError, match="CLEFQ_SERVE_PYTHON is /nowhere/python"):
        select.python_for("vllm")


def test_this_interpreter_is_preferred() -> None:
    assert select.python_for("transformers") == Path(sys.executable)
    assert select.python_for("http") == Path(sys.executable)


def test_the_fastest_engine_needs_a_gpu_and_vllm(
    no_environments: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "_gpu_count", lambda: 1)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert select.fastest_engine() == "transformers"
    monkeypatch.setenv("CLEFQ_SERVE_PYTHON", sys.executable)
    assert select.fastest_engine() == "vllm"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert select.fastest_engine() == "transformers"


def make_job(tmp_path: Path, model: Path, set_path: Path) -> PredictJob:
    spec = EngineSpec(max_length=900, truncate_state=True, threads=1)
    reference = ModelRef(model, "org/name", "a" * 40, "bf16")
    return PredictJob(reference, set_path, tmp_path / "p.parquet", "transformers", spec, None)


def test_a_job_survives_the_way_to_another_interpreter(tmp_path: Path) -> None:
    job = make_job(tmp_path, tmp_path / "model", tmp_path / "set")
    http = HttpOptions("vllm", 2.0, 9, tmp_path / "model")
    job = replace(job, url="http://x", again=True, shard="1/3", http=http)
    plain = PredictJob(job.model, job.set_path, job.out, job.engine)
    for field in fields(PredictJob):  # a field left at its default would not show that it is lost
        if field.name not in ("model", "set_path", "out", "engine"):
            assert getattr(job, field.name) != getattr(plain, field.name)
    assert job_from_json(job_to_json(job)) == job


def test_a_job_runs_in_another_interpreter(
    release: Path, set_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With this same interpreter standing in for the other environment's."""
    job = make_job(tmp_path, release, set_path)
    monkeypatch.setattr("clefq.engines.worker.python_for", lambda _: Path(sys.executable))
    monkeypatch.setattr("clefq.engines.predict.runs_here", lambda _: False)
    summary = predict_set(job, QUIET)
    assert isinstance(summary, PredictSummary)
    assert job.out.is_file()
    assert summary.questions > 0
    assert summary.truncated > 0


def test_the_child_s_error_is_the_parent_s(
    release: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clefq.engines.worker.python_for", lambda _: Path(sys.executable))
    with pytest.raises(ClefqError, match="not a set folder") as caught:
        run_elsewhere(make_job(tmp_path, release, tmp_path), QUIET)
    assert caught.value.exit_code == ExitCode.USAGE
    assert "clefq build" in str(caught.value.fix)


def test_a_child_that_dies_is_reported(
    release: Path, set_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clefq.engines.worker.python_for", lambda _: Path("/bin/false"))
    with pytest.raises(ClefqError, match="ended with exit code 1 and no result"):
        run_elsewhere(make_job(tmp_path, release, set_path), QUIET)
