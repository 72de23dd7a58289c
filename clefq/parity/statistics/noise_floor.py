"""The noise floor: how much the baseline differs from itself, and what a candidate adds to that.

A replicate is another run of the baseline on the same records (other batch size, engine or
restart). With several replicates a question's value is their mean.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from clefq.errors import InputError
from clefq.parity.statistics.arrays import BoolArray, FloatArray, IntArray
from clefq.parity.statistics.divergences import QuestionValues, question_values
from clefq.parity.statistics.figures import NONE, pending_figure, resolve, resolve_at
from clefq.parity.statistics.flatten import segments
from clefq.parity.statistics.measures import MEAN, PAIRED, SHARE, Measure, find_measure, measures
from clefq.parity.statistics.metric import OVERALL, Metric
from clefq.parity.statistics.metric_facts import noise_floor_metrics
from clefq.parity.statistics.pair_statistics import PairStatistics, sampling_of
from clefq.parity.statistics.pairs import PairedSet, join
from clefq.store.predictions import Predictions


@dataclass(frozen=True)
class ReplicateNoise:
    """The baseline against its replicates, beside a candidate.

    Attributes:
        metrics: Level metric → figure of the baseline against its replicates.
        statistics: The candidate's statistics.
        replicates: The baseline paired with each replicate.
        values: Per-question values of each of those pairs.
    """

    metrics: Mapping[str, Metric]
    statistics: PairStatistics
    replicates: tuple[PairedSet, ...]
    values: tuple[QuestionValues, ...]
    _rows: tuple[IntArray, ...] = field(repr=False)

    def excess(
        self,
        name: str,
        slice_name: str = OVERALL,
        *,
        confidence: float | None = None,
        margin: float | None = None,
    ) -> Metric | None:
        """What the candidate adds: its metric minus the replicates', question by question.

        For `agreement` below zero is worse, for distances above zero. Only questions in the
        domain of all comparisons count, and only those that the baseline and its replicates
        answered: a failed replicate must not excuse the candidate. Ties are read pessimistically
        for the candidate.

        Args:
            name: A level metric, for example `agreement` or `tv`.
            slice_name: `overall` or a slice name of the candidate's statistics.
            confidence: Two-sided confidence, where it differs from the spec's.
            margin: As in `PairStatistics.for_gate`.

        Returns:
            The figure, or None where this set has no such slice.

        Raises:
            InputError: The metric is a difference already, or unknown.
        """
        spec = self.statistics.spec
        mask = None if slice_name == OVERALL else self.statistics.mask(slice_name)
        if mask is None and slice_name != OVERALL:
            return None
        measure = self._excess(name)
        domain = measure.domain if mask is None else measure.domain & mask
        item = pending_figure(
            measure,
            np.flatnonzero(domain),
            self.statistics.pairs.record_index,
            spec.confidence if confidence is None else confidence,
        )
        if item.metric.method != NONE:
            return item.metric
        return resolve_at(item, sampling_of(self.statistics.pairs, spec), margin)

    def repeats_candidate(self) -> bool:
        """Whether a replicate's answers are the candidate's bit for bit, where both answered."""
        own = self.statistics.pairs
        if own.by_label:  # labels coincide honestly
            return False
        for pairs, rows in zip(self.replicates, self._rows, strict=True):
            both = np.flatnonzero(
                (rows >= 0) & ~own.candidate.failed & ~pairs.candidate.failed[rows]
            )
            one = own.candidate.logprobs[segments(own.option_start[both], own.option_counts[both])]
            other = pairs.candidate.logprobs[
                segments(pairs.option_start[rows[both]], own.option_counts[both])
            ]
            if len(both) and bool((one == other).all()):
                return True
        return False

    def _excess(self, name: str) -> Measure:
        pairs, values, spec = self.statistics.pairs, self.statistics.values, self.statistics.spec
        own = find_measure(pairs, values, name, spec.thresholds)
        _check_level(own)
        floor, domain = self._floor_values(own.name)
        mine = own.value if own.pessimistic is None else own.pessimistic
        both = own.domain & domain
        with np.errstate(invalid="ignore"):
            excess = np.where(both, mine - floor, 0.0)
        paired = own.kind == SHARE and len(self.replicates) == 1
        low, high = own.limits
        return Measure(
            name=own.name,
            kind=PAIRED if paired else MEAN,
            value=excess,
            domain=both,
            unit="difference" if own.unit == "share" else own.unit,
            limits=(low - high, high - low) if np.isfinite(high - low) else (-np.inf, np.inf),
            rare=own.kind == SHARE,
        )

    def _floor_values(self, name: str) -> tuple[FloatArray, BoolArray]:
        """The replicates' mean value of every question of the candidate, and where it exists."""
        n = self.statistics.pairs.n_questions
        total, domain = np.zeros(n), np.ones(n, dtype=np.bool_)
        thresholds = self.statistics.spec.thresholds
        for pairs, values, rows in zip(self.replicates, self.values, self._rows, strict=True):
            measure = find_measure(pairs, values, name, thresholds)
            known = (rows >= 0) & (measure.domain & values.valid)[rows]
            total += np.where(known, measure.value[rows], 0.0)
            domain &= known
        return total / len(self.replicates), domain


