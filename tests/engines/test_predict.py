"""Predictions files: complete, resumable, honest about what ran."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from clefq.clef.checkpoint import checkpoint_sha256
from clefq.clef.records import Record
from clefq.console import Console
from clefq.engines.base import EngineInfo, EngineSpec, RecordResult
from clefq.engines.journal import journal_path
from clefq.engines.predict import PredictJob, predict_set
from clefq.engines.transformers_engine import TransformersEngine
from clefq.errors import ClefqError, InputError
from clefq.names.models import ModelRef
from clefq.store.predictions import Predictions, read_predictions
from clefq.store.sets import open_set
from tests.engines.quantizing import quantize_release, with_inputs_to

QUIET = Console(quiet=True)


def job_for(model: Path, set_path: Path, out: Path, spec: EngineSpec | None = None) -> PredictJob:
    reference = ModelRef(model, "tiny-clef", None, "bf16")
    return PredictJob(
        reference, set_path, out, "transformers", spec or EngineSpec(batch_tokens=2000, threads=1)
    )


def without_time(predictions: Predictions) -> dict[str, object]:
    return {k: v for k, v in asdict(predictions.meta).items() if k != "created_at"}


def same(left: Path, right: Path) -> bool:
    """The files agree in every row, bit for bit, and in everything but the time."""
    one, two = read_predictions(left), read_predictions(right)
    rows = one.frame.to_dict("records"), two.frame.to_dict("records")
    for first, second in zip(*rows, strict=True):
        for key in first:
            a, b = first[key], second[key]
            if isinstance(a, np.ndarray):
                equal = np.array_equal(a, b)
            else:
                equal = a == b or (pd.isna(a) and pd.isna(b))
            if not equal:
                return False
    return without_time(one) == without_time(two)


def test_a_file_holds_every_question_and_its_provenance(
    release: Path, records: list[Record], set_path: Path, tmp_path: Path
) -> None:
    out = tmp_path / "predictions" / "p.parquet"
    summary = predict_set(job_for(release, set_path, out), QUIET)
    predictions = read_predictions(out)
    frame = predictions.frame
    expected = [(r.id, q.id) for r in open_set(set_path).records() for q in r.questions]
    assert list(zip(frame.record_id, frame.question_id, strict=True)) == expected
    assert summary.questions == len(expected)
    assert summary.errors == 0
    assert not journal_path(out).exists()
    by_id = {record.id: record for record in records}
    for row in frame.itertuples():
        question = next(q for q in by_id[row.record_id].questions if q.id == row.question_id)
        assert tuple(row.option_ids) == question.option_ids
        assert row.gold == by_id[row.record_id].gold[row.question_id]
        assert abs(np.exp(row.logprobs).sum() - 1) <= 1e-12
    meta = predictions.meta
    assert meta.model_sha256 == checkpoint_sha256(release)
    assert meta.eval_set_sha256 == open_set(set_path).sha256()
    assert (meta.eval_set, meta.variant, meta.scheme) == ("tiny", "bf16", "bf16")
    assert (meta.engine, meta.kernels, meta.arithmetic) == ("transformers", "real", "bf16")
    assert (meta.dtype, meta.device, meta.max_length) == ("bfloat16", "cpu", 16384)
    right = sum(
        row.option_ids[int(np.argmax(row.logprobs))] == row.gold for row in frame.itertuples()
    )
    assert (summary.correct, summary.gold) == (right, len(frame))
    assert summary.accuracy == right / len(frame)
    assert summary.tokens == sum({r.record_id: r.input_tokens for r in frame.itertuples()}.values())


def test_too_long_records_become_rows_with_their_error(
    release: Path, set_path: Path, tmp_path: Path
) -> None:
    out = tmp_path / "p.parquet"
    spec = EngineSpec(max_length=700, threads=1)
    summary = predict_set(job_for(release, set_path, out, spec), QUIET)
    frame = read_predictions(out).frame
    failed = frame[frame.error.notna()]
    assert 0 < summary.errors == len(failed) < len(frame)
    assert failed.error.str.contains("the limit is 700").all()
    assert failed.logprobs.isna().all()
    assert summary.first_error in set(failed.error)
    cut = EngineSpec(max_length=700, truncate_state=True, threads=1)
    longer = predict_set(job_for(release, set_path, tmp_path / "cut.parquet", cut), QUIET)
    truncated = read_predictions(tmp_path / "cut.parquet")
    assert longer.truncated > 0
    assert truncated.meta.truncate_state
    assert (truncated.frame.truncated_tokens > 0).any()


class Crash(Exception):
    """Stands for whatever ends a run early."""


def crash_after(groups: int, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Lets the engine deliver some groups, then crash; gives the sizes of later calls."""
    real = TransformersEngine.predict
    asked: list[int] = []

    def predict(
        self: TransformersEngine, records: Sequence[Record], root: Path | None = None
    ) -> Iterator[Sequence[RecordResult]]:
        asked.append(len(records))
        for number, group in enumerate(real(self, records, root)):
            if number == groups and len(asked) == 1:
                raise Crash
            yield group

    monkeypatch.setattr(TransformersEngine, "predict", predict)
    return asked


