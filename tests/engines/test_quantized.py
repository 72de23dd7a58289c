"""Quantized checkpoints, packed by compressed-tensors, through the whole model."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from clefq.clef.checkpoint import open_checkpoint
from clefq.clef.records import Record
from clefq.engines.backbone import load_backbone
from clefq.engines.base import EngineSpec
from clefq.engines.quantized import arithmetic_of, find_layers
from clefq.engines.simulation import QuantizedLinear
from clefq.engines.transformers_engine import TransformersEngine
from clefq.errors import CheckpointError
from tests.engines.quantizing import (
    INPUT_DIVISOR,
    INPUT_SCALE,
    quantize_release,
    reference_fp8,
    reference_int8,
    reference_nvfp4,
    reference_weight,
    token_scales,
    with_inputs_to,
)

CPU = torch.device("cpu")
QUANTIZE_INPUTS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "nvfp4": lambda x: reference_nvfp4(x, float(np.float32(INPUT_DIVISOR))),
    "nvfp4a16": lambda x: x,
    "fp8": lambda x: reference_fp8(x, token_scales(x)),
    "int8": reference_int8,
    "fp8-static": lambda x: reference_fp8(x, np.float64(np.float32(INPUT_SCALE))),
}
ARITHMETIC = {
    "nvfp4": "w4a4",
    "nvfp4a16": "w4a16",
    "fp8": "w8a8",
    "int8": "w8a8-int8",
    "fp8-static": "w8a8",
}


def mixed(module: str) -> str | None:
    """MLPs FP4, projections FP8, one layer untouched."""
    if ".layers.1." in module:
        return None
    return "nvfp4" if ".mlp." in module else "fp8"


@pytest.fixture(scope="module")
def checkpoints(release: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("quantized")
    made = {
        kind: quantize_release(release, root / kind, lambda _, kind=kind: kind)
        for kind in QUANTIZE_INPUTS
    }
    for folder in made.values():
        same_divisors(folder)
    return made | {"mixed": quantize_release(release, root / "mixed", mixed)}


def same_divisors(folder: Path) -> None:
    """Gives the fused members one weight divisor, so that nothing is changed at load."""
    tensors = load_file(folder / "model.safetensors")
    for name in tensors:
        if name.endswith("weight_global_scale"):
            tensors[name] = torch.tensor([9000.0])
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize("kind", QUANTIZE_INPUTS)
def test_the_whole_model_equals_a_float64_reference(
    release: Path, checkpoints: dict[str, Path], kind: str
) -> None:
    """The BF16 model with reference weights and inputs put in by hooks, all in float64."""
    folder = checkpoints[kind]
    tensors = load_file(folder / "model.safetensors")
    loaded = load_backbone(open_checkpoint(folder), torch.float64, CPU)
    assert loaded.warnings == ()
    plain = load_backbone(open_checkpoint(release), torch.float64, CPU)

    def quantize(_: torch.nn.Module, args: tuple[torch.Tensor]) -> tuple[torch.Tensor]:
        flat = args[0].reshape(-1, args[0].shape[-1]).numpy()
        return (torch.from_numpy(QUANTIZE_INPUTS[kind](flat)).reshape(args[0].shape),)

    count = 0
    for name, module in loaded.model.named_modules():
        if isinstance(module, QuantizedLinear):
            twin = plain.model.get_submodule(name)
            twin.weight.data = torch.from_numpy(reference_weight(tensors, name))
            twin.register_forward_pre_hook(quantize)
            count += 1
    assert count == 25
    ids = torch.randint(0, 256, (2, 70), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        ours = loaded.hidden_states(ids)
        theirs = plain.hidden_states(ids)
    # Weight divisors are applied in FP32, so the two agree to FP32's precision and no better.
    assert float((ours - theirs).abs().max()) < 2e-5 * float(theirs.abs().max())


@pytest.mark.parametrize("kind", ["nvfp4", "nvfp4a16", "fp8", "fp8-static", "int8"])
def test_decoded_weights_round_to_those_of_compressed_tensors(
    checkpoints: dict[str, Path], kind: str
) -> None:
    from transformers import CompressedTensorsConfig, Qwen3_5ForConditionalGeneration

    theirs = Qwen3_5ForConditionalGeneration.from_pretrained(
        checkpoints[kind],
        dtype="auto",
        quantization_config=CompressedTensorsConfig(dequantize=True),
    )
    ours = load_backbone(open_checkpoint(checkpoints[kind]), torch.bfloat16, CPU).model
    for name, module in ours.named_modules():
        if isinstance(module, QuantizedLinear):
            dense = module.stored.values() * module.stored.scale().reshape(-1, 1)
            assert torch.equal(dense.to(torch.bfloat16), theirs.get_submodule(name).weight), name
    rest = dict(theirs.named_parameters())
    for name, parameter in ours.named_parameters():
        assert torch.equal(parameter, rest[name]), name


@pytest.mark.parametrize("kind", [*QUANTIZE_INPUTS, "mixed"])
def test_info_and_answers(checkpoints: dict[str, Path], records: list[Record], kind: str) -> None:
    engine = TransformersEngine(checkpoints[kind], EngineSpec(threads=1))
    assert engine.info.kernels == "simulated"
    assert engine.info.arithmetic == ARITHMETIC.get(kind, "w4a4")
    results = [result for group in engine.predict(records[:4]) for result in group]
    assert len(results) == 4
    assert not any(result.errors for result in results)


@pytest.mark.parametrize("kind", ["nvfp4", "fp8-static"])
def test_what_calibrated_scales_clip_is_measured(
    checkpoints: dict[str, Path], records: list[Record], tmp_path: Path, kind: str
) -> None:
    """Record by record against hooks; the same shares in one padded batch; none if dynamic."""
    folder = with_inputs_to(2.0, checkpoints[kind], tmp_path / kind)
    spec = EngineSpec(threads=1, dtype="float32", batch_tokens=1)
    engine = TransformersEngine(folder, spec)
    assert engine.clipped() == {}
    seen: dict[str, list[torch.Tensor]] = {}

    def hook(module: torch.nn.Module, args: tuple[torch.Tensor]) -> None:
        blocks = args[0].reshape(-1, 16).abs().amax(-1)
        seen.setdefault(names[module], []).append(blocks)

    names = {module: name for name, module in engine.backbone.model.named_modules()}
    for module in names:
        if isinstance(module, QuantizedLinear):
            module.register_forward_pre_hook(hook)
    assert sum(len(group) for group in engine.predict(records[:6])) == 6
    one = engine.clipped()
    covers = 2.0 if kind == "nvfp4" else 448.0 * float(np.float32(2.0 / 448.0))
    for module, counts in one.items():
        every = torch.cat(seen[module])
        assert counts == (int((every > covers).sum()), len(every)), module
    assert len(one) < len(seen) and any(0 < beyond < blocks for beyond, blocks in one.values())
    other = TransformersEngine(folder, replace(spec, batch_tokens=100_000))
    list(other.predict(records[:6]))
    batched = other.clipped()
    assert batched.keys() == one.keys()
    for module, (beyond, blocks) in one.items():
        assert batched[module][1] == blocks
        assert batched[module][0] == pytest.approx(beyond, abs=2e-3 * blocks)
    dynamic = TransformersEngine(checkpoints["fp8"], EngineSpec(threads=1))
    list(dynamic.predict(records[:1]))
    assert dynamic.clipped() == {}


def test_mixed_formats_are_found_by_their_targets(checkpoints: dict[str, Path]) -> None:
    layers = find_layers(open_checkpoint(checkpoints["mixed"]))
    prefix = "model.language_model.layers"
    assert layers[f"{prefix}.0.mlp.up_proj"] == "nvfp4"
    assert layers[f"{prefix}.0.linear_attn.in_proj_z"] == "fp8"
    assert not any(".layers.1." in name for name in layers)
    assert arithmetic_of({}) == "bf16"


def test_fused_members_that_differ_are_run_as_served(
    checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    folder = tmp_path / "unshared"
    shutil.copytree(checkpoints["nvfp4"], folder)
    tensors = load_file(folder / "model.safetensors")
    layer = "model.language_model.layers.3.self_attn"
    tensors[f"{layer}.k_proj.weight_global_scale"] = torch.tensor([12000.0])
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    loaded = load_backbone(open_checkpoint(folder), torch.bfloat16, CPU)
    assert loaded.warnings[0] == f"{layer}.qkv_proj: members differ in weight_global_scale"
    assert "clefq repair" in loaded.warnings[-1]
    for leaf in ("q_proj", "k_proj", "v_proj"):
        stored = loaded.model.get_submodule(f"{layer}.{leaf}").stored
        assert float(stored.global_scale) == 12000.0
    other = loaded.model.get_submodule(f"{layer}.o_proj").stored
    assert float(other.global_scale) == 9000.0


def broken(folder: Path, tmp_path: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> Path:
    out = tmp_path / "broken"
    shutil.copytree(folder, out)
    tensors = load_file(out / "model.safetensors")
    change(tensors)
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    return out


GATE = "model.language_model.layers.0.mlp.gate_proj"


def drop(name: str) -> Callable[[dict[str, torch.Tensor]], None]:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        del tensors[name]

    return change


def put(name: str, value: torch.Tensor) -> Callable[[dict[str, torch.Tensor]], None]:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        tensors[name] = value

    return change


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        ("nvfp4", drop(f"{GATE}.weight_scale"), "gate_proj lacks weight_scale"),
        ("nvfp4", drop("model.language_model.norm.weight"), "model.language_model.norm"),
        ("nvfp4", put(f"{GATE}.extra", torch.zeros(1)), "gate_proj has an unknown tensor extra"),
        ("nvfp4", put("model.x.weight", torch.zeros(2)), "x.weight is no tensor of this model"),
        (
            "nvfp4",
            put("model.language_model.norm.weight", torch.zeros(3)),
            r"norm.weight has shape \[3\]",
        ),
        (
            "nvfp4",
            put(f"{GATE}.weight_global_scale", torch.tensor([float("nan")])),
            "weight_global_scale is nan",
        ),
        ("nvfp4", put(f"{GATE}.weight_zero_point", torch.zeros(1)), "this format or"),
        (
            "nvfp4",
            put(f"{GATE}.weight_scale", torch.zeros(128, 4, dtype=torch.uint8)),
            "group scales of type U8",
        ),
        (
            "fp8",
            put(f"{GATE}.weight_scale", torch.ones(2, 2)),
            r"scales of shape \[2, 2\]",
        ),
    ],
)
def test_faulty_checkpoints_are_refused(
    checkpoints: dict[str, Path],
    tmp_path: Path,
    kind: str,
    change: Callable[[dict[str, torch.Tensor]], None],
    message: str,
) -> None:
    folder = broken(checkpoints[kind], tmp_path, change)
    with pytest.raises(CheckpointError, match=message):
        load_backbone(open_checkpoint(folder), torch.bfloat16, CPU)


def test_quantized_layers_of_other_sizes_than_the_config_s(
    checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    folder = broken(checkpoints["fp8"], tmp_path, lambda _: None)
    config = json.loads((folder / "config.json").read_text())
    config["text_config"]["num_key_value_heads"] *= 2
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=r"k_proj is \[\d+, \d+\], config.json says"):
        load_backbone(open_checkpoint(folder), torch.bfloat16, CPU)


def test_fp8_weights_alone_are_refused(checkpoints: dict[str, Path], tmp_path: Path) -> None:
    folder = broken(checkpoints["fp8"], tmp_path, lambda _: None)
    config = json.loads((folder / "config.json").read_text())
    for group in config["quantization_config"]["config_groups"].values():
        group["input_activations"] = None
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match="its activations are not simulated"):
        load_backbone(open_checkpoint(folder), torch.bfloat16, CPU)


def test_a_quantized_kv_cache_is_refused(checkpoints: dict[str, Path], tmp_path: Path) -> None:
    folder = broken(checkpoints["fp8"], tmp_path, lambda _: None)
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"]["kv_cache_scheme"] = {"num_bits": 8, "type": "float"}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match="KV cache"):
        load_backbone(open_checkpoint(folder), torch.bfloat16, CPU)


def _edit_groups(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    config = json.loads((folder / "config.json").read_text())
    for group in config["quantization_config"]["config_groups"].values():
        change(group)
    (folder / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        (
            "nvfp4",
            lambda g: g.update(input_activations=None),
            "stored as nvfp4, config.json says nvfp4a16",
        ),
        (
            "nvfp4a16",
            lambda g: g.update(input_activations=dict(g["weights"], dynamic="local")),
            "stored as nvfp4a16, config.json says nvfp4",
        ),
        (
            "fp8-static",
            lambda g: g["input_activations"].update(dynamic=True, strategy="token"),
            "stored as fp8-static, config.json says fp8",
        ),
        (
            "fp8",
            lambda g: g["targets"].pop(0),
            "stored as fp8, config.json says bf16",
        ),
        (
            "fp8",
            lambda g: g["targets"].append("re:.*layers.1.linear_attn.in_proj_a$"),
            "stored as bf16, config.json says fp8",
        ),
        (
            "fp8",
            lambda g: g.update(format="float-quantized", weights=dict(g["weights"], type="int")),
            "arguments are of another format",
        ),
    ],
)
def test_a_config_that_says_otherwise_is_refused(
    checkpoints: dict[str, Path],
    tmp_path: Path,
    kind: str,
    change: Callable[[dict[str, Any]], object],
    message: str,
) -> None:
    """A serving engine goes by the config: what ran here would be another model."""
    folder = broken(checkpoints[kind], tmp_path, lambda _: None)
    _edit_groups(folder, change)
    with pytest.raises(CheckpointError) as caught:
        load_backbone(open_checkpoint(folder), torch.bfloat16, CPU)
    assert message in " ".join([caught.value.message, *caught.value.faults])


def test_quantized_tensors_without_a_config_are_refused(
    checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    folder = broken(checkpoints["nvfp4"], tmp_path, lambda _: None)
    config = json.loads((folder / "config.json").read_text())
    # where vLLM, too, would find it
    config["text_config"]["quantization_config"] = config.pop("quantization_config")
    (folder / "config.json").write_text(json.dumps(config))
    assert load_backbone(open_checkpoint(folder), torch.bfloat16, CPU).arithmetic == "w4a4"
    del config["text_config"]["quantization_config"]
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=r"config\.json says bf16"):
        load_backbone(open_checkpoint(folder), torch.bfloat16, CPU)
