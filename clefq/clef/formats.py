"""Number formats and schemes: the one table that everything else reads (torch-free).

A format says how one Linear is stored and multiplied; a scheme is a name for a checkpoint's whole
layout. A new format is a row here, its rounding in `clefq.quantize.kernels`, its products in
`clefq.engines.simulation`, a recipe, and its line in the docs.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

if TYPE_CHECKING:
    from clefq.clef.tensor_files import TensorInfo

# Matrix arithmetic as executed, as predictions files state it. `w8a8` is FP8 and `w4a16` is NVFP4:
# names that would collide with another number type carry theirs.
Arithmetic = Literal["bf16", "w8a8", "w8a8-int8", "w4a16", "w4a16-int4", "w4a4", "unknown"]
ARITHMETICS: tuple[Arithmetic, ...] = get_args(Arithmetic)
# `unknown` is what a server runs that does not say; it is never what a scheme means.
# What an engine may run beside these: arithmetic that no scheme means.
EngineArithmetic = Literal[Arithmetic, "w8a16"]
# A checkpoint of several formats is named after the coarsest arithmetic in it.
COARSEST_FIRST: tuple[EngineArithmetic, ...] = (
    "unknown", "w4a4", "w4a16-int4", "w4a16", "w8a8-int8", "w8a8", "w8a16", "bf16",
)  # fmt: skip

Platform = Literal["blackwell", "hopper", "older", "cpu"]
Shape = tuple[int, ...]

# How weights are rounded: to the nearest under amax / 6; to the nearest under the E4M3 group scale
# that rounds best; with errors carried to later columns (GPTQ), under such scales.
ROUNDING_NAMES = ("nearest", "search", "gptq")
# What recipes call the search of group scales: a weight observer of llm-compressor's.
SEARCH_OBSERVER = "clefq_search"

BF16 = "bf16"


def platform_of_capability(major: int, minor: int = 0) -> Platform:
    """What a GPU's compute capability means for FP8 and FP4.

    Four-bit units came with SM 10.0; 11.0 (Thor) and 12.x (desktop Blackwell) have them too.
    """
    if major >= 10:
        return "blackwell"
    return "hopper" if (major, minor) >= (8, 9) else "older"


# Safetensors dtype of what is stored in the model's own.
MODEL_DTYPE = "model"


@dataclass(frozen=True, slots=True)
class Numbers:
    """How weights or activations are rounded, in compressed-tensors' words.

    Attributes:
        bits: Bits per number.
        type: `float` or `int`.
        strategy: What shares a scale: `channel`, `token`, `tensor`, `tensor_group`, `group`, …
        group: Numbers per group, or None.
        dynamic: For activations: True if scales are found at run time, `local` if only those of
            the groups are, False if calibrated.
    """

    bits: int
    type: Literal["float", "int"]
    strategy: str
    group: int | None = None
    dynamic: bool | Literal["local"] = False


@dataclass(frozen=True, slots=True)
class Storage:
    """The tensors that hold a quantized Linear, below the module's name.

    Attributes:
        names: compressed-tensors' names of it, its `format`; the one that is written first.
        codes: Suffix, dtype and numbers per element of the codes.
        scale_dtype: Of `weight_scale`.
        others: Further tensors beside codes and scales: suffix to dtype and shape.
        static_input: Suffix of the calibrated activation scale, where there is one.
    """

    names: tuple[str, ...]
    codes: tuple[str, str, int]
    scale_dtype: str
    others: Mapping[str, tuple[str, Shape]]
    static_input: str


PLAIN_FP8 = Storage(
    names=("float-quantized", "naive-quantized"),
    codes=("weight", "F8_E4M3", 1),
    scale_dtype=MODEL_DTYPE,
    others={},
    static_input="input_scale",
)
PLAIN_INT8 = Storage(
    names=("int-quantized",),
    codes=("weight", "I8", 1),
    scale_dtype=MODEL_DTYPE,
    others={},
    static_input="input_scale",
)
PACKED_INT4 = Storage(
    names=("pack-quantized",),
    codes=("weight_packed", "I32", 8),
    scale_dtype=MODEL_DTYPE,
    others={"weight_shape": ("I64", (2,))},
    static_input="input_scale",
)
PACKED_FP4 = Storage(
    names=("nvfp4-pack-quantized",),
    codes=("weight_packed", "U8", 2),
    scale_dtype="F8_E4M3",
    others={"weight_global_scale": ("F32", (1,))},
    static_input="input_global_scale",
)


@dataclass(frozen=True, slots=True)
class Format:
    """One number format.

    Attributes:
        name: Its name in clefq.
        preset: llm-compressor's name of it.
        scheme: Scheme of a checkpoint that holds nothing else.
        storage: The tensors that hold it.
        weights: How weights are rounded.
        inputs: How activations are, or None where they keep 16 bits.
        arithmetic: The matrix arithmetic that it means.
        kernels: Pattern of the engine's `scheme/kernel` names that run it so.
        runs: What it runs as under vLLM: arithmetic as executed, real or simulated.
        speed: Assumed rate of its products where it is native, relative to BF16.
        recipe_format: Whether recipes and the search may ask for it.
    """

    name: str
    preset: str
    scheme: str
    storage: Storage
    weights: Numbers
    inputs: Numbers | None
    arithmetic: Arithmetic
    kernels: str
    runs: Mapping[Platform, str]
    speed: float
    recipe_format: bool = True

    @property
    def calibrated(self) -> bool:
        """Whether its activations need calibration data; if not, it can be streamed."""
        return self.inputs is not None and self.inputs.dynamic is not True

    @property
    def suffixes(self) -> tuple[str, ...]:
        """Names of a module's tensors, below the module's name."""
        found = suffixes_of(self.storage)
        return (*found, self.storage.static_input) if self.calibrated else found

    def tensors(self, rows: int, columns: int, dtype: str) -> dict[str, tuple[str, Shape]]:
        """What a weight is stored as: suffix to safetensors dtype and shape.

        Args:
            rows: Output features.
            columns: Input features.
            dtype: The model's dtype in safetensors' words.
        """
        suffix, stored, per_element = self.storage.codes
        scales = self.storage.scale_dtype
        return {
            suffix: (stored, (rows, -(-columns // per_element))),
            "weight_scale": (
                dtype if scales == MODEL_DTYPE else scales,
                scale_shape(self.weights, rows, columns),
            ),
            **self.storage.others,
        }

    def nbytes(self, rows: int, columns: int, item_size: int) -> int:
        """Bytes of a stored weight, every scale included.

        Args:
            rows: Output features.
            columns: Input features.
            item_size: Bytes of a number in the model's dtype.
        """
        sizes = {**ITEM_SIZE, MODEL_DTYPE: item_size}
        stored = self.tensors(rows, columns, MODEL_DTYPE).values()
        total = sum(math.prod(shape) * sizes[dtype] for dtype, shape in stored)
        return total + (4 if self.calibrated else 0)


ITEM_SIZE = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1,
    "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1,
}  # fmt: skip


def suffixes_of(storage: Storage) -> tuple[str, ...]:
    """Names of the tensors that hold a weight, codes first."""
    return (storage.codes[0], "weight_scale", *storage.others)


def scale_shape(weights: Numbers, rows: int, columns: int) -> Shape:
    """Shape of `weight_scale`, for scales per channel, tensor or group."""
    if weights.strategy == "tensor":
        return (1,)
    return (rows, 1 if weights.group is None else columns // weights.group)


# An engine names these where it keeps activations in 16 bits, whatever the checkpoint says.
_WEIGHT_ONLY = r"(?=.*(?:Marlin|W4A16|WeightOnly|A16|CPUFp8(?:Block|PerTensor)))"
_FP4 = r"(?:[^/]*Fp4|.*/.*NvFp4)"
_FP8 = r"(?!.*W4A8)[^/]*(?:Fp8|FP8)"
_FP8_RUNS: Mapping[Platform, str] = {
    "blackwell": "w8a8, real",
    "hopper": "w8a8, real",
    "older": "refused (BF16 activations: not the scheme under test)",
    "cpu": "w8a8, real",
}

# Finest first.
FORMATS: dict[str, Format] = {
    row.name: row
    for row in (
        Format(
            name="fp8",
            preset="FP8_DYNAMIC",
            scheme="fp8",
            storage=PLAIN_FP8,
            weights=Numbers(8, "float", "channel"),
            inputs=Numbers(8, "float", "token", dynamic=True),
            arithmetic="w8a8",
            kernels=_FP8,
            runs=_FP8_RUNS,
            speed=2.0,
        ),
        Format(
            name="fp8-static",
            preset="FP8",
            scheme="fp8",
            storage=PLAIN_FP8,
            weights=Numbers(8, "float", "tensor"),
            inputs=Numbers(8, "float", "tensor"),
            arithmetic="w8a8",
            kernels=_FP8,
            runs=_FP8_RUNS,
            speed=2.0,
            recipe_format=False,
        ),
        Format(
            name="int8",
            preset="W8A8",
            scheme="int8",
            storage=PLAIN_INT8,
            weights=Numbers(8, "int", "channel"),
            inputs=Numbers(8, "int", "token", dynamic=True),
            arithmetic="w8a8-int8",
            kernels=r"[^/]*W8A8Int8",
            runs={
                "blackwell": "not tried on this GPU",
                "hopper": "w8a8-int8, real",
                "older": "w8a8-int8, not tried on this GPU",
                "cpu": "w8a8-int8, real",
            },
            speed=2.0,
        ),
        Format(
            name="nvfp4a16",
            preset="NVFP4A16",
            scheme="nvfp4a16",
            storage=PACKED_FP4,
            weights=Numbers(4, "float", "tensor_group", 16),
            inputs=None,
            arithmetic="w4a16",
            kernels=_WEIGHT_ONLY + _FP4,
            runs={
                "blackwell": "w4a16, real",
                "hopper": "w4a16, real",
                "older": "not tried on this GPU",
                "cpu": "w4a16, simulated",
            },
            speed=1.0,
        ),
        Format(
            name="int4",
            preset="W4A16",
            scheme="int4",
            storage=PACKED_INT4,
            weights=Numbers(4, "int", "group", 128),
            inputs=None,
            arithmetic="w4a16-int4",
            kernels=r"[^/]*W4A16/",
            runs={
                "blackwell": "not tried on this GPU",
                "hopper": "w4a16-int4, real",
                "older": "w4a16-int4, not tried on this GPU",
                "cpu": "w4a16-int4, real (AVX-512; else simulated)",
            },
            speed=1.0,
        ),
        Format(
            name="nvfp4",
            preset="NVFP4",
            scheme="nvfp4",
            storage=PACKED_FP4,
            weights=Numbers(4, "float", "tensor_group", 16),
            inputs=Numbers(4, "float", "tensor_group", 16, dynamic="local"),
            arithmetic="w4a4",
            kernels=_FP4,
            runs={
                "blackwell": "w4a4, real",
                "hopper": "w4a16, real (activations stay BF16)",
                "older": "not tried on this GPU",
                "cpu": "w4a4, simulated",
            },
            speed=4.0,
        ),
    )
}
# compressed-tensors' `format` to the tensors that hold it.
STORAGES: dict[str, Storage] = {
    name: row.storage for row in reversed(FORMATS.values()) for name in row.storage.names
}
# Those that a recipe or the search may ask for.
RECIPE_FORMATS: dict[str, Format] = {n: row for n, row in FORMATS.items() if row.recipe_format}

# What no format means, and what an engine may run all the same. First match wins.
_KERNELS: tuple[tuple[str, EngineArithmetic], ...] = (
    (_WEIGHT_ONLY + _FP8, "w8a16"),
    # GPTQ and AWQ by vLLM's own loaders, which have a type but no scheme
    (r"(?:Auto)?(?:GPTQ|AWQ)(?:Marlin)?LinearMethod\[uint4(?:b8)?\]/", "w4a16-int4"),
    *((row.kernels, row.arithmetic) for row in reversed(FORMATS.values()) if row.inputs is None),
    *((row.kernels, row.arithmetic) for row in FORMATS.values() if row.inputs is not None),
    (r"[^/]*Unquantized", "bf16"),
)


@dataclass(frozen=True, slots=True)
class SchemeRow:
    """One scheme: the layout of a whole checkpoint.

    Attributes:
        recipe: File in `recipes/`, or None where `clefq quantize` makes no such checkpoint.
        calibrated_recipe: File to take instead where a calibration set is given, or None.
        formats: Formats that it holds.
        part: What the modules' names have in common where only a part is quantized.
        arithmetic: The matrix arithmetic that it means, that of its coarsest format; None where
            nothing is known.
    """

    recipe: str | None
    formats: tuple[str, ...]
    arithmetic: Arithmetic | None
    part: str | None = None
    calibrated_recipe: str | None = None


SCHEMES: dict[str, SchemeRow] = {
    BF16: SchemeRow(None, (), "bf16"),
    "fp8": SchemeRow("fp8.yaml", ("fp8",), "w8a8"),
    "int8": SchemeRow("int8.yaml", ("int8",), "w8a8-int8"),
    "int4": SchemeRow("int4.yaml", ("int4",), "w4a16-int4", calibrated_recipe="int4-gptq.yaml"),
    "nvfp4a16": SchemeRow("nvfp4a16.yaml", ("nvfp4a16",), "w4a16"),
    "nvfp4": SchemeRow("nvfp4.yaml", ("nvfp4",), "w4a4"),
    "nvfp4-mlp": SchemeRow("nvfp4-mlp.yaml", ("nvfp4",), "w4a4", part=".mlp."),
    "mixed": SchemeRow("mixed.yaml", ("nvfp4", "fp8"), "w4a4"),
    "mixed-a16": SchemeRow(None, ("nvfp4a16", "fp8"), "w4a16"),
    "mixed-int4": SchemeRow(None, ("int4", "int8"), "w4a16-int4"),
    "unknown": SchemeRow(None, (), None),
}
# Schemes that `clefq quantize` makes, by the file of their recipe.
RECIPES: dict[str, str] = {name: row.recipe for name, row in SCHEMES.items() if row.recipe}
# The matrix arithmetic that a scheme means; a scheme that is not here is not checked.
MEANT_ARITHMETIC: dict[str, str] = {
    name: row.arithmetic for name, row in SCHEMES.items() if row.arithmetic
}
# Suffixes that tell a quantized module from another.
_PACKED = (".weight_packed", ".weight_scale")
# A mixture is named after its coarsest part.
_MIXED: dict[str, str] = {"w4a4": "mixed", "w4a16": "mixed-a16", "w4a16-int4": "mixed-int4"}


def coarsest(found: Iterable[str]) -> Any:
    """The coarsest of some arithmetics; `bf16` when there is none."""
    present = {*found, BF16}
    return next(name for name in COARSEST_FIRST if name in present)


def arithmetic_name(bits: int, inputs: int | None, kind: str = "float") -> str:
    """`w4a16` and so on; integers carry their type: `w4a16-int4`.

    Args:
        bits: Bits of a weight.
        inputs: Bits of an activation, or None for 16.
        kind: `float` or `int`.
    """
    name = f"w{bits}a{16 if inputs is None else inputs}"
    return f"{name}-int{bits}" if kind == "int" else name


def format_of_weights(numbers: Any) -> Format | None:
    """The first format that rounds weights so, or None.

    Args:
        numbers: `QuantizationArgs` of compressed-tensors, for weights.
    """
    said = (numbers.num_bits, str(numbers.type), str(numbers.strategy), numbers.group_size)
    for row in RECIPE_FORMATS.values():
        ours = row.weights
        if said == (ours.bits, ours.type, ours.strategy, ours.group) and numbers.symmetric:
            return row
    return None


def largest_number(bits: int, kind: str) -> float:
    """The magnitude that a scale turns into the largest of its numbers: 448, 6, 127.5 or 7.5."""
    from clefq.clef.small_floats import E2M1_MAX, E4M3_MAX  # numpy, which `--help` does without

    if kind == "int":
        return float(2**bits - 1) / 2
    return E4M3_MAX if bits == 8 else E2M1_MAX


def arithmetic_of_kernel(kernel: str) -> EngineArithmetic | None:
    """Arithmetic of one of an engine's `scheme/kernel` names, or None if it is not known."""
    return next((name for pattern, name in _KERNELS if re.match(pattern, kernel)), None)


