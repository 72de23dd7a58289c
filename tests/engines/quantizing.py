"""Quantized checkpoints for tests, packed by compressed-tensors itself; and slow references.

The references round by searching the table of a format's values: no arithmetic in common with
the code under test.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor

Float = NDArray[np.float64]
E2M1 = np.array([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
# Codes 0 … 126 of E4M3 in order: exponent 0 holds the subnormals, code 127 is NaN.
E4M3 = np.array(
    [
        (code % 8) / 8 * 2.0**-6 if code < 8 else (1 + (code % 8) / 8) * 2.0 ** (code // 8 - 7)
        for code in range(127)
    ]
)
PRESETS = {
    "nvfp4": "NVFP4",
    "nvfp4a16": "NVFP4A16",
    "fp8": "FP8_DYNAMIC",
    "fp8-static": "FP8",
    "int8": "W8A8",
}
INPUT_DIVISOR = 448.0 * 6.0 / 9.0
INPUT_SCALE = 9.0 / 448.0


def nearest(values: Float, table: Float) -> Float:
    """Nearest entry of ±table, ties to the even index, saturating."""
    size = np.minimum(np.abs(values), table[-1])
    distance = np.abs(size[..., None] - table)
    tied = distance == distance.min(axis=-1, keepdims=True)
    odd = np.arange(len(table)) % 2
    index = np.where(tied, odd, 2).argmin(axis=-1)
    return np.copysign(table[index], values)


def reference_nvfp4(inputs: Float, divisor: float) -> Float:
    """Dequantized NVFP4 inputs, group by group, in float64."""
    out = np.zeros_like(inputs)
    for row in range(inputs.shape[0]):
        for start in range(0, inputs.shape[1], 16):
            group = inputs[row, start : start + 16]
            scale = nearest(np.array([divisor * np.abs(group).max() / 6.0]), E4M3)[0]
            if scale > 0:
                codes = nearest(group * divisor / scale, E2M1)
                out[row, start : start + 16] = codes * scale / divisor
    return out


def reference_fp8(inputs: Float, scale: Float) -> Float:
    """Dequantized FP8 inputs for given scales, [tokens, 1] or scalar."""
    return nearest(inputs / scale, E4M3) * scale


def reference_int8(inputs: Float) -> Float:
    """Dequantized INT8 inputs, one symmetric scale per token."""
    scale = np.abs(inputs).max(axis=-1, keepdims=True) / 127.0
    return np.rint(np.divide(inputs, scale, out=np.zeros_like(inputs), where=scale > 0)) * scale


def token_scales(inputs: Float) -> Float:
    """amax / 448 per row, not below the kernels' floor."""
    return np.maximum(np.abs(inputs).max(axis=-1, keepdims=True) / 448.0, 1 / (448.0 * 512.0))


def reference_weight(tensors: dict[str, Tensor], module: str) -> Float:
    """A stored layer's weight in float64, decoded nibble by nibble."""
    if f"{module}.weight" in tensors:
        scale = tensors[f"{module}.weight_scale"].double().reshape(-1, 1).numpy()
        if tensors[f"{module}.weight"].dtype == torch.int8:
            return tensors[f"{module}.weight"].numpy().astype(np.float64) * scale
        codes = tensors[f"{module}.weight"].view(torch.uint8).numpy()
        signs = np.where(codes & 0x80, -1.0, 1.0)
        return signs * E4M3[codes & 0x7F] * scale
    packed = tensors[f"{module}.weight_packed"].numpy()
    codes = np.stack([packed & 0xF, packed >> 4], axis=-1).reshape(packed.shape[0], -1)
    values = np.where(codes & 8, -1.0, 1.0) * E2M1[codes & 7]
    scales = E4M3[tensors[f"{module}.weight_scale"].view(torch.uint8).numpy()]
    divisor = float(tensors[f"{module}.weight_global_scale"])
    return values * np.repeat(scales, 16, axis=1) / divisor


def is_quantizable(module: str) -> bool:
    """The Linears that the schemes quantize."""
    inside = module.startswith("model.language_model.layers")
    leaves = ("_proj", "in_proj_qkv", "in_proj_z")
    return inside and module.endswith(leaves) and not module.endswith(("proj_a", "proj_b"))


