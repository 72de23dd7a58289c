"""Safetensors headers, read without loading a tensor, so that damage is found before any work.

Format: 8 bytes, little-endian, the header's length; the header, JSON, name to dtype, shape and
byte range; then the data, whose ranges must fill the rest of the file exactly.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from io import FileIO
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
COPY_BLOCK = 4 << 20
_FIX = "download or copy this file again."

Buffer = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where a tensor lies.

    Attributes:
        name: Tensor name.
        file: The safetensors file.
        dtype: The format's name, for example `BF16` or `F8_E4M3`.
        shape: Elements per dimension.
        begin: First byte, counted from the start of the file.
        end: One past the last byte.
    """

    name: str
    file: Path
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor's data."""
        return self.end - self.begin

    def read(self) -> bytearray:
        """The tensor's bytes.

        Raises:
            CheckpointError: The file has become shorter.
        """
        return next((piece for _, piece in self.pieces(max(1, self.nbytes))), bytearray())

    def slice(self, offset: int, count: int) -> bytearray:
        """`count` bytes from `offset` inside the tensor.

        Raises:
            CheckpointError: The file has become shorter.
        """
        piece = bytearray(count)
        with self.file.open("rb", buffering=0) as file:
            file.seek(self.begin + offset)
            _fill(file, piece, self.file)
        return piece

    def blocks(self) -> Iterator[bytearray]:
        """The tensor's bytes, block by block.

        Raises:
            CheckpointError: The file has become shorter.
        """
        for _, block in self.pieces(COPY_BLOCK):
            yield block

    def pieces(self, size: int) -> Iterator[tuple[int, bytearray]]:
        """The tensor's bytes in pieces of `size` (the last may be smaller), with their offsets.

        Raises:
            CheckpointError: The file has become shorter.
        """
        with self.file.open("rb", buffering=0) as file:
            file.seek(self.begin)
            for at in range(0, self.nbytes, size):
                piece = bytearray(min(size, self.nbytes - at))
                _fill(file, piece, self.file)
                yield at, piece


@dataclass(frozen=True, slots=True)
class HeldTensor(TensorInfo):
    """A number that is not in the file but follows from one that is.

    Attributes:
        data: Its bytes.
        factor: The stored number that it is the reciprocal of.
        exact: Whether its own reciprocal, in F32, is that number again.
    """

    data: bytes = b""
    factor: float = 1.0
    exact: bool = True

    def slice(self, offset: int, count: int) -> bytearray:
        """See `TensorInfo.slice`."""
        return bytearray(self.data[offset : offset + count])

    def pieces(self, size: int) -> Iterator[tuple[int, bytearray]]:
        """See `TensorInfo.pieces`."""
        for at in range(0, self.nbytes, size):
            yield at, bytearray(self.data[at : at + size])


def same_bytes(ours: TensorInfo, theirs: TensorInfo) -> bool:
    """Whether two tensors have the same dtype, shape and bytes."""
    if (ours.dtype, ours.shape) != (theirs.dtype, theirs.shape):
        return False
    return all(a == b for a, b in zip(ours.blocks(), theirs.blocks(), strict=True))


def _fill(file: FileIO, buffer: bytearray, path: Path) -> None:
    view = memoryview(buffer)
    while view:
        count = file.readinto(view)
        if not count:
            raise CheckpointError(f"{path} ends too early.", fix=_FIX)
        view = view[count:]


def read_header(path: Path) -> dict[str, TensorInfo]:
    """Reads and checks a file's header: its tensors, in the order of their data.

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
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: its header is not JSON.", fix=_FIX) from error
    if not isinstance(header, dict):
        raise CheckpointError(f"{path}: its header is not an object.", fix=_FIX)
    header.pop("__metadata__", None)
    start = 8 + length
    found = [_tensor(path, name, entry, start) for name, entry in header.items()]
    found.sort(key=lambda info: (info.begin, info.end))
    _check_layout(path, found, start, size)
    return {info.name: info for info in found}


def check_head_file(path: Path, config: HeadConfig) -> dict[str, TensorInfo]:
    """Checks that a head file holds exactly the tensors that its config calls for.

    Raises:
        CheckpointError: Names every missing, unknown, misshapen or quantized tensor; where sizes of
            the config are other than those of the weights, the sizes instead of the tensors.
    """
    tensors = read_header(path)
    sizes = _head_sizes(tensors)
    wrong = [
        f"the config says {name} {getattr(config, name)}, the weights have {size}"
        for name, size in sizes.items()
        if getattr(config, name) != size
    ]
    held = replace(config, **sizes)
    faults = min(_head_faults(tensors, config), wrong + _head_faults(tensors, held), key=len)
    if faults:
        raise CheckpointError(
            f"{path} does not fit its config: {faults[0]}.",
            fix="copy joint_head.safetensors and joint_head_config.json of the same release.",
            faults=faults[1:],
        )
    return tensors


# The size of a head that a tensor shows, and in which dimension.
_SHOWN_BY = {
    "hidden_size": ("memory_projection.weight", 1),
    "width": ("memory_projection.weight", 0),
    "feedforward": ("evidence_layers.0.feedforward.0.weight", 0),
}


def _head_sizes(tensors: Mapping[str, TensorInfo]) -> dict[str, int]:
    return {
        name: tensors[tensor].shape[dimension]
        for name, (tensor, dimension) in _SHOWN_BY.items()
        if tensor in tensors and len(tensors[tensor].shape) == 2
    }


def _head_faults(tensors: Mapping[str, TensorInfo], config: HeadConfig) -> list[str]:
    expected = config.tensor_shapes()
    faults = [f"tensor {name} is missing" for name in expected if name not in tensors]
    faults += [f"unknown tensor {name}" for name in tensors if name not in expected]
    for name, shape in expected.items():
        info = tensors.get(name)
        if info is None:
            continue
        if info.shape != shape:
            faults.append(f"{name} has shape {list(info.shape)}, expected {list(shape)}")
        if info.dtype not in FLOAT_DTYPES:
            faults.append(f"{name} is {info.dtype}; the head must not be quantized")
    return faults


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
    return TensorInfo(name, path, dtype, shape, start + begin, start + end)


def _check_layout(path: Path, tensors: list[TensorInfo], start: int, size: int) -> None:
    at = start
    for info in tensors:
        if info.begin != at:
            raise CheckpointError(f"{path}: tensors overlap or leave holes.", fix=_FIX)
        at = info.end
    if at > size:
        raise CheckpointError(f"{path} is cut short: {size:,} of {at:,} bytes.", fix=_FIX)
    if at < size:
        raise CheckpointError(f"{path} has {size - at:,} bytes after its last tensor.", fix=_FIX)
