"""GPTQ with searched group scales: what it makes of a weight and its inputs."""

from __future__ import annotations

import torch

from clefq.quantize import kernels
from clefq.quantize.audit.tallies import weight_args
from clefq.quantize.gptq import round_with_moments, searched_gptq


def case() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A weight, inputs whose columns move together, and the global scale."""
    generator = torch.Generator().manual_seed(3)
    weight = torch.randn(48, 96, generator=generator) * 0.05
    mix = torch.randn(96, 96, generator=generator) * 0.3 + torch.eye(96)
    inputs = torch.randn(400, 96, generator=generator) @ mix
    return weight, inputs, kernels.global_scale(kernels.absmax(weight))


def product_error(values: torch.Tensor, weight: torch.Tensor, inputs: torch.Tensor) -> float:
    return float((inputs @ (values - weight).T).square().sum())


def test_products_change_less_than_by_either_rounding_to_the_nearest() -> None:
    weight, inputs, divisor = case()
    before = weight.clone()
    values, scales, loss = round_with_moments(weight, inputs.T @ inputs, divisor)
    assert weight.equal(before)
    ours = product_error(values, weight, inputs)
    for searched in (False, True):
        numbers = kernels.nvfp4_rows(weight, divisor, weight_args("NVFP4A16", searched))
        nearest = kernels.nvfp4_values(*numbers, divisor)
        assert ours < product_error(nearest, weight, inputs) * 0.8
    assert loss > 0
    # what it returns is what its codes and scales stand for
    factor = (scales.float() / divisor).repeat_interleave(16, 1)
    codes = (values / factor).abs()
    grid = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    assert float((codes.unsqueeze(-1) - grid).abs().amin(-1).max()) < 1e-5


def test_inputs_that_know_nothing_of_each_other_leave_the_search() -> None:
    weight, _, divisor = case()
    values, scales, _ = round_with_moments(weight, torch.eye(96), divisor)
    numbers = kernels.nvfp4_rows(weight, divisor, weight_args("NVFP4A16", searched=True))
    assert scales.view(torch.uint8).equal(numbers[1].view(torch.uint8))
    assert torch.allclose(values, kernels.nvfp4_values(*numbers, divisor), atol=1e-6)


def test_inputs_that_are_always_zero() -> None:
    weight, inputs, divisor = case()
    inputs[:, 3] = 0
    for moments in (inputs.T @ inputs, torch.zeros(96, 96)):
        values, _, _ = round_with_moments(weight, moments, divisor)
        assert bool(torch.isfinite(values).all())


def test_the_library_s_function_comes_back() -> None:
    from llmcompressor.modifiers.gptq import base

    before = base.quantize_weight
    with searched_gptq():
        assert base.quantize_weight is not before
    assert base.quantize_weight is before
