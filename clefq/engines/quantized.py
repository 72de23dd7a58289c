"""Quantized layers of a checkpoint: which there are, in which format, and their stored tensors.

Reads the compressed-tensors layouts itself, from the tensors on disk:

- NVFP4: `weight_packed` (uint8, two E2M1 codes a byte), `weight_scale` (E4M3 per group of 16),
  `weight_global_scale` (divisor); `input_global_scale` (divisor) where activations are FP4 too.
- INT8: `weight` (int8), `weight_scale` per output channel; activations per token.
- INT4: `weight_packed` (int32, eight codes a number), `weight_scale` per group of 128.
- FP8: `weight` (E4M3), `weight_scale` (per output channel or for the tensor); activations per
  token, or `input_scale` for the whole tensor.

A serving engine fuses some layers into one product with one global scale and takes the largest
divisor of the members. So does this reader: a checkpoint whose members differ is run as it would
be served, with a warning that names `clefq repair`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from clefq.clef.config_match import ModuleFormat, misread, module_formats
from clefq.clef.family import fused_groups
from clefq.clef.formats import FORMATS, PACKED_FP4, PLAIN_FP8, PLAIN_INT8, Arithmetic, coarsest
from clefq.clef.small_floats import NVFP4_GROUP
from clefq.engines.simulation import (
    ChannelWeight,
    Fp8StaticInputs,
    Fp8TokenInputs,
    InputQuantizer,
    Int4Weight,
    Int8TokenInputs,
    KeepInputs,
    Nvfp4Inputs,
    Nvfp4Weight,
    QuantizedWeight,
)
from clefq.errors import CheckpointError

if TYPE_CHECKING:
    from clefq.clef.checkpoint import Checkpoint

ReadTensor = Callable[[str], Tensor]

_INT4_GROUP = FORMATS["int4"].weights.group or 1
_FIX = "predict with `--engine vllm`, or quantize with a scheme of `clefq quantize`."


@dataclass(frozen=True, slots=True)
class StoredLayer:
    """One quantized layer as it will run.

    Attributes:
        weight: Its weight.
        quantizer: What happens to its inputs.
    """

    weight: QuantizedWeight
    quantizer: InputQuantizer


def find_layers(checkpoint: Checkpoint) -> dict[str, str]:
    """Module name to format for every quantized layer; empty for a BF16 checkpoint.

    Raises:
        CheckpointError: A format that is not simulated here, or a layer that lacks a tensor.
    """
    config = checkpoint.quantization_config or {}
    if config.get("kv_cache_scheme"):
        raise CheckpointError(f"{checkpoint.folder} quantizes the KV cache.", fix=_FIX)
    leaves: dict[str, set[str]] = defaultdict(set)
    for name in checkpoint.tensors:
        module, _, leaf = name.rpartition(".")
        leaves[module].add(leaf)
    layers: dict[str, str] = {}
    stated = _stated(checkpoint, [m for m in leaves if _is_linear(checkpoint, m)])
    faults = [f"config.json {fault}" for fault in misread(config)]
    for module, present in leaves.items():
        kind = _kind(checkpoint, module, present)
        said = stated.get(module)
        if kind == "unknown" or (module in stated and said is None):
            faults.append(f"{module}: this format or its activations are not simulated")
        elif kind is not None:
            layers[module] = kind
            faults += _gaps(checkpoint, module, kind, present)
        if kind not in ("unknown", said) and not (module in stated and said is None):
            faults.append(
                f"{module} is stored as {kind or 'bf16'}, config.json says {said or 'bf16'}"
            )
    if faults:
        raise CheckpointError(f"{checkpoint.folder}: {faults[0]}.", fix=_FIX, faults=faults[1:5])
    return layers


def _is_linear(checkpoint: Checkpoint, module: str) -> bool:
    """Whether a module may be a quantized Linear: not the output embedding, and no embedding."""
    if f"{module}.weight_packed" in checkpoint.tensors:
        return True
    weight = checkpoint.tensors.get(f"{module}.weight")
    named = module.rpartition(".")[2] in ("lm_head", "embed_tokens", "pos_embed")
    return weight is not None and len(weight.shape) == 2 and not named


def _kind(checkpoint: Checkpoint, module: str, present: set[str]) -> str | None:
    """What the tensors of a module are; `input_scale` alone tells the two kinds of FP8 apart."""
    if present & {"weight_zero_point", "weight_g_idx"}:
        return "unknown"
    if "weight_packed" in present:
        if checkpoint.tensors[f"{module}.weight_packed"].dtype == "I32":
            return "int4"
        return "nvfp4" if "input_global_scale" in present else "nvfp4a16"
    dtype = checkpoint.tensors[f"{module}.weight"].dtype if "weight" in present else None
    if dtype == "I8":
        return "int8" if "input_scale" not in present else "unknown"
    if dtype != "F8_E4M3":
        return None
    return "fp8-static" if "input_scale" in present else "fp8"


def _stated(checkpoint: Checkpoint, modules: Iterable[str]) -> dict[str, str | None]:
    """What the config says of each module that it quantizes; None for what is not simulated.

    A serving engine goes by this, whatever the tensors are.
    """
    config = checkpoint.quantization_config
    if config is None:
        return {}
    try:
        schemes = module_formats(config, modules)
    except ValueError as error:
        raise CheckpointError(f"{checkpoint.folder / 'config.json'}: {error}.", fix=_FIX) from error
    return {module: _kind_of(scheme) for module, scheme in schemes.items()}


def _kind_of(scheme: ModuleFormat) -> str | None:
    inputs = scheme.activations
    if scheme.type == "int":
        return _integers(scheme)
    if scheme.bits == 4:
        return "nvfp4a16" if inputs is None else "nvfp4"
    if inputs is None or scheme.bits != 8:
        return None
    if inputs[1] is False:
        return "fp8-static"
    return "fp8" if inputs[1] is True and scheme.input_strategy == "token" else None


def _integers(scheme: ModuleFormat) -> str | None:
    row = scheme.weights_format
    if row is None or scheme.input_strategy not in (None, "token"):
        return None
    inputs = None if row.inputs is None else (row.inputs.bits, row.inputs.dynamic)
    return row.name if scheme.activations == inputs else None


def _gaps(checkpoint: Checkpoint, module: str, kind: str, present: set[str]) -> list[str]:
    known = FORMATS[kind].suffixes
    found = [f"{module} lacks {leaf}" for leaf in known if leaf not in present]
    found += [f"{module} has an unknown tensor {leaf}" for leaf in present - {*known} - {"bias"}]
    scale = checkpoint.tensors.get(f"{module}.weight_scale")
    if FORMATS[kind].storage is PACKED_FP4 and scale is not None and scale.dtype != "F8_E4M3":
        found.append(f"{module}: group scales of type {scale.dtype} are not simulated")
    if kind == "int4" and scale is not None:
        rows, packed = checkpoint.tensors[f"{module}.weight_packed"].shape
        if tuple(scale.shape) != (rows, -(-8 * packed // _INT4_GROUP)):
            found.append(f"{module}: INT4 scales of shape {list(scale.shape)} are not simulated")
    if FORMATS[kind].storage in (PLAIN_FP8, PLAIN_INT8) and scale is not None:
        rows = checkpoint.tensors[f"{module}.weight"].shape[0]
        if tuple(scale.shape) not in ((rows, 1), (rows,), (1,), (), (1, 1)):
            found.append(f"{module}: scales of shape {list(scale.shape)} are not simulated")
    return found


def arithmetic_of(layers: Mapping[str, str]) -> Arithmetic:
    """The coarsest arithmetic among the layers, `bf16` when there is none."""
    found: Arithmetic = coarsest(FORMATS[name].arithmetic for name in layers.values())
    return found


def served_scales(
    layers: Mapping[str, str],
    read: ReadTensor,
    choose: Callable[[Iterable[float]], float] = max,
) -> tuple[dict[str, float], list[str]]:
    """Global divisors (`module.weight_global_scale` → value) as a serving engine applies them.

    Args:
        layers: From `find_layers`.
        read: Name of a tensor to the tensor.
        choose: What the engine takes where members of a fused group differ.

    Returns:
        The divisors, and one warning per fused group whose members differ.

    Raises:
        CheckpointError: A divisor that is not positive and finite.
    """
    scales: dict[str, float] = {}
    for module, kind in layers.items():
        for leaf in FORMATS[kind].suffixes:
            if leaf.endswith("_global_scale"):
                scales[f"{module}.{leaf}"] = _positive(read(f"{module}.{leaf}"), module, leaf)
    warnings = []
    for group in fused_groups(layers):
        for leaf in ("weight_global_scale", "input_global_scale"):
            keys = [f"{m}.{leaf}" for m in group.members if f"{m}.{leaf}" in scales]
            values = {scales[key] for key in keys}
            if len(values) > 1:
                warnings.append(f"{group.name}: members differ in {leaf}")
                scales.update(dict.fromkeys(keys, choose(values)))
    return scales, warnings


def _positive(tensor: Tensor, module: str, leaf: str) -> float:
    value = float(tensor.to(torch.float32).reshape(-1)[0])
    if not 0.0 < value < float("inf"):
        raise CheckpointError(
            f"{module}.{leaf} is {value}.",
            fix="quantize the checkpoint again.",
        )
    return value


def read_layer(
    module: str, kind: str, read: ReadTensor, scales: Mapping[str, float]
) -> StoredLayer:
    """Reads one layer.

    Args:
        module: Module name.
        kind: Its format.
        read: Name of a tensor to the tensor, on the device where it will run.
        scales: From `served_scales`.
    """
    if kind == "int4":
        codes = read(f"{module}.weight_packed")
        return StoredLayer(
            Int4Weight(codes, read(f"{module}.weight_scale"), codes.shape[1] * 8), KeepInputs()
        )
    if FORMATS[kind].storage in (PLAIN_FP8, PLAIN_INT8):
        return _read_channels(module, kind, read)
    packed = read(f"{module}.weight_packed")
    divisor = torch.tensor(scales[f"{module}.weight_global_scale"], device=packed.device)
    columns = packed.shape[1] * 2
    if columns % NVFP4_GROUP:
        raise CheckpointError(f"{module}: {columns} input features are no multiple of 16.")
    weight = Nvfp4Weight(packed, read(f"{module}.weight_scale"), divisor, columns)
    if kind == "nvfp4a16":
        return StoredLayer(weight, KeepInputs())
    return StoredLayer(weight, Nvfp4Inputs(scales[f"{module}.input_global_scale"]))


def _read_channels(module: str, kind: str, read: ReadTensor) -> StoredLayer:
    codes = read(f"{module}.weight")
    scale = read(f"{module}.weight_scale").to(torch.float32).reshape(-1)
    weight = ChannelWeight(codes, scale if scale.numel() > 1 else scale[0], codes.shape[1])
    if kind == "fp8":
        return StoredLayer(weight, Fp8TokenInputs())
    if kind == "int8":
        return StoredLayer(weight, Int8TokenInputs())
    return StoredLayer(weight, Fp8StaticInputs(float(read(f"{module}.input_scale").max())))
