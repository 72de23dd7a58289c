"""GPTQ for NVFP4 with group scales that are searched as the columns come.

llm-compressor's GPTQ fixes every group scale before it rounds the first column. By the time that
a group's turn comes its weights have moved, and a scale for what they were is no longer the best.
Here a scale is searched when its group is reached, each error weighted by what it costs after
later columns have made up for it; then its columns are rounded, and their errors are carried on.
All else is llm-compressor's: calibration layer by layer, second moments, shared global scales.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from clefq.clef.formats import SEARCH_OBSERVER
from clefq.clef.small_floats import E2M1_MAX, E4M3_MAX, NVFP4_GROUP, round_to_e2m1
from clefq.quantize.scale_search import FP8, searched_scales

_SMALLEST = 2.0**-9  # of E4M3 above zero
Columns = tuple[torch.Tensor, torch.Tensor]


@contextmanager
def searched_gptq() -> Iterator[None]:
    """Makes llm-compressor's GPTQ round so, inside the block, where a recipe names the search."""
    from importlib import import_module

    # the name that its modifier calls, which its module does not export
    base: Any = import_module("llmcompressor.modifiers.gptq.base")
    theirs = base.quantize_weight

    def quantize_weight(  # noqa: PLR0913  (the library's)
        weights: torch.Tensor,
        hessians: torch.Tensor,
        scale: torch.Tensor,
        zero_point: torch.Tensor,
        global_scale: torch.Tensor | None,
        quant_args: Any,
        blocksize: int = 128,
        percdamp: float = 0.01,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        if global_scale is None or quant_args.observer != SEARCH_OBSERVER:
            found: tuple[torch.Tensor, torch.Tensor, torch.Tensor] = theirs(
                weights,
                hessians,
                scale,
                zero_point,
                global_scale,
                quant_args,
                blocksize=blocksize,
                percdamp=percdamp,
            )
            return found
        losses = torch.zeros(len(weights), device=weights.device)
        for index, weight in enumerate(weights):
            divisor = global_scale[index].reshape(1).float().to(weight.device)
            values, scales, loss = round_with_moments(weight, hessians[index], divisor, percdamp)
            weights[index], losses[index] = values, loss
            # the caller stores the scales that it gave
            scale[index].copy_(scales.float())
        return weights, losses, torch.zeros(len(weights), dtype=torch.bool, device=weights.device)

    base.quantize_weight = quantize_weight
    try:
        yield
    finally:
        base.quantize_weight = theirs


def round_with_moments(
    weight: torch.Tensor, moments: torch.Tensor, divisor: torch.Tensor, damping: float = 0.01
) -> tuple[torch.Tensor, torch.Tensor, float]:
    """Rounds a weight so that its products with the calibration inputs change least.

    Args:
        weight: `[rows, columns]`, F32.
        moments: `[columns, columns]`, F32, Σ x xᵀ of its inputs, at any scale.
        divisor: `[1]`, F32, the global scale.
        damping: Share of the mean of the moments' diagonal that is added to it.

    Returns:
        What the codes stand for, `[rows, columns]`, F32; group scales `[rows, columns / 16]`, E4M3;
        half the squared error of the products.
    """
    left = weight.clone()
    upper = inverse_root(moments, damping)
    values, scales, loss = torch.empty_like(left), [], 0.0
    for start in range(0, left.shape[1], NVFP4_GROUP):
        end = start + NVFP4_GROUP
        inner = upper[start:end, start:end]
        scale = _scales(left[:, start:end], inner.diagonal().square().reciprocal(), divisor)
        scales.append(scale)
        values[:, start:end], errors = _columns(left[:, start:end], inner, scale.float() / divisor)
        left[:, end:] -= errors @ upper[start:end, end:]
        loss += float(errors.square().sum()) / 2
    return values, torch.stack(scales, 1), loss


def inverse_root(moments: torch.Tensor, damping: float) -> torch.Tensor:
    """The upper Cholesky factor of the damped moments' inverse, F32, computed in F64."""
    wide = moments.double()
    added = damping * float(wide.diagonal().mean())
    # inputs that are always zero: any weight will do
    wide.diagonal().add_(added if added > 0 else 1.0)
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(wide))
    return torch.linalg.cholesky(inverse, upper=True).float()


def _scales(group: torch.Tensor, costs: torch.Tensor, divisor: torch.Tensor) -> torch.Tensor:
    """E4M3 scales of one group of columns, `[rows]`."""
    largest = group.abs().amax(1)
    start = (divisor * (largest / E2M1_MAX)).clamp_(_SMALLEST, E4M3_MAX).to(FP8)
    return searched_scales(group, start, divisor, costs)


def _columns(group: torch.Tensor, inner: torch.Tensor, factor: torch.Tensor) -> Columns:
    """Rounds sixteen columns one by one; values, and errors over the factor's diagonal."""
    left = group.clone()
    values, errors = torch.empty_like(left), torch.empty_like(left)
    for at in range(left.shape[1]):
        values[:, at] = round_to_e2m1(left[:, at] / factor) * factor
        errors[:, at] = (left[:, at] - values[:, at]) / inner[at, at]
        left[:, at + 1 :] -= errors[:, at : at + 1] * inner[at, at + 1 :]
    return values, errors
