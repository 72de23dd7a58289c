"""All figures of one (baseline, candidate) pair, overall and by slice: what gates and reports read.

`compare` is pure: it takes a `PairedSet` and returns values. Nothing here knows files or gates.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from clefq.parity.statistics.arrays import BoolArray
from clefq.parity.statistics.curves import curve_figures, macro_f1_figure, pessimistic
from clefq.parity.statistics.divergences import QuestionValues, question_values
from clefq.parity.statistics.figures import (
    NONE,
    GoldPlaces,
    Pending,
    Sampling,
    pending_figure,
    resolve,
    resolve_at,
    scope_indices,
)
from clefq.parity.statistics.intervals import MIN_RECORDS
from clefq.parity.statistics.measures import COHERENCE, Measure, find_measure, measures
from clefq.parity.statistics.metric import OVERALL, Metric
from clefq.parity.statistics.pairs import PairedSet
from clefq.parity.statistics.policies import PREFIXES, Policy, policy_measures
from clefq.parity.statistics.resampling import resampling_key
from clefq.parity.statistics.slices import GOLD, QUESTION, gateable_slices, named_mask, slice_masks

MACRO_F1 = "macro_f1_delta"
# Figures of the questions that one option is the right answer of; accuracy is its recall.
OF_A_CLASS = ("accuracy_baseline", "accuracy_candidate", "accuracy_delta", "agreement", "tv")
_POLICY = "policy "
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
        policies: Decision policies to report on.
        threads: Threads of the resampling; never changes a number.
    """

    gate_file_sha256: str = NO_GATES
    confidence: float = 0.95
    resamples: int = 10_000
    thresholds: tuple[float, ...] = (0.5,)
    slices: bool = True
    policies: tuple[Policy, ...] = ()
    threads: int = 2


@dataclass(frozen=True)
class PairStatistics:
    """Every figure of one pair.

    Attributes:
        metrics: Metric name → figure, overall.
        slices: Slice name → metric name → figure; for names see
            `clefq.parity.statistics.slices.slice_masks`.
        policies: Policy name → metric name (`policy_cost@NAME` and its kin) → figure.
        pairs: What they were computed from.
        values: Per-question values.
        spec: How.
    """

    metrics: Mapping[str, Metric]
    slices: Mapping[str, Mapping[str, Metric]]
    policies: Mapping[str, Mapping[str, Metric]]
    pairs: PairedSet
    values: QuestionValues
    spec: StatisticsSpec
    _memo: dict[tuple[object, ...], Metric] = field(default_factory=dict, repr=False)
    _kept: dict[str, Any] = field(default_factory=dict, repr=False)

    def once(self, name: str, make: Callable[[], Any]) -> Any:
        """What `make` returns, made once under this name: gates and report ask for the same."""
        if name not in self._kept:
            self._kept[name] = make()
        return self._kept[name]

    @cached_property
    def masks(self) -> dict[str, BoolArray]:
        """Every slice's questions, bool [n]."""
        return slice_masks(self.pairs, self.values)

    def mask(self, name: str) -> BoolArray | None:
        """A slice's questions, bool [n]; of one that is not reported too. None: no such slice."""
        return self.masks[name] if name in self.masks else named_mask(self.pairs, name)

    def slice_names(self, key: str) -> list[str]:
        """Every slice of one key that is large enough to be judged, in the order of `masks`."""
        return gateable_slices(self.pairs, key) or [
            n for n in self.masks if n.startswith(f"{key}=")
        ]

    @cached_property
    def _measures(self) -> dict[str, Measure]:
        return measures(self.pairs, self.values, self.spec.thresholds)

    def for_gate(
        self,
        name: str,
        slice_name: str = OVERALL,
        *,
        confidence: float | None = None,
        margin: float | None = None,
    ) -> Metric | None:
        """The figure as a gate must read it: the pessimistic end of the tie bracket.

        Figures in closed form come without the percentile interval.

        Args:
            name: Metric name, for example `agreement` or `threshold_flips@0.7`.
            slice_name: `overall` or a slice name.
            confidence: Two-sided confidence, where it differs from the spec's.
            margin: The value the bound is compared with (−margin, or the floor or ceiling). Where
                a bootstrap bound lies within 3 Monte Carlo standard errors of it, the resamples
                are doubled.

        Returns:
            The figure, or None where this set has no such slice or no such variants.

        Raises:
            InputError: No metric has this name, or no gate can be set on it.
        """
        if name.startswith(COHERENCE) and name not in self._measures:
            return None
        level = self.spec.confidence if confidence is None else confidence
        key = (name, slice_name, level, margin)
        if key not in self._memo:
            mask = None if slice_name == OVERALL else self.mask(slice_name)
            if mask is None and slice_name != OVERALL:
                return None
            self._memo[key] = self._figure(name, mask, level, margin)
        return self._memo[key]

    def _figure(
        self, name: str, mask: BoolArray | None, confidence: float, margin: float | None
    ) -> Metric:
        if name == MACRO_F1:
            item = macro_f1_figure(self.pairs, pessimistic(self.values), mask, confidence)
            return resolve_at(item, sampling_of(self.pairs, self.spec), margin)
        measure = self._measure(name)
        if measure.pessimistic is not None:
            measure = replace(measure, value=measure.pessimistic)
        idx = scope_indices(mask, measure, gold_places(self.pairs))
        item = pending_figure(measure, idx, self.pairs.record_index, confidence)
        if item.metric.method != NONE:
            return item.metric  # in closed form
        return resolve_at(item, sampling_of(self.pairs, self.spec), margin)

    def _measure(self, name: str) -> Measure:
        for policy in self.spec.policies:
            if name.startswith(PREFIXES) and name.endswith(f"@{policy.name}"):
                return policy_measures(self.pairs, self.values, policy)[name]
        if name in self._measures:
            return self._measures[name]
        return find_measure(self.pairs, self.values, name, self.spec.thresholds)


