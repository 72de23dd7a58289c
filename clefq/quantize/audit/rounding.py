"""Compares stored weights with what round-to-nearest makes of a BF16 source. Needs torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from clefq.clef.config_match import FP8, NVFP4, Scheme
from clefq.clef.small_floats import NVFP4_GROUP, unpack_e2m1
from clefq.clef.tensor_files import TensorInfo
from clefq.quantize.audit.rounding_fp8 import compare_fp8, compare_fp8_tensor
from clefq.quantize.audit.tallies import DAMAGE_SHARE, Comparison, Tally, raw_bytes, stored_rows
from clefq.quantize.audit.tallies import weight_args as weight_args
from clefq.quantize.stream import row_blocks

if TYPE_CHECKING:
    import torch

Refs = Mapping[str, TensorInfo]

# How far from a midpoint a value may lie for either neighbour to be its rounding, relative:
# division differs between CPU and GPU kernels in the last bit.
_TIE = 1e-5


def comparable(scheme: Scheme) -> bool:
    """Whether the module's rounding can be recomputed."""
    if scheme.format == NVFP4:
        return scheme.group_size == 16
    if scheme.strategy == "block":
        return scheme.format in FP8 and scheme.block is not None
    return scheme.format in FP8 and scheme.strategy in ("channel", "tensor")


def compare_module(
    module: str, scheme: Scheme, refs: Refs, source: Refs, members: tuple[str, ...] = ()
) -> Comparison:
    """Recomputes a module's numbers from the source and counts those that differ.

    Args:
        module: Module name.
        scheme: How it is stored.
        refs: The quantized checkpoint's tensors.
        source: The source's tensors.
        members: All modules of its fused group, for the expected global scale.
    """
    if scheme.format == NVFP4:
        return _compare_nvfp4(module, refs, source, members or (module,))
    if scheme.strategy == "tensor":
        return compare_fp8_tensor(module, refs, source)
    return compare_fp8(module, scheme, refs, source)


def _compare_nvfp4(module: str, refs: Refs, source: Refs, members: tuple[str, ...]) -> Comparison:
    divisor = stored_divisor(refs, module)
    expected = _expected(source, module, members)
    tally = _tally_nvfp4(module, refs, source, divisor)
    codes_of = None
    if float(divisor) in expected:
        codes_of = float(divisor)
    else:
        # perhaps the codes are right and the global scale is not
        for other in dict.fromkeys(expected):
            again = _tally_nvfp4(module, refs, source, torch_scalar(other))
            if again.deviating <= DAMAGE_SHARE * again.numbers:
                codes_of = other
                break
    return Comparison(
        module,
        tally.numbers,
        tally.deviating,
        tally.wild,
        tally.relative_error,
        float(divisor),
        expected,
        codes_of,
    )


def torch_scalar(value: float) -> torch.Tensor:
    """A global scale as compressed-tensors holds it, `[1]`, F32."""
    import torch

    return torch.tensor([value], dtype=torch.float32)


def _tally_nvfp4(module: str, refs: Refs, source: Refs, divisor: torch.Tensor) -> Tally:
    """Compares with round-to-nearest under a given global scale."""
    import torch

    from clefq.quantize import kernels

    packed, scales = refs[f"{module}.weight_packed"], refs[f"{module}.weight_scale"]
    tally = Tally()
    ref = source[f"{module}.weight"]
    for row, block in row_blocks(ref, ref.dtype):
        ours = stored_rows(packed, row, len(block), torch.uint8)
        ours_scales = stored_rows(scales, row, len(block), torch.float8_e4m3fn)
        theirs, theirs_scales = kernels.nvfp4_rows(block, divisor, weight_args("NVFP4A16"))
        if not ours.equal(theirs):
            tally.deviating += _nvfp4_deviations(ours, theirs, block, theirs_scales, divisor)
        tally.deviating += int((raw_bytes(ours_scales) != raw_bytes(theirs_scales)).sum())
        if tally.deviating:
            tally.add(kernels.nvfp4_values(ours, ours_scales, divisor), block)
        tally.numbers += block.numel() + ours_scales.numel()
    return tally


def _nvfp4_deviations(
    ours: torch.Tensor,
    theirs: torch.Tensor,
    block: torch.Tensor,
    scales: torch.Tensor,
    divisor: torch.Tensor,
) -> int:
    """Codes that differ, apart from those whose value lies on a midpoint up to rounding."""
    a, b = unpack_e2m1(ours), unpack_e2m1(theirs)
    wide = block.unflatten(-1, (-1, NVFP4_GROUP)).float()
    value = (wide / (scales.float() / divisor).unsqueeze(-1)).flatten(-2)
    middle = (a + b) / 2
    tie = (value - middle).abs() <= _TIE * middle.abs()
    # two zeros of different sign stand for the same weight
    return int(((a != b) & ~tie).sum())


def quantize_module(weight: TensorInfo, divisor: float) -> tuple[bytes, bytes]:
    """Quantizes a source weight to NVFP4 under a given global scale.

    Returns:
        Packed codes and group scales, as stored.
    """
    from clefq.quantize import kernels

    shared = torch_scalar(divisor)
    packed, scales = bytearray(), bytearray()
    for _, block in row_blocks(weight, weight.dtype):
        codes, group = kernels.nvfp4_rows(block, shared, weight_args("NVFP4A16"))
        packed += codes.numpy().tobytes()
        scales += raw_bytes(group).numpy().tobytes()
    return bytes(packed), bytes(scales)


def stored_divisor(refs: Refs, module: str) -> torch.Tensor:
    """A module's global scale, `[1]`, F32."""
    import torch

    from clefq.quantize.values import read_floats

    values = read_floats(refs[f"{module}.weight_global_scale"]).reshape(-1)
    return torch.from_numpy(values.copy())[:1]


def _expected(source: Refs, module: str, members: tuple[str, ...]) -> tuple[float, ...]:
    import torch

    from clefq.quantize import kernels

    largest = {}
    for member in dict.fromkeys((module, *members)):
        ref = source[f"{member}.weight"]
        blocks = [kernels.absmax(block) for _, block in row_blocks(ref, ref.dtype)]
        largest[member] = torch.stack(blocks).max()
    group = torch.stack(list(largest.values())).max()
    return tuple(
        float(kernels.global_scale(value))
        for own in (group, largest[module])
        for value in (own, own.float())
    )
