"""Checkpoints of other tools: one line says what each is, who runs it, and what to do."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from clefq.clef.checkpoint import open_checkpoint
from clefq.clef.weight_files import refuse_other_weights
from clefq.console import Console
from clefq.errors import CheckpointError
from clefq.quantize.audit import audit_checkpoint
from clefq.quantize.run import QuantizeSpec, prepare
from tests.quantize.conftest import Make

DOCS = Path(__file__).resolve().parents[3] / "docs" / "check-checkpoint.md"
NAME = "model.language_model.layers.0.mlp.up_proj"


def edited(source: Path, out: Path, tensors: dict[str, torch.Tensor], method: object) -> Path:
    """A copy whose `NAME` is stored in another way, and whose config names a method."""
    shutil.copytree(source, out)
    stored = load_file(out / "model.safetensors")
    if tensors:
        del stored[f"{NAME}.weight"]
    stored |= {f"{NAME}.{suffix}": value for suffix, value in tensors.items()}
    save_file(stored, out / "model.safetensors", metadata={"format": "pt"})
    if method is not None:
        config = json.loads((out / "config.json").read_text())
        config["quantization_config"] = method
        (out / "config.json").write_text(json.dumps(config))
    return out


PACKED = {"qweight": torch.zeros(32, 512, dtype=torch.int32), "scales": torch.ones(2, 512)}
KINDS = {
    "AutoRound": (PACKED, {"quant_method": "auto-round", "bits": 4}, "it is AutoRound"),
    "GPTQ": (PACKED, {"quant_method": "gptq", "bits": 4}, "it is GPTQ"),
    "GPTQ without a config": (PACKED, None, "it is GPTQ"),
    "AWQ": (PACKED, {"quant_method": "awq", "bits": 4}, "it is AWQ"),
    "bitsandbytes": (
        {"weight": torch.zeros(65536, 1, dtype=torch.uint8), "weight.absmax": torch.ones(2048)},
        {"quant_method": "bitsandbytes", "load_in_4bit": True},
        "it is bitsandbytes",
    ),
    "FP8 block": (
        {
            "weight": torch.zeros(512, 256).to(torch.float8_e4m3fn),
            "weight_scale_inv": torch.ones(4, 2),
        },
        {"quant_method": "fp8", "weight_block_size": [128, 128]},
        "it is FP8 in DeepSeek's layout",
    ),
    "something new": ({}, {"quant_method": "brandnew"}, "quantized by 'brandnew'"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_another_method_is_named(source: Path, tmp_path: Path, kind: str) -> None:
    tensors, method, words = KINDS[kind]
    folder = edited(source, tmp_path / "theirs", tensors, method)
    with pytest.raises(CheckpointError) as caught:
        audit_checkpoint(folder)
    assert words in caught.value.message
    assert caught.value.fix and "clefq quantize" in caught.value.fix


@pytest.mark.parametrize("command", [audit_checkpoint, open_checkpoint])
@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("model.safetensors", b"version https://git-lfs.github.com/spec/v1\noid", "Git LFS"),
        ("model.gguf", b"GGUF", "llama.cpp"),
        ("pytorch_model.bin", b"PK", "PyTorch pickles"),
        ("adapter_model.safetensors", b"x", "an adapter alone"),
    ],
)
def test_weights_of_another_kind(
    source: Path, tmp_path: Path, name: str, content: bytes, words: str, command: object
) -> None:
    folder = tmp_path / "theirs"
    shutil.copytree(source, folder, ignore=shutil.ignore_patterns("*.safetensors*"))
    (folder / name).write_bytes(content)
    with pytest.raises(CheckpointError, match=words) as caught:
        refuse_other_weights(folder)
    assert caught.value.fix
    if command is open_checkpoint:
        shutil.copy(source / "joint_head.safetensors", folder)
    with pytest.raises(CheckpointError, match=words):
        command(folder)  # type: ignore[operator]


@pytest.mark.parametrize("leaf", ["up_proj.base_layer", "up_proj.lora_A.default"])
def test_an_unmerged_adapter(source: Path, tmp_path: Path, leaf: str) -> None:
    folder = shutil.copytree(source, tmp_path / "theirs")
    stored = load_file(folder / "model.safetensors")
    stored[f"{NAME.removesuffix('up_proj')}{leaf}.weight"] = stored[f"{NAME}.weight"].clone()
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    (cause,) = audit_checkpoint(folder).causes()
    assert "names of a model with adapters" in cause.message and "merge" in cause.effect
    with pytest.raises(CheckpointError, match="never merged"):
        open_checkpoint(folder)


def test_a_quantized_source(made: Make, source: Path, tmp_path: Path) -> None:
    cases = {
        made("fp8", "stream").folder: "fp8",
        edited(source, tmp_path / "gptq", PACKED, {"quant_method": "gptq"}): "gptq",
    }
    for folder, name in cases.items():
        with pytest.raises(CheckpointError, match=rf"is quantized already \({name}\)"):
            prepare(QuantizeSpec(str(folder), "fp8"), Console(quiet=True))


def test_the_table_of_the_docs_has_every_layout() -> None:
    text = DOCS.read_text("utf-8")
    for words in ("AutoRound", "GPTQ", "AWQ", "bitsandbytes", "GGUF", "Git LFS", "adapter", "MTP"):
        assert f"| {words}" in text
