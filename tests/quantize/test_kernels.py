"""The kernels against compressed-tensors, number by number, and their error bounds."""

from __future__ import annotations

import pytest
import torch
from compressed_tensors.compressors.nvfp4.helpers import (
    pack_fp4_to_uint8,
    unpack_fp4_from_uint8,
)
from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32
from compressed_tensors.quantization.lifecycle.forward import quantize
from compressed_tensors.quantization.utils import calculate_qparams
from compressed_tensors.quantization.utils.fp4_utils import cast_to_fp4
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from clefq.clef.small_floats import pack_e2m1, unpack_e2m1, unpack_int4
from clefq.quantize import kernels
from clefq.quantize.audit.rounding import weight_args
from clefq.quantize.values import decode, nvfp4_floats

DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def _weight(
    rows: int, groups: int, seed: int, scale: float, dtype: torch.dtype, zeros: bool
) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(rows, 16 * groups, generator=generator) * scale
    if zeros:
        weight[0, :16] = 0
        weight[-1, -1] = -0.0
    return weight.to(dtype)


weights = st.builds(
    _weight,
    rows=st.integers(1, 9),
    groups=st.integers(1, 5),
    seed=st.integers(0, 2**31),
    scale=st.sampled_from([1e-4, 0.02, 1.0, 30.0]),
    dtype=st.sampled_from(DTYPES),
    zeros=st.booleans(),
)


# F16 has no exponents for the scales of very small weights; no Clef is in F16
wide_range = weights.filter(lambda weight: weight.dtype != torch.float16)
codes = st.floats(-8, 8, width=32) | st.sampled_from([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])


def library_nvfp4(weight: torch.Tensor, divisor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    args = weight_args("NVFP4A16")
    groups = weight.unflatten(-1, (-1, 16))
    scale, _ = calculate_qparams(groups.amin(-1), groups.amax(-1), args, global_scale=divisor)
    scale = scale.to(weight.dtype)
    codes = quantize(weight, scale, None, args, global_scale=divisor)
    return pack_fp4_to_uint8(codes), scale.to(torch.float8_e4m3fn)


@given(weights)
def test_nvfp4_is_the_library_s(weight: torch.Tensor) -> None:
    divisor = kernels.global_scale(kernels.absmax(weight))
    ours, theirs = (
        f(weight, divisor) for f in (lambda w, d: kernels.nvfp4_rows(w, d, _nvfp4()), library_nvfp4)
    )
    assert ours[0].equal(theirs[0])
    assert ours[1].view(torch.uint8).equal(theirs[1].view(torch.uint8))


def _nvfp4() -> object:
    return weight_args("NVFP4A16")


@given(weights)
def test_fp8_is_the_library_s(weight: torch.Tensor) -> None:
    args = weight_args("FP8_DYNAMIC")
    low, high = weight.amin(-1, keepdim=True), weight.amax(-1, keepdim=True)
    scale, _ = calculate_qparams(low, high, args)
    theirs = quantize(weight, scale, None, args, dtype=torch.float8_e4m3fn)
    codes, scales = kernels.fp8_rows(weight, args)
    assert scales.equal(scale)
    assert codes.view(torch.uint8).equal(theirs.view(torch.uint8))


@given(weights)
def test_int8_is_the_library_s(weight: torch.Tensor) -> None:
    args = weight_args("W8A8")
    scale, _ = calculate_qparams(weight.amin(-1, keepdim=True), weight.amax(-1, keepdim=True), args)
    codes, scales = kernels.int8_rows(weight, args)
    assert scales.equal(scale)
    assert codes.equal(quantize(weight, scale, None, args, dtype=torch.int8))


@given(weights)
def test_int4_is_the_library_s(weight: torch.Tensor) -> None:
    wide = torch.cat([weight.repeat(1, 8), weight.flip(-1).repeat(1, 8)], dim=-1)
    args = weight_args("W4A16")
    groups = wide.unflatten(-1, (-1, 128))
    scale, _ = calculate_qparams(groups.amin(-1), groups.amax(-1), args)
    theirs = quantize(wide, scale, None, args, dtype=torch.int8)
    packed, scales = kernels.int4_rows(wide, args)
    assert scales.equal(scale)
    assert packed.equal(pack_to_int32(theirs, 4))
    assert unpack_int4(packed).equal(theirs)
    values = theirs.float().unflatten(-1, (-1, 128)) * scale.float().unsqueeze(-1)
    assert kernels.int4_values(packed, scales).equal(values.flatten(-2))


@given(
    st.lists(st.floats(-8, 8, width=32), min_size=2, max_size=64).filter(lambda v: len(v) % 2 == 0)
)
def test_packing_is_the_library_s(values: list[float]) -> None:
    tensor = torch.tensor(values).view(1, -1)
    rounded = cast_to_fp4(tensor.clamp(-6, 6).clone())
    assert pack_e2m1(tensor).equal(pack_fp4_to_uint8(rounded).view(-1))


def test_every_midpoint_rounds_to_the_even_code() -> None:
    middles = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0])
    both = torch.stack([middles, -middles], dim=-1)
    packed = pack_e2m1(both)
    assert (packed & 15).tolist() == [0, 2, 2, 4, 4, 6, 6, 7]
    assert (packed >> 4).tolist() == [8, 10, 10, 12, 12, 14, 14, 15]


