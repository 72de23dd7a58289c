"""Folders as ModelOpt's export lays them out, made from its public layout, without our code.

A factor of a whole tensor is amax / (6 · 448) in F32; a group's is E4M3(amax / (6 · factor)); codes
are nearest E2M1 numbers, two to a byte, the earlier in the low half. Linears with one input share
the largest amax, as its export unifies them.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
# the mantissa bit of a code; between two numbers the even one wins
SHARED = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"), ("in_proj_qkv", "in_proj_z"))
VERSION = "0.39.0"


def nearest_e2m1(values: Tensor) -> Tensor:
    """Codes without sign, ties to even."""
    distance = (values.unsqueeze(-1) - E2M1).abs()
    least = distance.amin(-1, keepdim=True)
    at = distance == least
    even = at & (torch.arange(8) % 2 == 0)
    return torch.where(even.any(-1), even.int().argmax(-1), at.int().argmax(-1))


def pack_nvfp4(weight: Tensor, factor: Tensor) -> tuple[Tensor, Tensor]:
    """Packed codes and group scales of one weight."""
    groups = weight.float().unflatten(-1, (-1, 16))
    scale = groups.abs().amax(-1) / (6.0 * factor)
    scale[scale == 0] = 1.0
    scale = scale.clamp(2**-9, 448).to(torch.float8_e4m3fn)
    values = groups / (scale.float() * factor).unsqueeze(-1)
    codes = nearest_e2m1(values.abs().clamp(max=6.0)) + 8 * (values < 0)
    flat = codes.flatten(-2).to(torch.uint8)
    return flat[..., 0::2] | (flat[..., 1::2] << 4), scale


def dequantized(tensors: dict[str, Tensor], module: str) -> Tensor:
    """BF16 weights as ModelOpt's own dequantization gives them: code · (group scale · factor)."""
    packed = tensors[f"{module}.weight"]
    if packed.dtype == torch.float8_e4m3fn:
        scale = tensors[f"{module}.weight_scale"]
        return (packed.float() * (scale.unsqueeze(-1) if scale.ndim else scale)).bfloat16()
    codes = torch.stack([packed & 15, packed >> 4], -1).flatten(-2).long()
    values = E2M1[codes & 7] * torch.where(codes & 8 > 0, -1.0, 1.0)
    scale = tensors[f"{module}.weight_scale"].float() * tensors[f"{module}.weight_scale_2"]
    return (values.unflatten(-1, (-1, 16)) * scale.unsqueeze(-1)).flatten(-2).bfloat16()


def quantizable(module: str) -> bool:
    inside = module.startswith("model.language_model.layers")
    leaf = module.rpartition(".")[2]
    return inside and leaf.endswith(("_proj", "in_proj_qkv", "in_proj_z"))


def build_modelopt(
    source: Path,
    out: Path,
    kind: Callable[[str], str] | str = "NVFP4",
    *,
    shared: bool = True,
    where: str = "both",
    invertible: bool = False,
) -> Path:
    """A copy of a BF16 release in ModelOpt's layout.

    Args:
        source: In any number of shards.
        out: New folder.
        kind: `NVFP4`, `W4A16_NVFP4`, `FP8` or `FP8_PER_CHANNEL_PER_TOKEN`, or one for each module.
        shared: Whether members of a fused product share their factors.
        where: Files that say it: `both`, `config.json` or `hf_quant_config.json`.
        invertible: Take the next factor that is the F32 reciprocal of its own F32 reciprocal.
    """
    shutil.copytree(source, out, ignore=shutil.ignore_patterns("model*.safetensors*"))
    tensors = load_weights(source)
    source_weights = dict(tensors)
    modules = [n.removesuffix(".weight") for n in tensors if n.endswith(".weight")]
    kinds = {m: kind if isinstance(kind, str) else kind(m) for m in modules if quantizable(m)}
    for module, algorithm in kinds.items():
        weight = tensors.pop(f"{module}.weight")
        own = weight.float().abs().max()
        amax = own
        for leaves in SHARED if shared else ():
            parent, _, leaf = module.rpartition(".")
            if leaf in leaves:
                ours = [source_weights[f"{parent}.{other}.weight"] for other in leaves]
                amax = torch.stack([one.float().abs().max() for one in ours]).max()
        tensors |= {
            f"{module}.{suffix}": value
            for suffix, value in _stored(weight, amax, algorithm, input_amax(module)).items()
        }
    if invertible:
        names = [n for n in tensors if n.endswith(("weight_scale_2", "input_scale"))]
        tensors |= {name: next_invertible(tensors[name]) for name in names}
    save_file(
        {name: value.contiguous() for name, value in tensors.items()},
        out / "model.safetensors",
        metadata={"format": "pt"},
    )
    # wildcards only at the end, as the export sums up what it left out
    gates = [m for m in modules if m.endswith(("in_proj_a", "in_proj_b"))]
    say(out, kinds, ["lm_head", "model.visual*", *gates], where)
    return out


