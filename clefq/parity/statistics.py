"""All figures of one (baseline, candidate) pair, overall and by slice: what gates and reports read.

`compare` is pure: it takes a `PairedSet` and returns values. Nothing here knows files or gates.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from clefq.parity.metric import Metric
from clefq.parity.pairs import PairedSet

OVERALL = "overall"
NO_GATES = "0" * 64


@dataclass(frozen=True, slots=True)
class StatisticsSpec:
    """How to compute.

    Attributes:
        gate_file_sha256: Hash of the gate file's text; 64 zeros where there are no gates. With the
            eval set's hash it makes the seed, so that nobody picks it.
        confidence: Two-sided confidence of the intervals.
        resamples: Bootstrap resamples.
        thresholds: Thresholds T of `threshold_flips@T`.
        slices: Whether to compute the slices too.
        threads: Threads of the resampling; never changes a number.
    """

    gate_file_sha256: str = NO_GATES
    confidence: float = 0.95
    resamples: int = 10_000
    thresholds: tuple[float, ...] = (0.5,)
    slices: bool = True
    threads: int = 2


@dataclass(frozen=True)
class PairStatistics:
    """Every figure of one pair.

    Attributes:
        metrics: Metric name → figure, overall.
        slices: Slice name → metric name → figure. Names are `cohort=NAME`, `type=noul`,
            `options=2`, `length=2K-8K`, `margin=>=0.5`: see `clefq.parity.slices.slice_masks`.
        pairs: What they were computed from.
        spec: How.
    """

    metrics: Mapping[str, Metric]
    slices: Mapping[str, Mapping[str, Metric]]
    pairs: PairedSet
    spec: StatisticsSpec
    _memo: dict[tuple[object, ...], Metric] = field(default_factory=dict, repr=False)

    def for_gate(
        self,
        name: str,
        slice_name: str = OVERALL,
        *,
        confidence: float | None = None,
        margin: float | None = None,
    ) -> Metric | None:
        """The figure as a gate must read it: the pessimistic end of the tie bracket.

        Args:
            name: Metric name, for example `agreement` or `threshold_flips@0.7`.
            slice_name: `overall` or a slice name.
            confidence: Two-sided confidence, where it differs from the spec's.
            margin: The value the bound is compared with (−margin, or the floor or ceiling). Where
                a bootstrap bound lies within 3 Monte Carlo standard errors of it, the resamples
                are doubled.

        Returns:
            The figure, or None where this set has no such slice.

        Raises:
            InputError: No metric has this name.
        """
        raise NotImplementedError


def compare(pairs: PairedSet, spec: StatisticsSpec | None = None) -> PairStatistics:
    """Computes every metric of one pair, overall and by slice.

    Args:
        pairs: The joined predictions (`clefq.parity.pairs.join`).
        spec: How to compute; default `StatisticsSpec()`.
    """
    raise NotImplementedError
