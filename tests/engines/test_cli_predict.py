"""`clefq predict` as a user meets it."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner

from clefq.cli.main import app
from clefq.engines.predict import PredictJob, PredictSummary
from clefq.errors import ExitCode, InputError
from clefq.nano import WEIGHTS
from clefq.store.predictions import read_meta, read_predictions

SUMMARY = PredictSummary(
    out="predictions/tiny/nvfp4.parquet",
    records=312,
    questions=1204,
    errors=2,
    first_error="record 'r7' takes 20000 tokens, the limit is 16384.",
    gold=1204,
    correct=1051,
    tokens=150_211,
    seconds=43.96,
    resumed=40,
    truncated=1,
    kernels="simulated",
    arithmetic="w4a4",
    device="cpu",
)


@pytest.fixture
def run_folder(release: Path, set_path: Path, tmp_path: Path) -> Path:
    (tmp_path / "models").mkdir()
    (tmp_path / "sets").mkdir()
    (tmp_path / "models" / "bf16").symlink_to(release)
    (tmp_path / "sets" / "tiny").symlink_to(set_path)
    return tmp_path


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> list[PredictJob]:
    """Collects jobs instead of running them."""
    seen: list[PredictJob] = []

    def predict(job: PredictJob, _: object) -> PredictSummary:
        seen.append(job)
        return SUMMARY

    monkeypatch.setattr("clefq.engines.predict.predict_set", predict)
    return seen


def test_a_variant_of_the_run_folder_is_predicted(run_folder: Path) -> None:
    arguments = ["predict", "bf16", "--eval", "tiny", "--run", str(run_folder), "--json"]
    result = CliRunner().invoke(app, [*arguments, "--threads", "1"])
    assert result.exit_code == 0, result.output
    value = json.loads(result.stdout)
    out = run_folder / "predictions" / "tiny" / "bf16.parquet"
    assert value["out"] == str(out)
    assert value["errors"] == 0
    assert 0 <= value["accuracy"] <= 1
    assert read_meta(out).variant == "bf16"


def test_the_summary_fits_80_columns(run_folder: Path, jobs: list[PredictJob]) -> None:
    command = ["predict", "bf16", "--eval", "tiny", "--run", str(run_folder), "--variant", "nvfp4"]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    assert max(map(len, result.stdout.splitlines())) <= 80
    lines = [line.rstrip() for line in result.stdout.splitlines()]
    assert lines == [
        "file       predictions/tiny/nvfp4.parquet",
        "questions  1,204 in 312 records",
        "accuracy   0.8729  (1,051 of 1,204 with gold)",
        "errors     2  (most often: record 'r7' takes 20000 tokens, the limit is 16384.)",
        "truncated  1 records lost the end of their state",
        "ran as     w4a4, simulated kernels, cpu",
        "speed      3,417 tokens/s  (150,211 in 44.0 s)",
        "resumed    40 records were done already",
        "next       clefq parity --baseline bf16",
    ]
    assert jobs[0].out == run_folder / "predictions" / "tiny" / "nvfp4.parquet"
    assert jobs[0].model.variant == "nvfp4"
    elsewhere = CliRunner().invoke(app, [*command, "--out", "elsewhere.parquet"])
    assert elsewhere.exit_code == 0, elsewhere.output
    # the run folder's parity would not look there
    assert "--baseline bf16\n" not in elsewhere.stdout


@pytest.mark.parametrize(("limit", "answers"), [(5, False), (700, True)])
def test_a_run_without_a_single_answer_fails_and_leaves_its_file(
    run_folder: Path, limit: int, answers: bool
) -> None:
    command = ["predict", "bf16", "--eval", "tiny", "--run", str(run_folder), "--threads", "1"]
    result = CliRunner().invoke(app, [*command, "--max-length", str(limit)])
    out = run_folder / "predictions" / "tiny" / "bf16.parquet"
    failed = read_predictions(out).frame["error"].notna()
    assert failed.any() and failed.all() != answers
    if answers:
        assert result.exit_code == 0, result.output
        return
    error = result.exception
    assert isinstance(error, InputError) and error.exit_code == ExitCode.USAGE
    begin = f"{out}: each of {len(failed)} questions failed, most often: record "
    assert error.message.startswith(begin) and not error.message.endswith("..")
    assert "run it again" in str(error.fix)
    assert result.stdout == ""


def test_the_bundled_miniature(run_folder: Path, jobs: list[PredictJob]) -> None:
    command = ["predict", "nano", "--eval", "tiny", "--run", str(run_folder)]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.exception
    assert jobs[0].model.folder == WEIGHTS
    assert jobs[0].out == run_folder / "predictions" / "tiny" / "nano.parquet"


def test_options_reach_the_engine(run_folder: Path, jobs: list[PredictJob]) -> None:
    command = ["predict", "bf16", "--eval", "tiny", "--run", str(run_folder), "--engine", "vllm"]
    command += ["--max-length", "900", "--truncate-state", "--batch-tokens", "64"]
    command += ["--device", "cuda:1", "--dtype", "float32", "--threads", "3", "--out", "x.parquet"]
    assert CliRunner().invoke(app, command).exit_code == 0
    job = jobs[0]
    assert (job.engine, job.out) == ("vllm", Path("x.parquet"))
    spec = job.spec
    assert (spec.max_length, spec.truncate_state, spec.batch_tokens) == (900, True, 64)
    assert (spec.device, spec.dtype, spec.threads) == ("cuda:1", "float32", 3)


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (["--engine", "tgi"], "unknown engine 'tgi'"),
        (["--engine", "http"], "belong together"),
        (["--url", "http://localhost"], "belong together"),
        (["--variant", "a/b"], "cannot name a file"),
        (["--max-length", "0"], "max_length is 0"),
        (["--dtype", "int4"], "dtype is 'int4'"),
    ],
)
def test_wrong_options_are_one_line(
    run_folder: Path, jobs: list[PredictJob], extra: list[str], message: str
) -> None:
    command = ["predict", "bf16", "--eval", "tiny", "--run", str(run_folder), *extra]
    result = CliRunner().invoke(app, command)
    assert isinstance(result.exception, InputError)
    assert message in result.exception.message
    assert not jobs


def test_without_a_run_folder_the_file_must_be_named(
    release: Path, set_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["predict", str(release), "--eval", str(set_path)])
    assert isinstance(result.exception, InputError)
    assert "no run folder" in result.exception.message
    assert "--out FILE" in str(result.exception.fix)


def test_a_file_that_cannot_be_written_shows_before_the_model_is_loaded(
    run_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clefq.engines.predict._open", lambda *_: pytest.fail("loads the model"))
    place = tmp_path / "here"
    place.mkdir()
    command = ["predict", "bf16", "--eval", "tiny", "--run", str(run_folder), "--out", str(place)]
    result = CliRunner().invoke(app, command)
    assert isinstance(result.exception, InputError)
    assert result.exception.message == f"cannot use {place}: Is a directory."
    assert list(tmp_path.glob(".here*")) == []


@pytest.mark.parametrize("name", ["records.jsonl", "data.parquet", "damaged.parquet"])
def test_another_file_is_not_overwritten(run_folder: Path, tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    if name.endswith(".parquet"):
        pd.DataFrame({"text": ["mine"]}).to_parquet(file)
    else:
        file.write_text("mine")
    if name == "damaged.parquet":
        file.write_bytes(file.read_bytes()[:-40])
    before = file.read_bytes()
    command = ["predict", "bf16", "--eval", "tiny", "--run", str(run_folder), "--out", str(file)]
    result = CliRunner().invoke(app, command)
    assert isinstance(result.exception, InputError)
    assert "is not a predictions file" in result.exception.message
    assert file.read_bytes() == before


def test_an_empty_file_and_older_predictions_are_replaced(run_folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "bf16.parquet"
    file.touch()
    command = ["predict", "bf16", "--eval", "tiny", "--run", str(run_folder), "--out", str(file)]
    assert CliRunner().invoke(app, command).exit_code == 0
    whole = pd.read_parquet(file)
    assert CliRunner().invoke(app, command).exit_code == 0
    pd.testing.assert_frame_equal(pd.read_parquet(file), whole)
