"""NVFP4 on GPUs without four-bit units: two more ways to run the same file.

A prefill is bound by arithmetic, not by memory, and there a weight-only kernel that unpacks four
bits for every product is slower than BF16. So the weights can be unpacked once, at load:

- `bf16`: E2M1 · group scale · global scale, rounded to BF16 once, then plain BF16 products. It is
  weight-only arithmetic (w4a16) at the speed of the BF16 model and in its memory.
- `simulated`: inputs are rounded as Blackwell's tensor cores round them (groups of 16, E4M3 group
  scales), the products run in BF16 and are summed in FP32. Both factors are exact in BF16 (their
  global scales apart, which are applied to the sum), so only the order of the sum differs from a
  W4A4 kernel. Answers made so carry `kernels: simulated`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from clefq.clef.formats import platform_of_capability
from clefq.clef.small_floats import NVFP4_GROUP, quantize_nvfp4, unpack_e2m1
from clefq.serving.cpu_nvfp4 import CHOOSER, choosers, kernel_base
from clefq.serving.settings import FOUR_BIT_KEY, FourBit

if TYPE_CHECKING:
    from vllm.config import VllmConfig

# Of an engine's memory, what unpacked weights may take; the rest is for activations and states.
_WEIGHTS_SHARE = 0.6
_OP = "clefq::w4a4_linear"


def choose(asked: FourBit, capability: int, weights: int, memory: float) -> FourBit:
    """What `auto` means on a GPU.

    Args:
        asked: What the user wants; anything but `auto` is returned as it is.
        capability: Major compute capability of the GPU.
        weights: Bytes of the weights when unpacked, on each GPU.
        memory: Bytes that the engine may take on each GPU.

    Returns:
        `kernel` where the GPU has four-bit units or the unpacked weights do not fit, else `bf16`.
    """
    if asked != "auto":
        return asked
    fits = weights <= _WEIGHTS_SHARE * memory
    return "bf16" if platform_of_capability(capability) != "blackwell" and fits else "kernel"


@contextmanager
def four_bit_layers(config: VllmConfig) -> Iterator[None]:
    """While a model is built, its NVFP4 layers get the kernels that the settings ask for."""
    choice = _choice(config)
    if choice == "kernel":
        yield
        return
    modules = choosers()
    originals = [getattr(module, CHOOSER) for module in modules]
    weight_only, simulated = _kernel_classes()

    def chosen(use_a16: bool = False) -> Any:
        from vllm.model_executor.kernels.linear import NvFp4LinearLayerConfig

        kind = weight_only if use_a16 or choice == "bf16" else simulated
        return kind(NvFp4LinearLayerConfig())

    for module in modules:
        setattr(module, CHOOSER, chosen)
    try:
        yield
    finally:
        for module, original in zip(modules, originals, strict=True):
            setattr(module, CHOOSER, original)


def _choice(config: VllmConfig) -> FourBit:
    from vllm.platforms import current_platform

    given: Any = config.additional_config
    asked: Mapping[str, Any] = given.get(FOUR_BIT_KEY, {}) if isinstance(given, Mapping) else {}
    if not asked or current_platform.is_cpu():
        return "kernel"
    capability = current_platform.get_device_capability()
    memory = current_platform.get_device_total_memory() * config.cache_config.gpu_memory_utilization
    ranks = config.parallel_config.tensor_parallel_size
    return choose(asked["kind"], capability.major, asked["weights"] // ranks, memory)


def _kernel_classes() -> tuple[type, type]:
    base: Any = kernel_base()

    class GpuNvFp4WeightOnly(base):
        """W4A16: weights unpacked to BF16 at load, global scale included."""

        def process_weights_after_loading(self, layer: Any) -> None:
            _replace_weight(layer, layer.weight_global_scale)

        def apply_weights(
            self, layer: Any, x: torch.Tensor, bias: torch.Tensor | None = None
        ) -> torch.Tensor:
            return torch.nn.functional.linear(x, layer.weight, bias)

    class GpuNvFp4Emulation(GpuNvFp4WeightOnly):
        """W4A4: inputs rounded as Blackwell's tensor cores take them, BF16 products."""

        def process_weights_after_loading(self, layer: Any) -> None:
            _register_op()
            _replace_weight(layer, None)

        def apply_weights(
            self, layer: Any, x: torch.Tensor, bias: torch.Tensor | None = None
        ) -> torch.Tensor:
            flat = x.reshape(-1, x.shape[-1])
            out = torch.ops.clefq.w4a4_linear(
                flat, layer.weight, layer.input_global_scale_inv, layer.alpha
            )
            out = out.reshape(*x.shape[:-1], out.shape[-1])
            return out if bias is None else out + bias

    return GpuNvFp4WeightOnly, GpuNvFp4Emulation


