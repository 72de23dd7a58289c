"""Round-to-nearest quantization of weight rows, bit for bit what compressed-tensors computes.

Scales come from compressed-tensors' own functions. Rounding and packing are written anew, because
the library's CPU versions assign through eight boolean masks and convert FP8 back and forth: here
a code is the number of midpoints below the value. Tests hold every function against the library.
Rows are independent, so a caller may cut a weight into blocks of rows that fit the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam

GROUP = 16
FP8 = torch.float8_e4m3fn
_FP8_MAX = torch.finfo(FP8).max
# Midpoints between neighbouring E2M1 magnitudes 0, ½, 1, 1½, 2, 3, 4, 6 and whether the midpoint
# itself rounds up: ties go to the even code.
_MIDPOINTS = (
    (0.25, False),
    (0.75, True),
    (1.25, False),
    (1.75, True),
    (2.5, False),
    (3.5, True),
    (5.0, False),
)


def absmax(weight: torch.Tensor) -> torch.Tensor:
    """Largest magnitude of a block, a scalar in its dtype.

    Args:
        weight: `[rows, columns]`, BF16, F16 or F32.
    """
    low, high = torch.aminmax(weight)
    return torch.maximum(-low, high)


def global_scale(largest: torch.Tensor) -> torch.Tensor:
    """The NVFP4 global scale (a divisor) of everything whose largest magnitude is `largest`.

    Computed in the weights' dtype, so in BF16 the quotient 448·6/amax is rounded to BF16.

    Args:
        largest: Scalar in the weights' dtype, over all members of a fused group.

    Returns:
        `[1]`, F32.
    """
    value: torch.Tensor = generate_gparam(-largest.reshape(1), largest.reshape(1))
    return value


def nvfp4_rows(
    weight: torch.Tensor, divisor: torch.Tensor, args: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantizes rows to NVFP4.

    Args:
        weight: `[rows, columns]` in the model's dtype; columns divisible by 16.
        divisor: `[1]`, F32, the global scale.
        args: The scheme's `QuantizationArgs` for weights.

    Returns:
        Codes `[rows, columns / 2]`, U8, the first of two in the low half; group scales
        `[rows, columns / 16]`, E4M3.
    """
    groups = weight.unflatten(-1, (-1, GROUP))
    low, high = torch.aminmax(groups, dim=-1)
    scales, _ = calculate_qparams(low, high, args, global_scale=divisor)
    # the library keeps scales in the model's dtype in between; E4M3 values survive that
    scales = scales.to(weight.dtype)
    scaled = groups / (scales.unsqueeze(-1) / divisor)
    packed = pack_e2m1(scaled).view(weight.shape[0], -1)
    return packed, scales.to(FP8)


def pack_e2m1(values: torch.Tensor) -> torch.Tensor:
    """Rounds to E2M1, ties to even, saturating at ±6, and packs two codes into a byte.

    Args:
        values: F32, any shape, an even number of elements.

    Returns:
        U8, flat, half as many elements.
    """
    flat = values.reshape(-1)
    magnitude = flat.abs()
    # a negative zero loses its sign in the library; what rounds to zero from below keeps it
    above = flat < 0
    code = above.view(torch.uint8) << 3
    for midpoint, tie_up in _MIDPOINTS:
        compare = torch.ge if tie_up else torch.gt
        code += compare(magnitude, midpoint, out=above).view(torch.uint8)
    # a pair of bytes read as one little-endian number: the first element is the low byte
    pairs = code.view(torch.int16)
    return (pairs | (pairs >> 4)).to(torch.uint8)


