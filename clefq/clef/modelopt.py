"""Checkpoints of NVIDIA's ModelOpt, read as what they are in compressed-tensors' terms.

Both libraries store the same numbers under other names: E2M1 codes two to a byte (the earlier
column in the low half), E4M3 scales per group of 16, one F32 scale a tensor; E4M3 codes with F32
scales. ModelOpt's scales of a whole tensor are factors (amax / 2688), compressed-tensors' are
divisors (2688 / amax):

| format | ModelOpt | compressed-tensors |
|---|---|---|
| NVFP4 | `weight`, `weight_scale` | `weight_packed`, `weight_scale` |
| | `weight_scale_2`, `input_scale` | `weight_global_scale`, `input_global_scale`: reciprocals |
| FP8 | `weight`, `weight_scale` [], `input_scale` [] | the same, [1] |
| FP8 per channel | `weight_scale` [rows] | `weight_scale` [rows, 1] |

What it quantized stands in `config.json` (`quant_method: modelopt`) or in `hf_quant_config.json`.
Layout after ModelOpt 0.39 and vLLM's loader of it (0.25 to 0.33). Needs no torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np

from clefq.clef.config_match import quantization_of
from clefq.clef.family import FAMILY, served_name
from clefq.clef.formats import FORMATS, PACKED_FP4, Format, Numbers
from clefq.clef.tensor_files import HeldTensor, TensorInfo
from clefq.errors import CheckpointError
from clefq.plain_files import read_json

METHOD = "modelopt"
CONFIG_FILE = "hf_quant_config.json"
MIXED = "MIXED_PRECISION"
# ModelOpt's algorithm to the format that it is.
ALGORITHMS: dict[str, Format] = {
    "NVFP4": FORMATS["nvfp4"],
    "W4A16_NVFP4": FORMATS["nvfp4a16"],
    "FP8": FORMATS["fp8-static"],
    "FP8_PER_CHANNEL_PER_TOKEN": FORMATS["fp8"],
}
# What compressed-tensors, or clefq, has nothing for, and what that is.
FOREIGN: dict[str, str] = {
    "NVFP4_AWQ": "inputs are multiplied by a pre_quant_scale",
    "NVFP4_SVD": "a low-rank product is added to every Linear",
    "W4A16_AWQ": "inputs are multiplied by a pre_quant_scale",
    "W4A8_AWQ": "inputs are multiplied by a pre_quant_scale",
    "W8A8_SQ_PER_CHANNEL": "inputs are multiplied by a pre_quant_scale",
    "FP8_PB_WO": "FP8 with a scale per tile",
    "MXFP8": "FP8 with a power of two per 32",
    "W4A8_NVFP4_FP8": "4-bit weights, FP8 activations",
    "W4A8_MXFP4_FP8": "4-bit weights, FP8 activations",
}
CACHE_SCALES = (".k_scale", ".v_scale")
_DRAFTS = "re:.*mtp.*"
# The version whose conventions the translated config follows: what vLLM 0.28 to 0.33 pin.
_CONVENTIONS = "0.17.0"
_FIX = "download the folder again; it is what ModelOpt's export writes, or what vLLM reads."


@dataclass(frozen=True, slots=True)
class ModelOpt:
    """What ModelOpt says of a checkpoint.

    Attributes:
        where: The file that says it; vLLM asks `config.json` first.
        algorithm: In its words, upper case: `NVFP4`, `FP8`, `MIXED_PRECISION`, …
        excluded: Names and wildcards of modules that are not quantized.
        layers: For mixed precision: module to its algorithm.
        cache: How the KV cache is quantized, or None.
        version: Of ModelOpt, or None.
    """

    where: str
    algorithm: str
    excluded: tuple[str, ...] = ()
    layers: Mapping[str, str] = field(default_factory=dict)
    cache: str | None = None
    version: str | None = None

    @property
    def unread(self) -> tuple[str, ...]:
        """Its algorithms that are not read here."""
        named = set(self.layers.values()) if self.algorithm == MIXED else {self.algorithm}
        return tuple(sorted(named - ALGORITHMS.keys()))

    @property
    def title(self) -> str:
        """In messages: `ModelOpt 0.39.0, NVFP4`."""
        name = "ModelOpt" if self.version is None else f"ModelOpt {self.version}"
        return f"{name}, {self.algorithm}"

    def format_of(self, module: str) -> Format | None:
        """The format of a Linear, or None where it stays as it is.

        Args:
            module: Name in the checkpoint.
        """
        if self.algorithm == MIXED:
            return ALGORITHMS.get(self.layers.get(module, ""))
        return None if self.excludes(module) else ALGORITHMS.get(self.algorithm)

    def excludes(self, module: str) -> bool:
        """Whether vLLM leaves a module out: by wildcard, or by a part of its name."""
        names = (module, served_name(module))
        return any(
            fnmatchcase(name, entry) or ("*" not in entry and entry in name)
            for entry in self.excluded
            for name in names
        )


@dataclass(frozen=True, slots=True)
class Translated:
    """A ModelOpt checkpoint in compressed-tensors' terms.

    Attributes:
        config: Its `quantization_config`.
        tensors: Every tensor, in file order, under compressed-tensors' names.
        inexact: Modules whose `weight_scale_2` is the reciprocal of no F32 number.
        dropped: Tensors that the format has no place for.
    """

    config: dict[str, Any]
    tensors: dict[str, TensorInfo]
    inexact: tuple[str, ...]
    dropped: tuple[str, ...]


def find(folder: Path, config: Mapping[str, Any]) -> ModelOpt | None:
    """What ModelOpt says of a folder; None where it was not its maker.

    Args:
        folder: The checkpoint.
        config: Its `config.json`.

    Raises:
        CheckpointError: It says something that neither vLLM nor clefq can read, or its two files
            disagree.
    """
    block = quantization_of(config)
    named = block.get("quant_method") if isinstance(block, Mapping) else None
    inner = _parse(folder, "config.json", block) if _is_ours(named) else None
    path = folder / CONFIG_FILE
    if named is not None and inner is None:
        return None
    outer = _parse(folder, CONFIG_FILE, read_json(path)) if path.is_file() else None
    if inner is None or outer is None:
        return inner or outer
    if (inner.algorithm, inner.layers) != (outer.algorithm, outer.layers):
        raise CheckpointError(
            f"{folder}: config.json says {inner.algorithm}, {CONFIG_FILE} says {outer.algorithm}.",
            fix=_FIX,
        )
    return inner


def _is_ours(method: Any) -> bool:
    return isinstance(method, str) and method.lower().startswith(METHOD)


def _parse(folder: Path, name: str, body: Any) -> ModelOpt:
    """Either form: `{"quantization": {…}}`, or the flat one of `config.json`."""
    outer = body if isinstance(body, Mapping) else {}
    nested = outer.get("quantization")
    values = nested if isinstance(nested, Mapping) else outer
    algorithm = values.get("quant_algo")
    excluded = values.get("exclude_modules" if values is nested else "ignore") or []
    layers = values.get("quantized_layers") or {}
    faults = []
    if not isinstance(algorithm, str) or not algorithm:
        faults.append(f"quant_algo is {algorithm!r}")
    if not isinstance(excluded, list) or not all(isinstance(entry, str) for entry in excluded):
        faults.append("the modules that it leaves out are no list of names")
    if not isinstance(layers, Mapping) or not all(map(_names_algorithm, layers.values())):
        faults.append("quantized_layers does not name an algorithm for each")
    if faults:
        raise CheckpointError(f"{folder / name}: {faults[0]}.", fix=_FIX, faults=faults[1:])
    producer = outer.get("producer")
    version = producer.get("version") if isinstance(producer, Mapping) else None
    said = str(algorithm).upper()
    if said == "NVFP4" and _weights_alone(outer):
        said = "W4A16_NVFP4"
    return ModelOpt(
        where=name,
        algorithm=said,
        excluded=tuple(excluded),
        layers={module: str(one["quant_algo"]).upper() for module, one in layers.items()},
        cache=_cache(values),
        version=None if version is None else str(version),
    )


def _names_algorithm(layer: Any) -> bool:
    return isinstance(layer, Mapping) and isinstance(layer.get("quant_algo"), str)


def _weights_alone(body: Mapping[str, Any]) -> bool:
    """Whether every config group leaves inputs alone: vLLM runs such an NVFP4 as weight-only."""
    groups = body.get("config_groups")
    return (
        isinstance(groups, Mapping)
        and bool(groups)
        and all(
            isinstance(group, Mapping) and group.get("input_activations") is None
            for group in groups.values()
        )
    )


def _cache(values: Mapping[str, Any]) -> str | None:
    said = values.get("kv_cache_quant_algo") or values.get("kv_cache_scheme")
    if isinstance(said, Mapping):
        return f"{said.get('type')} of {said.get('num_bits')} bits"
    return None if said is None else str(said)


def translate(
    found: ModelOpt, tensors: Mapping[str, TensorInfo], linears: Iterable[str]
) -> Translated:
    """The checkpoint as compressed-tensors would hold it; the bytes stay where they are.

    Args:
        found: What ModelOpt says; `unread` is empty.
        tensors: The folder's tensors.
        linears: Names of all Linears of the model.
    """
    formats = {module: found.format_of(module) for module in linears}
    renamed: dict[str, TensorInfo] = {}
    inexact: list[str] = []
    dropped: list[str] = []
    for name, ref in tensors.items():
        module, _, leaf = name.rpartition(".")
        row = formats.get(module)
        if leaf == "input_scale" and row is not None and row.inputs is None:
            dropped.append(name)  # older exports wrote one for weights alone
            continue
        new = ref if row is None else _translated(ref, module, leaf, row)
        if isinstance(new, HeldTensor) and not new.exact and leaf == "weight_scale_2":
            inexact.append(module)
        renamed[new.name] = new
    return Translated(
        config=_config(found, formats, tensors),
        tensors=renamed,
        inexact=tuple(inexact),
        dropped=tuple(dropped),
    )


def _translated(ref: TensorInfo, module: str, leaf: str, row: Format) -> TensorInfo:
    if row.storage is PACKED_FP4:
        if leaf == "weight" and ref.dtype == "U8":
            return replace(ref, name=f"{module}.weight_packed")
        if leaf in _FACTORS and ref.dtype == "F32" and ref.nbytes == 4:
            return reciprocal(ref, f"{module}.{_FACTORS[leaf]}")
        return ref
    if leaf in ("weight_scale", "input_scale"):
        if ref.shape == ():
            return replace(ref, shape=(1,))
        if leaf == "weight_scale" and row.weights.strategy == "channel" and len(ref.shape) == 1:
            return replace(ref, shape=(*ref.shape, 1))
    return ref


_INPUTS = ".input_global_scale"
_FACTORS = {"weight_scale_2": "weight_global_scale", "input_scale": "input_global_scale"}


def reciprocal(ref: TensorInfo, name: str) -> HeldTensor:
    """A stored factor as a divisor.

    Of a weight: the F32 number whose F32 reciprocal, which engines take, is the factor. About one
    factor in six has none: then the rounded reciprocal, and `exact` is False. Of inputs: the
    rounded reciprocal, by which ModelOpt's loaders multiply as compressed-tensors' by the divisor.

    Args:
        ref: One F32 number.
        name: Of the divisor.
    """
    factor = np.frombuffer(ref.read(), dtype="<f4")[0]
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        divisor, exact = divisor_of(factor)
        if name.endswith(_INPUTS):
            divisor = np.float32(1) / factor
    data = divisor.astype("<f4").tobytes()
    return HeldTensor(name, ref.file, "F32", (1,), 0, 4, data, float(factor), exact)


def divisor_of(factor: np.float32) -> tuple[np.float32, bool]:
    """The F32 number whose F32 reciprocal is a factor, and whether there is one."""
    one = np.float32(1)
    near = one / factor
    for candidate in (
        near,
        np.nextafter(near, np.float32(0)),
        np.nextafter(near, np.float32(9e37)),
    ):
        if one / candidate == factor:
            return candidate, True
    return near, False


def _config(
    found: ModelOpt, formats: Mapping[str, Format | None], tensors: Iterable[str]
) -> dict[str, Any]:
    rows = {row.name: row for row in formats.values() if row is not None}
    groups = {
        f"group_{number}": _group(row, _targets(formats, row, len(rows)))
        for number, row in enumerate(rows.values())
    }
    ignored = [module for module, row in formats.items() if row is None]
    drafts = [name for name in tensors if name.startswith(FAMILY.drafts)]
    if drafts and (found.algorithm == MIXED or found.excludes(drafts[0].rpartition(".")[0])):
        ignored.append(_DRAFTS)
    names = {row.storage.names[0] for row in rows.values()}
    return {
        "config_groups": groups,
        "format": names.pop() if len(names) == 1 else "mixed-precision",
        "ignore": ignored,
        "kv_cache_scheme": None,
        "quant_method": "compressed-tensors",
        "quantization_status": "compressed",
        "version": _CONVENTIONS,
    }


def _targets(formats: Mapping[str, Format | None], row: Format, kinds: int) -> list[str]:
    return ["Linear"] if kinds == 1 else [m for m, other in formats.items() if other is row]


def _group(row: Format, targets: list[str]) -> dict[str, Any]:
    return {
        "format": row.storage.names[0],
        "weights": _arguments(row, row.weights),
        "input_activations": None if row.inputs is None else _arguments(row, row.inputs),
        "output_activations": None,
        "targets": targets,
    }


def _arguments(row: Format, numbers: Numbers) -> dict[str, Any]:
    """`QuantizationArgs` as JSON."""
    scale = {"scale_dtype": "torch.float8_e4m3fn"} if row.storage is PACKED_FP4 else {}
    return {
        "num_bits": numbers.bits,
        "type": numbers.type,
        "strategy": numbers.strategy,
        "group_size": numbers.group,
        "dynamic": numbers.dynamic,
        "symmetric": True,
        **scale,
    }


def unread_lines(found: ModelOpt) -> Iterator[str]:
    """Why each algorithm that is not read is not, one line each."""
    for name in found.unread:
        why = FOREIGN.get(name)
        yield f"{name} ({why})" if why else name
