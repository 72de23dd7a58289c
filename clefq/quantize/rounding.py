"""Compares stored weights with what round-to-nearest makes of a BF16 source. Needs torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from clefq.clef.config_match import FP8, NVFP4, Scheme
from clefq.clef.tensor_files import TensorInfo
from clefq.quantize.stream import row_blocks

if TYPE_CHECKING:
    import torch

Refs = Mapping[str, TensorInfo]

# Below this share of deviating numbers they count as damage, above it as another rounding.
DAMAGE_SHARE = 1e-3
# Share of weights off by more than half their group's range, beyond which they count as damage.
# A rounding that compensates errors (GPTQ) moves weights everywhere and, calibrated on little,
# 0.15% of them that far; where most numbers are round-to-nearest, nothing explains such weights.
WILD_SHARE = 1e-4
WILD_SHARE_COMPENSATED = 5e-3
_COMPENSATED = 0.1
_WILD = 0.5
# How far from a midpoint a value may lie for either neighbour to be its rounding, relative:
# division differs between CPU and GPU kernels in the last bit.
_TIE = 1e-5


@dataclass(frozen=True, slots=True)
class Comparison:
    """One quantized module held against its source.

    Attributes:
        module: Module name.
        numbers: Codes and local scales compared.
        deviating: How many of them differ from round-to-nearest under the stored global scale.
        wild: Weights that are off by more than half the largest magnitude of their group of 16.
        relative_error: ‖stored − source‖ / ‖source‖, Frobenius norm; 0 where the numbers are
            exactly round-to-nearest and the norm was not taken.
        divisor: Stored global scale, or None.
        expected_divisors: What the source's largest magnitude gives: for its fused group and
            for the module alone, in BF16 and in F32 arithmetic.
        made_with: The expected divisor under which the stored codes are round-to-nearest; None
            if there is none.
    """

    module: str
    numbers: int
    deviating: int
    wild: int
    relative_error: float
    divisor: float | None = None
    expected_divisors: tuple[float, ...] = ()
    made_with: float | None = None

    @property
    def exact(self) -> bool:
        """Whether every stored number is the one that round-to-nearest gives."""
        return self.deviating == 0

    @property
    def other_rounding(self) -> bool:
        """Whether the numbers come from another rounding than to the nearest."""
        known = self.made_with not in (None, self.divisor)
        return not (self.exact or self.damaged or known)

    @property
    def few(self) -> bool:
        """Whether a few numbers deviate from what is otherwise round-to-nearest."""
        return 0 < self.deviating <= _few(self.numbers)

    @property
    def damaged(self) -> bool:
        """Whether few numbers deviate, or more of them further than any rounding goes."""
        everywhere = self.deviating > self.numbers * _COMPENSATED
        share = WILD_SHARE_COMPENSATED if everywhere else WILD_SHARE
        return self.few or self.wild > self.numbers * share


def _few(numbers: int) -> float:
    return max(8, numbers * DAMAGE_SHARE)


def comparable(scheme: Scheme) -> bool:
    """Whether the module's rounding can be recomputed."""
    if scheme.format == NVFP4:
        return scheme.group_size == 16
    if scheme.strategy == "block":
        return scheme.format in FP8 and scheme.block is not None
    return scheme.format in FP8 and scheme.strategy in ("channel", "tensor")


def compare_module(
    module: str, scheme: Scheme, refs: Refs, source: Refs, members: tuple[str, ...] = ()
) -> Comparison:
    """Recomputes a module's numbers from the source and counts those that differ.

    Args:
        module: Module name.
        scheme: How it is stored.
        refs: The quantized checkpoint's tensors.
        source: The source's tensors.
        members: All modules of its fused group, for the expected global scale.
    """
    if scheme.format == NVFP4:
        return _compare_nvfp4(module, refs, source, members or (module,))
    if scheme.strategy == "tensor":
        return _compare_fp8_tensor(module, refs, source)
    return _compare_fp8(module, scheme, refs, source)


def _compare_nvfp4(module: str, refs: Refs, source: Refs, members: tuple[str, ...]) -> Comparison:
    divisor = stored_divisor(refs, module)
    expected = _expected(source, module, members)
    tally = _tally_nvfp4(module, refs, source, divisor)
    codes_of = None
    if float(divisor) in expected:
        codes_of = float(divisor)
    else:
        # perhaps the codes are right and the global scale is not
        for other in dict.fromkeys(expected):
            again = _tally_nvfp4(module, refs, source, torch_scalar(other))
            if again.deviating <= DAMAGE_SHARE * again.numbers:
                codes_of = other
                break
    return Comparison(
        module,
        tally.numbers,
        tally.deviating,
        tally.wild,
        tally.relative_error,
        float(divisor),
        expected,
        codes_of,
    )