@given(st.integers(1, 5), st.integers(1, 20), st.integers(0, 2**31))
def test_unpacking_is_the_library_s(rows: int, half: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    packed = torch.randint(0, 256, (rows, half), generator=generator, dtype=torch.uint8)
    theirs = unpack_fp4_from_uint8(packed, rows, 2 * half, dtype=torch.float32)
    assert unpack_e2m1(packed).equal(theirs)


@given(weights)
def test_numpy_and_torch_read_nvfp4_alike(weight: torch.Tensor) -> None:
    divisor = kernels.global_scale(kernels.absmax(weight))
    packed, scales = kernels.nvfp4_rows(weight, divisor, _nvfp4())
    raw = decode(scales.view(torch.uint8).numpy().tobytes(), "F8_E4M3").reshape(scales.shape)
    ours = nvfp4_floats(packed.numpy(), raw, float(divisor))
    assert torch.from_numpy(ours).equal(kernels.nvfp4_values(packed, scales, divisor))


@settings(max_examples=60)
@given(wide_range)
def test_nvfp4_error_is_bounded_by_the_format(weight: torch.Tensor) -> None:
    """At most half the widest step (1 of 6) of the group's largest magnitude, plus rounding.

    E2M1's widest gap is 4..6, so the error is at most amax/6; a group scale rounded to E4M3
    (relative 2^-4, absolute 2^-10 of the largest group) and BF16 arithmetic add to it.
    """
    wide = weight.float()
    divisor = kernels.global_scale(kernels.absmax(weight))
    packed, scales = kernels.nvfp4_rows(weight, divisor, _nvfp4())
    error = (kernels.nvfp4_values(packed, scales, divisor) - wide).abs().unflatten(-1, (-1, 16))
    largest = wide.unflatten(-1, (-1, 16)).abs().amax(-1)
    step = scales.float() / divisor
    bound = torch.maximum(largest * (1 / 6 + 1 / 16), step * 1.01) + 1e-12
    assert (error.amax(-1) <= bound).all()


@settings(max_examples=60)
@given(wide_range)
def test_fp8_error_is_bounded_by_the_format(weight: torch.Tensor) -> None:
    """E4M3: 2^-4 of the value for normal numbers, 2^-10 steps of the scale below them."""
    codes, scales = kernels.fp8_rows(weight, weight_args("FP8_DYNAMIC"))
    wide = weight.float()
    error = (codes.float() * scales.float() - wide).abs()
    arithmetic = 2.0**-8 if weight.dtype == torch.bfloat16 else 2.0**-10
    bound = wide.abs() * (2.0**-4 + 2 * arithmetic) + scales.float() * 2.0**-9
    assert (error <= bound + 1e-12).all()


@settings(max_examples=40)
@given(st.lists(weights, min_size=2, max_size=4))
def test_the_shared_divisor_is_the_smallest_of_the_members(members: list[torch.Tensor]) -> None:
    members = [member.to(torch.bfloat16) for member in members if bool(member.any())]
    assume(members)
    own = [float(kernels.global_scale(kernels.absmax(member))) for member in members]
    largest = torch.stack([kernels.absmax(member) for member in members]).max()
    shared = kernels.global_scale(largest)
    assert float(shared) == min(own)
    for member in members:
        _, scales = kernels.nvfp4_rows(member, shared, _nvfp4())
        assert float(scales.float().max()) <= 448


@pytest.mark.parametrize("dtype", DTYPES)
def test_blocks_of_rows_do_not_change_a_bit(dtype: torch.dtype) -> None:
    weight = _weight(64, 8, 3, 0.02, dtype, False)
    divisor = kernels.global_scale(kernels.absmax(weight))
    whole = kernels.nvfp4_rows(weight, divisor, _nvfp4())[0]
    parts = [kernels.nvfp4_rows(rows, divisor, _nvfp4())[0] for rows in weight.split(7)]
    assert whole.equal(torch.cat(parts))
