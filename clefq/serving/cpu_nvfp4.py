"""NVFP4 on a CPU: an emulation for tests, registered by the plugin on CPU platforms only.

vLLM has no NVFP4 kernel for CPUs. These two kernels compute what a tensor core computes, in FP32:
weights (and, for W4A4, activations) are the products of E2M1 values and E4M3 group scales, exact
in FP32; the two global scales are applied to the accumulated sum. Predictions made this way carry
`kernels: simulated`.
"""

from __future__ import annotations

from typing import Any

import torch

from clefq.clef.small_floats import NVFP4_GROUP, quantize_nvfp4, unpack_e2m1


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


CHOOSER = "init_nvfp4_linear_kernel"


def choosers() -> list[Any]:
    """Modules of vLLM that choose an NVFP4 kernel: of compressed-tensors, and of ModelOpt."""
    from vllm.model_executor.layers.quantization import modelopt
    from vllm.model_executor.layers.quantization.compressed_tensors.schemes import (
        compressed_tensors_w4a4_nvfp4 as scheme,
    )

    return [module for module in (scheme, modelopt) if hasattr(module, CHOOSER)]


def kernel_base() -> type[Any]:
    """Base class of our own NVFP4 kernels, which run wherever PyTorch does."""
    from vllm.model_executor.kernels.linear.nvfp4.base import NvFp4LinearKernel

    class Anywhere(NvFp4LinearKernel):
        @classmethod
        def is_supported(cls, compute_capability: int | None = None) -> tuple[bool, str | None]:
            return True, None

        @classmethod
        def can_implement(cls, config: Any) -> tuple[bool, str | None]:
            return True, None

    return Anywhere


def _kernel_classes() -> tuple[type, type]:
    base: Any = kernel_base()

    class CpuNvFp4WeightOnly(base):
        """W4A16: weights as on disk, activations untouched, products summed in FP32."""

        def process_weights_after_loading(self, layer: Any) -> None:
            scales = layer.weight_scale.data.float().repeat_interleave(NVFP4_GROUP, dim=-1)
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
            quantized = quantize_nvfp4(flat, layer.input_global_scale_inv)
            out = quantized @ layer.weight.t() * layer.alpha
            out = out.to(x.dtype).reshape(*x.shape[:-1], -1)
            return out if bias is None else out + bias

    return CpuNvFp4, CpuNvFp4WeightOnly


def _choose_weight_only(linear: Any, w4a16: type) -> None:
    """Answers for W4A16 on a CPU: vLLM takes Marlin for W4A16 without asking the registry."""
    original = linear.init_nvfp4_linear_kernel

    def choose(use_a16: bool = False) -> Any:
        return w4a16(linear.NvFp4LinearLayerConfig()) if use_a16 else original()

    for module in choosers():
        setattr(module, CHOOSER, choose)
