"""Compares stored weights with what rounding makes of a BF16 source. Needs torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from clefq.clef.config_match import FP8, NVFP4, ModuleFormat
from clefq.clef.formats import Format
from clefq.clef.modelopt import divisor_of
from clefq.clef.small_floats import E2M1_MAX, E4M3_MAX, NVFP4_GROUP, unpack_e2m1
from clefq.clef.tensor_files import TensorInfo
from clefq.quantize.audit.rounding_fp8 import (
    compare_fp8,
    compare_fp8_tensor,
    fp8_numbers,
    tally_fp8,
    tally_fp8_tensor,
)
from clefq.quantize.audit.tallies import (
    DAMAGE_SHARE,
    FACTOR,
    NATIVE,
    SEARCHED,
    SEARCHED_WIDE,
    WIDE,
    Arithmetic,
    Comparison,
    Sides,
    Tally,
    few_of,
    raw_bytes,
)
from clefq.quantize.audit.tallies import weight_args as weight_args
from clefq.quantize.stream import row_blocks

if TYPE_CHECKING:
    import torch

Refs = Mapping[str, TensorInfo]

NVFP4_LARGEST = E2M1_MAX * E4M3_MAX
# How far from a midpoint a value may lie for either neighbour to be its rounding, relative:
# division differs between CPU and GPU kernels in the last bit.
_TIE = 1e-5
# a group whose scale is larger keeps at least half of its norm; compressed-tensors puts 0.125 for 0
_NEXT_TO_ZERO = 0.125
_WAYS = (NATIVE, WIDE, FACTOR, SEARCHED, SEARCHED_WIDE)


def _torch_dtype(name: str) -> torch.dtype:
    """A safetensors dtype as torch's."""
    import torch

    dtype: torch.dtype = getattr(torch, _DTYPES[name])
    return dtype


_DTYPES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32", "I8": "int8", "I32": "int32"}


def comparable(scheme: ModuleFormat) -> bool:
    """Whether the module's rounding can be recomputed."""
    if scheme.format == NVFP4:
        return scheme.group_size == 16
    if scheme.strategy == "block":
        return scheme.format in FP8 and scheme.block is not None
    if scheme.type == "int":
        row = scheme.weights_format
        return row is not None and scheme.format in row.storage.names
    return scheme.format in FP8 and scheme.strategy in ("channel", "tensor")


def compare_module(
    module: str, scheme: ModuleFormat, sides: Sides, members: tuple[str, ...] = ()
) -> Comparison:
    """Recomputes a module's numbers from the source and counts those that differ.

    Another device than the CPU says one thing alone: that every number is what it makes of the
    source. The first rows are then held against the CPU's arithmetic as well, and whatever is not
    equal is compared on the CPU, as if there were no other device.

    Args:
        module: Module name.
        scheme: How it is stored.
        sides: The checkpoint and its source.
        members: All modules of its fused group, for the expected global scale.
    """
    members = members or (module,)
    if sides.device != "cpu":
        found = _compare(module, scheme, sides, members)
        if found.exact and not _tally(module, scheme, sides.on_cpu().first(), found).deviating:
            return found
    return _compare(module, scheme, sides.on_cpu(), members)


def _compare(
    module: str, scheme: ModuleFormat, sides: Sides, members: tuple[str, ...]
) -> Comparison:
    if scheme.format == NVFP4:
        return _compare_nvfp4(module, sides, members)
    if scheme.type == "int" and scheme.weights_format is not None:
        return _tally_rows(module, scheme.weights_format, sides).compared(module, NATIVE)
    if scheme.strategy == "tensor":
        return compare_fp8_tensor(module, sides)
    return compare_fp8(module, scheme, sides)


def _tally(module: str, scheme: ModuleFormat, sides: Sides, found: Comparison) -> Tally:
    """The counts in the arithmetic that a comparison found."""
    if scheme.format == NVFP4 and found.divisor is not None:
        divisor = torch_scalar(found.divisor, sides.device)
        return _tally_nvfp4(module, sides, divisor, found.arithmetic)
    if scheme.type == "int" and scheme.weights_format is not None:
        return _tally_rows(module, scheme.weights_format, sides)
    if scheme.strategy == "tensor":
        return tally_fp8_tensor(module, sides, found.arithmetic)
    return tally_fp8(module, scheme, sides, found.arithmetic)


