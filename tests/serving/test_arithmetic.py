"""Kernel names become what predictions files state."""

from __future__ import annotations

import pytest

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
    assert summarize(["a/b", "c/", "a/b"]).detail == "a/b ×2, c/ ×1"