def unpack_weight(
    packed: torch.Tensor, scales: torch.Tensor, global_scale: torch.Tensor | None
) -> torch.Tensor:
    """The weight that a layer's bytes mean.

    Args:
        packed: uint8 [rows, K/2], two E2M1 codes a byte, low nibble first.
        scales: E4M3 [rows, K/16].
        global_scale: Scalar factor (not the divisor on disk), or None to leave it out; without it
            every value is exact.

    Returns:
        BF16 [rows, K].
    """
    weight = unpack_e2m1(packed) * scales.float().repeat_interleave(NVFP4_GROUP, dim=-1)
    return (weight if global_scale is None else weight * global_scale).bfloat16()


def _replace_weight(layer: Any, global_scale: torch.Tensor | None) -> None:
    packed, scales = layer.weight.data.view(torch.uint8), layer.weight_scale.data
    weight = torch.empty(
        packed.shape[0], packed.shape[1] * 2, dtype=torch.bfloat16, device=packed.device
    )
    # by rows: unpacking takes eight times the result
    for rows in torch.arange(packed.shape[0]).split(1024):
        at = slice(int(rows[0]), int(rows[-1]) + 1)
        weight[at] = unpack_weight(packed[at], scales[at], global_scale)
    layer.weight = torch.nn.Parameter(weight, requires_grad=False)
    layer.weight_scale = torch.nn.Parameter(scales.new_empty(0), requires_grad=False)


def _register_op() -> None:
    """Makes `w4a4_linear` known to PyTorch, as one opaque operator: no compiler reorders it."""
    if hasattr(torch.ops.clefq, "w4a4_linear"):
        return
    operator = torch.library.custom_op(_OP, _w4a4_linear, mutates_args=())

    @operator.register_fake
    def shape(
        x: torch.Tensor, weight: torch.Tensor, divisor: torch.Tensor, alpha: torch.Tensor
    ) -> torch.Tensor:
        return x.new_empty(x.shape[0], weight.shape[0])


def _w4a4_linear(
    x: torch.Tensor, weight: torch.Tensor, divisor: torch.Tensor, alpha: torch.Tensor
) -> torch.Tensor:
    """One linear layer in simulated W4A4.

    Args:
        x: BF16 [tokens, K].
        weight: BF16 [rows, K], E2M1 times E4M3, without the global scale.
        divisor: Scalar, the input's global scale as stored (448·6/amax).
        alpha: Scalar, both global scales' reciprocals multiplied.

    Returns:
        BF16 [tokens, rows].
    """
    rounded = quantize_inputs(x, divisor)
    if x.is_cuda:
        out = torch.mm(rounded, weight.t(), out_dtype=torch.float32)
    else:
        out = rounded.float() @ weight.float().t()
    return (out * alpha).to(x.dtype)


def quantize_inputs(x: torch.Tensor, divisor: torch.Tensor) -> torch.Tensor:
    """What a W4A4 kernel makes of its input, in one pass on a GPU.

    Args:
        x: BF16 [tokens, K], K a multiple of 16.
        divisor: Scalar, the input's global scale as stored.

    Returns:
        BF16 [tokens, K]: E2M1 values times their group's E4M3 scale, exact; the same values as
        `small_floats.quantize_nvfp4`.
    """
    if not x.is_cuda:
        return quantize_nvfp4(x, divisor).to(x.dtype)
    from clefq.serving.triton_nvfp4 import quantize

    return quantize(x, divisor)
