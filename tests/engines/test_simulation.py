"""The simulated arithmetic against slow table-driven references and compressed-tensors."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from clefq.clef.small_floats import (
    E4M3_MAX,
    quantize_nvfp4,
    round_to_e2m1,
    round_to_e4m3,
    unpack_e2m1,
)
from clefq.engines.simulation import (
    ChannelWeight,
    Clipping,
    Fp8StaticInputs,
    Fp8TokenInputs,
    InputMemo,
    InputQuantizer,
    Int4Weight,
    Int8TokenInputs,
    KeepInputs,
    Nvfp4Inputs,
    Nvfp4Weight,
    QuantizedLinear,
    quantize_fp8_tokens,
)
from tests.engines.quantizing import (
    E2M1,
    E4M3,
    nearest,
    reference_fp8,
    reference_nvfp4,
    token_scales,
)

RNG = np.random.default_rng(11)
TIES = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 0.0, 6.0, 6.5, 1e9]


@given(st.lists(st.floats(-8, 8, width=32), min_size=1, max_size=40))
@settings(deadline=None, max_examples=200)
def test_e2m1_rounds_to_the_nearest_table_entry(values: list[float]) -> None:
    given_values = np.array(values + TIES + [-tie for tie in TIES], dtype=np.float32)
    rounded = round_to_e2m1(torch.from_numpy(given_values.copy())).numpy()
    assert np.array_equal(rounded, nearest(given_values.astype(np.float64), E2M1))


@given(st.lists(st.floats(-600, 600, width=32), min_size=1, max_size=40))
@settings(deadline=None, max_examples=200)
def test_e4m3_rounds_to_the_nearest_table_entry(values: list[float]) -> None:
    halves = (E4M3[:-1] + E4M3[1:]) / 2
    given_values = np.concatenate([np.array(values), halves, -halves, [0.0, 460.0]])
    # Off a tie by less than FP32 can tell: only float64 must see it.
    nearby = np.concatenate([given_values, halves * (1 + 1e-12), halves * (1 - 1e-12)])
    for dtype, numbers in ((np.float32, given_values), (np.float64, nearby)):
        rounded = round_to_e4m3(torch.from_numpy(numbers.astype(dtype))).numpy()
        assert rounded.dtype == dtype
        assert np.array_equal(rounded, nearest(numbers.astype(np.float64), E4M3))


def test_decoding_equals_compressed_tensors() -> None:
    from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8

    packed = torch.arange(256, dtype=torch.uint8).reshape(8, 32)
    theirs = unpack_fp4_from_uint8(packed, 8, 64, torch.float32)
    ours = unpack_e2m1(packed)
    assert torch.equal(ours, theirs)
    assert torch.equal(torch.signbit(ours), torch.signbit(theirs))


def spread_inputs(tokens: int, columns: int) -> np.ndarray:
    """Inputs with outliers, tiny groups, a zero group and a zero row."""
    values = RNG.standard_normal((tokens, columns)) * 10.0 ** RNG.integers(-4, 2, (tokens, 1))
    values[0, :16] = 0.0
    values[1] = 0.0
    values[2, 5] = 1e4
    return values


@pytest.mark.parametrize("divisor", [300.0, 2.5, 40000.0])
def test_nvfp4_inputs_equal_the_slow_reference(divisor: float) -> None:
    values = spread_inputs(12, 64)
    expected = reference_nvfp4(values, divisor)
    exact = quantize_nvfp4(torch.from_numpy(values), torch.tensor(divisor, dtype=torch.float64))
    assert np.allclose(exact.numpy() / divisor, expected, rtol=1e-12, atol=0)
    single = quantize_nvfp4(torch.from_numpy(values).float(), torch.tensor(divisor))
    # FP32 may round a scale or value the other way where it lies on a tie to within an ulp.
    close = np.isclose(single.numpy() / divisor, expected, rtol=1e-6, atol=0)
    assert close.mean() > 0.995
    step = np.abs(single.numpy() / divisor - expected)
    assert (step <= np.abs(values).reshape(12, 4, 16).max(-1).repeat(16, 1) * 0.34 + 1e-12).all()


def test_nvfp4_values_are_exact_in_bf16() -> None:
    values = quantize_nvfp4(torch.from_numpy(spread_inputs(12, 64)).float(), torch.tensor(300.0))
    assert torch.equal(values.to(torch.bfloat16).float(), values)
    assert values.unique().numel() > 50


def test_fp8_inputs_equal_the_slow_reference() -> None:
    values = spread_inputs(12, 64)
    codes, scale = quantize_fp8_tokens(torch.from_numpy(values))
    expected_scale = token_scales(values)
    assert np.allclose(scale.numpy(), expected_scale, rtol=1e-15)
    assert np.allclose((codes * scale).numpy(), reference_fp8(values, expected_scale), rtol=1e-12)
    assert float(codes.abs().max()) == E4M3_MAX
    assert not bool(torch.isnan(codes).any())


def make_nvfp4_weight(rows: int, columns: int) -> tuple[Nvfp4Weight, np.ndarray]:
    packed = RNG.integers(0, 256, (rows, columns // 2), dtype=np.uint8)
    scales = torch.from_numpy(RNG.integers(30, 126, (rows, columns // 16), dtype=np.uint8))
    weight = Nvfp4Weight(
        torch.from_numpy(packed), scales.view(torch.float8_e4m3fn), torch.tensor(5000.0), columns
    )
    codes = np.stack([packed & 0xF, packed >> 4], -1).reshape(rows, columns)
    values = np.where(codes & 8, -1.0, 1.0) * E2M1[codes & 7]
    return weight, values * np.repeat(E4M3[scales.numpy()], 16, axis=1) / 5000.0


def make_fp8_weight(rows: int, columns: int) -> tuple[ChannelWeight, np.ndarray]:
    codes = RNG.integers(0, 126, (rows, columns), dtype=np.uint8)
    scale = RNG.uniform(1e-4, 1e-3, rows).astype(np.float32)
    stored = torch.from_numpy(codes).view(torch.float8_e4m3fn)
    return ChannelWeight(stored, torch.from_numpy(scale), columns), E4M3[codes] * scale[:, None]


CASES = {
    "w4a4": (make_nvfp4_weight, Nvfp4Inputs(300.0), lambda x: reference_nvfp4(x, 300.0)),
    "w4a16": (make_nvfp4_weight, KeepInputs(), lambda x: x),
    "w8a8": (make_fp8_weight, Fp8TokenInputs(), lambda x: reference_fp8(x, token_scales(x))),
    "w8a8-static": (
        make_fp8_weight,
        Fp8StaticInputs(0.02),
        lambda x: reference_fp8(x, np.float64(0.02)),
    ),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("keep", [False, True])
def test_a_layer_equals_the_reference_product(case: str, keep: bool) -> None:
    make, quantizer, reference = CASES[case]
    weight, dense = make(24, 64)
    bias = torch.from_numpy(RNG.standard_normal(24))
    layer = QuantizedLinear(weight, quantizer, bias, keep_decoded=keep)
    inputs = RNG.standard_normal((2, 5, 64))
    expected = reference(inputs.reshape(10, 64)) @ dense.T + bias.numpy()
    for _ in range(2):
        exact = layer(torch.from_numpy(inputs))
        assert exact.dtype == torch.float64
        assert np.allclose(exact.numpy().reshape(10, 24), expected, rtol=1e-5, atol=1e-6)
    low = layer(torch.from_numpy(inputs).to(torch.bfloat16))
    assert low.dtype == torch.bfloat16
    assert low.shape == (2, 5, 24)


def test_the_output_is_rounded_once() -> None:
    """BF16 out is the FP32 result rounded, not a product of rounded weights."""
    weight, _ = make_nvfp4_weight(64, 128)
    layer = QuantizedLinear(weight, Nvfp4Inputs(300.0))
    inputs = torch.from_numpy(RNG.standard_normal((32, 128))).to(torch.bfloat16)
    once = layer(inputs.float()).to(torch.bfloat16)
    assert torch.equal(layer(inputs), once)
    rounded_weight = (weight.values() * weight.scale()).to(torch.bfloat16)
    values, scale = layer.quantizer.quantize(inputs)
    assert scale is not None
    twice = (values * scale).to(torch.bfloat16) @ rounded_weight.T
    assert not torch.equal(twice, once)


def test_layers_share_quantized_inputs_only_where_they_may() -> None:
    memo, seen = InputMemo(), Clipping()
    inputs = torch.from_numpy(RNG.standard_normal((4, 64))).float()
    first = memo.quantize(inputs, inputs, Nvfp4Inputs(300.0), seen)
    assert memo.quantize(inputs, inputs, Nvfp4Inputs(300.0), seen)[0] is first[0]
    other = memo.quantize(inputs, inputs, Nvfp4Inputs(200.0), seen)
    assert not torch.equal(other[0], first[0])
    equal = inputs.clone()
    again = memo.quantize(equal, equal, Nvfp4Inputs(200.0), seen)
    assert again[0] is not other[0]
    memo.clear()
    assert memo.quantize(equal, equal, Nvfp4Inputs(200.0), seen)[0] is not again[0]
    assert seen.blocks == 4 * 16  # what is shared is counted once


@pytest.mark.parametrize("quantizer", [Nvfp4Inputs(2688 / 1.5), Fp8StaticInputs(1.5 / 448)])
def test_blocks_beyond_a_calibrated_scale_are_counted(quantizer: InputQuantizer) -> None:
    """Against plain Python; the calibrated maximum itself is covered, padding is not counted."""
    inputs = torch.from_numpy(RNG.standard_normal((9, 64))).to(torch.bfloat16)
    inputs[0, 3], inputs[1, 17:19] = 1.5, -7.0
    real = torch.arange(9) < 6
    memo, seen = InputMemo(), Clipping()
    memo.real = real
    memo.quantize(inputs, inputs, quantizer, seen)
    rows = [[abs(value) for value in row] for row in inputs[:6].tolist()]
    blocks = [row[at : at + 16] for row in rows for at in range(0, 64, 16)]
    assert (seen.blocks, int(seen.beyond)) == (24, sum(max(block) > 1.5 for block in blocks))
    assert 0 < int(seen.beyond) < 24
    memo.quantize(inputs / 8, inputs / 8, quantizer, seen)
    assert seen.blocks == 48


def test_int4_weights_are_unpacked_in_the_scales_dtype() -> None:
    """Eight codes a number, the first in the lowest bits, stored plus 8: against plain Python."""
    generator = torch.Generator().manual_seed(3)
    packed = torch.randint(-(2**31), 2**31, (3, 32), generator=generator).to(torch.int32)
    scales = torch.rand(3, 2, generator=generator).to(torch.bfloat16)
    values = Int4Weight(packed, scales, 256).values()
    for row, column in ((0, 0), (1, 127), (1, 128), (2, 255)):
        code = ((int(packed[row, column // 8]) >> (4 * (column % 8))) & 15) - 8
        wanted = torch.tensor(code, dtype=torch.bfloat16) * scales[row, column // 128]
        assert values[row, column] == wanted.float()


def test_int8_inputs_have_a_scale_per_token() -> None:
    inputs = torch.tensor([[127.0, -127.0, 0.5, 1.5], [0.0, 0.0, 0.0, 0.0]])
    values, scales = Int8TokenInputs().quantize(inputs)
    assert values.tolist() == [[127.0, -127.0, 0.0, 2.0], [0.0] * 4]  # ties to even
    assert scales is not None
    assert scales.reshape(-1).tolist() == [1.0, 0.0]
