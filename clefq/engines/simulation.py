"""Simulated kernels: the arithmetic of quantized matrix products, in FP32 on any machine.

A real W4A4 or W8A8 kernel multiplies FP4 or FP8 *values*, accumulates in FP32, applies the
scales to the accumulator and rounds once, to BF16. So does this module: operands are the exact
quantized values (an E2M1 value times its E4M3 group scale has at most six significant bits, so
FP32 holds it exactly), the product runs in FP32, global and per-row scales follow, and one
rounding ends it. Rounding the dequantized weight to BF16 instead, as a dequantizing loader does,
is a different model. What remains different from a real kernel is the order of the sum.

Formats: E2M1 (FP4) has the values 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives; E4M3 (FP8) ends
at 448. NVFP4 groups 16 values along the input dimension under one E4M3 scale, and stores the
tensor's global scale as a divisor, 448·6/amax.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from clefq.clef.small_floats import (
    E2M1_MAX,
    E4M3_MAX,
    NVFP4_GROUP,
    compute_dtype,
    quantize_nvfp4,
    round_to_e4m3,
    unpack_e2m1,
    unpack_int4,
)

# Smallest per-token FP8 scale of vLLM's kernels: keeps the division finite on all-zero rows.
MIN_FP8_SCALE = 1.0 / (E4M3_MAX * 512.0)


def quantize_fp8_tokens(inputs: Tensor) -> tuple[Tensor, Tensor]:
    """Dynamic FP8 activations: one scale per token, amax / 448.

    Args:
        inputs: [tokens, columns], any float dtype.

    Returns:
        E4M3 values [tokens, columns] and scales [tokens, 1], in the computing dtype.
    """
    values = inputs.to(compute_dtype(inputs))
    scale = (values.abs().amax(dim=-1, keepdim=True) / E4M3_MAX).clamp_(min=MIN_FP8_SCALE)
    return round_to_e4m3(values / scale), scale


def quantize_int8_tokens(inputs: Tensor) -> tuple[Tensor, Tensor]:
    """Dynamic INT8 activations: one scale per token, amax / 127, ties to even.

    Args:
        inputs: [tokens, columns], any float dtype.

    Returns:
        Whole numbers [tokens, columns] and scales [tokens, 1], in the computing dtype. Kernels sum
        the products in 32-bit integers; here FP32 sums them, exact up to 2^24.
    """
    values = inputs.to(compute_dtype(inputs))
    peak = values.abs().amax(dim=-1, keepdim=True)
    factor = torch.where(peak == 0, 0.0, 127.0 / peak)
    return (values * factor).round_().clamp_(-128, 127), peak / 127.0


def _product(values: Tensor, weight: Tensor, exact: bool) -> Tensor:
    """Values times the transposed weight, with accumulation in the values' dtype.

    On a GPU, operands that BF16 holds exactly (quantized values, and BF16 inputs: `exact`) go
    through the BF16 units with an FP32 accumulator and FP32 output, which changes no product.
    """
    if values.is_cuda and exact:
        low = torch.bfloat16
        return torch.mm(values.to(low), weight.to(low).T, out_dtype=torch.float32)
    return values @ weight.to(values.dtype).T


class QuantizedWeight(Protocol):
    """A stored weight that decodes to exact values and a scale for the accumulator."""

    columns: int

    def values(self) -> Tensor:
        """float32 [rows, columns]: quantized values (with group scales), exact."""
        ...

    def scale(self) -> Tensor:
        """float32 scalar or [rows]: what the accumulator is multiplied with."""
        ...

    def to(self, device: torch.device) -> QuantizedWeight:
        """The same weight on another device."""
        ...


@dataclass(slots=True)
class Nvfp4Weight:
    """NVFP4 weight.

    Attributes:
        packed: uint8 [rows, columns / 2].
        group_scale: E4M3 [rows, columns / 16].
        global_scale: float32 scalar, a divisor.
        columns: Input features.
    """

    packed: Tensor
    group_scale: Tensor
    global_scale: Tensor
    columns: int

    def values(self) -> Tensor:
        """E2M1 value times group scale, float32 [rows, columns]."""
        groups = unpack_e2m1(self.packed).unflatten(-1, (-1, NVFP4_GROUP))
        return groups.mul_(self.group_scale.to(torch.float32).unsqueeze(-1)).flatten(-2)

    def scale(self) -> Tensor:
        """One over the global divisor."""
        return self.global_scale.reciprocal()

    def to(self, device: torch.device) -> Nvfp4Weight:
        """The same weight on another device."""
        return Nvfp4Weight(
            self.packed.to(device),
            self.group_scale.to(device),
            self.global_scale.to(device),
            self.columns,
        )


@dataclass(slots=True)
class ChannelWeight:
    """FP8 or INT8 weight with a scale per output channel, or one for the tensor.

    Attributes:
        codes: E4M3 or int8 [rows, columns].
        row_scale: float32 [rows] or scalar, a factor.
        columns: Input features.
    """

    codes: Tensor
    row_scale: Tensor
    columns: int

    def values(self) -> Tensor:
        """The codes' values as float32 [rows, columns]."""
        return self.codes.to(torch.float32)

    def scale(self) -> Tensor:
        """The channel scales."""
        return self.row_scale

    def to(self, device: torch.device) -> ChannelWeight:
        """The same weight on another device."""
        return ChannelWeight(self.codes.to(device), self.row_scale.to(device), self.columns)