def torch_scalar(value: float) -> torch.Tensor:
    """A global scale as compressed-tensors holds it, `[1]`, F32."""
    import torch

    return torch.tensor([value], dtype=torch.float32)


def _tally_nvfp4(module: str, refs: Refs, source: Refs, divisor: torch.Tensor) -> _Tally:
    """Compares with round-to-nearest under a given global scale."""
    import torch

    from clefq.quantize import kernels

    packed, scales = refs[f"{module}.weight_packed"], refs[f"{module}.weight_scale"]
    tally = _Tally()
    ref = source[f"{module}.weight"]
    for row, block in row_blocks(ref, ref.dtype):
        ours = _rows(packed, row, len(block), torch.uint8)
        ours_scales = _rows(scales, row, len(block), torch.float8_e4m3fn)
        theirs, theirs_scales = kernels.nvfp4_rows(block, divisor, weight_args("NVFP4A16"))
        if not ours.equal(theirs):
            tally.deviating += _nvfp4_deviations(ours, theirs, block, theirs_scales, divisor)
        tally.deviating += int((_raw(ours_scales) != _raw(theirs_scales)).sum())
        if tally.deviating:
            tally.add(kernels.nvfp4_values(ours, ours_scales, divisor), block)
        tally.numbers += block.numel() + ours_scales.numel()
    return tally


def _nvfp4_deviations(
    ours: torch.Tensor,
    theirs: torch.Tensor,
    block: torch.Tensor,
    scales: torch.Tensor,
    divisor: torch.Tensor,
) -> int:
    """Codes that differ, apart from those whose value lies on a midpoint up to rounding."""
    from clefq.quantize import kernels

    a, b = kernels.unpack_e2m1(ours), kernels.unpack_e2m1(theirs)
    wide = block.unflatten(-1, (-1, kernels.GROUP)).float()
    value = (wide / (scales.float() / divisor).unsqueeze(-1)).flatten(-2)
    middle = (a + b) / 2
    tie = (value - middle).abs() <= _TIE * middle.abs()
    # two zeros of different sign stand for the same weight
    return int(((a != b) & ~tie).sum())


@dataclass(frozen=True, slots=True)
class _Arithmetic:
    """Where round-to-nearest to FP8 is computed in F32 instead of in the weights' dtype.

    compressed-tensors' torch code stays in the weights' dtype, its GPU kernels take the quotients
    in F32, other tools the scales as well.
    """

    scales: bool
    quotients: bool


_ARITHMETICS = (_Arithmetic(False, False), _Arithmetic(False, True), _Arithmetic(True, True))


def _compare_fp8(module: str, scheme: Scheme, refs: Refs, source: Refs) -> Comparison:
    best: _Tally | None = None
    for arithmetic in _ARITHMETICS:
        tally = _tally_fp8(module, scheme, refs, source, arithmetic)
        if best is None or tally.deviating < best.deviating:
            best = tally
        if best.few_deviate:
            break
    assert best is not None
    return Comparison(module, best.numbers, best.deviating, best.wild, best.relative_error)


