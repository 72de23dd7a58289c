"""Shards make the file that one run makes; merge refuses, by name, what is not the rest of it."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from clefq.clef.records import Record
from clefq.console import Console
from clefq.engines import predict as predicting
from clefq.engines.base import EngineInfo, EngineSpec, RecordResult, result_from_logits
from clefq.engines.predict import PredictJob, predict_set
from clefq.engines.shards import Shard, merge, parse_shard
from clefq.errors import InputError
from clefq.names.models import ModelRef
from clefq.nano import WEIGHTS
from clefq.store.predictions import read_how, read_predictions, write_predictions
from clefq.store.sets import open_set

QUIET = Console(quiet=True)
Make = Callable[[str | None], Path]


class Fake:
    """An engine of windows of four, longest id first."""

    info = EngineInfo("vllm", "9.9", "real", "bf16", "bfloat16", "cpu")

    def windows(
        self, records: Sequence[Record], media_root: Path | None = None
    ) -> list[list[Record]]:
        ordered = sorted(records, key=lambda record: -len(record.id))
        return [ordered[i : i + 4] for i in range(0, len(ordered), 4)]

    def predict(
        self, records: Sequence[Record], media_root: Path | None = None
    ) -> Iterator[Sequence[RecordResult]]:
        for window in self.windows(records):
            yield [self._answer(record, window) for record in window]

    def _answer(self, record: Record, window: Sequence[Record]) -> RecordResult:
        # as real ones do, the last bits depend on what is run together
        seed = zlib.crc32(" ".join([record.id, *(other.id for other in window)]).encode())
        chance = np.random.default_rng(seed)
        logits = {q.id: chance.normal(size=len(q.option_ids)) for q in record.questions}
        return result_from_logits(record, logits, 7)

    def close(self) -> None:
        pass


@pytest.fixture
def make(tmp_path: Path, set_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Predicts a shard, or all with None."""
    monkeypatch.setattr(predicting, "runs_here", lambda _: True)
    monkeypatch.setattr(predicting, "open_engine", lambda *_: Fake())
    model = ModelRef(WEIGHTS, "nano", None, "bf16")

    def run(shard: str | None) -> Path:
        out = tmp_path / f"{(shard or 'all').replace('/', '-')}.parquet"
        job = PredictJob(model, set_path, out, "vllm", EngineSpec(), shard=shard)
        predict_set(job, QUIET)
        return out

    return run


def test_the_merged_file_is_that_of_one_run(make: Make, set_path: Path, tmp_path: Path) -> None:
    whole = read_predictions(make(None))
    shards = [make(f"{index}/3") for index in (2, 1, 3)]
    merged = merge(shards, open_set(set_path), tmp_path / "merged.parquet")
    one, two = (found.frame.to_dict("list") for found in (whole, merged))
    one_logs, two_logs = one.pop("logprobs"), two.pop("logprobs")
    assert all(np.array_equal(a, b) for a, b in zip(one_logs, two_logs, strict=True))
    for name in ("record_id", "question_id", "gold", "input_tokens", "question_type"):
        assert one[name] == two[name]
    assert asdict(replace(merged.meta, created_at=whole.meta.created_at)) == asdict(whole.meta)
    how = read_how(tmp_path / "merged.parquet")
    assert how["shard"] is None
    assert [item["shard"]["index"] for item in how["merged"]] == [1, 2, 3]


def test_what_is_not_the_rest_of_the_run_is_refused_by_name(
    make: Make, set_path: Path, tmp_path: Path
) -> None:
    one, two, three = (make(f"{index}/3") for index in (1, 2, 3))
    other_count, whole = make("1/2"), make(None)
    folder, out = open_set(set_path), tmp_path / "merged.parquet"
    found = read_predictions(two)

    def changed(**changes: object) -> Path:
        path = tmp_path / "changed.parquet"
        meta = replace(found.meta, **changes)  # type: ignore[arg-type]
        path.unlink(missing_ok=True)
        write_predictions(path, found.frame, meta, read_how(two))
        return path

    cases: list[tuple[Callable[[], list[Path]], str]] = [
        (lambda: [one, three], "shard 2/3 is missing"),
        (lambda: [one, two, two, three], "shard 2/3 is there 2 times"),
        (lambda: [one, two, other_count], "they are of 2 and 3 shards"),
        (lambda: [one, two, whole], f"{whole} is no shard"),
        (lambda: [one, changed(model_sha256="9" * 64), three], "model_sha256 9999"),
        (lambda: [one, changed(arithmetic="w4a4"), three], "arithmetic w4a4"),
        (lambda: [one, changed(engine_version="9.8"), three], "engine_version 9.8"),
        (lambda: [one, changed(device="NVIDIA H200"), three], "device NVIDIA H200"),
        (lambda: [one, changed(max_length=99), three], "max_length 99"),
        (lambda: [one, changed(eval_set_sha256="8" * 64), three], "is not about"),
    ]
    for files, message in cases:
        with pytest.raises(InputError) as caught:
            merge(files(), folder, out)
        lines = [str(caught.value), *caught.value.faults]
        assert any(message in line for line in lines), (message, lines)
        assert not out.exists()


@pytest.mark.parametrize("text", ["0/3", "4/3", "1", "1/0", "a/b", "-1/3"])
def test_shards_that_are_none(text: str) -> None:
    with pytest.raises(InputError, match="--shard is") as caught:
        parse_shard(text)
    assert "give I/N" in str(caught.value.fix)


def test_more_shards_than_windows_are_refused(make: Make) -> None:
    with pytest.raises(InputError, match="shard 7/7 is empty: the set has 6 windows"):
        make("7/7")


def test_every_window_is_in_one_shard() -> None:
    windows = list(range(11))
    parts = [Shard(index, 4).choose(windows) for index in range(1, 5)]
    assert sorted(one for part in parts for one in part) == windows