def fp8_rows(weight: torch.Tensor, args: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantizes rows to E4M3 with one scale per row (output channel).

    Args:
        weight: `[rows, columns]` in the model's dtype.
        args: The scheme's `QuantizationArgs` for weights.

    Returns:
        Codes `[rows, columns]`, E4M3; scales `[rows, 1]` in the model's dtype.
    """
    low, high = torch.aminmax(weight, dim=-1, keepdim=True)
    scales, _ = calculate_qparams(low, high, args)
    return fp8_codes(weight, scales), scales


def fp8_codes(weight: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Weights as E4M3 codes, saturating; the quotient is taken in the dtype of both.

    Args:
        weight: `[rows, columns]`.
        scales: A shape that broadcasts against it, same dtype.
    """
    return (weight / scales).clamp_(-_FP8_MAX, _FP8_MAX).to(FP8)


def fp8_blocks(
    weight: torch.Tensor, size: tuple[int, int], args: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantizes rows to E4M3 with one scale per tile.

    Args:
        weight: `[rows, columns]` in the model's dtype; its first row begins a tile.
        size: Rows and columns of a tile; the last ones may be smaller.
        args: A `QuantizationArgs` of eight bits.

    Returns:
        Codes `[rows, columns]`, E4M3; scales `[⌈rows/height⌉, ⌈columns/width⌉]` in the dtype.
    """
    height, width = size
    rows, columns = weight.shape
    padded = torch.nn.functional.pad(weight, (0, -columns % width, 0, -rows % height))
    tiles = padded.unflatten(1, (-1, width)).unflatten(0, (-1, height))
    scales, _ = calculate_qparams(tiles.amin((1, 3)), tiles.amax((1, 3)), args)
    return fp8_codes(weight, spread(scales, size, weight.shape)), scales


def spread(scales: torch.Tensor, size: tuple[int, int], shape: Sequence[int]) -> torch.Tensor:
    """The scale of every weight, from one per tile.

    Args:
        scales: `[tile rows, tile columns]`.
        size: Rows and columns of a tile.
        shape: Of the weight.
    """
    wide = scales.repeat_interleave(size[0], 0)[: shape[0]]
    return wide.repeat_interleave(size[1], 1)[:, : shape[1]]


def unpack_e2m1(packed: torch.Tensor) -> torch.Tensor:
    """E2M1 codes as values.

    Args:
        packed: `[rows, n]`, U8.

    Returns:
        `[rows, 2n]`, F32.
    """
    table = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0], device=packed.device)
    table = torch.cat([table, -table])
    codes = torch.stack([packed & 15, packed >> 4], dim=-1).flatten(-2)
    return table[codes.int()]


def nvfp4_values(packed: torch.Tensor, scales: torch.Tensor, divisor: torch.Tensor) -> torch.Tensor:
    """What stored NVFP4 rows stand for: code · group scale / global scale.

    Args:
        packed: `[rows, columns / 2]`, U8.
        scales: `[rows, columns / 16]`, E4M3.
        divisor: `[1]`, F32.

    Returns:
        `[rows, columns]`, F32.
    """
    codes = unpack_e2m1(packed).unflatten(-1, (-1, GROUP))
    return (codes * (scales.float() / divisor).unsqueeze(-1)).flatten(-2)


@dataclass(frozen=True, slots=True)
class Rounding:
    """Round-to-nearest to one format, and back.

    Attributes:
        quantize: Weight rows `[rows, columns]`, the scheme's `QuantizationArgs` for weights and
            the global scale (or None) to codes and local scales, as stored.
        values: Codes, local scales and global scale to what they stand for, `[rows, columns]`,
            F32.
        shared: Whether a fused group has one global scale.
    """

    quantize: Callable[[torch.Tensor, Any, torch.Tensor | None], tuple[torch.Tensor, torch.Tensor]]
    values: Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None], torch.Tensor]
    shared: bool = False


def _given(divisor: torch.Tensor | None) -> torch.Tensor:
    assert divisor is not None  # Rounding.shared says that there is one
    return divisor


_FP8 = Rounding(
    quantize=lambda weight, args, _: fp8_rows(weight, args),
    values=lambda codes, scales, _: codes.float() * scales.float(),
)
_NVFP4 = Rounding(
    quantize=lambda weight, args, divisor: nvfp4_rows(weight, _given(divisor), args),
    values=lambda codes, scales, divisor: nvfp4_values(codes, scales, _given(divisor)),
    shared=True,
)
# format -> its rounding; those of `clefq.clef.formats.RECIPE_FORMATS`
ROUNDINGS: dict[str, Rounding] = {"fp8": _FP8, "nvfp4a16": _NVFP4, "nvfp4": _NVFP4}
