"""INT4 weights on a CPU without AVX-512: an emulation for tests, registered where it is needed.

vLLM's kernel for packed INT4 weights (compressed-tensors, GPTQ, AWQ, AutoRound) is in its builds
for AVX-512 alone. Elsewhere vLLM chooses it all the same, and its engine dies at the first prompt.
This one computes what the kernel computes: weights unpacked to BF16, products in BF16. Predictions
made this way carry `kernels: simulated`.
"""

from __future__ import annotations

from typing import Any

import torch

_OPERATION = "cpu_gemm_wna16"


def register_cpu_int4() -> None:
    """Stands in for vLLM's kernel where this CPU lacks it; harmless when called again."""
    from vllm import _custom_ops  # noqa: F401  (loads the build for this CPU)
    from vllm.model_executor.kernels import linear
    from vllm.platforms import PlatformEnum

    real = getattr(linear, "CPUWNA16LinearKernel", None)
    if real is None or hasattr(torch.ops._C, _OPERATION):
        return
    if getattr(linear, "_clefq_int4_registered", False):
        return
    real.can_implement = classmethod(lambda cls, config: (False, "this CPU lacks AVX-512"))
    linear.register_linear_kernel(_kernel_class(), PlatformEnum.CPU, "mp")
    linear._clefq_int4_registered = True


def _kernel_class() -> type:
    from vllm.model_executor.kernels.linear.mixed_precision.MPLinearKernel import MPLinearKernel
    from vllm.scalar_type import scalar_types

    base: Any = MPLinearKernel
    middles = {scalar_types.uint4: 0, scalar_types.uint4b8: 8}

    class CpuInt4(base):
        """W4A16: codes of four bits to BF16 at load."""

        @classmethod
        def get_min_capability(cls) -> int:
            return -1

        @classmethod
        def can_implement(cls, config: Any) -> tuple[bool, str | None]:
            known = config.weight_type in middles
            return known, None if known else f"{config.weight_type} is not emulated"

        def process_weights_after_loading(self, layer: Any) -> None:
            """Unpacks [inputs / 8, outputs] or its transpose, scales and zeros alike."""
            packed, scales, zeros = self._get_weight_params(layer)
            codes = unpack_int4(packed.data, packed.packed_dim)
            codes = codes if packed.input_dim == 0 else codes.t()
            scale = scales.data if scales.output_dim == 1 else scales.data.t()
            middle: Any = middles[self.config.weight_type]
            if self.config.zero_points:
                middle = unpack_int4(zeros.data, zeros.packed_dim)
                middle = middle if zeros.output_dim == 1 else middle.t()
                middle = middle.repeat_interleave(len(codes) // len(middle), 0)
            scale = scale.float().repeat_interleave(len(codes) // len(scale), 0)
            weight = ((codes - middle) * scale).t().to(self.config.act_type)
            layer.clefq_weight = torch.nn.Parameter(weight.contiguous(), requires_grad=False)
            for name in (self.w_q_name, self.w_s_name, self.w_zp_name):
                setattr(layer, name, None)

        def apply_weights(
            self, layer: Any, x: torch.Tensor, bias: torch.Tensor | None = None
        ) -> torch.Tensor:
            return torch.nn.functional.linear(x, layer.clefq_weight, bias)

    return CpuInt4


def unpack_int4(packed: torch.Tensor, dim: int) -> torch.Tensor:
    """Eight codes out of each I32 along one axis, the first in the lowest bits."""
    parts = [(packed >> shift) & 15 for shift in range(0, 32, 4)]
    return torch.stack(parts, dim + 1).flatten(dim, dim + 1)
