"""The training script on a CPU: it learns, it ends by the clock, and it saves what it learned."""

from __future__ import annotations

import itertools
import tarfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from clefq.clef.checkpoint import open_checkpoint
from clefq.clef.tokenizer import PromptTokenizer
from clefq.nano import WEIGHTS
from clefq.nano.tasks import TASKS, RecordKey, record_of, scene_of
from tools.nano import train as training
from tools.nano.batches import (
    MIXTURE,
    Batch,
    StreamSpec,
    encode_example,
    fixed_batches,
    make_batch,
    map_tensors,
    stream,
)
from tools.nano.corpus import intent_options, intent_record, read_utterances
from tools.nano.tokenizer import VOCAB_SIZE

PUBLIC = Path(__file__).parents[1] / "data" / "fixtures"  # synthetic rows, original layouts
SECONDS = 24.0  # of the clock below: about twenty steps


@pytest.fixture
def lean(monkeypatch: pytest.MonkeyPatch) -> None:
    """The training's own layers, taken back at the end."""
    from transformers.models.qwen3_5 import modeling_qwen3_5 as module

    for name in ("torch_chunk_gated_delta_rule", "causal_conv1d_fn"):
        monkeypatch.setattr(module, name, getattr(module, name))
    for kind in (module.Qwen3_5RMSNorm, module.Qwen3_5RMSNormGated):
        monkeypatch.setattr(kind, "forward", kind.forward)
    training.use_lean_layers()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every look at the clock takes a second."""
    seconds = itertools.count()
    monkeypatch.setattr(training, "time", SimpleNamespace(monotonic=lambda: float(next(seconds))))


def arrays(batch: Batch) -> Any:
    return map_tensors(batch, lambda tensor: tensor.numpy())


def small_batch(tokenizer: PromptTokenizer) -> Batch:
    records = [record_of(RecordKey("form", "train", 1, index), 0.0) for index in range(3)]
    examples = [encode_example(tokenizer, record) for record in records]
    return make_batch(examples, tokenizer.special.im_end)


@pytest.mark.usefixtures("lean", "clock")
def test_it_learns_a_batch_and_saves_it(tokenizer: PromptTokenizer, tmp_path: Path) -> None:
    plan = training.Plan(seconds=SECONDS, device="cpu", workers=0, peak=5e-4, warmup=5)
    model = training.new_model(plan, WEIGHTS / "tokenizer.json")
    batch = small_batch(tokenizer)
    with torch.no_grad():
        decision, text, _ = training.losses(model, batch, "cpu")
    assert decision > 0.4  # knows nothing yet: two options or more
    assert text > 0.8 * np.log(VOCAB_SIZE)
    run = training.Run(model.train(), plan, tmp_path, SimpleNamespace(value=0.0), 0.0)
    log = training.train(run, itertools.repeat(arrays(batch)))
    assert run.progress.value >= 1.0
    assert 20 <= log[-1]["step"] <= SECONDS
    assert log[-1]["decision"] < 0.3 * decision
    assert log[-1]["text"] < 0.7 * text
    assert log[-1]["tokens"] == log[-1]["step"] * len(batch.places)

    training.save(model, tmp_path, WEIGHTS / "tokenizer.json")
    with tarfile.open(tmp_path / "nano.tar") as archive:
        archive.extractall(tmp_path, filter="data")
    saved = open_checkpoint(tmp_path / "nano")
    assert saved.tensors.keys() == open_checkpoint(WEIGHTS).tensors.keys()
    fresh = training.new_model(plan, WEIGHTS / "tokenizer.json")
    training.load_state(fresh, tmp_path)
    for name, value in model.state_dict().items():
        torch.testing.assert_close(fresh.state_dict()[name], value, rtol=0, atol=0)


def test_rate_rises_stays_and_falls() -> None:
    plan = training.Plan(seconds=1, device="cpu", peak=1.0, warmup=10, decay=0.5)
    assert training.rate(plan, 0, 0.0) == pytest.approx(0.1)
    assert training.rate(plan, 9, 0.1) == training.rate(plan, 50, 0.5) == 1.0
    assert training.rate(plan, 50, 0.75) == pytest.approx(0.5)
    assert training.rate(plan, 50, 1.0) == training.rate(plan, 50, 1.2) == 0.0


def spec(progress: float = 1.0, tasks: tuple[str, ...] = tuple(MIXTURE)) -> StreamSpec:
    mixture = {task: MIXTURE[task] for task in tasks}
    rows = tuple(read_utterances(PUBLIC))
    return StreamSpec(WEIGHTS, rows, 4096, 1, lambda: progress, mixture)


def test_workers_stream_different_batches_and_the_same_ones_again() -> None:
    first, again, other = (next(stream(spec(), worker)) for worker in (0, 0, 1))
    assert torch.equal(first.tokens, again.tokens)
    assert first.tokens.shape != other.tokens.shape or not torch.equal(first.tokens, other.tokens)


def test_batches_keep_to_their_size(tokenizer: PromptTokenizer) -> None:
    for batch in itertools.islice(stream(spec(), 0), 12):
        rows, length = batch.tokens.shape
        assert rows * length <= 4096 or rows == 1
        assert len(batch.gold) == len(batch.head.question_offsets)
        images = (batch.tokens == tokenizer.special.image_pad).any(1)
        assert images.all() if batch.media is not None else not images.any()


def test_records_grow_with_the_progress() -> None:
    def length(progress: float) -> float:
        batches = itertools.islice(stream(spec(progress, ("routing", "form")), 0), 4)
        return float(np.mean([len(b.places) / len(b.tokens) for b in batches]))

    assert length(0.0) < 0.8 * length(1.0)


def test_evaluation_covers_every_example_once(tokenizer: PromptTokenizer) -> None:
    keys = [RecordKey(task, "eval", 9, index) for task in TASKS for index in range(3)]
    examples = [
        encode_example(tokenizer, record_of(key), scene_of(key) if key.task == "scenes" else None)
        for key in keys
    ]
    groups = list(fixed_batches(examples, 4096, tokenizer.special.im_end))
    seen = [id(example) for group, _ in groups for example in group]
    assert sorted(seen) == sorted(id(example) for example in examples)
    assert all((batch.media is None) == (group[0].scene is None) for group, batch in groups)


def test_public_rows_are_asked_as_the_eval_sets_ask_them() -> None:
    import random

    rows = read_utterances(PUBLIC)
    assert {row.source for row in rows} == {"banking77", "clinc150"}
    chance = random.Random(0)
    for row in rows:
        for level in (0.0, 1.0):
            options = intent_options(row, chance, level)
            record = intent_record(row, options, "r")
            assert row.label in options
            assert len(set(options)) == len(options) >= 2
            assert set(record.questions[0].option_ids) == set(options)
            assert record.gold == {record.questions[0].id: row.label}
