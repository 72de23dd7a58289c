"""From answers to figures: the same code, resamples and seed as `clefq parity`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from clefq.parity.gates.files import load_gates
from clefq.parity.statistics.arrays import FloatArray
from clefq.parity.statistics.divergences import QuestionValues, question_values
from clefq.parity.statistics.figures import indices, pending_figure, resolve
from clefq.parity.statistics.measures import MEAN, Measure, measures
from clefq.parity.statistics.metric import Metric
from clefq.parity.statistics.pair_statistics import StatisticsSpec, sampling_of
from clefq.parity.statistics.pairs import PairedSet, join
from clefq.store.predictions import Predictions, PredictionsMeta
from clefq.store.reading import Stored

if TYPE_CHECKING:
    from clefq.clef.records import Record
    from clefq.engines.base import RecordResult

# the gates that `clefq parity` takes by default: their hash is half of its seed
_GATES = "release"


@dataclass(frozen=True)
class Damage(Stored):
    """What a variant does to the answers, against BF16.

    Attributes:
        kl: KL(BF16‖variant), nats; lower is better.
        tv: Total variation; lower is better.
        agreement: Share of questions with the same answer; higher is better.
        accuracy_delta: Accuracy minus BF16's, where there is gold.
    """

    kl: Metric
    tv: Metric
    agreement: Metric
    accuracy_delta: Metric

    @property
    def flips(self) -> int:
        """Questions with another answer."""
        share = self.agreement.estimate
        return 0 if share is None else round((1 - share) * self.agreement.n_questions)


@dataclass(frozen=True)
class MeasuredVariant:
    """One variant's figures and the values behind them.

    Attributes:
        damage: The figures.
        kl: Per question, in the canonical order of the set, nats; NaN where one side failed.
    """

    damage: Damage
    kl: FloatArray


class Judge:
    """Holds the baseline's answers and measures variants against them.

    Args:
        records: The records that were run, in set order.
        baseline: BF16's answers to all of them.
    """

    def __init__(self, records: Sequence[Record], baseline: Predictions) -> None:
        self._records = records
        self._baseline = baseline

    def measure(self, results: Iterable[RecordResult]) -> MeasuredVariant:
        """Figures of one variant."""
        pairs, values = self._pair(results)
        found = measures(pairs, values, ())
        names = ("kl", "tv", "agreement", "accuracy_delta")
        metrics = figures_of([found[name] for name in names], pairs)
        return MeasuredVariant(Damage(**dict(zip(names, metrics, strict=True))), values.kl)

    def mean_kl(self, per_question: Sequence[float | None]) -> Metric:
        """The mean of values per question in canonical order, with its clustered interval.

        Without an estimate where one is None: infinite, or a question without a finite answer.
        """
        pairs, _ = self._pair(None)
        values = np.array([np.inf if v is None else v for v in per_question], dtype=np.float64)
        return mean_metric(values, pairs)

    def _pair(self, results: Iterable[RecordResult] | None) -> tuple[PairedSet, QuestionValues]:
        other = self._baseline
        if results is not None:
            meta = replace(self._baseline.meta, variant="candidate")
            other = _predictions(self._records, results, meta)
        pairs = join(self._baseline, other)
        return pairs, question_values(pairs)


def mean_metric(values: FloatArray, pairs: PairedSet) -> Metric:
    """A mean over questions, studentized as `kl` is; NaN values are outside."""
    return figures_of([Measure("kl", MEAN, values, ~np.isnan(values), "nats")], pairs)[0]


def figures_of(measures: Sequence[Measure], pairs: PairedSet) -> list[Metric]:
    """Measures over all their questions, from the resamples that `clefq parity` draws."""
    spec = _spec()
    waiting = [
        pending_figure(m, indices(None, m.domain), pairs.record_index, spec.confidence)
        for m in measures
    ]
    return resolve(waiting, sampling_of(pairs, spec))


@cache
def _spec() -> StatisticsSpec:
    return StatisticsSpec(gate_file_sha256=load_gates(_GATES).sha256)


def _predictions(
    records: Sequence[Record], results: Iterable[RecordResult], meta: PredictionsMeta
) -> Predictions:
    from clefq.engines.predict import predictions_frame

    by_id: Mapping[str, RecordResult] = {result.record_id: result for result in results}
    return Predictions(meta, predictions_frame(records, [by_id[r.id] for r in records]))
