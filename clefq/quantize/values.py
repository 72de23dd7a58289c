"""Small decoders for stored numbers, in numpy: BF16, F16, F32, E4M3.

Nothing here needs torch.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from clefq.clef.small_floats import E2M1, E4M3
from clefq.clef.tensor_files import Buffer, TensorInfo

Floats = npt.NDArray[np.float32]
_ITEM = {"BF16": np.uint16, "F16": np.float16, "F32": np.float32, "F64": np.float64}


def decode(data: Buffer, dtype: str) -> Floats:
    """Bytes of a safetensors dtype as float32, flat.

    Raises:
        ValueError: A dtype that is no float.
    """
    if dtype == "F8_E4M3":
        return np.asarray(E4M3[np.frombuffer(data, dtype=np.uint8)])
    if dtype == "BF16":
        return (np.frombuffer(data, dtype="<u2").astype(np.uint32) << 16).view(np.float32)
    if dtype in _ITEM:
        return np.frombuffer(data, dtype=_ITEM[dtype]).astype(np.float32)
    raise ValueError(f"{dtype} is no float type")


def to_bf16(values: Floats) -> Floats:
    """Finite numbers rounded to BF16, ties to even, as float32."""
    bits = values.astype(np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
    return rounded.view(np.float32)


def nvfp4_floats(packed: npt.NDArray[np.uint8], scales: Floats, divisor: float) -> Floats:
    """What stored NVFP4 numbers stand for: code · group scale / global scale.

    Args:
        packed: `[rows, columns / 2]`, two codes a byte, the first in the low half.
        scales: `[rows, groups]`.
        divisor: The global scale.

    Returns:
        `[rows, columns]`, F32.
    """
    rows, half = packed.shape
    codes = np.empty((rows, half, 2), dtype=np.uint8)
    codes[..., 0], codes[..., 1] = packed & 15, packed >> 4
    values = E2M1[codes].reshape(rows, scales.shape[1], -1)
    return (values * (scales / np.float32(divisor))[..., None]).reshape(rows, 2 * half)


def read_floats(ref: TensorInfo) -> Floats:
    """A whole tensor as float32, in its shape."""
    return decode(ref.read(), ref.dtype).reshape(ref.shape)


# No number of a trained model is as large; a flipped exponent bit goes far beyond.
TOO_LARGE = 2.0**24


def impossible(block: Buffer, dtype: str) -> int:
    """How many stored values of a block are NaN, infinite or too large; 0 for integer types.

    Looks at the exponent bits, so that a big tensor is not widened.
    """
    if dtype == "F8_E4M3":
        return int(np.count_nonzero((np.frombuffer(block, dtype=np.uint8) & 0x7F) == 0x7F))
    if dtype == "BF16":
        return int(np.count_nonzero((np.frombuffer(block, dtype="<u2") & 0x7FFF) >= 0x4B80))
    if dtype in ("F16", "F32", "F64"):
        array: Any = np.frombuffer(block, dtype=_ITEM[dtype])
        # no F16 number is too large, and the limit is none
        limit = np.inf if dtype == "F16" else TOO_LARGE
        return int(array.size - np.count_nonzero(np.abs(array) < limit))
    return 0