@pytest.mark.parametrize("kind", [None, "fp8-static"])
def test_a_run_resumes_and_gives_the_same_file(
    release: Path,
    set_path: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str | None,
) -> None:
    model = release
    if kind is not None:
        made = quantize_release(release, tmp_path / "made", lambda _: kind)
        model = with_inputs_to(2.0, made, tmp_path / "model")
    whole, out = tmp_path / "whole.parquet", tmp_path / "p.parquet"
    predict_set(job_for(model, set_path, whole), QUIET)
    clipped = read_predictions(whole).meta.clipped
    assert clipped is None if kind is None else clipped and max(clipped.values()) > 0
    asked = crash_after(3, monkeypatch)
    with pytest.raises(Crash):
        predict_set(job_for(model, set_path, out), QUIET)
    assert not out.exists()
    summary = predict_set(job_for(model, set_path, out), QUIET)
    assert asked[0] == summary.records
    assert asked[1] == summary.records - summary.resumed
    assert 0 < summary.resumed < summary.records
    assert same(whole, out)


def test_other_options_start_anew(
    release: Path, set_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "p.parquet"
    crash_after(3, monkeypatch)
    job = job_for(release, set_path, out)
    with pytest.raises(Crash):
        predict_set(job, QUIET)
    other = replace(job, spec=replace(job.spec, max_length=9000))
    assert predict_set(other, QUIET).resumed == 0
    assert read_predictions(out).meta.max_length == 9000


def test_other_image_settings_start_anew(
    release: Path, set_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpoint's hash does not cover them, but they decide pixels."""
    model = tmp_path / "model"
    shutil.copytree(release, model)
    crash_after(3, monkeypatch)
    job = job_for(model, set_path, tmp_path / "p.parquet")
    with pytest.raises(Crash):
        predict_set(job, QUIET)
    settings = model / "processor_config.json"
    body = json.loads(settings.read_text()) if settings.is_file() else {}
    settings.write_text(json.dumps({**body, "changed": True}))
    assert predict_set(job, QUIET).resumed == 0


def wait_for_lines(path: Path, count: int, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        if path.is_file() and path.read_bytes().count(b"\n") > count:
            return
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    raise AssertionError("the run made no progress")


@pytest.mark.parametrize("stop", [signal.SIGKILL, signal.SIGINT])
def test_the_command_continues_after_a_signal(
    release: Path, set_path: Path, tmp_path: Path, stop: signal.Signals
) -> None:
    out = tmp_path / "p.parquet"
    command = [sys.executable, "-m", "clefq.cli.main", "predict", str(release)]
    command += ["--eval", str(set_path), "--out", str(out), "--json", "--variant", "bf16"]
    command += ["--batch-tokens", "300", "--threads", "1"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    first = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )
    wait_for_lines(journal_path(out), 2, first)
    first.send_signal(stop)
    _, errors = first.communicate(timeout=60)
    assert not out.exists()
    assert list(tmp_path.iterdir()) == [journal_path(out)]
    assert first.returncode == (130 if stop == signal.SIGINT else -signal.SIGKILL)
    assert "Traceback" not in errors
    if stop == signal.SIGINT:
        return  # the same journal as after SIGKILL; one of the two is resumed here
    again = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    assert json.loads(again.stdout)["resumed"] >= 2
    whole = tmp_path / "whole.parquet"
    spec = EngineSpec(batch_tokens=300, threads=1)
    predict_set(
        replace(
            job_for(release, set_path, whole, spec),
            model=ModelRef(release, release.name, None, "bf16"),
        ),
        QUIET,
    )
    assert same(whole, out)


class Forgetful:
    """An engine that loses records and questions."""

    info = EngineInfo("transformers", "0", "real", "bf16", "bfloat16", "cpu")

    def __init__(self, lose_record: bool) -> None:
        self.lose_record = lose_record

    def predict(
        self, records: Sequence[Record], media_root: Path | None = None
    ) -> Iterator[Sequence[RecordResult]]:
        kept = records[1:] if self.lose_record else records
        yield [RecordResult(record.id, {}, {}, {}) for record in kept]

    def close(self) -> None:
        pass


def test_nothing_is_dropped_silently(
    release: Path, set_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = job_for(release, set_path, tmp_path / "p.parquet")
    monkeypatch.setattr("clefq.engines.predict.open_engine", lambda *_: Forgetful(True))
    with pytest.raises(ClefqError, match="returned nothing for 1 records, first 'r0'"):
        predict_set(job, QUIET)
    assert not job.out.exists()
    monkeypatch.setattr("clefq.engines.predict.open_engine", lambda *_: Forgetful(False))
    summary = predict_set(replace(job, out=tmp_path / "q.parquet"), QUIET)
    assert summary.errors == summary.questions
    assert summary.accuracy == 0.0


def test_a_changed_set_is_refused(release: Path, records: list[Record], tmp_path: Path) -> None:
    from tests.engines.conftest import build_set

    folder = build_set(tmp_path / "set", records[:2])
    with (folder / "records.jsonl").open("a") as file:
        file.write("\n")
    with pytest.raises(InputError):
        predict_set(job_for(release, folder, tmp_path / "p.parquet"), QUIET)
