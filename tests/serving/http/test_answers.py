"""Answers against the release's own code on identical logits, and against the contract suite's
formulas."""

from __future__ import annotations

import json
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from clefq.clef.records import Question
from clefq.serving.http.answers import (
    Style,
    TokenUsage,
    confidence,
    encode_json,
    response_body,
)
from clefq.serving.http.settings import Limits, ServerSettings
from clefq.serving.prompts import PromptMaker
from tests.clef.generate import record
from tests.serving.http.client import TYPESAFE, Asker
from tests.serving.http.conftest import NANO
from tests.serving.http.fake import FakeBackend, logits_from

LONG = 200_000


class ReleaseModel:
    """Stands in for the release's model: the fake backend's logits, in the release's form."""

    def parameters(self) -> Iterator[torch.Tensor]:
        yield torch.zeros(1)

    def __call__(self, batch: dict[str, Any]) -> list[list[torch.Tensor]]:
        rows = []
        for encoded in batch["records"]:
            spans = [(q.question_span, q.option_spans) for q in encoded.questions]
            flat = torch.from_numpy(logits_from(encoded.input_ids, spans))
            counts = [len(q.option_spans) for q in encoded.questions]
            rows.append(list(torch.split(flat, counts)))
        return rows


@pytest.fixture(scope="module")
def release() -> ModuleType:
    from clef_finetune._vendor import joint_schema_model

    return joint_schema_model


@pytest.fixture(scope="module")
def processor() -> Any:
    from transformers import AutoTokenizer

    class Processor:
        tokenizer = AutoTokenizer.from_pretrained(NANO)

    return Processor()


def test_bodies_equal_the_release_byte_for_byte(
    release: ModuleType, processor: Any, prompts: PromptMaker
) -> None:
    every_level = ServerSettings(limits=Limits(max_levels=255))
    asker = Asker(prompts, every_level, FakeBackend(max_length=LONG))
    kinds = set()
    for seed in range(300):
        raw = record(seed)
        body = {"model": "clef", "state": raw["state"], "questions": raw["questions"]}
        expected = release.systemone(ReleaseModel(), processor, body, max_length=LONG)
        response = asker(body)
        assert response.status_code == 200, response.text
        text = json.dumps(expected, ensure_ascii=False, separators=(",", ":"))
        assert response.content == text.encode()
        kinds |= {q["type"] for q in raw["questions"].values()}
    assert kinds == {"noul", "choice", "score"}


def test_float32_softmax_decides_the_fourth_decimal() -> None:
    """Where the release's float32 and exact arithmetic round apart, ours is the release's."""
    rng = np.random.default_rng(0)
    question = Question("q", "noul")
    apart = 0
    for logits in rng.normal(size=(20_000, 2)).astype(np.float32):
        expected = round(torch.from_numpy(logits).softmax(-1).tolist()[0], 4)
        body = response_body("m", (question,), {"q": logits}, TokenUsage(1), Style("release"))
        assert body["answers"]["q"]["noul"] == expected
        wide = np.exp(logits.astype(np.float64))
        apart += round(float(wide[0] / wide.sum()), 4) != expected
    assert apart > 0  # else this test shows nothing


def test_the_typesafe_dialect_is_unrounded_and_has_its_own_confidence(prompts: PromptMaker) -> None:
    asker = Asker(prompts)
    release = asker().json()
    full = asker(headers={"x-clefq-precision": "full"}).json()
    typesafe = asker(headers=TYPESAFE).json()
    assert release["model"] == full["model"] == "clef"
    assert typesafe["model"] == asker.backend.info.names[0]
    for body in (full, typesafe):
        total = sum(body["answers"]["anger"]["probabilities"].values())
        assert abs(total - 1) < 1e-12
        for option, share in body["answers"]["anger"]["probabilities"].items():
            assert round(share, 4) == release["answers"]["anger"]["probabilities"][option]
    for name in ("team", "anger"):
        assert full["answers"][name]["confidence"] == max(
            full["answers"][name]["probabilities"].values()
        )
        assert typesafe["answers"][name]["confidence"] < full["answers"][name]["confidence"]
    assert typesafe["answers"]["refund"] == full["answers"]["refund"]


@given(
    st.sampled_from(["choice", "score"]),
    st.lists(st.floats(1e-6, 1.0), min_size=2, max_size=10),
)
@settings(deadline=None, max_examples=200)
def test_confidence_is_the_contract_suites(kind: str, weights: list[float]) -> None:
    validate = pytest.importorskip("jevcompat.validate")
    shares = [weight / sum(weights) for weight in weights]
    criteria: Any = {f"{i:02}": None for i in range(len(shares))}
    question = Question("q", kind, criteria=criteria if kind == "choice" else list(criteria))
    named = dict(zip(question.option_ids, shares, strict=True))
    reference = validate.choice_confidence if kind == "choice" else validate.score_confidence
    assert confidence(question, named) == pytest.approx(reference(shares), abs=1e-12)


def test_confidence_runs_from_a_guess_to_certainty() -> None:
    choice = Question("q", "choice", criteria={"a": 1, "b": 2, "c": 3, "d": 4})
    score = Question("q", "score", criteria=["x", "y", "z"])
    assert confidence(choice, dict.fromkeys("abcd", 0.25)) == 0
    assert confidence(choice, {"a": 0.0, "b": 1.0, "c": 0.0, "d": 0.0}) == 1
    assert confidence(score, {"0": 0.0, "1": 1.0, "2": 0.0}) == 1
    # both ends: worse than a uniform guess, and held at 0
    assert confidence(score, {"0": 0.5, "1": 0.0, "2": 0.5}) == 0


def test_zero_probabilities_are_answered_and_nan_is_not() -> None:
    question = Question("q", "noul")
    for style in (Style("release"), Style("typesafe")):
        sure = np.array([0.0, -np.inf], dtype=np.float32)
        body = response_body("m", (question,), {"q": sure}, TokenUsage(1), style)
        assert body["answers"]["q"]["noul"] == 1
        for bad in ([np.nan, 0.0], [np.inf, 0.0], [-np.inf, -np.inf]):
            with pytest.raises(ValueError, match="not finite"):
                response_body("m", (question,), {"q": np.array(bad)}, TokenUsage(1), style)


def test_truncation_shows_only_where_there_was_any() -> None:
    question = Question("q", "noul")
    logits = {"q": np.zeros(2, dtype=np.float32)}
    plain = response_body("m", (question,), logits, TokenUsage(5), Style("release"))
    cut = response_body("m", (question,), logits, TokenUsage(5, 7), Style("release"))
    assert encode_json(plain["usage"]) == b'{"input_tokens":5,"output_tokens":0}'
    assert cut["usage"] == {"input_tokens": 5, "output_tokens": 0, "x_truncated_tokens": 7}
