"""A random miniature through the release's own `systemone` and through our parts."""

from __future__ import annotations

from dataclasses import asdict
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from clefq.clef.answers import answer, log_softmax
from clefq.clef.encoding import PromptTokenizer, encode_record
from clefq.clef.head import HeadBatch, JointHead, split_logits
from clefq.clef.head_config import HeadConfig
from clefq.clef.records import parse_record
from tests.clef.generate import record

CONFIG = HeadConfig(hidden_size=64, width=32, routing_layers=1, layers=2, heads=2, feedforward=64)


@pytest.fixture(scope="module")
def backbone(release_tokenizer: Any) -> Any:
    from clef_finetune.tiny import tiny_config
    from transformers import Qwen3_5ForConditionalGeneration

    torch.manual_seed(0)
    config = tiny_config(release_tokenizer, vocab_size=2048)
    return Qwen3_5ForConditionalGeneration(config).eval()


@torch.no_grad()
def test_answers_equal_the_release(
    release: ModuleType, release_tokenizer: Any, tokenizer: PromptTokenizer, backbone: Any
) -> None:
    reference = release.JointSchemaHead(**asdict(CONFIG))
    for parameter in reference.parameters():
        parameter.add_(torch.randn_like(parameter) * 0.1)
    reference.joint_logit_scale.fill_(1.0)
    model = release.ClefModel(backbone, reference).eval()
    processor = SimpleNamespace(tokenizer=release_tokenizer)
    head = JointHead(CONFIG).eval()
    head.load_state_dict(reference.state_dict())

    raw = [record(seed) for seed in (61, 62, 63, 64, 66)]
    records = [parse_record(one, "test") for one in raw]
    encoded = [encode_record(tokenizer, one) for one in records]
    hidden = torch.cat(
        [
            backbone.model.language_model(torch.tensor([one.token_ids])).last_hidden_state[0]
            for one in encoded
        ]
    )
    batch = HeadBatch.build(encoded)
    lexical = backbone.get_output_embeddings().weight[batch.option_token_ids]
    results = split_logits(head(hidden, batch, lexical), encoded)
    for one, request, parts, logits in zip(records, raw, encoded, results, strict=True):
        answers = {}
        for question in one.questions:
            shares = np.exp(log_softmax(logits[question.id])).tolist()
            answers[question.id] = answer(
                question, dict(zip(question.option_ids, shares, strict=True))
            )
        theirs = release.systemone(model, processor, {**request, "model": "clef"})
        assert theirs["usage"]["input_tokens"] == len(parts.token_ids)
        assert answers == theirs["answers"]
