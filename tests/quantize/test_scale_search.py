"""The search of NVFP4 group scales, against every E4M3 number there is."""

from __future__ import annotations

import torch

from clefq.clef.small_floats import E2M1_VALUES, E4M3, round_to_e2m1
from clefq.quantize import kernels
from clefq.quantize.audit.tallies import weight_args
from clefq.quantize.scale_search import FP8, STEPS, group_errors, searched_scales

PLAIN, SEARCHED = weight_args("NVFP4A16"), weight_args("NVFP4A16", searched=True)


def weights(rows: int = 96, columns: int = 256) -> torch.Tensor:
    """Ranges far apart, a row of zeros, a few outliers."""
    generator = torch.Generator().manual_seed(5)
    found = torch.randn(rows, columns, generator=generator) * 0.02
    found *= 10 ** torch.empty(rows, 1).uniform_(-3, 1, generator=generator)
    found[7] = 0
    found[9, ::40] *= 30
    return found.bfloat16()


def errors(
    weight: torch.Tensor, packed: torch.Tensor, scales: torch.Tensor, divisor: torch.Tensor
) -> torch.Tensor:
    """Squared error of every group of stored numbers, [rows, groups], F64."""
    stored = kernels.nvfp4_values(packed, scales, divisor).double()
    return (stored - weight.double()).square().unflatten(-1, (-1, 16)).sum(-1)


def exhaustive(weight: torch.Tensor, start: torch.Tensor, divisor: torch.Tensor) -> torch.Tensor:
    """Least error of every group over all of `STEPS`, written plainly, in F64."""
    numbers = torch.tensor([*E2M1_VALUES, *(-v for v in E2M1_VALUES)]).double()
    groups = weight.double().unflatten(-1, (-1, 16))
    least = torch.full(groups.shape[:-1], torch.inf, dtype=torch.float64)
    for step in STEPS:
        codes = (start.view(torch.uint8).int() + step).clamp(1, 126)
        factor = torch.from_numpy(E4M3)[codes].double() / divisor.double()
        distance = (groups.unsqueeze(-1) - factor[..., None, None] * numbers).abs().amin(-1)
        least = torch.minimum(least, distance.square().sum(-1))
    return least


def test_no_group_is_worse_than_plain_and_none_could_be_better() -> None:
    weight = weights()
    divisor = kernels.global_scale(kernels.absmax(weight))
    plain, found = (kernels.nvfp4_rows(weight, divisor, args) for args in (PLAIN, SEARCHED))
    before, after = (errors(weight, *numbers, divisor) for numbers in (plain, found))
    assert bool((after <= before * (1 + 1e-6)).all())
    best = exhaustive(weight, plain[1], divisor)
    assert bool((after <= best * (1 + 1e-5) + 1e-18).all())
    # a Gaussian group loses about a quarter of its squared error
    assert 0.6 < float(after.sum() / before.sum()) < 0.85


def test_four_over_six() -> None:
    """Under amax / 4 a group of 1 to 4 is exact, under amax / 6 it is not."""
    weight = torch.tensor([[4.0, 3.0, 2.0, 1.0] * 4 + [42.0] + [0.0] * 15]).bfloat16()
    divisor = kernels.global_scale(kernels.absmax(weight))  # 64: E4M3 holds 64 / 64
    plain, found = (kernels.nvfp4_rows(weight, divisor, args) for args in (PLAIN, SEARCHED))
    assert float(errors(weight, *plain, divisor)[0, 0]) > 0.1
    assert float(errors(weight, *found, divisor)[0, 0]) == 0.0
    assert found[1].float()[0].tolist() == [64.0, 448.0]


def test_zeros_and_exact_groups_keep_their_scale() -> None:
    weight = torch.zeros(2, 32).bfloat16()
    weight[1, 16] = 1.0
    divisor = kernels.global_scale(kernels.absmax(weight))
    plain, found = (kernels.nvfp4_rows(weight, divisor, args) for args in (PLAIN, SEARCHED))
    assert plain[0].equal(found[0])
    assert plain[1].view(torch.uint8).equal(found[1].view(torch.uint8))


def test_blocks_of_rows_do_not_change_a_bit() -> None:
    weight = weights()
    divisor = kernels.global_scale(kernels.absmax(weight))
    whole = kernels.nvfp4_rows(weight, divisor, SEARCHED)
    parts = [kernels.nvfp4_rows(rows, divisor, SEARCHED) for rows in weight.split(17)]
    for one, pieces in zip(whole, zip(*parts, strict=True), strict=True):
        assert one.view(torch.uint8).equal(torch.cat(pieces).view(torch.uint8))


def test_weights_in_f32_are_left_as_they_are() -> None:
    weight = weights().float()
    before, divisor = weight.clone(), kernels.global_scale(kernels.absmax(weight))
    kernels.nvfp4_rows(weight, divisor, SEARCHED)
    assert weight.equal(before)


def test_a_column_that_costs_more_decides() -> None:
    group = torch.tensor([[1.0, 5.3] + [0.0] * 14])
    start = torch.tensor([1.0]).to(FP8)
    one = torch.ones(1)

    def off(costs: torch.Tensor) -> torch.Tensor:
        scale = searched_scales(group, start, one, costs)
        stored = round_to_e2m1(group / scale.float()) * scale.float()
        return (stored - group).abs()[0]

    first, second = torch.ones(16), torch.ones(16)
    first[0], second[1] = 1e4, 1e4
    assert off(first)[0] <= off(second)[0]
    assert off(second)[1] < off(first)[1]


def test_the_largest_scale_is_not_exceeded() -> None:
    """A group at the global maximum starts at 448: nothing above is tried."""
    groups = torch.full((1, 16), 6.0)
    start = torch.tensor([448.0]).to(FP8)
    found = searched_scales(groups, start, torch.tensor([448.0]))
    assert float(found.float()) <= 448.0
    codes = start.view(torch.uint8)
    assert float(group_errors(groups.T.contiguous(), codes, torch.tensor([448.0]))) == 0.0
