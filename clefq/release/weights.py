"""A checkpoint's weights by what they stand for: quantized tensors as the values they encode.

A quantized module is several stored tensors (codes, scales); here it is one weight under the name
that it has in BF16, readable as float32 in blocks of rows. Memory is a few blocks, whatever the
size of the model. Needs no torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from clefq.clef.config_match import FP8, NVFP4, ModuleFormat, module_formats, quantization_of
from clefq.clef.family import TEXT
from clefq.clef.formats import STORAGES
from clefq.clef.tensor_files import TensorInfo, read_header
from clefq.clef.weight_files import HEAD_FILES, open_tensors
from clefq.plain_files import read_json
from clefq.quantize.values import Floats, decode, nvfp4_floats, read_floats

HEAD_PREFIX = "joint_head."
CLEF_PREFIX = f"{TEXT}."
BLOCK_ELEMENTS = 1 << 19
_PLAIN = {"F8_E4M3": 1, "BF16": 2, "F16": 2, "F32": 4, "F64": 8}
_TEXT_ONLY = ("model.layers.", "model.embed_tokens.", "model.norm.")


@dataclass(frozen=True, slots=True)
class Weight:
    """One weight as the model means it.

    Attributes:
        name: Its name in an unquantized Clef.
        parts: The stored tensors behind it, by suffix; `weight` or one tensor for plain ones.
        shape: Shape of the values.
        scheme: How it is quantized, or None.
        block: Rows and columns that share a scale (block strategy), or None.
    """

    name: str
    parts: Mapping[str, TensorInfo]
    shape: tuple[int, ...]
    scheme: ModuleFormat | None = None
    block: tuple[int, int] | None = None

    @property
    def dtype(self) -> str:
        """The stored dtype, or the scheme's arithmetic (`w4a4`, …)."""
        if self.scheme is not None:
            return self.scheme.arithmetic
        return next(iter(self.parts.values())).dtype

    @property
    def nbytes(self) -> int:
        """Stored bytes of all parts."""
        return sum(part.nbytes for part in self.parts.values())

    @property
    def readable(self) -> bool:
        """Whether its values can be decoded."""
        if self.scheme is None:
            return self.dtype in _PLAIN
        if "weight_zero_point" in self.parts:
            return False
        known = {"weight_packed", "weight_scale", "weight_global_scale"}
        if self.scheme.format == NVFP4:
            return known <= self.parts.keys()
        if self.scheme.type == "int":
            row = self.scheme.weights_format
            return row is not None and {*row.suffixes} <= self.parts.keys()
        shares = self.scheme.strategy in ("channel", "tensor") or self.block is not None
        sound = {"weight", "weight_scale"} <= self.parts.keys()
        return self.scheme.format in FP8 and shares and sound

    def blocks(self) -> Iterator[Floats]:
        """The values, flat, in order, in blocks whose size depends on the shape alone."""
        if self.scheme is None:
            yield from self._plain_blocks()
            return
        rows, columns = self.shape
        step = max(1, BLOCK_ELEMENTS // columns)
        scales = read_floats(self.parts["weight_scale"])
        for row in range(0, rows, step):
            count = min(step, rows - row)
            make = self._nvfp4_rows if self.scheme.format == NVFP4 else self._fp8_rows
            if self.scheme.type == "int":
                make = self._integer_rows
            yield make(row, count, scales).reshape(-1)

    def _plain_blocks(self) -> Iterator[Floats]:
        ref = next(iter(self.parts.values()))
        columns = self.shape[-1] if self.shape else 1
        step = max(1, BLOCK_ELEMENTS // max(1, columns)) * max(1, columns)
        for _, piece in ref.pieces(step * _PLAIN[ref.dtype]):
            yield decode(piece, ref.dtype)

    def _nvfp4_rows(self, row: int, count: int, scales: Floats) -> Floats:
        codes = _rows(self.parts["weight_packed"], row, count)
        divisor = float(read_floats(self.parts["weight_global_scale"]).reshape(-1)[0])
        return nvfp4_floats(codes, scales[row : row + count], divisor)

    def _integer_rows(self, row: int, count: int, scales: Floats) -> Floats:
        if "weight_packed" in self.parts:
            pairs = _rows(self.parts["weight_packed"], row, count)
            codes = np.stack([pairs & 15, pairs >> 4], axis=-1).reshape(count, -1).astype(np.int8)
            codes -= 8
        else:
            codes = _rows(self.parts["weight"], row, count).view(np.int8)
        groups = scales[row : row + count].reshape(count, -1, 1)
        values = codes.astype(np.float32).reshape(count, groups.shape[1], -1)
        return np.asarray((values * groups).reshape(count, -1))

    def _fp8_rows(self, row: int, count: int, scales: Floats) -> Floats:
        codes = _rows(self.parts["weight"], row, count)
        values = decode(codes.tobytes(), "F8_E4M3").reshape(count, -1)
        if self.block is not None:
            height, width = self.block
            wide = np.repeat(scales, width, axis=1)[:, : values.shape[1]]
            return np.asarray(values * wide[np.arange(row, row + count) // height])
        if scales.size == 1:
            return np.asarray(values * scales.reshape(1, 1))
        return np.asarray(values * scales.reshape(-1, 1)[row : row + count])


@dataclass(frozen=True, slots=True)
class Weights:
    """All weights of a folder.

    Attributes:
        folder: The checkpoint.
        weights: Name → weight, backbone first, then the joint head under `joint_head.`.
        formats: Arithmetic → number of quantized modules.
        notes: What could not be read as it is meant.
    """

    folder: Path
    weights: Mapping[str, Weight]
    formats: Mapping[str, int]
    notes: tuple[str, ...] = ()


def open_weights(folder: Path) -> Weights:
    """Opens a checkpoint of any scheme, with or without a joint head, reading headers only.

    Raises:
        CheckpointError: A shard is missing, malformed, or there twice.
    """
    there = open_tensors(folder)
    refs = dict(there)
    config = read_json(folder / "config.json") if (folder / "config.json").is_file() else {}
    block = quantization_of(config)
    notes: list[str] = []
    schemes = _schemes(block, refs, notes)
    found: dict[str, Weight] = {}
    prefix = CLEF_PREFIX if any(name.startswith(CLEF_PREFIX) for name in refs) else "model."
    for module, scheme in schemes.items():
        weight = _quantized(module, scheme, refs, block)
        for part in weight.parts.values():
            refs.pop(part.name)
        found[_clef_name(weight.name, prefix)] = weight
    order = {name: place for place, name in enumerate(there)}
    for name, ref in refs.items():
        found[_clef_name(name, prefix)] = Weight(name, {"weight": ref}, ref.shape)
    ordered = sorted(found.items(), key=lambda item: order[_first(item[1]).name])
    for name in HEAD_FILES:
        if (folder / name).is_file():
            head = read_header(folder / name)
            ordered += [
                (HEAD_PREFIX + n, Weight(HEAD_PREFIX + n, {"weight": ref}, ref.shape))
                for n, ref in head.items()
            ]
            break
    counts: dict[str, int] = {}
    for scheme in schemes.values():
        counts[scheme.arithmetic] = counts.get(scheme.arithmetic, 0) + 1
    return Weights(folder, dict(ordered), counts, tuple(notes))


def _schemes(
    block: Any, refs: Mapping[str, TensorInfo], notes: list[str]
) -> dict[str, ModuleFormat]:
    if block is None:
        return {}
    if not isinstance(block, Mapping) or block.get("quant_method") != "compressed-tensors":
        notes.append("not in the compressed-tensors format: tensors are compared as stored.")
        return {}
    suffixes = (".weight_packed", ".weight_scale")
    modules = {name.removesuffix(s) for name in refs for s in suffixes if name.endswith(s)}
    try:
        return module_formats(block, sorted(modules))
    except ValueError as error:
        notes.append(f"config.json: {error}: tensors are compared as stored.")
        return {}


_PARTS = (
    "weight", "weight_packed", "weight_scale", "weight_global_scale", "weight_zero_point",
    "input_global_scale", "input_scale", "weight_shape",
)  # fmt: skip


def _quantized(
    module: str, scheme: ModuleFormat, refs: Mapping[str, TensorInfo], block: Any
) -> Weight:
    parts = {s: refs[f"{module}.{s}"] for s in _PARTS if f"{module}.{s}" in refs}
    codes = parts.get("weight_packed") or parts.get("weight")
    shape: tuple[int, ...] = () if codes is None else codes.shape
    if "weight_packed" in parts and scheme.format in STORAGES and len(shape) == 2:
        shape = (shape[0], STORAGES[scheme.format].codes[2] * shape[1])
    return Weight(f"{module}.weight", parts, shape, scheme, _block_of(module, scheme, block))


def _block_of(module: str, scheme: ModuleFormat, block: Any) -> tuple[int, int] | None:
    if scheme.strategy != "block":
        return None
    for group in block["config_groups"].values():
        sizes = (group.get("weights") or {}).get("block_structure")
        one = {"config_groups": {"only": group}, "format": block.get("format")}
        if sizes and len(sizes) == 2 and module in module_formats(one, [module]):
            return int(sizes[0]), int(sizes[1])
    return None


def _rows(ref: TensorInfo, row: int, count: int) -> Any:
    width = ref.nbytes // ref.shape[0]
    data = ref.slice(row * width, count * width)
    return np.frombuffer(data, dtype=np.uint8).reshape(count, width)


def _first(weight: Weight) -> TensorInfo:
    return next(iter(weight.parts.values()))


def _clef_name(name: str, prefix: str) -> str:
    """A text-only checkpoint's name as a Clef has it, so that a Clef and its backbone compare."""
    if prefix != CLEF_PREFIX and name.startswith(_TEXT_ONLY):
        return CLEF_PREFIX + name.removeprefix("model.")
    return name
