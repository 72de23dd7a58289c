"""Kernel names become what predictions files state."""

from __future__ import annotations

import pytest

from clefq.errors import ClefqError
from clefq.serving.arithmetic import summarize


@pytest.mark.parametrize(
    ("kernels", "arithmetic", "real"),
    [
        (["UnquantizedLinearMethod/"], "bf16", "real"),
        ([], "bf16", "real"),
        (["CompressedTensorsW8A8Fp8/CutlassFP8ScaledMMLinearKernel"], "w8a8", "real"),
        (["CompressedTensorsW8A8Fp8/MarlinFP8ScaledMMLinearKernel"], "w8a16", "real"),
        (["CompressedTensorsW8A16Fp8/NoneType"], "w8a16", "real"),
        (["CompressedTensorsW4A4Fp4/MarlinNvFp4LinearKernel"], "w4a16", "real"),
        (["CompressedTensorsW4A16Fp4/NoneType"], "w4a16", "real"),
        (["CompressedTensorsW4A4Fp4/FlashInferCutlassNvFp4LinearKernel"], "w4a4", "real"),
        (["CompressedTensorsW4A4Fp4/EmulationNvFp4LinearKernel"], "w4a4", "simulated"),
        (["CompressedTensorsW4A4Fp4/CpuNvFp4"], "w4a4", "simulated"),
        (["CompressedTensorsW4A4Fp4/CpuNvFp4WeightOnly"], "w4a16", "simulated"),
        (
            [
                "CompressedTensorsW8A8Fp8/CutlassFP8ScaledMMLinearKernel",
                "CompressedTensorsW4A4Fp4/MarlinNvFp4LinearKernel",
            ],
            "w4a16",
            "real",
        ),
    ],
)
def test_the_coarsest_arithmetic_is_stated(kernels: list[str], arithmetic: str, real: str) -> None:
    ran = summarize(kernels)
    assert (ran.arithmetic, ran.kernels) == (arithmetic, real)


def test_detail_counts_layers() -> None:
    a, b = "CompressedTensorsW8A8Fp8/Cutlass", "UnquantizedLinearMethod/"
    assert summarize([a, b, a]).detail == f"{a} ×2, {b} ×1"


@pytest.mark.parametrize(
    "kernel",
    ["CompressedTensorsW8A8Int8/Cutlass", "CompressedTensorsW4A4Mxfp4/", "AWQLinearMethod/"],
)
def test_an_unknown_kernel_is_not_called_bf16(kernel: str) -> None:
    with pytest.raises(ClefqError, match="not known"):
        summarize(["UnquantizedLinearMethod/", kernel])
