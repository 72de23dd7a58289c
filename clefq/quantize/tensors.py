"""Streaming writes of a backbone's shards.

Nothing here needs torch. Tensors are moved as bytes, in blocks, so that peak memory does not
depend on how a checkpoint is cut into shards.
"""

from __future__ import annotations

import json
import math
import os
import struct
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from clefq.clef.formats import ITEM_SIZE
from clefq.clef.tensor_files import Buffer
from clefq.clef.weight_files import INDEX
from clefq.store.atomic import partial_path, write_json


@dataclass(frozen=True, slots=True)
class OutTensor:
    """A tensor to be written: name, safetensors dtype and shape."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return math.prod(self.shape) * ITEM_SIZE[self.dtype]


def encode_header(tensors: Iterable[OutTensor]) -> bytes:
    """A safetensors header (length prefix included), padded so that data starts at 8n bytes."""
    body: dict[str, object] = {"__metadata__": {"format": "pt"}}
    at = 0
    for tensor in tensors:
        span = [at, at + tensor.nbytes]
        body[tensor.name] = {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": span}
        at = span[1]
    text = json.dumps(body, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


class ShardFile:
    """A safetensors file that is written piece by piece, in any order and by several threads.

    As a context manager: the file appears under its name only when the block succeeds, every
    byte of every tensor has been put, and all of it is on the disk.

    Args:
        path: Final file name.
        tensors: What the file holds, in the order of their data.
    """

    def __init__(self, path: Path, tensors: Iterable[OutTensor]) -> None:
        self.path = path
        tensors = list(tensors)
        header = encode_header(tensors)
        self._places: dict[str, tuple[int, int]] = {}
        at = len(header)
        for tensor in tensors:
            self._places[tensor.name] = (at, tensor.nbytes)
            at += tensor.nbytes
        self._due = at - len(header)
        self._lock = threading.Lock()
        self._partial = partial_path(path)
        self._file = self._partial.open("wb", buffering=0)
        self._file.write(header)
        self._file.truncate(at)

    def put(self, name: str, offset: int, data: Buffer) -> None:
        """Writes a piece of a tensor.

        Args:
            name: Tensor name.
            offset: First byte inside the tensor.
            data: The bytes.

        Raises:
            ValueError: The piece does not fit into the tensor.
        """
        begin, size = self._places[name]
        view = memoryview(data).cast("B")
        if offset + len(view) > size:
            raise ValueError(f"{name}: {offset + len(view)} bytes written, {size} declared")
        with self._lock:
            self._due -= len(view)
        at = begin + offset
        while view:
            count = os.pwrite(self._file.fileno(), view, at)
            view, at = view[count:], at + count

    def __enter__(self) -> ShardFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        try:
            if kind is None:
                if self._due:
                    raise ValueError(f"{self.path.name}: {self._due} bytes missing")
                os.fsync(self._file.fileno())
        except BaseException:
            self._file.close()
            self._partial.unlink(missing_ok=True)
            raise
        self._file.close()
        if kind is None:
            self._partial.replace(self.path)
        else:
            self._partial.unlink(missing_ok=True)


def write_index(folder: Path, shards: Mapping[str, Iterable[OutTensor]]) -> None:
    """Writes `model.safetensors.index.json` (for one shard too: serving engines need it)."""
    table = {tensor.name: name for name, tensors in shards.items() for tensor in tensors}
    total = sum(tensor.nbytes for tensors in shards.values() for tensor in tensors)
    write_json(folder / INDEX, {"metadata": {"total_size": total}, "weight_map": table})
