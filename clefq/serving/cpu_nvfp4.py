"""NVFP4 on a CPU: an emulation for tests, registered by the plugin on CPU platforms only.

vLLM has no NVFP4 kernel for CPUs. These two kernels compute what a tensor core computes, in FP32:
weights (and, for W4A4, activations) are the products of E2M1 values and E4M3 group scales, exact
in FP32; the two global scales are applied to the accumulated sum. Predictions made this way carry
`kernels: simulated`.
"""

from __future__ import annotations

from typing import Any

import torch

GROUP = 16
_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_E2M1_MAX = 6.0
_E4M3_MAX = 448.0


def unpack_e2m1(packed: torch.Tensor) -> torch.Tensor:
    """Two 4-bit floats per byte, low nibble first: uint8 [rows, K/2] → float32 [rows, K]."""
    table = torch.tensor([*_E2M1, *(-value for value in _E2M1)], dtype=torch.float32)
    codes = torch.stack((packed & 0x0F, packed >> 4), dim=-1)
    return table[codes.long()].reshape(packed.shape[0], -1)


def round_e2m1(values: torch.Tensor) -> torch.Tensor:
    """Rounds to the nearest E2M1 value, ties to even, beyond ±6 to ±6; float32 in and out."""
    size = values.abs().clamp(max=_E2M1_MAX)
    # the spacing of E2M1 is 0.5 below 2, 1 below 4, then 2
    step = torch.where(size < 2.0, 0.5, torch.where(size < 4.0, 1.0, 2.0))
    return torch.copysign(torch.round(size / step) * step, values)


def quantize_activations(values: torch.Tensor, global_scale: torch.Tensor) -> torch.Tensor:
    """What a W4A4 kernel does to its input, before the global scale is divided out again.

    Args:
        values: [tokens, K], K a multiple of 16.
        global_scale: Scalar, the divisor that the checkpoint stores (448·6/amax).

    Returns:
        E2M1 values times their group's E4M3 scale, float32 [tokens, K].
    """
    groups = values.float().reshape(values.shape[0], -1, GROUP)
    amax = groups.abs().amax(dim=-1, keepdim=True)
    # products with reciprocals, in this order, as the GPU kernels have it: BF16 inputs often lie
    # exactly between two E2M1 values, where the last bit decides
    scales = (global_scale * (amax * (1 / _E2M1_MAX))).clamp(max=_E4M3_MAX)
    scales = scales.to(torch.float8_e4m3fn).float()
    factor = (scales * global_scale.reciprocal()).reciprocal()
    scaled = groups * torch.where(scales > 0, factor, torch.zeros(()))
    return (round_e2m1(scaled) * scales).reshape(values.shape)


def register_cpu_kernels() -> None:
    """Makes vLLM's NVFP4 layers run on this CPU; harmless when called again."""
    from vllm.model_executor.kernels import linear
    from vllm.platforms import PlatformEnum

    if getattr(linear, "_clefq_registered", False):
        return
    w4a4, w4a16 = _kernel_classes()
    linear.register_linear_kernel(w4a4, PlatformEnum.CPU, "nvfp4")
    _choose_weight_only(linear, w4a16)
    linear._clefq_registered = True


def _kernel_classes() -> tuple[type, type]:
    from vllm.model_executor.kernels.linear.nvfp4.base import NvFp4LinearKernel

    class CpuNvFp4WeightOnly(NvFp4LinearKernel):
        """W4A16: weights as on disk, activations untouched, products summed in FP32."""

        @classmethod
        def is_supported(cls, compute_capability: int | None = None) -> tuple[bool, str | None]:
            return True, None

        @classmethod
        def can_implement(cls, config: Any) -> tuple[bool, str | None]:
            return True, None

        def process_weights_after_loading(self, layer: Any) -> None:
            scales = layer.weight_scale.data.float().repeat_interleave(GROUP, dim=-1)
            weight = unpack_e2m1(layer.weight.data.view(torch.uint8)) * scales
            layer.weight = torch.nn.Parameter(weight, requires_grad=False)

        def apply_weights(
            self, layer: Any, x: torch.Tensor, bias: torch.Tensor | None = None
        ) -> torch.Tensor:
            out = x.float() @ layer.weight.t() * layer.weight_global_scale
            out = out.to(x.dtype)
            return out if bias is None else out + bias

    class CpuNvFp4(CpuNvFp4WeightOnly):
        """W4A4: activations quantized in groups of 16, as Blackwell's tensor cores take them."""

        def apply_weights(
            self, layer: Any, x: torch.Tensor, bias: torch.Tensor | None = None
        ) -> torch.Tensor:
            flat = x.reshape(-1, x.shape[-1])
            quantized = quantize_activations(flat, layer.input_global_scale_inv)
            out = quantized @ layer.weight.t() * layer.alpha
            out = out.to(x.dtype).reshape(*x.shape[:-1], -1)
            return out if bias is None else out + bias

    return CpuNvFp4, CpuNvFp4WeightOnly


def _choose_weight_only(linear: Any, w4a16: type) -> None:
    """Answers for W4A16 on a CPU: vLLM takes Marlin for W4A16 without asking the registry."""
    from vllm.model_executor.layers.quantization.compressed_tensors.schemes import (
        compressed_tensors_w4a4_nvfp4 as scheme,
    )

    original = linear.init_nvfp4_linear_kernel

    def choose(use_a16: bool = False) -> Any:
        return w4a16(linear.NvFp4LinearLayerConfig()) if use_a16 else original()

    scheme.init_nvfp4_linear_kernel = choose
