"""Several engines: every record once, the right answers, and what happens when one dies."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import clefq.nano
from clefq.clef.records import Record, parse_record
from clefq.console import Console
from clefq.engines import vllm_copies
from clefq.engines.base import EngineSpec, RecordResult
from clefq.engines.select import open_engine
from clefq.engines.vllm_copies import VllmCopies
from clefq.errors import ClefqError, InputError
from clefq.serving.fleet import devices
from tests.engines.fake_copy import logits

NANO = Path(clefq.nano.__file__).parent / "weights"


@pytest.fixture(autouse=True)
def fake_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_copies, "MODULE", "tests.engines.fake_copy")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.delenv("VLLM_CPU_OMP_THREADS_BIND", raising=False)
    monkeypatch.delenv("FAKE_COPY", raising=False)


def records(count: int = 37) -> list[Record]:
    return [
        parse_record(
            {
                "id": f"r{number}",
                "cohort": "c",
                "state": "word " * (1 + number % 7 * 10),
                "questions": {"q": {"type": "score", "criteria": ["a", "b", "c"]}},
            },
            "x",
        )
        for number in range(count)
    ]


def spec(**options: int) -> EngineSpec:
    return EngineSpec(max_length=2048, **{"copies": 2, "threads": 1} | options)


def run(engine: VllmCopies, todo: list[Record]) -> list[list[RecordResult]]:
    return [list(group) for group in engine.predict(todo)]


def test_every_record_is_answered_once_and_rightly() -> None:
    engine = VllmCopies(NANO, spec())
    try:
        assert (engine.info.device, engine.info.engine_version) == ("fake", "9.9")
        groups = run(engine, records())
    finally:
        engine.close()
        engine.close()
    results = [result for group in groups for result in group]
    assert sorted(result.record_id for result in results) == sorted(r.id for r in records())
    for result in results:
        raw = logits(result.record_id, "q", 3)
        expected = raw - np.log(np.exp(raw).sum())
        assert np.abs(result.logprobs["q"] - expected).max() < 1e-12
    # the process id stands in for the token count
    assert len({result.input_tokens for result in results}) == 2
    assert [len(group) for group in groups].count(4) == 9


def test_windows_are_the_same_when_a_run_is_resumed() -> None:
    engine = VllmCopies(NANO, spec(copies=3))
    try:
        first = run(engine, records())
        done = {result.record_id for group in first[:5] for result in group}
        again = run(engine, [one for one in records() if one.id not in done])
    finally:
        engine.close()
    assert {frozenset(r.record_id for r in group) for group in again} == {
        frozenset(r.record_id for r in group) for group in first[5:]
    }


def test_what_cannot_be_run_is_an_error_of_its_own() -> None:
    long = parse_record(
        {
            "id": "long",
            "cohort": "c",
            "state": "word " * 9000,
            "questions": {"q": {"type": "noul"}},
        },
        "x",
    )
    engine = VllmCopies(NANO, spec())
    try:
        results = {r.record_id: r for group in run(engine, [long, *records(3)]) for r in group}
    finally:
        engine.close()
    assert "the limit is 2048" in results["long"].errors["q"]
    assert not results["r1"].errors


def test_an_engine_that_dies_is_started_again_and_nothing_is_lost_or_done_twice(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    mark = str(tmp_path / "died")
    monkeypatch.setenv("FAKE_COPY", json.dumps({"die_on": "r20", "mark": mark}))
    engine = VllmCopies(NANO, spec())
    try:
        results = [result for group in run(engine, records()) for result in group]
    finally:
        engine.close()
    assert Path(mark).exists()
    assert sorted(result.record_id for result in results) == sorted(r.id for r in records())
    said = capfd.readouterr().err
    assert "ended with exit code 9 and no result. It is started again (1 of 3)." in said


@pytest.mark.parametrize(
    "again", [{"engine_version": "9.10"}, {"arithmetic": "w8a8"}, {"device": "another"}]
)
def test_an_engine_that_comes_back_otherwise_is_not_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, again: dict[str, str]
) -> None:
    monkeypatch.setattr(vllm_copies, "RESTARTS", 2)
    mark = str(tmp_path / "died")
    monkeypatch.setenv("FAKE_COPY", json.dumps({"die_on": "r4", "mark": mark, "again": again}))
    engine = VllmCopies(NANO, spec(copies=1))
    answered: list[RecordResult] = []
    try:
        with pytest.raises(ClefqError, match=r"the run began with 9\.9 bf16 real") as caught:
            for group in engine.predict(records()):
                answered += group
    finally:
        engine.close()
    (new,) = again.values()
    assert f" {new} " in caught.value.message
    # none by the one that came back: the process id stands in for the token count
    assert len({result.input_tokens for result in answered}) == 1
    assert len(answered) < len(records())


def test_a_window_that_kills_every_engine_ends_the_run_after_all_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(vllm_copies, "RESTARTS", 1)
    monkeypatch.setenv("FAKE_COPY", json.dumps({"die_on": "r20"}))
    engine = VllmCopies(NANO, spec())
    answered: list[str] = []
    try:
        with pytest.raises(ClefqError, match="ended with exit code 9 and no result"):
            for group in engine.predict(records()):
                answered += [result.record_id for result in group]
    finally:
        engine.close()
    lost = {record.id for record in records()} - set(answered)
    assert "r20" in lost
    assert len(lost) <= 4  # its window alone
    assert len(answered) == len(set(answered))


def test_an_engine_that_does_not_load_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_COPY", json.dumps({"error": "too large for this GPU"}))
    with pytest.raises(ClefqError, match="too large for this GPU") as caught:
        VllmCopies(NANO, spec())
    assert caught.value.fix == "less"


def test_too_few_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "_gpu_count", lambda: 1)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    with pytest.raises(InputError, match="needs 2 GPUs"):
        VllmCopies(NANO, spec())


@pytest.mark.parametrize("options", [{"copies": 2}, {"copies": 1, "tensor_parallel": 2}])
def test_other_engines_run_on_one_device(options: dict[str, int]) -> None:
    with pytest.raises(InputError, match="the transformers engine runs on one device"):
        open_engine("transformers", NANO, spec(**options), Console(quiet=True))
