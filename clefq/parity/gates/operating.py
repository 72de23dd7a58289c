"""The operating characteristic of a gate: how likely this set passes it, by the true loss.

A gate's limit says what must be shown; how often that can be shown depends on the set. For every
gate over all questions on agreement, confident agreement or accuracy the pair's own records are
filled anew with losses of a known share, and the gate's bound is taken of each.

Within a record losses resemble each other: with probability ρ all its questions share one fate,
otherwise each has its own, so that two questions of a record correlate by ρ. ρ is what gives the
pair its design effect. For accuracy, answers are gained at the share that was seen, and lost at
that share and the loss. One draw serves all losses, so that the curve falls.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from clefq.parity.gates.schema import Gate
from clefq.parity.statistics.arrays import BoolArray, FloatArray
from clefq.parity.statistics.clustering import clustering
from clefq.parity.statistics.figures import scope_indices
from clefq.parity.statistics.intervals import korn_graubard, paired_tango, ratio
from clefq.parity.statistics.measures import measures
from clefq.parity.statistics.pair_statistics import PairStatistics, gold_places, sampling_of

SHARES, DIFFERENCE = ("agreement", "confident_agreement"), "accuracy_delta"
PARTS = (0.0, 0.25, 0.5, 0.75, 1.0, 1.25)  # of the loss that the gate tolerates
TRIALS = 100
MOST_QUESTIONS = 20_000  # beyond these a set decides all but the nearest losses
_BITS = 53


@dataclass(frozen=True, slots=True)
class Shape:
    """What of a pair decides how often it passes.

    Attributes:
        sizes: Questions of each record, all positive, float64 [G].
        resemblance: ρ, the correlation of two questions of a record.
        gained: Share of answers that only the candidate has right.
    """

    sizes: FloatArray
    resemblance: float
    gained: float


def operating(statistics: PairStatistics, gates: Sequence[Gate]) -> list[dict[str, Any]]:
    """A curve for each gate that has one, as JSON values.

    Keys of each: `gate`, `metric`, `limit`, `trials`, `resemblance` (ρ) and `curve`, a list of
    `loss` (true loss, a fraction) and `passes` (share of the trials). The draws' key is that of
    the resampling.

    Args:
        statistics: The pair's statistics.
        gates: Gates at the confidence of one look.
    """
    key = sampling_of(statistics.pairs, statistics.spec).key
    found = []
    for gate in gates:
        tolerated = _tolerated(gate)
        shape = None if tolerated is None else shape_of(statistics, gate.metric)
        if tolerated is None or shape is None:
            continue
        losses = [part * tolerated for part in PARTS]
        passes = chances(gate, shape, losses, key)
        found.append(
            {
                "gate": gate.name,
                "metric": gate.metric,
                "limit": 1 - tolerated if gate.metric in SHARES else -tolerated,
                "trials": TRIALS,
                "resemblance": shape.resemblance,
                "curve": [
                    {"loss": loss, "passes": share}
                    for loss, share in zip(losses, passes, strict=True)
                ],
            }
        )
    return found


def _tolerated(gate: Gate) -> float | None:
    if gate.slice is not None or gate.reference != "baseline":
        return None
    if gate.metric in SHARES and gate.bound is not None:
        return 1 - gate.bound
    return gate.margin if gate.metric == DIFFERENCE else None


def shape_of(statistics: PairStatistics, metric: str) -> Shape | None:
    """The shape of a pair for one metric; None without questions, or with too many to need it."""
    pairs, values = statistics.pairs, statistics.values
    measure = measures(pairs, values, ())[metric]
    at = scope_indices(None, measure, gold_places(pairs))
    rests_on = clustering(statistics).get(metric)
    if not 0 < len(at) <= MOST_QUESTIONS or rests_on is None:
        return None
    records = pairs.record_index[at]
    sizes = np.bincount(records)[np.unique(records)].astype(np.float64)
    weight = float((sizes * sizes).sum() / sizes.sum())
    excess = rests_on["design_effect"] - 1
    resemblance = min(1.0, max(0.0, excess / (weight - 1))) if weight > 1 else 0.0
    gained = float((measure.value[at] > 0).mean()) if metric == DIFFERENCE else 0.0
    return Shape(sizes, resemblance, gained)


def chances(gate: Gate, shape: Shape, losses: Sequence[float], key: int) -> list[float]:
    """Share of the trials in which a gate passes, for each true loss.

    Args:
        gate: The gate.
        shape: The pair's shape.
        losses: True losses, fractions.
        key: Key of the draws (Philox, raw 64-bit words; no NumPy distribution decides a number).
    """
    if len(shape.sizes) < gate.min_records or shape.sizes.sum() < gate.min_n:
        return [0.0] * len(losses)
    counts = shape.sizes.astype(np.int64)
    passed = np.zeros(len(losses))
    for trial in range(TRIALS):
        fate = _fates(counts, shape.resemblance, key, trial)
        passed += [_passes(gate, shape, fate, counts, loss) for loss in losses]
    return [float(share) for share in passed / TRIALS]


def _fates(counts: Any, resemblance: float, key: int, trial: int) -> FloatArray:
    """A uniform number of every question; the same for a whole record with probability ρ."""
    records, questions = len(counts), int(counts.sum())
    generator = np.random.Philox(key=key, counter=[0, trial, 0, 1])
    raw = np.asarray(generator.random_raw(2 * records + questions), dtype=np.uint64)
    uniform = (raw >> np.uint64(64 - _BITS)).astype(np.float64) * 2.0**-_BITS
    alike = np.repeat(uniform[:records] < resemblance, counts)
    return np.where(alike, np.repeat(uniform[records : 2 * records], counts), uniform[-questions:])


def _passes(gate: Gate, shape: Shape, fate: FloatArray, counts: Any, loss: float) -> bool:
    starts = np.cumsum(counts) - counts
    confidence = 2 * gate.confidence - 1

    def summed(flags: BoolArray) -> FloatArray:
        return np.asarray(np.add.reduceat(flags.astype(np.float64), starts), dtype=np.float64)

    if gate.metric in SHARES:
        assert gate.bound is not None, "shares have a bound"
        kept = shape.sizes - summed(fate < loss)
        lower = korn_graubard(ratio(kept, shape.sizes), confidence)[0]
        return lower is not None and lower >= gate.bound
    assert gate.margin is not None, "differences have a margin"
    lost = ratio(summed(fate < shape.gained + loss), shape.sizes)
    gained = ratio(summed(fate >= 1 - shape.gained), shape.sizes)
    lower = paired_tango(gained, lost, confidence)[0]
    return lower is not None and lower >= -gate.margin