def quantize_release(source: Path, out: Path, kind_of: Callable[[str], str | None]) -> Path:
    """Copies a BF16 checkpoint with some Linears quantized to nearest.

    Args:
        source: BF16 checkpoint with one `model.safetensors`.
        out: New folder.
        kind_of: Module to a key of `PRESETS`, or None to leave it.
    """
    shutil.copytree(source, out)
    tensors = load_file(source / "model.safetensors")
    chosen: dict[str, str] = {}
    for name in list(tensors):
        module, _, leaf = name.rpartition(".")
        kind = kind_of(module) if leaf == "weight" and is_quantizable(module) else None
        if kind is not None:
            chosen[module] = kind
            packed = _pack(tensors.pop(name), kind)
            tensors |= {f"{module}.{key}": value for key, value in packed.items()}
    save_file(
        {name: value.contiguous() for name, value in tensors.items()},
        out / "model.safetensors",
        metadata={"format": "pt"},
    )
    config = json.loads((out / "config.json").read_text())
    config["quantization_config"] = _config(chosen)
    (out / "config.json").write_text(json.dumps(config))
    return out


def with_inputs_to(amax: float, folder: Path, out: Path) -> Path:
    """A copy of a checkpoint whose input scales cover magnitudes up to `amax`."""
    shutil.copytree(folder, out)
    tensors = load_file(out / "model.safetensors")
    for name in tensors:
        if name.endswith("input_global_scale"):
            tensors[name] = torch.tensor([448.0 * 6.0 / amax])
        elif name.endswith("input_scale"):
            tensors[name] = torch.tensor([amax / 448.0])
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    return out


def _pack(weight: Tensor, kind: str) -> dict[str, Tensor]:
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import preset_name_to_scheme
    from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam

    scheme = preset_name_to_scheme(PRESETS[kind], ["Linear"])
    state = {"weight": weight}
    if kind in ("nvfp4", "nvfp4a16"):
        groups = weight.float().unflatten(-1, (-1, 16))
        divisor = generate_gparam(weight.float().min(), weight.float().max())
        state["weight_global_scale"] = divisor.to(torch.bfloat16).float()
        low, high = groups.amin(-1), groups.amax(-1)
        if kind == "nvfp4":
            state["input_global_scale"] = torch.tensor([INPUT_DIVISOR])
        name = "nvfp4-pack-quantized"
    else:
        state["weight_global_scale"] = None  # type: ignore[assignment]
        values = weight.float()
        low, high = values.amin(-1, keepdim=True), values.amax(-1, keepdim=True)
        if kind == "fp8-static":
            low, high = values.min(), values.max()
        name = "int-quantized" if kind == "int8" else "float-quantized"
    scale, _ = calculate_qparams(low, high, scheme.weights, state["weight_global_scale"])
    # llm-compressor stores FP8 scales in the model's type.
    state["weight_scale"] = scale.to(torch.bfloat16) if name != "nvfp4-pack-quantized" else scale
    if state["weight_global_scale"] is None:
        del state["weight_global_scale"]
    packed = BaseCompressor.get_value_from_registry(name).compress(state, scheme)
    if kind == "fp8-static":
        packed["input_scale"] = torch.tensor([INPUT_SCALE])
    return {key: value for key, value in packed.items() if value is not None}


def _config(chosen: dict[str, str]) -> dict[str, object]:
    from compressed_tensors.quantization import preset_name_to_scheme

    groups = {}
    for index, kind in enumerate(sorted(set(chosen.values()))):
        targets = [f"re:^{module}$" for module, k in chosen.items() if k == kind]
        scheme = preset_name_to_scheme(PRESETS[kind], targets)
        form = {"fp8": "float-quantized", "int8": "int-quantized"}.get(
            kind.removesuffix("-static"), "nvfp4-pack-quantized"
        )
        groups[f"group_{index}"] = {**json.loads(scheme.model_dump_json()), "format": form}
    return {
        "quant_method": "compressed-tensors",
        "config_groups": groups,
        "quantization_status": "compressed",
    }
