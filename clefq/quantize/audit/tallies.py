"""Counts of deviations while a stored weight is held against its source, block by block."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from clefq.clef.tensor_files import TensorInfo

if TYPE_CHECKING:
    import torch

# Below this share of deviating numbers they count as damage, above it as another rounding.
DAMAGE_SHARE = 1e-3
# Share of weights off by more than half their group's range, beyond which they count as damage.
# A rounding that compensates errors (GPTQ) moves weights everywhere and, calibrated on little,
# 0.15% of them that far; where most numbers are round-to-nearest, nothing explains such weights.
WILD_SHARE = 1e-4
WILD_SHARE_COMPENSATED = 5e-3
_COMPENSATED = 0.1
_WILD = 0.5


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
        return 0 < self.deviating <= few_of(self.numbers)

    @property
    def damaged(self) -> bool:
        """Whether few numbers deviate, or more of them further than any rounding goes."""
        everywhere = self.deviating > self.numbers * _COMPENSATED
        share = WILD_SHARE_COMPENSATED if everywhere else WILD_SHARE
        return self.few or self.wild > self.numbers * share


def few_of(numbers: int) -> float:
    """How many deviating numbers are few, and so count as damage."""
    return max(8, numbers * DAMAGE_SHARE)


class Tally:
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
        """Adds a block to the norms, and its weights that are far off."""
        wide = block.double()
        self._error += float(((stored.double() - wide) ** 2).sum())
        self._norm += float((wide**2).sum())
        self.wild += _wild(stored.float(), block.float())

    @property
    def few_deviate(self) -> bool:
        """Whether none deviate, or so few that they are damage."""
        return self.deviating <= few_of(self.numbers)

    @property
    def relative_error(self) -> float:
        """‖stored − source‖ / ‖source‖ over the added blocks."""
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


def stored_rows(ref: TensorInfo, row: int, count: int, dtype: torch.dtype) -> torch.Tensor:
    """`count` rows of a stored tensor from `row` on, as a dtype."""
    import torch

    width = ref.nbytes // ref.shape[0]
    data = ref.slice(row * width, count * width)
    return torch.frombuffer(data, dtype=dtype).view(count, -1)


def raw_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor as bytes, U8."""
    import torch

    return tensor.view(torch.uint8)


@cache
def weight_args(preset: str) -> Any:
    """The weights' `QuantizationArgs` of a compressed-tensors preset."""
    from compressed_tensors.quantization import preset_name_to_scheme

    return preset_name_to_scheme(preset, ["Linear"]).weights
