"""The input rounding of W4A4 as one Triton kernel.

The same steps in the same order as `small_floats.quantize_nvfp4`, in FP32: an input in BF16
often lies exactly between two E2M1 values, where the last bit decides. E4M3 is rounded by
arithmetic, so the kernel runs on GPUs that have no FP8 type.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

_GROUPS = 256  # groups of 16 that one program rounds


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _nearest(x):  # type: ignore[no-untyped-def]
    """Rounds 0 ≤ x < 2^22 to an integer, ties to even: the sum leaves no bit behind the point."""
    return (x + 12582912.0) - 12582912.0


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _quantize(x_ptr, divisor_ptr, out_ptr, groups, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    rows = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    at = rows[:, None] * 16 + tl.arange(0, 16)[None, :]
    inside = (rows < groups)[:, None]
    x = tl.load(x_ptr + at, mask=inside, other=0.0).to(tl.float32)
    divisor = tl.load(divisor_ptr)
    amax = tl.max(tl.abs(x), axis=1)
    # 1/6 as FP32 has it
    scale = tl.minimum(divisor * (amax * 0.16666667163372040), 448.0)
    # E4M3: three bits behind the leading one, from 2^-6 down in steps of 2^-9
    exponent = ((scale.to(tl.int32, bitcast=True) >> 23) & 0xFF) - 127
    exponent = tl.maximum(exponent, -6)
    step = ((exponent - 3 + 127) << 23).to(tl.float32, bitcast=True)
    inverse = ((127 - (exponent - 3)) << 23).to(tl.float32, bitcast=True)
    scale = _nearest(scale * inverse) * step
    factor = tl.div_rn(1.0, scale * tl.div_rn(1.0, divisor))
    factor = tl.where(scale > 0, factor, 0.0)
    scaled = x * factor[:, None]
    size = tl.minimum(tl.abs(scaled), 6.0)
    two = tl.where(size < 2.0, 2.0, tl.where(size < 4.0, 1.0, 0.5))
    half = tl.where(size < 2.0, 0.5, tl.where(size < 4.0, 1.0, 2.0))
    code = _nearest(size * two) * half
    code = tl.where(scaled < 0, -code, code)
    tl.store(out_ptr + at, (code * scale[:, None]).to(out_ptr.dtype.element_ty), mask=inside)


def quantize(x: torch.Tensor, divisor: torch.Tensor) -> torch.Tensor:
    """Rounds an input as a W4A4 kernel does.

    Args:
        x: BF16 [tokens, K], K a multiple of 16, on a GPU.
        divisor: FP32 scalar on the same GPU, the input's global scale as stored.

    Returns:
        BF16 [tokens, K], the input's global scale not divided out.
    """
    x = x.contiguous()
    out = torch.empty_like(x)
    groups = x.numel() // 16
    if groups:
        grid = (triton.cdiv(groups, _GROUPS),)
        _quantize[grid](x, divisor.reshape(1), out, groups, BLOCK=_GROUPS)
    return out