@dataclass(slots=True)
class Int4Weight:
    """INT4 weight in groups, as weight-only kernels take it: unpacked to the scales' dtype.

    Attributes:
        packed: int32 [rows, columns / 8].
        group_scale: [rows, groups], in the model's dtype.
        columns: Input features.
    """

    packed: Tensor
    group_scale: Tensor
    columns: int

    def values(self) -> Tensor:
        """Code times group scale, rounded to the scales' dtype, as float32 [rows, columns]."""
        scales = self.group_scale.unsqueeze(-1)
        codes = unpack_int4(self.packed).to(scales.dtype)
        return (codes.unflatten(-1, (scales.shape[1], -1)) * scales).flatten(-2).float()

    def scale(self) -> Tensor:
        """One: group scales are in the values."""
        return torch.ones((), device=self.packed.device)

    def to(self, device: torch.device) -> Int4Weight:
        """The same weight on another device."""
        return Int4Weight(self.packed.to(device), self.group_scale.to(device), self.columns)


class InputQuantizer(Protocol):
    """How a layer quantizes its inputs."""

    @property
    def covers(self) -> float | None:
        """Largest magnitude that a calibrated scale covers; None where scales are dynamic."""
        ...

    def quantize(self, inputs: Tensor) -> tuple[Tensor, Tensor | None]:
        """Exact values [tokens, columns] and their scale (scalar or [tokens, 1]; None: one)."""
        ...

    def key(self) -> tuple[str, float]:
        """Equal keys quantize equal inputs alike."""
        ...


@dataclass(frozen=True, slots=True)
class KeepInputs:
    """16-bit activations: no quantization."""

    @property
    def covers(self) -> None:
        """No scale is calibrated."""

    def quantize(self, inputs: Tensor) -> tuple[Tensor, Tensor | None]:
        """The inputs themselves."""
        return inputs.to(compute_dtype(inputs)), None

    def key(self) -> tuple[str, float]:
        """All layers with 16-bit activations share one key."""
        return "keep", 0.0


@dataclass(frozen=True, slots=True)
class Nvfp4Inputs:
    """NVFP4 activations with the tensor's calibrated global scale.

    Attributes:
        global_scale: The divisor 448·6/amax.
    """

    global_scale: float

    @property
    def covers(self) -> float:
        """The amax that the scale was calibrated for."""
        return E4M3_MAX * E2M1_MAX / self.global_scale

    def quantize(self, inputs: Tensor) -> tuple[Tensor, Tensor | None]:
        """E2M1 values times group scales, and one over the global divisor."""
        dtype = compute_dtype(inputs)
        divisor = torch.tensor(self.global_scale, dtype=dtype, device=inputs.device)
        return quantize_nvfp4(inputs, divisor), divisor.reciprocal()

    def key(self) -> tuple[str, float]:
        """Layers with the same global scale share quantized inputs."""
        return "nvfp4", self.global_scale


@dataclass(frozen=True, slots=True)
class Fp8TokenInputs:
    """FP8 activations with one dynamic scale per token."""

    @property
    def covers(self) -> None:
        """No scale is calibrated."""

    def quantize(self, inputs: Tensor) -> tuple[Tensor, Tensor | None]:
        """E4M3 values and the tokens' scales."""
        return quantize_fp8_tokens(inputs)

    def key(self) -> tuple[str, float]:
        """All dynamic FP8 layers share one key."""
        return "fp8-token", 0.0


@dataclass(frozen=True, slots=True)
class Int8TokenInputs:
    """INT8 activations with one dynamic scale per token, symmetric."""

    @property
    def covers(self) -> None:
        """No scale is calibrated."""

    def quantize(self, inputs: Tensor) -> tuple[Tensor, Tensor | None]:
        """Whole numbers from -128 to 127 and the tokens' scales."""
        return quantize_int8_tokens(inputs)

    def key(self) -> tuple[str, float]:
        """All dynamic INT8 layers share one key."""
        return "int8-token", 0.0


