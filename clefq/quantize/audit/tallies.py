"""Counts of deviations while a stored weight is held against its source, block by block."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any

from clefq.clef.formats import SEARCH_OBSERVER
from clefq.clef.tensor_files import TensorInfo
from clefq.quantize.stream import row_blocks

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
FIRST_ROWS = 64


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """How numbers are recomputed: where in F32 instead of in the weights' dtype, and which scales.

    compressed-tensors' torch code stays in the weights' dtype, its GPU kernels take the quotients
    in F32; other tools, and a model that was loaded in F32, the scales as well.

    Attributes:
        scales: Scales in F32.
        quotients: Weights divided by their scales in F32.
        searched: NVFP4 group scales by `clefq.quantize.scale_search`, not amax / 6.
        factor: NVFP4 with a global factor instead of a divisor, as ModelOpt computes it.
    """

    scales: bool = False
    quotients: bool = False
    searched: bool = False
    factor: bool = False


NATIVE = Arithmetic()
WIDE = Arithmetic(scales=True, quotients=True)
SEARCHED = Arithmetic(searched=True)
SEARCHED_WIDE = Arithmetic(scales=True, quotients=True, searched=True)
FACTOR = Arithmetic(scales=True, quotients=True, factor=True)


@dataclass(frozen=True, slots=True)
class Sides:
    """The two checkpoints that are held against each other, and where.

    Attributes:
        refs: The quantized one's tensors.
        source: The source's tensors.
        device: Where numbers are recomputed and compared: `cpu`, `cuda`.
        rows: Only this many first rows of a weight are looked at; None for all.
    """

    refs: Mapping[str, TensorInfo]
    source: Mapping[str, TensorInfo]
    device: str = "cpu"
    rows: int | None = None

    def first(self) -> Sides:
        """The first rows alone."""
        return replace(self, rows=FIRST_ROWS)

    def on_cpu(self) -> Sides:
        """The same on the CPU."""
        return replace(self, device="cpu")

    def weight(self, module: str) -> TensorInfo:
        """A module's weight in the source."""
        return self.source[f"{module}.weight"]

    def blocks(
        self, module: str, dtype: str | None = None, multiple: int = 1
    ) -> Iterator[tuple[int, torch.Tensor]]:
        """Rows of a source weight, block by block, as `row_blocks` gives them.

        Args:
            module: Module name.
            dtype: Dtype to convert to, in safetensors' words; None for the weight's own.
            multiple: Every block but the last has a multiple of this many rows.
        """
        ref = self.weight(module)
        for row, block in row_blocks(ref, dtype or ref.dtype, self.device, multiple):
            yield row, block[: self.rows]
            if self.rows is not None:
                return

    def stored(self, name: str, row: int, count: int, dtype: torch.dtype) -> torch.Tensor:
        """`count` rows of a stored tensor from `row` on, `[count, …]`, as a dtype."""
        import torch

        ref = self.refs[name]
        width = ref.nbytes // ref.shape[0]
        data = ref.slice(row * width, count * width)
        return torch.frombuffer(data, dtype=dtype).view(count, -1).to(self.device)


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
        slope: ⟨stored, source⟩ / ‖source‖²: 1 where nothing is scaled wrongly, 1 where the norm was
            not taken.
        arithmetic: In which arithmetic the numbers were recomputed; the best of those known.
        lost_rows: Rows that vanish: zero, or less than half of their norm left.
        lost_groups: Groups of weights with a scale of their own that vanish, those rows' included.
        groups: How many such groups there are; rows, where a group is one.
        divisor: Stored global scale, or None.
        expected_divisors: What the source's largest magnitude gives: for its fused group and
            for the module alone, in BF16 and in F32 arithmetic and as ModelOpt takes it.
        made_with: The expected divisor under which the stored codes are round-to-nearest; None
            if there is none.
    """

    module: str
    numbers: int
    deviating: int
    wild: int
    relative_error: float
    slope: float = 1.0
    arithmetic: Arithmetic = Arithmetic()
    lost_rows: tuple[int, ...] = ()
    lost_groups: int = 0
    groups: int = 0
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
        self.lost_rows: list[int] = []
        self.lost_groups = 0
        self.groups = 0
        self._error = 0.0
        self._norm = 0.0
        self._product = 0.0

    def add(self, stored: torch.Tensor, block: torch.Tensor) -> None:
        """Adds a block to the norms, and its weights that are far off."""
        wide = block.double()
        self._error += float(((stored.double() - wide) ** 2).sum())
        self._norm += float((wide**2).sum())
        self._product += float((stored.double() * wide).sum())
        self.wild += _wild(stored.float(), block.float())

    def add_lost(self, stored: torch.Tensor, source: torch.Tensor, rows: torch.Tensor) -> None:
        """Counts what vanishes among some rows.

        Args:
            stored: `[rows, groups, size]`, what the stored numbers stand for.
            source: The same of the source.
            rows: `[rows]`, their numbers in the weight.
        """
        kept, whole = stored.double().square(), source.double().square()
        # a quarter of the square is half of the norm
        groups = (kept.sum(-1) < whole.sum(-1) / 4).sum()
        gone = kept.sum((-1, -2)) < whole.sum((-1, -2)) / 4
        self.lost_groups += int(groups)
        self.lost_rows += rows[gone].tolist()

    @property
    def relative_error(self) -> float:
        """‖stored − source‖ / ‖source‖ over the added blocks."""
        if self._norm == 0:
            return 0.0 if self._error == 0 else float("inf")
        return float((self._error / self._norm) ** 0.5)

    @property
    def slope(self) -> float:
        """⟨stored, source⟩ / ‖source‖² over the added blocks; 1 without any."""
        return self._product / self._norm if self._norm else 1.0

    def compared(self, module: str, arithmetic: Arithmetic) -> Comparison:
        """What was counted, as a comparison."""
        return Comparison(
            module,
            self.numbers,
            self.deviating,
            self.wild,
            self.relative_error,
            self.slope,
            arithmetic,
            tuple(self.lost_rows),
            self.lost_groups,
            self.groups,
        )


def _wild(stored: torch.Tensor, source: torch.Tensor) -> int:
    """Weights off by more than half their group's largest magnitude, in groups that matter."""
    size = 16 if source.shape[1] % 16 == 0 else source.shape[1]
    groups = source.unflatten(-1, (-1, size)).abs()
    largest = groups.amax(-1, keepdim=True)
    usual = source.square().mean(-1).sqrt().view(-1, 1, 1)
    counts = (largest > usual / 4) & (largest > 1e-4 * source.abs().max())
    off = (stored - source).abs().unflatten(-1, (-1, size))
    return int((counts & ~(off <= _WILD * largest)).sum())


def raw_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor as bytes, U8."""
    import torch

    return tensor.view(torch.uint8)


@cache
def weight_args(preset: str, searched: bool = False) -> Any:
    """The weights' `QuantizationArgs` of a compressed-tensors preset.

    Args:
        preset: Its name.
        searched: Whether NVFP4 group scales are searched.
    """
    from compressed_tensors.quantization import preset_name_to_scheme

    args = preset_name_to_scheme(preset, ["Linear"]).weights
    return args.model_copy(update={"observer": SEARCH_OBSERVER}) if searched else args
