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

from clefq.clef.formats import SEARCH_OBSERVER
from clefq.clef.small_floats import (
    E2M1_MAX,
    E4M3_MAX,
    NVFP4_GROUP,
    pack_e2m1,
    unpack_e2m1,
    unpack_int4,
)
from clefq.quantize.scale_search import FP8, searched_scales

# ModelOpt's smallest group scale: E4M3's smallest number above zero.
_SMALLEST_SCALE = 2.0**-9


def absmax(weight: torch.Tensor) -> torch.Tensor:
    """Largest magnitude of a block, a scalar in its dtype.

    Args:
        weight: `[rows, columns]`, BF16, F16 or F32.
    """
    low, high = torch.aminmax(weight)
    return torch.maximum(-low, high)


def row_absmax(rows: torch.Tensor) -> torch.Tensor:
    """Largest magnitude along the last dimension, which is left out; in the dtype of `rows`.

    Without their sign, the bits of 16-bit floats order as integers do, and those are compared many
    times as fast.
    """
    if rows.dtype.itemsize != 2:
        return rows.abs().amax(-1)
    return (rows.view(torch.int16) & 0x7FFF).amax(-1).view(rows.dtype)


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
        args: The scheme's `QuantizationArgs` for weights; its observer says whether group scales
            are searched.

    Returns:
        Codes `[rows, columns / 2]`, U8, the first of two in the low half; group scales
        `[rows, columns / 16]`, E4M3.
    """
    groups = weight.unflatten(-1, (-1, NVFP4_GROUP))
    largest = row_absmax(groups)
    scales, _ = calculate_qparams(-largest, largest, args, global_scale=divisor)
    if args.observer == SEARCH_OBSERVER:
        scales = searched_scales(groups, scales.to(FP8), divisor)
    # the library keeps scales in the model's dtype in between; E4M3 values survive that
    scales = scales.to(weight.dtype)
    scaled = groups / (scales.unsqueeze(-1) / divisor)
    packed = pack_e2m1(scaled).view(weight.shape[0], -1)
    return packed, scales.to(FP8)


def factor_rows(weight: torch.Tensor, factor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantizes rows to NVFP4 as ModelOpt does, under a global factor.

    Group scale = E4M3(amax / (6 · factor)), from 2^-9 to 448, 1 over a group of zeros; a code is
    the nearest E2M1 to weight / (group scale · factor). All in F32.

    Args:
        weight: `[rows, columns]`, F32, columns divisible by 16.
        factor: `[1]`, F32: largest magnitude / 2688.

    Returns:
        As `nvfp4_rows`.
    """
    groups = weight.unflatten(-1, (-1, NVFP4_GROUP))
    scales = groups.abs().amax(-1) / (E2M1_MAX * factor)
    scales = torch.where(scales == 0, 1.0, scales).clamp(_SMALLEST_SCALE, E4M3_MAX).to(FP8)
    scaled = groups / (scales.float() * factor).unsqueeze(-1)
    return pack_e2m1(scaled).view(weight.shape[0], -1), scales


def fp8_rows(weight: torch.Tensor, args: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantizes rows to E4M3 with one scale per row (output channel).

    Args:
        weight: `[rows, columns]` in the model's dtype.
        args: The scheme's `QuantizationArgs` for weights.

    Returns:
        Codes `[rows, columns]`, E4M3; scales `[rows, 1]` in the model's dtype.
    """
    largest = row_absmax(weight).unsqueeze(-1)
    scales, _ = calculate_qparams(-largest, largest, args)
    return fp8_codes(weight, scales), scales


def fp8_codes(weight: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Weights as E4M3 codes, saturating; the quotient is taken in the dtype of both.

    Args:
        weight: `[rows, columns]`.
        scales: A shape that broadcasts against it, same dtype.
    """
    return (weight / scales).clamp_(-E4M3_MAX, E4M3_MAX).to(FP8)


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


def int8_rows(weight: torch.Tensor, args: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantizes rows to INT8 with one scale per row (output channel), symmetric.

    Args:
        weight: `[rows, columns]` in the model's dtype.
        args: The scheme's `QuantizationArgs` for weights.

    Returns:
        Codes `[rows, columns]`, I8, -128 to 127; scales `[rows, 1]` in the model's dtype.
    """
    largest = row_absmax(weight).unsqueeze(-1)
    scales, _ = calculate_qparams(-largest, largest, args)
    return (weight / scales).round_().clamp_(-128, 127).to(torch.int8), scales


def int4_rows(weight: torch.Tensor, args: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantizes rows to INT4 with one scale per group, symmetric.

    Args:
        weight: `[rows, columns]` in the model's dtype; columns divisible by the group size.
        args: The scheme's `QuantizationArgs` for weights.

    Returns:
        Codes `[rows, columns / 8]`, I32, eight codes plus 8 each, the first in the lowest bits;
        scales `[rows, groups]` in the model's dtype.
    """
    groups = weight.unflatten(-1, (-1, args.group_size))
    largest = row_absmax(groups)
    scales, _ = calculate_qparams(-largest, largest, args)
    codes = (groups / scales.unsqueeze(-1)).round_().clamp_(-8, 7).to(torch.int8).flatten(-2)
    return pack_int4(codes), scales


def pack_int4(codes: torch.Tensor) -> torch.Tensor:
    """Packs codes from -8 to 7, I8 `[rows, columns]`, into I32 `[rows, columns / 8]`."""
    nibbles = (codes + 8).view(torch.uint8).unflatten(-1, (-1, 2))
    return (nibbles[..., 0] | (nibbles[..., 1] << 4)).contiguous().view(torch.int32)


def int4_values(packed: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """What stored INT4 rows stand for: code · group scale.

    Args:
        packed: `[rows, columns / 8]`, I32.
        scales: `[rows, groups]`.

    Returns:
        `[rows, columns]`, F32.
    """
    codes = unpack_int4(packed).float().unflatten(-1, (scales.shape[1], -1))
    return (codes * scales.float().unsqueeze(-1)).flatten(-2)


def nvfp4_values(packed: torch.Tensor, scales: torch.Tensor, divisor: torch.Tensor) -> torch.Tensor:
    """What stored NVFP4 rows stand for: code · group scale / global scale.

    Args:
        packed: `[rows, columns / 2]`, U8.
        scales: `[rows, columns / 16]`, E4M3.
        divisor: `[1]`, F32.

    Returns:
        `[rows, columns]`, F32.
    """
    codes = unpack_e2m1(packed).unflatten(-1, (-1, NVFP4_GROUP))
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
_INT8 = Rounding(
    quantize=lambda weight, args, _: int8_rows(weight, args),
    values=lambda codes, scales, _: codes.float() * scales.float(),
)
_INT4 = Rounding(
    quantize=lambda weight, args, _: int4_rows(weight, args),
    values=lambda codes, scales, _: int4_values(codes, scales),
)
# format -> its rounding; those of `clefq.clef.formats.RECIPE_FORMATS`
ROUNDINGS: dict[str, Rounding] = {
    "fp8": _FP8,
    "int8": _INT8,
    "nvfp4a16": _NVFP4,
    "int4": _INT4,
    "nvfp4": _NVFP4,
}
