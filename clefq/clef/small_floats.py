"""Small numbers: E2M1 (FP4), E4M3 (FP8) and INT4, their values, rounding and packing.

E2M1 has the values 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives; E4M3 ends at 448 and has no
infinity. Both round to nearest, ties to the even code, and saturate. NVFP4 groups 16 E2M1 values
along the input dimension under one E4M3 scale; a tensor's global scale is a divisor, 448·6/amax.

The tables and `encode_e4m3` need numpy alone; functions of tensors import torch when called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from torch import Tensor, dtype

E2M1_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
E2M1_MAX = 6.0
E4M3_MAX = 448.0
NVFP4_GROUP = 16
_E4M3_MIN_EXPONENT = -6
# Midpoints between neighbouring E2M1 magnitudes and whether the midpoint itself rounds up.
_MIDPOINTS = (
    (0.25, False),
    (0.75, True),
    (1.25, False),
    (1.75, True),
    (2.5, False),
    (3.5, True),
    (5.0, False),
)


def _e4m3_table() -> npt.NDArray[np.float32]:
    """Value of every E4M3 code: sign, 4 exponent bits (bias 7), 3 mantissa bits, no infinity."""
    table = np.empty(256, dtype=np.float32)
    for code in range(256):
        exponent, mantissa = code >> 3 & 15, code & 7
        magnitude = (
            mantissa * 2.0**-9 if exponent == 0 else (1 + mantissa / 8) * 2.0 ** (exponent - 7)
        )
        if code & 127 == 127:
            magnitude = np.nan
        table[code] = -magnitude if code & 128 else magnitude
    return table


# value of every code
E4M3 = _e4m3_table()
E2M1 = np.array([*E2M1_VALUES, *(-value for value in E2M1_VALUES)], dtype=np.float32)
_POSITIVE = E4M3[:127].astype(np.float64)
_MIDDLE = (_POSITIVE[:-1] + _POSITIVE[1:]) / 2


def encode_e4m3(values: npt.NDArray[np.float64]) -> npt.NDArray[np.uint8]:
    """Nonnegative values as E4M3 codes: nearest, ties to the even code, saturating at 448.

    Args:
        values: F64, any shape.
    """
    low = np.searchsorted(_MIDDLE, values, side="left")
    high = np.searchsorted(_MIDDLE, values, side="right")
    # between two codes exactly, low is the one below and high the one above
    return np.where(low % 2 == 0, low, high).astype(np.uint8)


def unpack_e2m1(packed: Tensor) -> Tensor:
    """Unpacks FP4 codes: the low nibble is the earlier column, bit 3 of a nibble is the sign.

    Args:
        packed: uint8 [rows, columns / 2].

    Returns:
        float32 [rows, columns] with E2M1 values; negative zero decodes to -0.0.
    """
    import torch

    magnitudes = torch.tensor(E2M1_VALUES, device=packed.device)
    nibble_values = torch.cat([magnitudes, -magnitudes])
    codes = torch.arange(256, device=packed.device)
    pairs = torch.stack([nibble_values[codes & 0xF], nibble_values[codes >> 4]], dim=-1)
    return pairs[packed.to(torch.int32)].flatten(-2)


def pack_e2m1(values: Tensor) -> Tensor:
    """Rounds to E2M1, ties to even, saturating at ±6, and packs two codes into a byte.

    Args:
        values: F32, any shape, an even number of elements.

    Returns:
        U8, flat, half as many elements.
    """
    import torch

    flat = values.reshape(-1)
    magnitude = flat.abs()
    # a negative zero loses its sign in compressed-tensors; what rounds to zero from below keeps it
    above = flat < 0
    code = above.view(torch.uint8) << 3
    for midpoint, tie_up in _MIDPOINTS:
        compare = torch.ge if tie_up else torch.gt
        code += compare(magnitude, midpoint, out=above).view(torch.uint8)
    # a pair of bytes read as one little-endian number: the first element is the low byte
    pairs = code.view(torch.int16)
    return (pairs | (pairs >> 4)).to(torch.uint8)


def round_to_e2m1(values: Tensor) -> Tensor:
    """Rounds to the nearest E2M1 value, ties to the even code, saturating at ±6.

    Args:
        values: float32 or float64, any shape; changed in place and returned.
    """
    import torch

    values.clamp_(-E2M1_MAX, E2M1_MAX)
    # Neighbouring values lie 0.5 apart below 2, 1 apart below 4, 2 apart above: half the power of
    # two at or below the value, which is the value with its mantissa bits cleared.
    integers, exponent_bits = (
        (torch.int64, 0x7FF0_0000_0000_0000)
        if values.dtype == torch.float64
        else (torch.int32, 0x7F80_0000)
    )
    power = values.view(integers).bitwise_and(exponent_bits).view(values.dtype)
    step = power.clamp_(min=1.0).mul_(0.5)
    return values.div_(step).round_().mul_(step)


def round_to_e4m3(values: Tensor) -> Tensor:
    """Rounds to the nearest E4M3 value, ties to even, saturating at ±448; keeps the dtype.

    Args:
        values: float32 or float64, any shape.
    """
    import torch

    values = values.clamp(-E4M3_MAX, E4M3_MAX)
    if values.dtype != torch.float64:
        return values.to(torch.float8_e4m3fn).to(values.dtype)
    # The cast would round twice, to FP32 first: place the value on its exponent's grid instead.
    exponent = torch.frexp(values).exponent - 1
    step = torch.ldexp(torch.ones_like(values), exponent.clamp(min=_E4M3_MIN_EXPONENT) - 3)
    return (values / step).round() * step


def compute_dtype(inputs: Tensor) -> dtype:
    """The dtype in which inputs are rounded and multiplied: F32, or F64 for F64 inputs."""
    import torch

    return torch.float64 if inputs.dtype == torch.float64 else torch.float32


def quantize_nvfp4(inputs: Tensor, global_scale: Tensor) -> Tensor:
    """NVFP4 activations as the kernels quantize them, one E4M3 scale per group of 16.

    Group scale = E4M3(global scale · (amax / 6)); a value becomes E2M1(x · global / group scale).

    Args:
        inputs: [tokens, columns], columns a multiple of 16; any float dtype.
        global_scale: scalar, the divisor 448·6/amax found in calibration.

    Returns:
        E2M1 value times group scale, [tokens, columns], exact in the computing dtype (float32,
        or float64 for float64 inputs). Divide by `global_scale` for the dequantized inputs.
    """
    import torch

    groups = inputs.to(compute_dtype(inputs)).unflatten(-1, (-1, NVFP4_GROUP))
    peak = groups.abs().amax(dim=-1, keepdim=True)
    # Products with reciprocals, in this order, are what the kernels compute: BF16 inputs often lie
    # exactly between two E2M1 values, where the last bit decides.
    scale = round_to_e4m3(global_scale * (peak * (1.0 / E2M1_MAX)))
    factor = torch.where(scale == 0, 0.0, (scale * global_scale.reciprocal()).reciprocal())
    return round_to_e2m1(groups * factor).mul_(scale).flatten(-2)


def unpack_int4(packed: Tensor) -> Tensor:
    """Unpacks INT4 codes, eight to a number, the first in the lowest bits.

    Args:
        packed: int32 [rows, columns / 8]; a code is stored plus 8.

    Returns:
        int8 [rows, columns], -8 to 7.
    """
    import torch

    pairs = packed.contiguous().view(torch.uint8)
    codes = torch.stack([pairs & 0xF, pairs >> 4], dim=-1).flatten(-2)
    return codes.view(torch.int8) - 8