def next_invertible(factor: Tensor) -> Tensor:
    while 1 / (1 / factor) != factor:
        factor = torch.nextafter(factor, torch.tensor(1.0))
    return factor


def load_weights(folder: Path) -> dict[str, Tensor]:
    """Every tensor of a folder's shards."""
    found: dict[str, Tensor] = {}
    for shard in sorted(folder.glob("model*.safetensors")):
        found |= load_file(shard)
    return found


def input_amax(module: str) -> float:
    """A calibrated largest input; Linears of one input have the same."""
    layer, leaf = module.split(".layers.")[1].split(".", 1)
    place = leaf.rpartition(".")[2][:1] if leaf.endswith(("o_proj", "down_proj")) else leaf[:4]
    return 6.0 + 0.31 * int(layer) + 0.7 * (sum(map(ord, place)) % 5)


def _stored(weight: Tensor, amax: Tensor, algorithm: str, inputs: float) -> dict[str, Tensor]:
    if "NVFP4" in algorithm:
        factor = amax / (6.0 * 448.0)
        packed, scale = pack_nvfp4(weight, factor)
        found = {"weight": packed, "weight_scale": scale, "weight_scale_2": factor}
        if algorithm == "NVFP4":
            found["input_scale"] = torch.tensor(inputs) / (6 * 448)
        return found
    if algorithm == "FP8":
        scale = amax / 448.0
        codes = (weight / scale).to(torch.float8_e4m3fn)
        return {"weight": codes, "weight_scale": scale, "input_scale": torch.tensor(inputs) / 448}
    scale = weight.float().abs().amax(-1) / 448.0
    codes = (weight.float() / scale.unsqueeze(-1)).to(torch.float8_e4m3fn)
    return {"weight": codes, "weight_scale": scale}


def say(folder: Path, kinds: dict[str, str], excluded: list[str], where: str) -> None:
    """Writes what was quantized into one or both files."""
    algorithms = set(kinds.values())
    body: dict[str, Any] = {"kv_cache_quant_algo": None}
    if len(algorithms) == 1:
        (algorithm,) = algorithms
        body |= {"quant_algo": algorithm, "exclude_modules": excluded}
        if "NVFP4" in algorithm:
            body["group_size"] = 16
    else:
        body["quant_algo"] = "MIXED_PRECISION"
        body["quantized_layers"] = {m: {"quant_algo": kind} for m, kind in kinds.items()}
    producer = {"name": "modelopt", "version": VERSION}
    if where != "config.json":
        text = json.dumps({"producer": producer, "quantization": body})
        (folder / "hf_quant_config.json").write_text(text)
    if where != "hf_quant_config.json":
        config = json.loads((folder / "config.json").read_text())
        flat = {k: v for k, v in body.items() if k != "exclude_modules"}
        config["quantization_config"] = {
            **flat, "ignore": excluded, "producer": producer, "quant_method": "modelopt",
        }  # fmt: skip
        (folder / "config.json").write_text(json.dumps(config))