def _tally_fp8(
    module: str, scheme: Scheme, refs: Refs, source: Refs, arithmetic: _Arithmetic
) -> _Tally:
    import torch

    # a scale per row is one per tile of one row
    height, width = scheme.block or (1, refs[f"{module}.weight"].shape[1])
    codes, scales = refs[f"{module}.weight"], refs[f"{module}.weight_scale"]
    dtype = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}[scales.dtype]
    tally = _Tally()
    ref = source[f"{module}.weight"]
    for row, block in row_blocks(ref, ref.dtype, multiple=height):
        ours = _rows(codes, row, len(block), torch.float8_e4m3fn)
        ours_scales = _rows(scales, row // height, -(-len(block) // height), dtype)
        theirs, theirs_scales = _fp8(block, scheme, arithmetic)
        if not _raw(ours).equal(_raw(theirs)):
            tally.deviating += int((ours.float() != theirs.float()).sum())
        tally.deviating += int((ours_scales.float() != theirs_scales.float()).sum())
        if tally.deviating:
            tally.add(_fp8_values(ours, ours_scales, (height, width)), block)
        tally.numbers += block.numel() + ours_scales.numel()
    return tally


def _fp8(
    block: torch.Tensor, scheme: Scheme, arithmetic: _Arithmetic
) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes and scales that round-to-nearest gives."""
    from clefq.quantize import kernels

    args = weight_args("FP8_DYNAMIC")
    if arithmetic.scales:
        block = block.float()
    if scheme.block is None:
        codes, scales = kernels.fp8_rows(block, args)
        wide = scales
    else:
        codes, scales = kernels.fp8_blocks(block, scheme.block, args)
        wide = kernels.spread(scales, scheme.block, block.shape)
    if arithmetic.quotients:
        codes = kernels.fp8_codes(block.float(), wide.float())
    return codes, scales


def _fp8_values(codes: torch.Tensor, scales: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
    from clefq.quantize import kernels

    return codes.float() * kernels.spread(scales.float(), size, codes.shape)


def _compare_fp8_tensor(module: str, refs: Refs, source: Refs) -> Comparison:
    """One scale for the whole weight: codes are held against rounding under the stored scale."""
    import torch

    from clefq.quantize.values import read_floats

    scale = float(read_floats(refs[f"{module}.weight_scale"]).reshape(-1)[0])
    codes, ref = refs[f"{module}.weight"], source[f"{module}.weight"]
    tally = _Tally()
    for row, block in row_blocks(ref, ref.dtype):
        ours = _rows(codes, row, len(block), torch.float8_e4m3fn)
        theirs = (block.float() / scale).clamp(-448, 448).to(torch.float8_e4m3fn)
        tally.deviating += int((ours.float() != theirs.float()).sum())
        # the scale itself may be wrong, so that the norms are taken throughout
        tally.add(ours.float() * scale, block)
        tally.numbers += block.numel()
    return Comparison(module, tally.numbers, tally.deviating, tally.wild, tally.relative_error)


class _Tally:
    """Counts over the blocks of a weight; squared norms from the first deviation on.

    From there the norms cover the rest of the weight: blocks before it hold only rounding.
    """

    def __init__(self) -> None:
        self.numbers = 0
        self.deviating = 0
        self.wild = 0
        self._error = 0.0
        self._norm = 0.0

    def add(self, stored: torch.Tensor, block: torch.Tensor) -> None:
        wide = block.double()
        self._error += float(((stored.double() - wide) ** 2).sum())
        self._norm += float((wide**2).sum())
        self.wild += _wild(stored.float(), block.float())

    @property
    def few_deviate(self) -> bool:
        return self.deviating <= _few(self.numbers)

    @property
    def relative_error(self) -> float:
        if self._norm == 0:
            return 0.0 if self._error == 0 else float("inf")
        return float((self._error / self._norm) ** 0.5)


def _wild(stored: torch.Tensor, source: torch.Tensor) -> int:
    """Weights off by more than half their group's largest magnitude, in groups that matter."""
    size = 16 if source.shape[1] % 16 == 0 else source.shape[1]
    groups = source.unflatten(-1, (-1, size)).abs()
    largest = groups.amax(-1, keepdim=True)
    usual = source.square().mean(-1).sqrt().view(-1, 1, 1)
    counts = (largest > usual / 4) & (largest > 1e-4 * source.abs().max())
    off = (stored - source).abs().unflatten(-1, (-1, size))
    return int((counts & ~(off <= _WILD * largest)).sum())


def quantize_module(weight: TensorInfo, divisor: float) -> tuple[bytes, bytes]:
    """Quantizes a source weight to NVFP4 under a given global scale.

    Returns:
        Packed codes and group scales, as stored.
    """
    from clefq.quantize import kernels

    shared = torch_scalar(divisor)
    packed, scales = bytearray(), bytearray()
    for _, block in row_blocks(weight, weight.dtype):
        codes, group = kernels.nvfp4_rows(block, shared, weight_args("NVFP4A16"))
        packed += codes.numpy().tobytes()
        scales += _raw(group).numpy().tobytes()
    return bytes(packed), bytes(scales)


def stored_divisor(refs: Refs, module: str) -> torch.Tensor:
    """A module's global scale, `[1]`, F32."""
    import torch

    from clefq.quantize.values import read_floats

    values = read_floats(refs[f"{module}.weight_global_scale"]).reshape(-1)
    return torch.from_numpy(values.copy())[:1]


def _expected(source: Refs, module: str, members: tuple[str, ...]) -> tuple[float, ...]:
    import torch

    from clefq.quantize import kernels

    largest = {}
    for member in dict.fromkeys((module, *members)):
        ref = source[f"{member}.weight"]
        blocks = [kernels.absmax(block) for _, block in row_blocks(ref, ref.dtype)]
        largest[member] = torch.stack(blocks).max()
    group = torch.stack(list(largest.values())).max()
    return tuple(
        float(kernels.global_scale(value))
        for own in (group, largest[module])
        for value in (own, own.float())
    )


def _rows(ref: TensorInfo, row: int, count: int, dtype: torch.dtype) -> torch.Tensor:
    import torch

    width = ref.nbytes // ref.shape[0]
    data = ref.slice(row * width, count * width)
    return torch.frombuffer(data, dtype=dtype).view(count, -1)


def _raw(tensor: torch.Tensor) -> torch.Tensor:
    import torch

    return tensor.view(torch.uint8)


@cache
def weight_args(preset: str) -> Any:
    """The weights' `QuantizationArgs` of a compressed-tensors preset."""
    from compressed_tensors.quantization import preset_name_to_scheme

    return preset_name_to_scheme(preset, ["Linear"]).weights
