"""NVFP4 group scales by search: the E4M3 number near amax / 6 that rounds a group best.

amax / 6 puts the largest weight of a group on the largest number there is. The format asks for
nothing like it: amax / 4 uses the finer half of E2M1's numbers better ("four over six"), a smaller
scale clips the largest weight in favour of the others. Every one of `STEPS` is tried, and the one
of least squared error is taken, the first of equals. The global scale stays as it is, that of the
fused group's largest weight, so that files, kernels and shared scales are the same.

Sums are taken in one fixed order, by operations that every device rounds alike: the same bits come
out of a CPU and of a GPU, of streaming and of llm-compressor's process, and an audit can recompute
them. Groups lie across, [16, groups], so that a scale is read once for sixteen columns.
"""

from __future__ import annotations

import torch

from clefq.clef.small_floats import E2M1_MAX, NVFP4_GROUP

FP8 = torch.float8_e4m3fn
# E4M3 codes beside that of amax / 6, which comes first; amax / 4 is four or five above.
STEPS = (0, -2, -1, 1, 2, 3, 4, 5, 6)
_LARGEST = 126  # code of 448
_CHUNK = 1 << 14  # groups whose working set stays in a core's cache
_GPU_CHUNK = 1 << 22
_EXPONENT = 0x7F80_0000
# Added to a float and taken away again, it leaves a multiple of half the float's power of two.
_HALF_STEPS = 0.75 * 2.0**23


def searched_scales(
    groups: torch.Tensor,
    start: torch.Tensor,
    divisor: torch.Tensor,
    costs: torch.Tensor | None = None,
) -> torch.Tensor:
    """The group scales of least squared rounding error.

    Args:
        groups: `[..., 16]`, weights.
        start: `[...]`, E4M3, the scales that amax / 6 gives.
        divisor: `[1]`, F32, the global scale.
        costs: `[16]`, F32, what a squared error of each column costs; None for one.

    Returns:
        `[...]`, E4M3. No group's error is larger than under its first scale.
    """
    rows = groups.reshape(-1, NVFP4_GROUP)
    codes = start.contiguous().view(torch.uint8).view(-1)
    step = _GPU_CHUNK if groups.is_cuda else _CHUNK
    found = [
        _best(rows[at : at + step], codes[at : at + step], divisor, costs)
        for at in range(0, len(codes), step)
    ]
    return torch.cat(found).view(FP8).view(start.shape)


def _best(
    rows: torch.Tensor, codes: torch.Tensor, divisor: torch.Tensor, costs: torch.Tensor | None
) -> torch.Tensor:
    """The best E4M3 code of every group, `[groups]`, U8."""
    weights = rows.T.float().abs().contiguous()
    work = torch.empty_like(weights), torch.empty_like(weights)
    wide = codes.to(torch.int32)
    best = codes
    least = group_errors(weights, best, divisor, costs, work)
    for step in STEPS[1:]:
        tried = (wide + step).clamp_(1, _LARGEST).to(torch.uint8)
        errors = group_errors(weights, tried, divisor, costs, work)
        better = errors < least
        best = torch.where(better, tried, best)
        least = torch.where(better, errors, least)
    return best


def group_errors(
    weights: torch.Tensor,
    codes: torch.Tensor,
    divisor: torch.Tensor,
    costs: torch.Tensor | None = None,
    work: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> torch.Tensor:
    """Squared error of every group when it is rounded to nearest under a scale.

    Args:
        weights: `[16, groups]`, F32, magnitudes.
        codes: `[groups]`, U8, the scales' E4M3 codes.
        divisor: `[1]`, F32, the global scale.
        costs: `[16]`, F32, what a squared error of each column costs; None for one.
        work: Two tensors like `weights`, to write to.

    Returns:
        `[groups]`, F32.
    """
    error, power = work or (torch.empty_like(weights), torch.empty_like(weights))
    factor = codes.view(FP8).float() / divisor
    torch.div(weights, factor, out=error)
    error.clamp_max_(E2M1_MAX)
    torch.bitwise_and(error.view(torch.int32), _EXPONENT, out=power.view(torch.int32))
    power.clamp_min_(1.0).mul_(_HALF_STEPS)
    error.add_(power).sub_(power).mul_(factor).sub_(weights)
    torch.mul(error, error, out=error)
    if costs is not None:
        error.mul_(costs.unsqueeze(1))
    while len(error) > 1:
        half = len(error) // 2
        error = error[:half] + error[half:]
    return error[0]
