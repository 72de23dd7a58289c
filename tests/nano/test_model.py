"""The shipped weights answer as measured, and as the release code answers with them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from clefq.clef.head import split_logits
from clefq.clef.records import Record, record_to_json
from clefq.clef.tokenizer import PromptTokenizer
from clefq.nano import WEIGHTS
from clefq.nano.tasks import RecordKey, scene_of
from clefq.store.sets import SetFolder
from tools.nano.batches import encode_example, make_batch
from tools.nano.build import HEAD, nano_config, token_ids_of

GOLDEN = Path(__file__).parent / "golden.json"
# one record in nine, through all cohorts: 41
EVERY = 9


@pytest.fixture(scope="module")
def answers(engine: Any, eval_set: SetFolder) -> dict[str, Any]:
    """Record id → log-probabilities by question, for a slice of the eval set."""
    wanted = json.loads(GOLDEN.read_text())
    records = [
        record
        for number, record in enumerate(eval_set.records())
        if number % EVERY == 0 or record.id in wanted
    ]
    groups = engine.predict(records, media_root=eval_set.path)
    return {result.record_id: result for group in groups for result in group}


def test_slice_is_answered_as_well_as_measured(
    answers: dict[str, Any], eval_set: SetFolder
) -> None:
    right, margins = [], []
    for record in list(eval_set.records())[::EVERY]:
        result = answers[record.id]
        assert not result.errors
        assert result.truncated_tokens == 0
        for question in record.questions:
            shares = np.exp(result.logprobs[question.id])
            best = result.option_ids[question.id][int(shares.argmax())]
            right.append(best == record.gold[question.id])
            second, first = np.sort(shares)[-2:]
            margins.append(first - second)
    assert len(right) == 122
    # 0.934 and 0.148 in BF16, give or take four questions
    assert 0.90 <= np.mean(right) <= 0.97
    assert 0.11 <= np.mean(np.array(margins) < 0.5) <= 0.19


def test_golden_logprobs(answers: dict[str, Any]) -> None:
    """A record with an image, one with 77 options, one with eight questions."""
    for record_id, questions in json.loads(GOLDEN.read_text()).items():
        for question_id, logprobs in questions.items():
            ours = answers[record_id].logprobs[question_id]
            np.testing.assert_allclose(ours, logprobs, rtol=1e-3, atol=1e-3)


def few(eval_set: SetFolder, images: bool) -> list[Record]:
    chosen = [r for r in eval_set.records() if bool(r.images) == images and r.cohort != "needle"]
    return chosen[:: len(chosen) // 4][:4]


@torch.no_grad()
def test_release_code_gives_the_same_logits(
    engine: Any, eval_set: SetFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    from clef_finetune.jsm import load_jsm
    from transformers import AutoProcessor, AutoTokenizer

    # the processor class needs torchvision for its videos; text needs its tokenizer alone
    monkeypatch.setattr(
        AutoProcessor,
        "from_pretrained",
        lambda path: SimpleNamespace(tokenizer=AutoTokenizer.from_pretrained(path)),
    )
    release = load_jsm()
    model, processor = release.load_release_model(WEIGHTS, device="cpu", dtype=torch.float32)
    records = few(eval_set, images=False)
    encoded = [release.encode_record(processor.tokenizer, record_to_json(r)) for r in records]
    pad, device = processor.tokenizer.pad_token_id, torch.device("cpu")
    theirs = model(release.collate_records(encoded, pad, device))
    ours = {r.record_id: r for group in engine.predict(records) for r in group}
    for record, logits in zip(records, theirs, strict=True):
        result = ours[record.id]
        for question, values in zip(record.questions, logits, strict=True):
            np.testing.assert_allclose(
                result.logprobs[question.id], values.log_softmax(-1), rtol=1e-3, atol=1e-3
            )


@torch.no_grad()
@pytest.mark.parametrize("images", [False, True])
def test_training_code_gives_the_same_logits(
    engine: Any, eval_set: SetFolder, tokenizer: PromptTokenizer, images: bool
) -> None:
    """Batches, patches and positions of the training against the engine's own."""
    model = shipped_miniature()
    records = few(eval_set, images)
    scenes = [scene_of(RecordKey.of(r.id)) if images else None for r in records]
    examples = [encode_example(tokenizer, r, s) for r, s in zip(records, scenes, strict=True)]
    batch = make_batch(examples, tokenizer.special.im_end)
    padded = model.logits(model.hidden(batch), batch)
    flat = padded[torch.isfinite(padded)]
    theirs = split_logits(flat, [example.encoded for example in examples])
    groups = engine.predict(records, media_root=eval_set.path)
    ours = {result.record_id: result for group in groups for result in group}
    for record, logits in zip(records, theirs, strict=True):
        for question, values in logits.items():
            expected = torch.from_numpy(values).log_softmax(-1)
            np.testing.assert_allclose(
                ours[record.id].logprobs[question], expected, rtol=1e-3, atol=1e-3
            )


def shipped_miniature() -> Any:
    """The shipped weights inside the training's module, in FP32."""
    from safetensors.torch import load_file

    from tools.nano.train import Miniature

    model = Miniature(nano_config(token_ids_of(WEIGHTS / "tokenizer.json")))
    state: dict[str, torch.Tensor] = {}
    for shard in WEIGHTS.glob("model-*.safetensors"):
        state |= load_file(shard)
    model.backbone.load_state_dict(state, strict=True)
    model.head.load_state_dict(load_file(WEIGHTS / "joint_head.safetensors"), strict=True)
    assert model.head.config == replace(model.head.config, **HEAD)
    return model.float().eval()