def _tally_rows(module: str, row: Format, sides: Sides) -> Tally:
    """A format without global scales against what its row in `kernels.ROUNDINGS` gives."""
    from clefq.quantize import kernels

    rounding, args = kernels.ROUNDINGS[row.name], weight_args(row.preset)
    names = [f"{module}.{suffix}" for suffix in (row.storage.codes[0], "weight_scale")]
    kinds = [_torch_dtype(sides.refs[name].dtype) for name in names]
    tally = Tally()
    for first, block in sides.blocks(module):
        theirs = rounding.quantize(block, args, None)
        ours = [
            sides.stored(name, first, len(block), kind)
            for name, kind in zip(names, kinds, strict=True)
        ]
        tally.deviating += int((ours[1] != theirs[1]).sum())
        if not ours[0].equal(theirs[0]):
            a, b = (rounding.values(codes, theirs[1], None) for codes in (ours[0], theirs[0]))
            tally.deviating += int((a != b).sum())
        if tally.deviating:
            tally.add(rounding.values(ours[0], ours[1], None), block)
        tally.numbers += block.numel() + ours[1].numel()
    return tally


def _compare_nvfp4(module: str, sides: Sides, members: tuple[str, ...]) -> Comparison:
    divisor = stored_divisor(sides.refs, module).to(sides.device)
    expected = _expected(sides, module, members)
    best, arithmetic = _best_nvfp4(module, sides, divisor)
    codes_of = float(divisor) if float(divisor) in expected else None
    if codes_of is None:
        # perhaps the codes are right and the global scale is not
        for other in dict.fromkeys(expected):
            again, made_in = _best_nvfp4(module, sides, torch_scalar(other, sides.device))
            if again.deviating <= DAMAGE_SHARE * again.numbers:
                codes_of, arithmetic = other, made_in
                break
    found = best.compared(module, arithmetic)
    return replace(found, divisor=float(divisor), expected_divisors=expected, made_with=codes_of)


def _best_nvfp4(module: str, sides: Sides, divisor: torch.Tensor) -> tuple[Tally, Arithmetic]:
    """The tally of the way that explains most: the one that gives the first rows, then the others.

    amax / 6 and searched scales, each in the weights' own arithmetic and in F32, and ModelOpt's
    factors.
    """

    def first_rows(way: Arithmetic) -> Tally:
        return _tally_nvfp4(module, sides.first(), divisor, way)

    ways = list(_WAYS)
    first = next((way for way in ways if not first_rows(way).deviating), NATIVE)
    ways.remove(first)
    best, how = None, NATIVE
    for way in (first, *ways):
        # a search costs several times as much: the first rows tell whether it is worth it
        if way.searched and way != first and not _begins_like(first_rows(way)):
            continue
        found = _tally_nvfp4(module, sides, divisor, way)
        if best is None or found.deviating < best.deviating:
            best, how = found, way
        if not best.deviating or (way == FACTOR and _explained(best)):
            break
    assert best is not None
    return best, how


def _explained(tally: Tally) -> bool:
    """Whether what deviates is damage, and no other rounding."""
    return tally.deviating <= few_of(tally.numbers)


def _begins_like(first_rows: Tally) -> bool:
    """Whether a way gives most of the first rows' numbers."""
    return first_rows.deviating < first_rows.numbers / 10


def torch_scalar(value: float, device: str = "cpu") -> torch.Tensor:
    """A global scale as compressed-tensors holds it, `[1]`, F32."""
    import torch

    return torch.tensor([value], dtype=torch.float32, device=device)


