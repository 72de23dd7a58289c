"""Four-bit layers on GPUs: the choice, the unpacked weights, the simulated products."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

from clefq.clef.small_floats import quantize_nvfp4, unpack_e2m1  # noqa: E402
from clefq.serving import gpu_nvfp4  # noqa: E402

GIB = 2**30


@pytest.mark.parametrize(
    ("asked", "capability", "weights", "chosen"),
    [
        ("auto", 9, 18 * GIB, "bf16"),
        ("auto", 9, 70 * GIB, "kernel"),  # would leave too little for a prefill
        ("auto", 10, 18 * GIB, "kernel"),  # has four-bit units
        ("auto", 11, 18 * GIB, "kernel"),
        ("auto", 12, 18 * GIB, "kernel"),
        ("kernel", 8, 1, "kernel"),
        ("bf16", 12, 200 * GIB, "bf16"),
        ("simulated", 12, 1, "simulated"),
    ],
)
def test_auto_unpacks_where_that_is_faster_and_fits(
    asked: str, capability: int, weights: int, chosen: str
) -> None:
    found = gpu_nvfp4.choose(asked, capability, weights, 100 * GIB)  # type: ignore[arg-type]
    assert found == chosen


def packed_layer() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    packed = torch.randint(0, 256, (48, 64), generator=generator, dtype=torch.uint8)
    scales = (torch.rand(48, 8, generator=generator) * 400).to(torch.float8_e4m3fn)
    return packed, scales, torch.tensor(1 / 2688.0)


def test_unpacked_weights_are_those_of_the_file_rounded_once() -> None:
    packed, scales, factor = packed_layer()
    exact = unpack_e2m1(packed).double() * scales.double().repeat_interleave(16, dim=-1)
    without = gpu_nvfp4.unpack_weight(packed, scales, None)
    assert torch.equal(without.double(), exact)
    with_scale = gpu_nvfp4.unpack_weight(packed, scales, factor)
    assert torch.equal(with_scale, (exact.float() * factor).bfloat16())


def test_simulated_products_are_those_of_the_emulation() -> None:
    packed, scales, factor = packed_layer()
    generator = torch.Generator().manual_seed(4)
    x = torch.randn(9, 128, generator=generator).bfloat16()
    divisor = torch.tensor(448.0 * 6.0 / 4.0)
    alpha = factor / divisor
    ours = gpu_nvfp4._w4a4_linear(x, gpu_nvfp4.unpack_weight(packed, scales, None), divisor, alpha)
    weight = unpack_e2m1(packed) * scales.float().repeat_interleave(16, dim=-1)
    expected = (quantize_nvfp4(x, divisor) @ weight.t() * alpha).bfloat16()
    assert torch.equal(ours, expected)


CHECK = """
import torch
from clefq.clef.small_floats import quantize_nvfp4
from clefq.serving.triton_nvfp4 import quantize
device = "cuda" if torch.cuda.is_available() else "cpu"
generator = torch.Generator().manual_seed(0)
for spread in (1e-3, 1.0, 1e4):
    rows = torch.exp(torch.randn(40, 1, generator=generator) * 2)
    x = (torch.randn(40, 256, generator=generator) * spread * rows).bfloat16()
    x[0] = 0
    x[1, :16] = 0
    for divisor in (2688 / x.abs().max().float(), torch.tensor(1.7), torch.tensor(3e-2)):
        want = quantize_nvfp4(x, divisor)
        got = quantize(x.to(device), divisor.to(device)).cpu()
        assert torch.equal(want.bfloat16(), got), (spread, float(divisor))
        assert torch.equal(want, got.float())
"""


@pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="Triton comes with PyTorch for GPUs"
)
def test_the_kernel_rounds_as_the_emulation_bit_for_bit() -> None:
    environment = dict(os.environ)
    if not torch.cuda.is_available():
        environment["TRITON_INTERPRET"] = "1"
    subprocess.run([sys.executable, "-c", CHECK], check=True, env=environment)
