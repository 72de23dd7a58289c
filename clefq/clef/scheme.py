"""Names the quantization scheme of a checkpoint from its config and its tensors (torch-free)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from clefq.clef.tensor_files import TensorInfo

# Suffixes under which compressed-tensors stores quantized weights.
_PACKED = (".weight_packed", ".weight_scale")


def scheme_from_config(
    quantization_config: Mapping[str, Any] | None, tensors: Mapping[str, TensorInfo]
) -> str:
    """`bf16`, `fp8`, `nvfp4`, `nvfp4a16`, `nvfp4-mlp`, `mixed`, `mixed-a16` or `unknown`.

    `mixed` holds 4-bit activations in some layer, `mixed-a16` in none; `unknown` is anything else.

    Args:
        quantization_config: As in `config.json`, in the compressed-tensors form; None if absent.
        tensors: The backbone's tensors: what is quantized in fact decides between `nvfp4` and
            `nvfp4-mlp`, and a config without quantized tensors (or the reverse) is `unknown`.
    """
    modules = {
        name.removesuffix(suffix) for name in tensors for suffix in _PACKED if name.endswith(suffix)
    }
    if quantization_config is None:
        return "bf16" if not modules and _mostly_bf16(tensors) else "unknown"
    groups = quantization_config.get("config_groups")
    method = quantization_config.get("quant_method")
    if method != "compressed-tensors" or not isinstance(groups, dict) or not modules:
        return "unknown"
    kinds = {_kind(group) for group in groups.values()}
    if "unknown" in kinds or not kinds:
        return "unknown"
    if len(kinds) > 1:
        # what a mixture means to run is what its coarsest part means
        return "mixed" if "nvfp4" in kinds else "mixed-a16"
    kind = kinds.pop()
    if kind == "nvfp4" and all(".mlp." in module for module in modules):
        return "nvfp4-mlp"
    return kind


def _kind(group: Any) -> str:
    weights = group.get("weights") if isinstance(group, dict) else None
    if not isinstance(weights, dict) or weights.get("type") != "float":
        return "unknown"
    inputs = group.get("input_activations")
    bits = (weights.get("num_bits"), inputs.get("num_bits") if isinstance(inputs, dict) else None)
    if bits == (8, 8):
        return "fp8"
    if weights.get("group_size") != 16:  # the other 4-bit float format has groups of 32
        return "unknown"
    if bits == (4, 4):
        return "nvfp4"
    return "nvfp4a16" if bits == (4, None) else "unknown"


def _mostly_bf16(tensors: Mapping[str, TensorInfo]) -> bool:
    total = sum(info.nbytes for info in tensors.values())
    return 2 * sum(info.nbytes for info in tensors.values() if info.dtype == "BF16") > total
