"""FP8 weights against round-to-nearest of a source, in each arithmetic that tools use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from clefq.clef.config_match import ModuleFormat
from clefq.clef.tensor_files import TensorInfo
from clefq.quantize.audit.tallies import (
    NATIVE,
    WIDE,
    Arithmetic,
    Comparison,
    Tally,
    raw_bytes,
    stored_rows,
    weight_args,
)
from clefq.quantize.stream import row_blocks
from clefq.quantize.values import read_floats

if TYPE_CHECKING:
    import torch

Refs = Mapping[str, TensorInfo]


_ARITHMETICS = (NATIVE, Arithmetic(quotients=True), WIDE)


def compare_fp8(module: str, scheme: ModuleFormat, refs: Refs, source: Refs) -> Comparison:
    """One scale per row or tile: codes and scales against each known arithmetic, the best wins."""
    best: tuple[Tally, Arithmetic] | None = None
    for arithmetic in _ARITHMETICS:
        tally = _tally_fp8(module, scheme, refs, source, arithmetic)
        if best is None or tally.deviating < best[0].deviating:
            best = tally, arithmetic
        if not best[0].deviating:
            break
    assert best is not None
    return best[0].compared(module, best[1])


def _tally_fp8(
    module: str, scheme: ModuleFormat, refs: Refs, source: Refs, arithmetic: Arithmetic
) -> Tally:
    import torch

    # a scale per row is one per tile of one row
    height, width = scheme.block or (1, refs[f"{module}.weight"].shape[1])
    codes, scales = refs[f"{module}.weight"], refs[f"{module}.weight_scale"]
    dtype = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}[scales.dtype]
    tally = Tally()
    ref = source[f"{module}.weight"]
    for row, block in row_blocks(ref, ref.dtype, multiple=height):
        ours = stored_rows(codes, row, len(block), torch.float8_e4m3fn)
        ours_scales = stored_rows(scales, row // height, -(-len(block) // height), dtype)
        theirs, theirs_scales = fp8_numbers(block, scheme, arithmetic)
        if not raw_bytes(ours).equal(raw_bytes(theirs)):
            tally.deviating += int((ours.float() != theirs.float()).sum())
        tally.deviating += int((ours_scales.float() != theirs_scales.float()).sum())
        if tally.deviating:
            tally.add(_fp8_values(ours, ours_scales, (height, width)), block)
        tally.numbers += block.numel() + ours_scales.numel()
    return tally


def fp8_numbers(
    block: torch.Tensor, scheme: ModuleFormat, arithmetic: Arithmetic
) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes and scales that round-to-nearest gives."""
    from clefq.quantize import kernels

    args = weight_args("FP8_DYNAMIC")
    if arithmetic.scales:
        block = block.float()
    if scheme.block is None:
        codes, scales = kernels.fp8_rows(block, args)
        wide = scales
    else:
        codes, scales = kernels.fp8_blocks(block, scheme.block, args)
        wide = kernels.spread(scales, scheme.block, block.shape)
    if arithmetic.quotients:
        codes = kernels.fp8_codes(block.float(), wide.float())
    return codes, scales


def _fp8_values(codes: torch.Tensor, scales: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
    from clefq.quantize import kernels

    return codes.float() * kernels.spread(scales.float(), size, codes.shape)


def compare_fp8_tensor(module: str, refs: Refs, source: Refs) -> Comparison:
    """One scale for the whole weight: codes are held against rounding under the stored scale."""
    ways = (Arithmetic(quotients=True), NATIVE, Arithmetic(factor=True))
    tallies = [(_tally_fp8_tensor(module, refs, source, way), way) for way in ways]
    best, way = min(tallies, key=lambda pair: pair[0].deviating)
    return best.compared(module, way)


def _tally_fp8_tensor(module: str, refs: Refs, source: Refs, way: Arithmetic) -> Tally:
    import torch

    from clefq.quantize import kernels

    scale = torch.tensor(read_floats(refs[f"{module}.weight_scale"]).reshape(-1)[:1].copy())
    codes, ref = refs[f"{module}.weight"], source[f"{module}.weight"]
    tally = Tally()
    for row, block in row_blocks(ref, ref.dtype):
        ours = stored_rows(codes, row, len(block), torch.float8_e4m3fn)
        weight = block.float() if way.quotients else block
        # ModelOpt divides BF16 by an F32 scalar, and keeps the quotient in BF16
        divisor = scale.reshape(()) if way.factor else scale.to(weight.dtype)
        theirs = kernels.fp8_codes(weight, divisor)
        tally.deviating += int((ours.float() != theirs.float()).sum())
        # the scale itself may be wrong, so that the norms are taken throughout
        stored = ours.float() * scale
        tally.add(stored, block)
        tally.numbers += block.numel()
        tally.groups += len(block)
        rows = torch.arange(row, row + len(block))
        tally.add_lost(stored.unsqueeze(1), block.unsqueeze(1), rows)
    return tally