def _tally_nvfp4(module: str, sides: Sides, divisor: torch.Tensor, arithmetic: Arithmetic) -> Tally:
    """Compares with round-to-nearest under a given global scale."""
    import torch

    from clefq.quantize import kernels

    tally = Tally()
    rows_of = _nvfp4_rounding(divisor, arithmetic)
    for row, block in sides.blocks(module, "F32" if arithmetic.scales else None):
        count = len(block)
        ours = sides.stored(f"{module}.weight_packed", row, count, torch.uint8)
        ours_scales = sides.stored(f"{module}.weight_scale", row, count, torch.float8_e4m3fn)
        theirs, theirs_scales = rows_of(block)
        if not ours.equal(theirs):
            tally.deviating += _nvfp4_deviations(ours, theirs, block, theirs_scales, divisor)
        tally.deviating += int((raw_bytes(ours_scales) != raw_bytes(theirs_scales)).sum())
        if tally.deviating:
            tally.add(kernels.nvfp4_values(ours, ours_scales, divisor), block)
        tally.numbers += block.numel() + ours_scales.numel()
        tally.groups += ours_scales.numel()
        _add_lost(tally, row, (ours, ours_scales, divisor), block)
    return tally


def _nvfp4_rounding(
    divisor: torch.Tensor, arithmetic: Arithmetic
) -> Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]:
    """Round-to-nearest of rows under a global scale."""
    from clefq.quantize import kernels

    if arithmetic.factor:
        return lambda block: kernels.factor_rows(block, divisor.reciprocal())
    args = weight_args("NVFP4A16", arithmetic.searched)
    return lambda block: kernels.nvfp4_rows(block, divisor, args)


def _add_lost(
    tally: Tally,
    row: int,
    stored: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    block: torch.Tensor,
) -> None:
    """Counts what vanishes among the rows that have a scale next to zero: no other row can."""
    from clefq.quantize import kernels

    codes, scales, divisor = stored
    rows = (scales.float() <= _NEXT_TO_ZERO).any(1).nonzero().view(-1)
    if len(rows):
        kept = kernels.nvfp4_values(codes[rows], scales[rows], divisor)
        size = (-1, NVFP4_GROUP)
        tally.add_lost(kept.unflatten(-1, size), block[rows].unflatten(-1, size), rows + row)


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


def requantized(
    module: str, scheme: ModuleFormat, source: Refs, arithmetic: Arithmetic, divisor: float | None
) -> dict[str, bytes]:
    """Quantizes a source weight anew.

    Args:
        module: Module name.
        scheme: How it is stored: NVFP4, or FP8 with a scale per row or tile.
        source: The source's tensors.
        arithmetic: That of the checkpoint's other numbers.
        divisor: For NVFP4: the global scale.

    Returns:
        Suffix to bytes, as stored; FP8 scales in the source's dtype, or F32 in that arithmetic.
    """
    weight = source[f"{module}.weight"]
    dtype = "F32" if arithmetic.scales else weight.dtype
    names = ("weight_packed" if scheme.format == NVFP4 else "weight", "weight_scale")
    made = {name: bytearray() for name in names}
    height = scheme.block[0] if scheme.block is not None else 1
    for _, block in row_blocks(weight, dtype, multiple=height):
        if divisor is None:
            parts = fp8_numbers(block, scheme, arithmetic)
        else:
            parts = _nvfp4_rounding(torch_scalar(divisor), arithmetic)(block)
        for name, part in zip(names, parts, strict=True):
            made[name] += raw_bytes(part.contiguous()).numpy().tobytes()
    return {name: bytes(data) for name, data in made.items()}


def stored_divisor(refs: Refs, module: str) -> torch.Tensor:
    """A module's global scale, `[1]`, F32."""
    import torch

    from clefq.quantize.values import read_floats

    values = read_floats(refs[f"{module}.weight_global_scale"]).reshape(-1)
    return torch.from_numpy(values.copy())[:1]


def _expected(sides: Sides, module: str, members: tuple[str, ...]) -> tuple[float, ...]:
    import torch

    from clefq.quantize import kernels

    largest = {}
    for member in dict.fromkeys((module, *members)):
        largest[member] = torch.stack([kernels.absmax(b) for _, b in sides.blocks(member)]).max()
    group = torch.stack(list(largest.values())).max()
    return tuple(
        divisor
        for own in (group, largest[module])
        for divisor in (
            float(kernels.global_scale(own)),
            float(kernels.global_scale(own.float())),
            float(divisor_of(np.float32(float(own)) / np.float32(NVFP4_LARGEST))[0]),
        )
    )