def compare(pairs: PairedSet, spec: StatisticsSpec | None = None) -> PairStatistics:
    """Computes every metric of one pair, overall and by slice.

    Args:
        pairs: The joined predictions (`clefq.parity.statistics.pairs.join`).
        spec: How to compute; default `StatisticsSpec()`.
    """
    spec = spec or StatisticsSpec()
    values = question_values(pairs)
    found = measures(pairs, values, spec.thresholds)
    scopes: dict[str, BoolArray | None] = {OVERALL: None}
    if spec.slices:
        scopes |= slice_masks(pairs, values)
    whole = [name for name, mask in scopes.items() if mask is not None and bool(mask.all())]
    waiting: dict[tuple[str, str], Pending] = {}
    everywhere = {name: m for name, m in found.items() if not name.startswith(COHERENCE)}
    for scope, mask in scopes.items():
        if scope not in whole:
            # of variants there are too many figures to give them by slice; gates can ask
            items = _figures_of(
                scope, mask, found if mask is None else everywhere, (pairs, values, spec)
            )
            waiting |= {(scope, name): item for name, item in items.items()}
    for policy in spec.policies:
        items = _ratios(pairs, policy_measures(pairs, values, policy), None, spec)
        waiting |= {(f"{_POLICY}{policy.name}", name): item for name, item in items.items()}
    resolved = resolve(list(waiting.values()), sampling_of(pairs, spec))
    by_scope: dict[str, dict[str, Metric]] = {}
    for (scope, name), metric in zip(waiting, resolved, strict=True):
        by_scope.setdefault(scope, {})[name] = metric
    metrics = by_scope[OVERALL]
    plain = {name: metric for name, metric in metrics.items() if not name.startswith(COHERENCE)}
    slices = {
        scope: dict(plain) if scope in whole else by_scope[scope]
        for scope in scopes
        if scope != OVERALL
    }
    policies = {policy.name: by_scope[f"{_POLICY}{policy.name}"] for policy in spec.policies}
    return PairStatistics(metrics, slices, policies, pairs, values, spec)


def _figures_of(
    scope: str,
    mask: BoolArray | None,
    found: Mapping[str, Measure],
    given: tuple[PairedSet, QuestionValues, StatisticsSpec],
) -> dict[str, Pending]:
    """What is computed in one scope: of one class, or a rare question, the answers alone."""
    pairs, values, spec = given
    key = scope.split("=", 1)[0]
    rare = key == QUESTION and mask is not None and int(mask.sum()) < MIN_RECORDS
    if key == GOLD or rare:
        return _ratios(pairs, {name: found[name] for name in OF_A_CLASS}, mask, spec)
    items = _ratios(pairs, found, mask, spec)
    items |= curve_figures(pairs, values, mask, spec.confidence)
    if mask is None or key in ("cohort", QUESTION):
        items[MACRO_F1] = macro_f1_figure(pairs, values, mask, spec.confidence)
    return items


def _ratios(
    pairs: PairedSet, found: Mapping[str, Measure], mask: BoolArray | None, spec: StatisticsSpec
) -> dict[str, Pending]:
    gold = gold_places(pairs)
    return {
        name: pending_figure(
            measure, scope_indices(mask, measure, gold), pairs.record_index, spec.confidence
        )
        for name, measure in found.items()
    }


def gold_places(pairs: PairedSet) -> GoldPlaces:
    """Where the gold of a paired set lies."""
    return GoldPlaces(pairs.gold >= 0, pairs.record_index, pairs.n_records)


def sampling_of(pairs: PairedSet, spec: StatisticsSpec) -> Sampling:
    """The resampling of a pair: its seed comes from the gate file and the eval set alone."""
    key = resampling_key(spec.gate_file_sha256, pairs.baseline.meta.eval_set_sha256)
    return Sampling(key, spec.resamples, spec.threads)
