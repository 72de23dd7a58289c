"""A random Clef in the release layout, its release-code twin, and small sets.

Built from the public `clef-finetune` package (config, tokenizer, release head): an independent
reference, none of whose code is ours.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import torch

from clefq.clef.records import Record, parse_record

HEAD = {
    "hidden_size": 64,
    "width": 32,
    "routing_layers": 1,
    "layers": 1,
    "heads": 2,
    "feedforward": 64,
}
IMAGES = {
    "image_processor_type": "Qwen2VLImageProcessor",
    "patch_size": 16,
    "merge_size": 2,
    "temporal_patch_size": 2,
    "size": {"shortest_edge": 1024, "longest_edge": 16384},
}
WORDS = [
    "parcel",
    "refund",
    "blå",
    "雨",
    "broken",
    "invoice",
    "<|im_end|>",
    "late",
    "42",
    "العربية",
    "cargo",
    "yes",
    "🙂",
    "door",
]


def build_release(folder: Path, seed: int = 0) -> Path:
    """A tiny random checkpoint with norms, biases and gates off their trivial values."""
    from clef_finetune import tiny
    from clef_finetune.jsm import load_jsm
    from safetensors.torch import save_file
    from transformers import Qwen3_5ForConditionalGeneration

    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = tiny._tokenizer(512)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen3_5ForConditionalGeneration(tiny.tiny_config(tokenizer, 512))
        head = load_jsm().JointSchemaHead(**HEAD)
        with torch.no_grad():
            for module in (model, head):
                for name, value in module.named_parameters():
                    if value.ndim == 1 and "A_log" not in name:
                        value.add_(0.1 * torch.randn_like(value))
            # A random model's weights are so small that all options look alike: spread them.
            for name, value in model.named_parameters():
                if value.ndim == 2 and "language_model.layers" in name:
                    value.mul_(4.0)
            head.residual_gate.fill_(0.5)
            head.joint_logit_scale.fill_(1.0)
            head.prior_logit_scale.fill_(1.0)
    model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    state = {k: v.to(torch.bfloat16).contiguous() for k, v in head.state_dict().items()}
    save_file(state, folder / "joint_head.safetensors")
    (folder / "joint_head_config.json").write_text(json.dumps(HEAD))
    (folder / "processor_config.json").write_text(json.dumps({"image_processor": IMAGES}))
    return folder


def make_record(number: int, rng: random.Random, words: int | None = None) -> Record:
    """A record with one to four questions of all types."""
    count = words if words is not None else rng.choice([0, 3, 8, 30])
    state = {"text": " ".join(rng.choices(WORDS, k=count)), "n": number}
    questions: dict[str, object] = {}
    for index in range(rng.randint(1, 4)):
        kind = rng.choice(["noul", "choice", "score"])
        question: dict[str, object] = {"type": kind, "instructions": f"Judge {rng.choice(WORDS)}"}
        if kind == "choice":
            names = rng.sample(WORDS, rng.randint(2, 6))
            question["criteria"] = {name: rng.choice([None, "about it"]) for name in names}
        if kind == "score":
            question["criteria"] = ["low", "middle", "high"][: rng.randint(2, 3)]
        questions[f"q{index}"] = question
    value = {"id": f"r{number}", "cohort": "test", "state": state, "questions": questions}
    record = parse_record(value, "test")
    value["gold"] = {q.id: rng.choice(q.option_ids) for q in record.questions}
    return parse_record(value, "test")


@pytest.fixture(scope="session")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny checkpoint."""
    return build_release(tmp_path_factory.mktemp("release") / "bf16")


@pytest.fixture(scope="session")
def records() -> list[Record]:
    """24 records of mixed length."""
    rng = random.Random(7)
    return [make_record(number, rng) for number in range(24)]


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    """Small matrices run fastest, and reproducibly, on one thread."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def set_path(records: list[Record], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A set folder of the records."""
    return build_set(tmp_path_factory.mktemp("sets") / "tiny", records)


@pytest.fixture
def no_pause(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds that requests to a server would have waited."""
    from clefq.engines import http_client

    pauses: list[float] = []
    monkeypatch.setattr(http_client.time, "sleep", pauses.append)
    return pauses


def build_set(folder: Path, records: list[Record]) -> Path:
    """Writes a set folder named `tiny`."""
    from clefq.store.sets import SetDraft, SourceInfo, write_set

    source = SourceInfo(
        source="test",
        split="test",
        origin="generated",
        revision=None,
        files={},
        licence="Apache-2.0",
        attribution=None,
    )
    write_set(folder, records, {}, SetDraft("eval", "tiny", {}, (source,)))
    return folder