def noise_floor(
    statistics: PairStatistics, baseline: Predictions, replicates: Sequence[Predictions]
) -> ReplicateNoise:
    """Compares the baseline with its replicates.

    Args:
        statistics: The candidate's statistics.
        baseline: The same baseline's predictions.
        replicates: Other runs of the baseline on the same set, at least one.

    Raises:
        InputError: There is no replicate.
        PredictionsError: A replicate was made on another set.
    """
    if not replicates:
        raise InputError("a noise floor needs a replicate of the baseline.")
    paired = tuple(join(baseline, replicate) for replicate in replicates)
    values = tuple(question_values(pairs) for pairs in paired)
    rows = tuple(match_questions(statistics.pairs, pairs) for pairs in paired)
    return ReplicateNoise(_pooled(statistics, paired, values), statistics, paired, values, rows)


def _pooled(
    statistics: PairStatistics,
    paired: tuple[PairedSet, ...],
    values: tuple[QuestionValues, ...],
) -> dict[str, Metric]:
    """Level metrics over all replicates; each one's answer is a question of its record."""
    spec = statistics.spec
    found = [measures(p, v, spec.thresholds) for p, v in zip(paired, values, strict=True)]
    names = [name for name, measure in found[0].items() if _is_level(measure)]
    first = paired[0]
    records = [match_records(first, p) for p in paired]
    order = np.argsort(np.concatenate(records), kind="stable")
    record_index = np.concatenate(records)[order]
    waiting = []
    for name in names:
        parts = [each[name] for each in found]
        pooled = Measure(
            name=name,
            kind=parts[0].kind,
            value=np.concatenate([part.value for part in parts])[order],
            domain=np.concatenate([part.domain for part in parts])[order],
            unit=parts[0].unit,
            limits=parts[0].limits,
        )
        idx = np.flatnonzero(pooled.domain)
        waiting.append(pending_figure(pooled, idx, record_index, spec.confidence))
    figures = resolve(waiting, sampling_of(statistics.pairs, spec))
    return dict(zip(names, figures, strict=True))


def match_questions(first: PairedSet, other: PairedSet) -> IntArray:
    """The question of `other` that each question of `first` is, −1 where it has none, int64 [n]."""
    keys = [
        pd.MultiIndex.from_arrays([p.record_ids[p.record_index], p.question_ids])
        for p in (first, other)
    ]
    return np.asarray(keys[1].get_indexer(keys[0]), dtype=np.int64)


def match_records(first: PairedSet, other: PairedSet) -> IntArray:
    """For each question of `other` a record number shared with `first`, int64 [n]."""
    names = {record: index for index, record in enumerate(first.record_ids)}
    codes = np.array([names.setdefault(record, len(names)) for record in other.record_ids])
    return np.asarray(codes[other.record_index], dtype=np.int64)


def _is_level(measure: Measure) -> bool:
    return measure.name.partition("@")[0] in noise_floor_metrics()


def _check_level(measure: Measure) -> None:
    if not _is_level(measure):
        raise InputError(
            f"{measure.name} has no noise floor.",
            fix=f"choose from {', '.join(noise_floor_metrics())}.",
        )