@dataclass(frozen=True, slots=True)
class Fp8StaticInputs:
    """FP8 activations with one calibrated scale for the tensor.

    Attributes:
        scale: The factor amax / 448.
    """

    scale: float

    @property
    def covers(self) -> float:
        """The amax that the scale was calibrated for."""
        return E4M3_MAX * self.scale

    def quantize(self, inputs: Tensor) -> tuple[Tensor, Tensor | None]:
        """E4M3 values and the fixed scale."""
        dtype = compute_dtype(inputs)
        factor = torch.tensor(self.scale, dtype=dtype, device=inputs.device)
        return round_to_e4m3(inputs.to(dtype) / factor), factor

    def key(self) -> tuple[str, float]:
        """Layers with the same scale share quantized inputs."""
        return "fp8-static", self.scale


class Clipping:
    """Counts blocks of 16 inputs that exceed what their calibrated scale covers.

    Attributes:
        blocks: Blocks that were looked at, a number or a scalar on the device.
        beyond: How many of them hold a larger magnitude, likewise.
    """

    def __init__(self) -> None:
        self.blocks: Tensor | int = 0
        self.beyond: Tensor | int = 0

    def add(self, flat: Tensor, covers: float, real: Tensor | None) -> None:
        """Counts inputs.

        Args:
            flat: [tokens, columns].
            covers: Largest magnitude that the scale covers.
            real: bool [tokens], false for padding; None where all are real.
        """
        per_token = flat.shape[1] // NVFP4_GROUP
        self.blocks = self.blocks + per_token * (len(flat) if real is None else real.sum())
        # on a CPU one look at the extremes is the usual end; on a GPU it would be a wait
        if not flat.is_cuda and max(abs(float(end)) for end in torch.aminmax(flat)) <= covers:
            return
        beyond = (flat.abs() > covers).unflatten(-1, (per_token, -1)).any(-1).sum(-1)
        self.beyond = self.beyond + (beyond if real is None else beyond * real).sum()


class InputMemo:
    """Keeps the last quantized input: q, k and v (or gate and up) read the same tensor.

    Holds a reference to that tensor, so that its identity cannot be reused meanwhile.

    Attributes:
        real: bool [tokens] of the batch that runs, false for padding; None where that is not known.
    """

    def __init__(self) -> None:
        self.real: Tensor | None = None
        self._inputs: Tensor | None = None
        self._key: tuple[str, float] | None = None
        self._result: tuple[Tensor, Tensor | None] | None = None

    def quantize(
        self, inputs: Tensor, flat: Tensor, quantizer: InputQuantizer, clipping: Clipping
    ) -> tuple[Tensor, Tensor | None]:
        """`quantizer.quantize(flat)`, computed once while `inputs` stays the same tensor."""
        if self._result is None or inputs is not self._inputs or quantizer.key() != self._key:
            if quantizer.covers is not None:
                clipping.add(flat, quantizer.covers, self.real)
            self._result = quantizer.quantize(flat)
            self._inputs, self._key = inputs, quantizer.key()
        return self._result

    def clear(self) -> None:
        """Drops the kept tensors."""
        self._inputs = self._key = self._result = self.real = None


class QuantizedLinear(nn.Module):
    """A linear layer that computes as a quantized kernel does (see the module's header).

    Args:
        weight: The stored weight.
        quantizer: What happens to the inputs.
        bias: float [rows] or None; added to the scaled accumulator before the rounding.
        memo: Shared by the layers of one model.
        keep_decoded: Keep the decoded float32 weight (four bytes a value) instead of decoding it
            in every pass.
    """

    def __init__(
        self,
        weight: QuantizedWeight,
        quantizer: InputQuantizer,
        bias: Tensor | None = None,
        memo: InputMemo | None = None,
        keep_decoded: bool = False,
    ) -> None:
        super().__init__()
        self.stored = weight
        self.quantizer = quantizer
        self.bias = bias
        self.memo = memo if memo is not None else InputMemo()
        self.clipping = Clipping()
        self.in_features = weight.columns
        self.keep_decoded = keep_decoded
        self._decoded: Tensor | None = None

    def forward(self, inputs: Tensor) -> Tensor:
        """[..., columns] to [..., rows], in the inputs' dtype."""
        flat = inputs.reshape(-1, self.in_features)
        values, input_scale = self.memo.quantize(inputs, flat, self.quantizer, self.clipping)
        output = _product(values, self._weight_values(), exact=inputs.dtype == torch.bfloat16)
        scale = self.stored.scale().to(values.dtype)
        output.mul_(scale if input_scale is None else input_scale * scale)
        if self.bias is not None:
            output.add_(self.bias.to(output.dtype))
        return output.to(inputs.dtype).reshape(*inputs.shape[:-1], -1)

    def _weight_values(self) -> Tensor:
        if self._decoded is not None:
            return self._decoded
        values = self.stored.values()
        if self.keep_decoded:
            self._decoded = values
        return values
