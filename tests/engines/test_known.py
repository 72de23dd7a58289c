"""A finished file is left alone, a grown set asks only what is new, no other set is replaced."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import transformers

from clefq.clef.records import Record
from clefq.console import Console
from clefq.engines import predict as predicting
from clefq.engines.base import EngineInfo, EngineSpec, RecordResult, result_from_logits
from clefq.engines.predict import PredictJob, predict_set
from clefq.errors import InputError
from clefq.names.models import ModelRef
from clefq.names.run_folder import RunFolder
from clefq.store.predictions import read_how, read_meta, read_predictions, write_predictions
from clefq.store.sets import SetDraft, SourceInfo, write_set

QUIET = Console(quiet=True)
SPEC = EngineSpec(batch_tokens=2000, threads=1, device="cpu")
SOURCE = SourceInfo("test", "test", "generated", None, {}, "Apache-2.0", None)


@pytest.fixture
def run(tmp_path: Path, records: list[Record]) -> RunFolder:
    """A run folder with the set `old`, of 16 records."""
    folder = RunFolder(tmp_path / "run")
    add_set(folder, "old", records[:16])
    return folder


class Fake:
    """An engine that answers the same question differently each time, and keeps who asked."""

    info = EngineInfo("transformers", transformers.__version__, "real", "bf16", "bfloat16", "cpu")

    def __init__(self, asked: list[str]) -> None:
        self._asked = asked
        self._chance = np.random.default_rng(5)

    def predict(
        self, records: Sequence[Record], media_root: Path | None = None
    ) -> Iterator[Sequence[RecordResult]]:
        for record in records:
            self._asked.append(record.id)
            logits = {q.id: self._chance.normal(size=len(q.option_ids)) for q in record.questions}
            yield [result_from_logits(record, logits, len(self._asked))]

    def close(self) -> None:
        pass


@pytest.fixture(autouse=True)
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Ids of the records that the engine was asked, in order."""
    ids: list[str] = []
    engine = Fake(ids)
    monkeypatch.setattr(predicting, "open_engine", lambda *_: engine)
    return ids


def add_set(run: RunFolder, name: str, records: Sequence[Record]) -> None:
    run.set_folder(name).parent.mkdir(parents=True, exist_ok=True)
    write_set(run.set_folder(name), records, {}, SetDraft("eval", name, {}, (SOURCE,)))


def job(run: RunFolder, model: Path, name: str, **changes: object) -> PredictJob:
    made = PredictJob(
        ModelRef(model, "tiny-clef", None, "bf16"),
        run.set_folder(name),
        run.predictions(name, "bf16"),
        "transformers",
        SPEC,
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def test_a_finished_file_is_left_alone(run: RunFolder, release: Path, asked: list[str]) -> None:
    first = predict_set(job(run, release, "old"), QUIET)
    made = run.predictions("old", "bf16").read_bytes()
    asked.clear()
    again = predict_set(job(run, release, "old"), QUIET)
    assert asked == []
    assert again.finished
    assert not first.finished
    assert run.predictions("old", "bf16").read_bytes() == made
    counts = ("records", "questions", "errors", "gold", "correct", "arithmetic", "device")
    assert [getattr(again, name) for name in counts] == [getattr(first, name) for name in counts]


@pytest.mark.parametrize(
    "changes",
    [
        {"again": True},
        {"spec": replace(SPEC, max_length=4096)},
        {"spec": replace(SPEC, batch_tokens=1000)},
        {"model": ModelRef(Path("x"), "tiny-clef", None, "other")},
    ],
)
def test_what_may_differ_is_asked(
    run: RunFolder, release: Path, asked: list[str], changes: dict[str, object]
) -> None:
    predict_set(job(run, release, "old"), QUIET)
    asked.clear()
    if "model" in changes:
        changes = {"model": ModelRef(release, "tiny-clef", None, "other")}
    summary = predict_set(replace(job(run, release, "old"), **changes), QUIET)  # type: ignore[arg-type]
    assert not summary.finished
    assert len(asked) == 16


def test_a_grown_set_asks_only_the_new_records(
    run: RunFolder, release: Path, records: list[Record], asked: list[str]
) -> None:
    predict_set(job(run, release, "old"), QUIET)
    old = run.predictions("old", "bf16")
    clipped = {"layers.0.down_proj": 0.02}
    meta = replace(read_meta(old), created_at="2026-01-02T03:04:05+00:00", clipped=clipped)
    write_predictions(old, read_predictions(old).frame, meta, read_how(old))
    changed = replace(records[3], gold={})
    add_set(run, "new", [*records[:3], changed, *records[4:]])
    asked.clear()
    summary = predict_set(job(run, release, "new"), QUIET)
    assert set(asked) == {"r3", *(f"r{n}" for n in range(16, 24))}
    assert summary.reused == 15
    found = read_predictions(run.predictions("new", "bf16"))
    # as old as its oldest answers: gates frozen since came after them
    assert found.meta.created_at == "2026-01-02T03:04:05+00:00"
    assert found.meta.clipped == clipped  # no warning is lost with them
    (source,) = read_how(run.predictions("new", "bf16"))["reused"]
    assert (source["eval_set"], source["records"]) == ("old", 15)
    assert found.growth is None  # a record of the old set was changed
    before = read_predictions(old).frame.set_index(["record_id", "question_id"])
    for row in found.frame.itertuples():
        if row.record_id not in asked:
            known = before.loc[(row.record_id, row.question_id)]
            assert np.array_equal(row.logprobs, known.logprobs)
            assert row.input_tokens == known.input_tokens


def test_a_set_that_contains_the_old_one_whole_says_what_was_known(
    run: RunFolder, release: Path, records: list[Record], asked: list[str]
) -> None:
    predict_set(job(run, release, "old"), QUIET)
    add_set(run, "grown", records)
    predict_set(job(run, release, "grown"), QUIET)
    growth = read_predictions(run.predictions("grown", "bf16")).growth
    assert growth is not None and (growth.known, growth.new) == (16, len(records) - 16)
    assert growth.asked_at >= read_meta(run.predictions("old", "bf16")).created_at
    assert read_predictions(run.predictions("old", "bf16")).growth is None


def test_answers_of_other_limits_or_of_a_changed_set_are_not_taken_over(
    run: RunFolder, release: Path, records: list[Record], asked: list[str]
) -> None:
    predict_set(job(run, release, "old", spec=replace(SPEC, max_length=4096)), QUIET)
    add_set(run, "new", records[:17])
    asked.clear()
    predict_set(job(run, release, "new"), QUIET)
    assert len(asked) == 17
    run.predictions("new", "bf16").unlink()
    with (run.set_folder("old") / "records.jsonl").open("a") as file:
        file.write("\n")
    asked.clear()
    predict_set(job(run, release, "new", spec=replace(SPEC, max_length=4096)), QUIET)
    assert len(asked) == 17


def test_no_command_replaces_predictions_on_another_set(
    run: RunFolder, release: Path, records: list[Record], asked: list[str]
) -> None:
    predict_set(job(run, release, "old"), QUIET)
    out = run.predictions("old", "bf16")
    made = out.read_bytes()
    add_set(run, "new", records)
    asked.clear()
    with pytest.raises(InputError, match=r"predictions on another set, old [0-9a-f]{12}"):
        predict_set(job(run, release, "new", out=out, again=True), QUIET)
    assert asked == []
    found = read_predictions(out)
    other = replace(found.meta, eval_set_sha256="0" * 64)
    with pytest.raises(InputError, match="on another set"):
        write_predictions(out, found.frame, other)
    assert out.read_bytes() == made
