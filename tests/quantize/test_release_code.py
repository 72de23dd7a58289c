"""The unmodified release code loads every folder, and so does the manual load of a card."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from clefq.quantize.quiet import quiet_libraries
from tests.quantize.conftest import Make
from tools import loader_weights

SCHEMES = ("fp8", "int8", "int4", "nvfp4a16", "nvfp4", "nvfp4-mlp", "mixed")


def load(folder: Path) -> Any:
    """The manual load that a model card shows."""
    from transformers import AutoModelForImageTextToText, CompressedTensorsConfig

    with quiet_libraries():
        return AutoModelForImageTextToText.from_pretrained(
            folder,
            dtype=torch.bfloat16,
            quantization_config=CompressedTensorsConfig(dequantize=True),
        )


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_manual_load_gives_the_stored_weights(made: Make, source: Path, scheme: str) -> None:
    from transformers import AutoModelForImageTextToText

    model = load(made(scheme).folder)
    reference = AutoModelForImageTextToText.from_pretrained(source, dtype=torch.bfloat16)
    ours, theirs = model.state_dict(), reference.state_dict()
    worst = {name: 0.0 for name in ("kept", "quantized")}
    quantized = set(json_modules(made(scheme).folder))
    for name, value in theirs.items():
        difference = float((ours[name].float() - value.float()).norm() / value.float().norm())
        kind = "quantized" if name.removesuffix(".weight") in quantized else "kept"
        worst[kind] = max(worst[kind], difference)
    assert worst["kept"] == 0
    low, high = {"fp8": (0.01, 0.04), "int8": (0.002, 0.02), "int4": (0.05, 0.15)}.get(
        scheme, (0.01, 0.11)
    )
    assert low < worst["quantized"] < high
    # and these are, bit for bit, what the simulation computes with
    decoded = loader_weights.decoded(made(scheme).folder)
    assert decoded.keys() == quantized
    assert all(weight.equal(ours[f"{module}.weight"]) for module, weight in decoded.items())


def json_modules(folder: Path) -> list[str]:
    index = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    return [name.removesuffix(".weight_scale") for name in index if name.endswith(".weight_scale")]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_release_code_answers(made: Make, scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`load_release_model` and `systemone`, unmodified, on the folder alone."""
    from clef_finetune.jsm import VENDORED_PATH, load_jsm
    from transformers import AutoProcessor, AutoTokenizer, CompressedTensorsConfig

    # the processor class needs torchvision for its videos; text needs its tokenizer alone
    monkeypatch.setattr(
        AutoProcessor,
        "from_pretrained",
        lambda path: SimpleNamespace(tokenizer=AutoTokenizer.from_pretrained(path)),
    )
    folder = made(scheme).folder
    assert (folder / "joint_schema_model.py").read_bytes() == Path(VENDORED_PATH).read_bytes()
    jsm = load_jsm()
    with quiet_libraries():
        model, processor = jsm.load_release_model(
            folder, device="cpu", quantization_config=CompressedTensorsConfig(dequantize=True)
        )
    answer = jsm.systemone(
        model,
        processor,
        {
            "model": "clef",
            "state": {"text": "The parcel is late."},
            "questions": {
                "kind": {"type": "choice", "criteria": {"bill": "a bill", "other": None}},
                "urgent": {"type": "noul", "instructions": "Is it urgent?"},
            },
        },
    )
    probabilities = answer["answers"]["kind"]["probabilities"]
    assert sum(probabilities.values()) == pytest.approx(1, abs=2e-4)
    assert 0 < answer["answers"]["urgent"]["noul"] < 1
