"""Kernel names become what predictions files state."""

from __future__ import annotations

import pytest

from clefq.errors import ClefqError
from clefq.serving.arithmetic import describe_layers, summarize


@pytest.mark.parametrize(
    ("kernels", "arithmetic", "real"),
    [
        (["UnquantizedLinearMethod/"], "bf16", "real"),
        ([], "bf16", "real"),
        (["CompressedTensorsW8A8Fp8/CutlassFP8ScaledMMLinearKernel"], "w8a8", "real"),
        (["CompressedTensorsW8A8Fp8/MarlinFP8ScaledMMLinearKernel"], "w8a16", "real"),
        (["CompressedTensorsW8A8Int8/CutlassInt8ScaledMMLinearKernel"], "w8a8-int8", "real"),
        (["CompressedTensorsW4A16/MarlinLinearKernel"], "w4a16-int4", "real"),
        (["CompressedTensorsW8A16Fp8/NoneType"], "w8a16", "real"),
        (["CompressedTensorsW4A4Fp4/MarlinNvFp4LinearKernel"], "w4a16", "real"),
        (["CompressedTensorsW4A16Fp4/NoneType"], "w4a16", "real"),
        (["CompressedTensorsW4A4Fp4/FlashInferCutlassNvFp4LinearKernel"], "w4a4", "real"),
        (["CompressedTensorsW4A4Fp4/EmulationNvFp4LinearKernel"], "w4a4", "simulated"),
        (["CompressedTensorsW4A4Fp4/CpuNvFp4"], "w4a4", "simulated"),
        (["CompressedTensorsW4A4Fp4/CpuNvFp4WeightOnly"], "w4a16", "simulated"),
        (["CompressedTensorsW8A8Fp8/CPUFp8PerTensorScaledMMLinearKernel"], "w8a16", "real"),
        (["CompressedTensorsW8A8Fp8/CPUFp8W8A8BlockScaledMMKernel"], "w8a8", "real"),
        (["Fp8LinearMethod/CPUFp8BlockScaledMMKernel"], "w8a16", "real"),
        (["AutoGPTQLinearMethod[uint4b8]/MarlinLinearKernel"], "w4a16-int4", "real"),
        (["GPTQMarlinLinearMethod[uint4b8]/"], "w4a16-int4", "real"),
        (["AutoAWQMarlinLinearMethod[uint4]/CPUWNA16LinearKernel"], "w4a16-int4", "real"),
        (["ModelOptNvfp4Static/FlashInferCutlassNvFp4LinearKernel"], "w4a4", "real"),
        (["ModelOptNvfp4Static/MarlinNvFp4LinearKernel"], "w4a16", "real"),
        (["ModelOptNvfp4StaticA16/FlashInferCuteDslNvFp4LinearKernel"], "w4a16", "real"),
        (["ModelOptNvfp4Static/CpuNvFp4"], "w4a4", "simulated"),
        (["ModelOptNvFp4LinearMethod/CutlassNvFp4LinearKernel"], "w4a4", "real"),
        (["ModelOptFp8StaticTensor/CutlassFP8ScaledMMLinearKernel"], "w8a8", "real"),
        (["ModelOptFp8LinearMethod/"], "w8a8", "real"),
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
    [
        "CompressedTensorsW8A16/MarlinLinearKernel",
        "CompressedTensorsW4A8Fp8/CutlassW4A8LinearKernel",
        "CompressedTensorsW4A4Mxfp4/",
        "AutoGPTQLinearMethod[uint8b128]/MarlinLinearKernel",
        "INCLinearMethod/",
        "ModelOptMxfp8Static/EmulationMxfp8LinearKernel",
        "BitsAndBytesLinearMethod/",
    ],
)
def test_an_unknown_kernel_is_not_called_bf16(kernel: str) -> None:
    with pytest.raises(ClefqError, match="not known"):
        summarize(["UnquantizedLinearMethod/", kernel])


class _Layer:
    """A vLLM layer with packed weights, as far as its description looks at it."""

    quant_method = object()
    weight_packed = object()

    def __init__(self, bits: int) -> None:
        kernel = type("MarlinLinearKernel", (), {})()
        self.scheme = type("CompressedTensorsWNA16", (), {"num_bits": bits, "kernel": kernel})()


def test_packed_layers_are_described_with_their_width() -> None:
    class Model:
        def named_modules(self) -> list[tuple[str, object]]:
            return [("layers.0.mlp.up_proj", _Layer(4)), ("layers.0.norm", object())]

    found = describe_layers(Model())
    assert found == ["CompressedTensorsW4A16/MarlinLinearKernel"]
    assert summarize(found).arithmetic == "w4a16-int4"

    class Eight(Model):
        def named_modules(self) -> list[tuple[str, object]]:
            return [("layers.0.mlp.up_proj", _Layer(8))]

    assert describe_layers(Eight()) == ["CompressedTensorsW8A16/MarlinLinearKernel"]


def test_layers_of_modelopt_are_described_by_their_formats() -> None:
    """vLLM has one method for all of them since 0.32."""
    parts = {"wkey": type("KNvfp4Static", (), {})(), "akey": None}
    kernel = type("CpuNvFp4WeightOnly", (), {})()
    method = type("ModelOptLinearMethod", (), {**parts, "kernel": kernel})()

    class QKVParallelLinear:
        quant_method, weight = method, object()

    class Model:
        def named_modules(self) -> list[tuple[str, object]]:
            return [("layers.0.self_attn.qkv_proj", QKVParallelLinear())]

    assert describe_layers(Model()) == ["ModelOptNvfp4StaticA16/CpuNvFp4WeightOnly"]


@pytest.mark.parametrize("wrapped", [False, True])
def test_layers_without_a_plain_weight_are_not_overlooked(wrapped: bool) -> None:
    """GPTQ's and AWQ's have a `qweight`; AutoRound wraps their methods."""
    kernel = type("MarlinLinearKernel", (), {})()
    config = type("AutoGPTQConfig", (), {"quant_type": "uint4b8"})()
    inner = type("AutoGPTQLinearMethod", (), {"quant_config": config, "kernel": kernel})()
    scheme = type("INCWNA16LinearScheme", (), {"linear_method": inner})()
    outer = type("INCLinearMethod", (), {"scheme": scheme})()

    class RowParallelLinear:
        quant_method, qweight = outer if wrapped else inner, object()

    class Model:
        def named_modules(self) -> list[tuple[str, object]]:
            return [("layers.0.mlp.down_proj", RowParallelLinear())]

    assert describe_layers(Model()) == ["AutoGPTQLinearMethod[uint4b8]/MarlinLinearKernel"]
