"""Safetensors headers, read without loading a tensor, so that damage is found before any work.

Format: 8 bytes, little-endian, the header's length; the header, JSON, name to dtype, shape and
byte range; then the data, whose ranges must fill the rest of the file exactly.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clefq.clef.head_config import HeadConfig
from clefq.errors import CheckpointError

# Bits per element of every dtype the format names.
_BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32,
    "F32": 32, "I64": 64, "U64": 64, "F64": 64, "C64": 64, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
}  # fmt: skip
_MAX_HEADER = 100_000_000
FLOAT_DTYPES = ("BF16", "F16", "F32", "F64")
_FIX = "download or copy this file again."


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where a tensor lies.

    Attributes:
        file: The safetensors file.
        dtype: The format's name, for example `BF16` or `F8_E4M3`.
        shape: Elements per dimension.
        begin: First byte, counted from the start of the file.
        end: One past the last byte.
    """

    file: Path
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor's data."""
        return self.end - self.begin


def read_header(path: Path) -> dict[str, TensorInfo]:
    """Reads and checks a file's header.

    Raises:
        CheckpointError: The file is missing, no safetensors file, or cut short.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            first = file.read(8)
            length = int.from_bytes(first, "little")
            if len(first) < 8 or length > min(_MAX_HEADER, size - 8):
                raise CheckpointError(f"{path} is no whole safetensors file.", fix=_FIX)
            raw = file.read(length)
    except OSError as error:
        raise CheckpointError(
            f"cannot read {path}: {error.strerror or error}.", fix=_FIX
        ) from error
    try:
        header = json.loads(raw)
    except ValueError as error:
        raise CheckpointError(f"{path}: its header is not JSON.", fix=_FIX) from error
    if not isinstance(header, dict):
        raise CheckpointError(f"{path}: its header is not an object.", fix=_FIX)
    header.pop("__metadata__", None)
    start = 8 + length
    tensors = {name: _tensor(path, name, entry, start) for name, entry in header.items()}
    _check_layout(path, tensors, start, size)
    return tensors


def check_head_file(path: Path, config: HeadConfig) -> dict[str, TensorInfo]:
    """Checks that a head file holds exactly the tensors that its config calls for.

    Raises:
        CheckpointError: Names every missing, unknown, misshapen or quantized tensor.
    """
    tensors = read_header(path)
    expected = config.tensor_shapes()
    faults = [f"tensor {name} is missing" for name in expected if name not in tensors]
    faults += [f"unknown tensor {name}" for name in tensors if name not in expected]
    for name, shape in expected.items():
        info = tensors.get(name)
        if info is None:
            continue
        if info.shape != shape:
            faults.append(f"{name} has shape {list(info.shape)}, the config says {list(shape)}")
        if info.dtype not in FLOAT_DTYPES:
            faults.append(f"{name} is {info.dtype}; the head must not be quantized")
    if faults:
        raise CheckpointError(
            f"{path} does not fit its config: {faults[0]}.",
            fix="copy joint_head.safetensors and joint_head_config.json of the same release.",
            faults=faults[1:],
        )
    return tensors


def _tensor(path: Path, name: str, entry: Any, start: int) -> TensorInfo:
    try:
        dtype, shape = entry["dtype"], tuple(entry["shape"])
        begin, end = entry["data_offsets"]
        bits = math.prod(shape) * _BITS[dtype]
        sound = all(isinstance(n, int) and n >= 0 for n in (*shape, begin, end))
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path}: malformed entry for tensor {name}.", fix=_FIX) from error
    if not sound or bits != 8 * (end - begin):
        raise CheckpointError(
            f"{path}: tensor {name} does not fill its bytes ({dtype} {list(shape)}).", fix=_FIX
        )
    return TensorInfo(path, dtype, shape, start + begin, start + end)


def _check_layout(path: Path, tensors: dict[str, TensorInfo], start: int, size: int) -> None:
    at = start
    for info in sorted(tensors.values(), key=lambda info: (info.begin, info.end)):
        if info.begin != at:
            raise CheckpointError(f"{path}: tensors overlap or leave holes.", fix=_FIX)
        at = info.end
    if at > size:
        raise CheckpointError(f"{path} is cut short: {size:,} of {at:,} bytes.", fix=_FIX)
    if at < size:
        raise CheckpointError(f"{path} has {size - at:,} bytes after its last tensor.", fix=_FIX)