def scheme_from_config(
    quantization_config: Mapping[str, Any] | None, tensors: Mapping[str, TensorInfo]
) -> str:
    """The scheme of a checkpoint, a key of `SCHEMES`, from its config and its tensors.

    `mixed` holds 4-bit activations in some layer, `mixed-a16` in none, `mixed-int4` integer
    weights of 4 bits; `unknown` is anything else.

    Args:
        quantization_config: As in `config.json`, in the compressed-tensors form; None if absent.
        tensors: The backbone's tensors: what is quantized in fact decides between `nvfp4` and
            `nvfp4-mlp`, and a config without quantized tensors (or the reverse) is `unknown`.
    """
    modules = {
        name.removesuffix(suffix) for name in tensors for suffix in _PACKED if name.endswith(suffix)
    }
    if quantization_config is None:
        return BF16 if not modules and _mostly_bf16(tensors) else "unknown"
    groups = quantization_config.get("config_groups")
    method = quantization_config.get("quant_method")
    if method != "compressed-tensors" or not isinstance(groups, dict) or not modules:
        return "unknown"
    return _scheme_of_groups(groups.values(), modules)


def _mostly_bf16(tensors: Mapping[str, TensorInfo]) -> bool:
    total = sum(info.nbytes for info in tensors.values())
    return 2 * sum(info.nbytes for info in tensors.values() if info.dtype == "BF16") > total


def _scheme_of_groups(groups: Iterable[Any], modules: set[str]) -> str:
    rows = [_format_of_group(group) for group in groups]
    found = {row.scheme: row for row in rows if row is not None}
    if not found or None in rows:
        return "unknown"
    if len(found) > 1:
        return _MIXED.get(coarsest(row.arithmetic for row in found.values()), "unknown")
    name = next(iter(found))
    parts = [scheme for scheme, row in SCHEMES.items() if row.part and row.formats == (name,)]
    return next(
        (part for part in parts if all(str(SCHEMES[part].part) in m for m in modules)), name
    )


def _format_of_group(group: Any) -> Format | None:
    """The format that a config group's widths, types and group size name."""
    weights = group.get("weights") if isinstance(group, dict) else None
    if not isinstance(weights, dict):
        return None
    inputs = group.get("input_activations")
    bits = (weights.get("num_bits"), inputs.get("num_bits") if isinstance(inputs, dict) else None)
    for row in FORMATS.values():
        known = (row.weights.bits, None if row.inputs is None else row.inputs.bits)
        grouped = row.weights.group in (None, weights.get("group_size"))
        if bits == known and weights.get("type") == row.weights.type and grouped:
            return row
    return None
