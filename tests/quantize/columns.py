"""Folders as GPTQ, AWQ and AutoRound pack them, made from the public layouts, without our code.

A code of four bits stands for scale * (code - zero), a scale and a zero per 128 inputs of an
output. GPTQ packs eight inputs of an output into an I32, the first in the lowest bits, and stores
zeros less one; AWQ packs eight outputs of an input in the order 0 2 4 6 1 3 5 7, zeros alike.
Matrices are stored with the inputs first. AutoRound exports GPTQ's packing.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from tests.quantize.modelopt import load_weights, quantizable

GROUP = 128
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
_COMMON: dict[str, Any] = {"bits": 4, "group_size": GROUP}
CONFIGS: dict[str, dict[str, Any]] = {
    "gptq": {"quant_method": "gptq", "sym": True, "desc_act": False, "lm_head": False},
    "awq": {"quant_method": "awq", "version": "gemm", "zero_point": True},
    "auto-round": {
        "quant_method": "auto-round",
        "packing_format": "auto_round:auto_gptq",
        "sym": True,
        "data_type": "int",
        "block_name_to_quantize": "model.language_model.layers",
    },
}


def build_columns(source: Path, out: Path, kind: str) -> dict[str, Tensor]:
    """A copy of a BF16 release, packed.

    Args:
        source: In any number of shards.
        out: New folder.
        kind: `gptq`, `awq` or `auto-round`.

    Returns:
        The weights that the codes stand for, by tensor name, for a copy in BF16.
    """
    shutil.copytree(source, out, ignore=shutil.ignore_patterns("model*.safetensors*"))
    tensors, meant = load_weights(source), {}
    modules = [name.removesuffix(".weight") for name in tensors if quantizable_name(name)]
    for module in modules:
        weight = tensors.pop(f"{module}.weight").float().T  # [inputs, outputs]
        codes, zeros, scales = _round(weight, symmetric=kind != "awq")
        spread = [one.repeat_interleave(GROUP, 0) for one in (zeros, scales)]
        meant[f"{module}.weight"] = (spread[1] * (codes - spread[0])).T.bfloat16().contiguous()
        tensors |= {f"{module}.{suffix}": v for suffix, v in _packed(codes, zeros, kind).items()}
        tensors[f"{module}.scales"] = scales.half()
    save_file(
        {name: value.contiguous() for name, value in tensors.items()},
        out / "model.safetensors",
        metadata={"format": "pt"},
    )
    config = json.loads((out / "config.json").read_text())
    section = {**_COMMON, **CONFIGS[kind]}
    left = ["in_proj_a", "in_proj_b"]
    if kind == "awq":
        section["modules_to_not_convert"] = [*left, "visual", "lm_head"]
    if kind == "auto-round":
        gates = [n.removesuffix(".weight") for n in tensors if n.split(".")[-2] in left]
        section["extra_config"] = {gate: {"bits": 16, "data_type": "float"} for gate in gates}
    (out / "config.json").write_text(json.dumps({**config, "quantization_config": section}))
    return meant


def in_bf16(source: Path, out: Path, meant: dict[str, Tensor]) -> Path:
    """The unpacked twin: a release with the weights that the codes stand for."""
    shutil.copytree(source, out, ignore=shutil.ignore_patterns("model*.safetensors*"))
    save_file({**load_weights(source), **meant}, out / "model.safetensors")
    return out


def quantizable_name(name: str) -> bool:
    return name.endswith(".weight") and quantizable(name.removesuffix(".weight"))


def _round(weight: Tensor, *, symmetric: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Codes [inputs, outputs], zeros and scales [groups, outputs]; scales fit BF16 and FP16."""
    groups = weight.unflatten(0, (-1, GROUP))
    low, high = groups.amin(1), groups.amax(1)
    span = 2 * torch.maximum(high, -low) if symmetric else high.clamp(min=0) - low.clamp(max=0)
    scales = (span / 15).clamp(min=2**-14).bfloat16().float()
    zeros = torch.full_like(scales, 8) if symmetric else (-low / scales).round().clamp(0, 15)
    codes = (groups / scales.unsqueeze(1)).round() + zeros.unsqueeze(1)
    return codes.clamp(0, 15).flatten(0, 1), zeros, scales


def _packed(codes: Tensor, zeros: Tensor, kind: str) -> dict[str, Tensor]:
    if kind == "awq":
        return {"qweight": _pack(codes, 1, AWQ_ORDER), "qzeros": _pack(zeros, 1, AWQ_ORDER)}
    found = {"qweight": _pack(codes, 0), "qzeros": _pack(zeros - 1, 1)}
    if kind == "gptq":
        found["g_idx"] = torch.arange(len(codes), dtype=torch.int32) // GROUP
    return found


def _pack(values: Tensor, dim: int, order: tuple[int, ...] = tuple(range(8))) -> Tensor:
    """Eight numbers of four bits to an I32 along one axis; `order` names who lies where."""
    eights = values.long().unflatten(dim, (-1, 8))
    words = sum(eights.select(dim + 1, who) << (4 * place) for place, who in enumerate(order))
    assert isinstance(words, Tensor)
    return torch.where(words >= 2**31, words - 2**32, words).int()
