"""FP8 weights against round-to-nearest of a source, in each arithmetic that tools use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clefq.clef.config_match import ModuleFormat
from clefq.quantize.audit.tallies import (
    NATIVE,
    WIDE,
    Arithmetic,
    Comparison,
    Sides,
    Tally,
    raw_bytes,
    weight_args,
)
from clefq.quantize.values import read_floats

if TYPE_CHECKING:
    import torch

_ARITHMETICS = (NATIVE, Arithmetic(quotients=True), WIDE)


def compare_fp8(module: str, scheme: ModuleFormat, sides: Sides) -> Comparison:
    """One scale per row or tile: codes and scales against each known arithmetic, the best wins."""
    best: tuple[Tally, Arithmetic] | None = None
    for arithmetic in _ARITHMETICS:
        tally = tally_fp8(module, scheme, sides, arithmetic)
        if best is None or tally.deviating < best[0].deviating:
            best = tally, arithmetic
        if not best[0].deviating:
            break
    assert best is not None
    return best[0].compared(module, best[1])


def tally_fp8(module: str, scheme: ModuleFormat, sides: Sides, arithmetic: Arithmetic) -> Tally:
    """Codes and scales against round-to-nearest in one arithmetic."""
    import torch

    # a scale per row is one per tile of one row
    codes, scales = f"{module}.weight", f"{module}.weight_scale"
    height, width = scheme.block or (1, sides.refs[codes].shape[1])
    kinds = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}
    dtype = kinds[sides.refs[scales].dtype]
    tally = Tally()
    for row, block in sides.blocks(module, multiple=height):
        ours = sides.stored(codes, row, len(block), torch.float8_e4m3fn)
        ours_scales = sides.stored(scales, row // height, -(-len(block) // height), dtype)
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


def compare_fp8_tensor(module: str, sides: Sides) -> Comparison:
    """One scale for the whole weight: codes are held against rounding under the stored scale."""
    ways = (Arithmetic(quotients=True), NATIVE, Arithmetic(factor=True))
    tallies = [(tally_fp8_tensor(module, sides, way), way) for way in ways]
    best, way = min(tallies, key=lambda pair: pair[0].deviating)
    return best.compared(module, way)


def tally_fp8_tensor(module: str, sides: Sides, way: Arithmetic) -> Tally:
    """Codes against round-to-nearest under the stored scale, in one arithmetic."""
    import torch

    from clefq.quantize import kernels

    stored_scale = read_floats(sides.refs[f"{module}.weight_scale"]).reshape(-1)[:1]
    scale = torch.tensor(stored_scale.copy(), device=sides.device)
    tally = Tally()
    for row, block in sides.blocks(module):
        ours = sides.stored(f"{module}.weight", row, len(block), torch.float8_e4m3fn)
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
        rows = torch.arange(row, row + len(block), device=sides.device)
        tally.add_lost(stored.unsqueeze(1), block.unsqueeze(1), rows)
    return tally
