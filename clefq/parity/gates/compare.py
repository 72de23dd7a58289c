"""Judges one candidate against the baseline: join, figures, gates, verdict. Pure.

Files, git and clocks stay outside: predictions and evidence come in as values, and a
`CandidateReport` goes out, which the report writers turn into files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from clefq.parity.gates.files import LoadedGates
from clefq.parity.gates.judging import FigureQuery, GateResult, judge_gates
from clefq.parity.gates.looks import Look, Looks, with_look
from clefq.parity.gates.preregistration import AFTER_RESULTS, GitEvidence, Preregistration, assess
from clefq.parity.gates.schema import GateFile
from clefq.parity.gates.verdict import INVALID, Coverage, Verdict, VerdictInputs, draw_verdict
from clefq.parity.statistics.alarms import AGREEMENTS, Alarm, slice_alarms
from clefq.parity.statistics.baseline_floor import (
    CHANCE,
    MAJORITY,
    BaselineFloor,
    baseline_floors,
)
from clefq.parity.statistics.clustering import clustering, record_banners
from clefq.parity.statistics.identity import copied_records, identical_questions, is_rounded_copy
from clefq.parity.statistics.measures import COHERENCE
from clefq.parity.statistics.metric import OVERALL, Metric
from clefq.parity.statistics.metric_facts import lacks_probabilities
from clefq.parity.statistics.noise_floor import ReplicateNoise, noise_floor
from clefq.parity.statistics.pair_statistics import PairStatistics, StatisticsSpec, compare
from clefq.parity.statistics.pairs import PairedSet, PairingError, join
from clefq.parity.statistics.set_truth import SetTruth, differences
from clefq.store.predictions import Predictions, PredictionsMeta

MAX_EXAMPLES = 5
MANY_COPIES = 0.05  # from this share of copied records no gate passes
WEAK_BASELINE = "weak baseline"
UNEXPECTED = "the baseline is not as accurate as known"
ROUNDED_COPY = (
    "every answer of the candidate is the baseline's, rounded to the candidate's step: a copy "
    "behind a rounding cannot be told from a candidate that changes nothing"
)
OTHER_GATES = "gates changed after results"


@dataclass(frozen=True, slots=True)
class JudgeSpec:
    """What candidates are judged by.

    Attributes:
        loaded: The gate file.
        evidence: What git says about it.
        superseded: The gate file that it replaces, or None.
        resamples: Bootstrap resamples.
        threads: Threads of the resampling; never changes a number.
        expected: Questions of the set where it is known; those in neither file then count as
            failed on both sides.
        truth: The set itself, against which both files are held; None where it is not here.
        baseline_faults: How the baseline differs from it, where that was found before.
        set_faults: How these very files differed from the set when a stored report was made.
        copies: Copied records that the set showed then.
        before: Looks that were made at this candidate before, for each variant's name.
        set_read: Whether that was done, or is known to have been done with these very files.
    """

    loaded: LoadedGates
    evidence: GitEvidence
    superseded: LoadedGates | None = None
    resamples: int = 10_000
    threads: int = 2
    expected: int | None = None
    truth: SetTruth | None = None
    baseline_faults: tuple[str, ...] | None = None
    set_faults: tuple[str, ...] = ()
    copies: int = 0
    set_read: bool = True
    before: Mapping[str, tuple[Look, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SupersededVerdict:
    """The verdict by the gate file that was replaced.

    Attributes:
        loaded: That gate file.
        verdict: Its verdict on the same predictions.
        results: Its gates.
    """

    loaded: LoadedGates
    verdict: Verdict
    results: tuple[GateResult, ...]


@dataclass(frozen=True)
class CandidateReport:
    """Everything that the report files say about one candidate on one set.

    Attributes:
        baseline: Provenance of the baseline's predictions.
        candidate: Provenance of the candidate's predictions.
        loaded: The gate file.
        preregistration: Whether it came before the results.
        coverage: The coverage gate.
        statistics: All figures; None where the files could not be paired.
        results: Judged gates.
        verdict: The verdict.
        alarms: Slices in which the candidate is worse.
        superseded: Verdict of the replaced gate file, or None.
        noise: The baseline against its own replicates, or None.
        replicates: Provenance of those replicates.
        files: Role → `{"path", "sha256"}` of the predictions files, set by the caller.
        looks: Verdicts on the set while it grew.
    """

    baseline: PredictionsMeta
    candidate: PredictionsMeta
    loaded: LoadedGates
    preregistration: Preregistration
    coverage: Coverage
    statistics: PairStatistics | None
    results: tuple[GateResult, ...]
    verdict: Verdict
    alarms: tuple[Alarm, ...] = ()
    superseded: SupersededVerdict | None = None
    noise: ReplicateNoise | None = None
    replicates: tuple[PredictionsMeta, ...] = ()
    files: Mapping[str, Any] = field(default_factory=dict)
    looks: Looks = field(default_factory=Looks)


class StatisticsSource:
    """Gate figures straight from the statistics, at each gate's own confidence.

    Args:
        statistics: The pair's statistics.
        noise: The noise floor, or None without a replicate.
        no_excuse: Why the noise floor excuses nothing, or None where it does.
    """

    def __init__(
        self, statistics: PairStatistics, noise: ReplicateNoise | None, no_excuse: str | None = None
    ) -> None:
        self._statistics = statistics
        self._noise = noise
        self._no_excuse = no_excuse

    def figure(self, query: FigureQuery) -> Metric | None:
        """The figure, or None where `missing` says why there is none."""
        if self._without(query.metric) is not None:
            return None
        if query.reference == "replicate":
            if self._noise is None or self._no_excuse is not None:
                return None
            return self._noise.excess(
                query.metric, query.slice, confidence=query.confidence, margin=query.limit
            )
        return self._statistics.for_gate(
            query.metric, query.slice, confidence=query.confidence, margin=query.limit
        )

    def missing(self, query: FigureQuery) -> str:
        """Why there is no figure."""
        without = self._without(query.metric)
        if without is not None:
            return without
        if query.reference == "replicate" and self._noise is None:
            return "no replicate of the baseline was given (--replicate)"
        if query.reference == "replicate" and self._no_excuse is not None:
            return f"the replicate excuses nothing: {self._no_excuse}"
        if query.metric.startswith(COHERENCE) and query.metric not in self._statistics.metrics:
            return "the set holds no such variants (clefq build eval SET --variants LIST)"
        return f"the set has no slice {query.slice}"

    def _without(self, metric: str) -> str | None:
        pairs = self._statistics.pairs
        sides = (pairs.baseline.meta.answers, pairs.candidate.meta.answers)
        return lacks_probabilities(metric, *sides)

    def slice_names(self, by: str) -> Sequence[str]:
        """Slices of one key, in the statistics' order."""
        return self._statistics.slice_names(by)


def judge_candidate(
    baseline: Predictions,
    candidate: Predictions,
    spec: JudgeSpec,
    replicates: Sequence[Predictions] = (),
) -> CandidateReport:
    """Judges one candidate.

    Predictions that contradict each other (other options, gold or cohorts) give an *invalid*
    report without figures.

    Args:
        baseline: The baseline's predictions.
        candidate: The candidate's predictions.
        spec: Gates and how to compute.
        replicates: Further predictions of the baseline, for the noise floor.

    Raises:
        PredictionsError: The files were made on different sets.
    """
    prereg = assess(spec.loaded, spec.evidence, candidate.meta, candidate.growth)
    faults = spec.set_faults or _set_faults(spec.truth, baseline, candidate, spec.baseline_faults)
    if faults:
        return _unpaired(baseline.meta, candidate.meta, spec, prereg, faults)
    try:
        pairs = join(baseline, candidate)
    except PairingError as error:
        # without the files' names: a report must be the same wherever they lie
        reasons = (f"They differ in {error.difference}.",)
        return _unpaired(baseline.meta, candidate.meta, spec, prereg, reasons)
    gates = spec.loaded.gates
    statistics = compare(
        pairs,
        StatisticsSpec(
            gate_file_sha256=spec.loaded.seed,
            resamples=spec.resamples,
            thresholds=gates.thresholds,
            policies=gates.policies,
            threads=spec.threads,
        ),
    )
    noise = noise_floor(statistics, baseline, replicates) if replicates else None
    excuse = no_excuse(noise)
    source = StatisticsSource(statistics, noise, excuse)
    floors = baseline_floors(pairs, statistics.values, statistics.spec.confidence)
    unexpected = _unexpected(statistics, gates)
    coverage = _with_doubts(coverage_of(pairs, gates.coverage, spec), gates, floors, unexpected)
    looks = with_look(
        gates.looks,
        spec.before.get(candidate.meta.variant, ()),
        candidate.meta.eval_set_sha256,
        coverage.expected,
    )
    coverage = replace(coverage, doubts=(*coverage.doubts, *looks.doubt))
    superseded = _superseded(spec, statistics, noise, floors)
    old = superseded
    banners = gate_banners(
        prereg.status,
        None if old is None else (old.loaded.gates.name, old.loaded.sha256, old.verdict.word),
    )
    banners += () if excuse is None else (f"replicate: {excuse}",)
    banners += looks.banner
    banners += floor_banners(floors)
    if is_rounded_copy(pairs):
        banners += (ROUNDED_COPY,)
    banners += record_banners(clustering(statistics), gated_overall(gates))
    evidence = VerdictInputs(
        gates=gates,
        results=judge_gates(gates, source),
        coverage=coverage,
        baseline=baseline.meta,
        candidate=candidate.meta,
        banners=banners,
        mean_tv=statistics.metrics["tv"].estimate,
    )
    verdict, results = draw_verdict(evidence)
    return CandidateReport(
        baseline=baseline.meta,
        candidate=candidate.meta,
        loaded=spec.loaded,
        preregistration=prereg,
        coverage=evidence.coverage,
        statistics=statistics,
        results=results,
        verdict=verdict,
        alarms=slice_alarms(
            statistics.slices,
            lambda metric, name, level: statistics.for_gate(metric, name, confidence=level),
            gates.alarm_confidence,
            whole=statistics.metrics,
            masks=statistics.masks,
            floors=agreement_floors(gates),
        ),
        superseded=superseded,
        noise=noise,
        replicates=tuple(replicate.meta for replicate in replicates),
        looks=looks,
    )


def coverage_of(pairs: PairedSet, minimum: float, spec: JudgeSpec) -> Coverage:
    """Counts the questions without a valid answer on either side, and those that prove nothing.

    Args:
        pairs: The joined predictions; questions of variants count too.
        minimum: Smallest share of valid answers.
        spec: What is known of the set.
    """
    expected = spec.expected
    copies = max(copied_records(pairs), spec.copies if spec.truth is None else spec.truth.copies)
    doubts: tuple[str, ...] = ()
    if copies > MANY_COPIES * pairs.n_records:
        doubts = (
            f"{copies:,} of {pairs.n_records:,} records are copies of others under new ids: "
            "they are no further evidence",
        )
    pairs = pairs.whole
    unseen = max(0, (expected or 0) - pairs.n_questions)
    either = pairs.baseline.failed | pairs.candidate.failed
    examples = []
    for index in np.flatnonzero(either)[:MAX_EXAMPLES]:
        side, role = (
            (pairs.candidate, "candidate")
            if pairs.candidate.failed[index]
            else (pairs.baseline, "baseline")
        )
        record = pairs.record_ids[pairs.record_index[index]]
        why = side.error[index] or "no row"
        examples.append(f"{role} {record}/{pairs.question_ids[index]}: {why}")
    if unseen:
        examples.insert(0, f"{unseen:,} questions of the set are in neither predictions file")
    return Coverage(
        expected=pairs.n_questions + unseen,
        baseline_failed=int(pairs.baseline.failed.sum()) + unseen,
        candidate_failed=int(pairs.candidate.failed.sum()) + unseen,
        valid=int((~either).sum()),
        minimum=minimum,
        examples=tuple(examples),
        truncated=int(
            ((pairs.baseline.truncated_tokens > 0) | (pairs.candidate.truncated_tokens > 0)).sum()
        ),
        other_prompt=int((pairs.other_prompt & ~either).sum()),
        set_read=spec.truth is not None or spec.set_read,
        identical=identical_questions(pairs),
        copies=copies,
        doubts=doubts,
    )


def _with_doubts(
    coverage: Coverage,
    gates: GateFile,
    floors: Mapping[str, BaselineFloor],
    unexpected: tuple[str, ...],
) -> Coverage:
    """Adds the doubts that a gate file's `baseline_floor` and `expected_accuracy` ask for."""
    whole = floors.get(OVERALL)
    coverage = replace(coverage, doubts=(*coverage.doubts, *unexpected))
    if gates.baseline_floor == "none" or whole is None or whole.shown(gates.baseline_floor):
        return coverage
    other = {CHANCE: "a uniform guess", MAJORITY: "the commonest answer"}[gates.baseline_floor]
    doubt = f"the baseline is not shown to be better than {other} ({whole.accuracy:.1%} right)"
    return replace(coverage, doubts=(*coverage.doubts, doubt))


def _unexpected(statistics: PairStatistics, gates: GateFile) -> tuple[str, ...]:
    """Where the baseline's accuracy is not what the gate file says is known of it."""
    found = []
    for name, stated in gates.expected_accuracy.items():
        scope = statistics.metrics if name == OVERALL else statistics.slices.get(f"cohort={name}")
        metric = None if scope is None else scope["accuracy_baseline"]
        where = "" if name == OVERALL else f" in {name}"
        if metric is None or metric.lower is None or metric.upper is None:
            found.append(f"{UNEXPECTED}{where}: {stated:.1%} is expected, nothing is measured here")
        elif not metric.lower <= stated <= metric.upper:
            found.append(
                f"{UNEXPECTED}{where}: {stated:.1%} is expected, {metric.estimate:.1%} "
                f"[{metric.lower:.1%}, {metric.upper:.1%}] was measured"
            )
    return tuple(found)


def floor_banners(floors: Mapping[str, BaselineFloor]) -> tuple[str, ...]:
    """Where the baseline, as measured, is no better than chance or than the commonest answer."""
    weak = []
    for name, found in floors.items():
        majority = found.majority
        other = None
        if found.accuracy <= found.chance:
            other = f"a uniform guess {found.chance:.1%}"
        elif majority is not None and found.accuracy <= majority < 1:
            other = f"the commonest answer {majority:.1%}"
        if other is not None:
            where = "over all questions" if name == OVERALL else f"in {name}"
            weak.append(f"{where} {found.accuracy:.1%} right, {other}")
    if not weak:
        return ()
    more = f", and {len(weak) - MAX_EXAMPLES} more" if len(weak) > MAX_EXAMPLES else ""
    return (f"{WEAK_BASELINE}: {'; '.join(weak[:MAX_EXAMPLES])}{more}",)


def no_excuse(noise: ReplicateNoise | None) -> str | None:
    """Why a replicate's noise cannot excuse the candidate's, or None where it can.

    Nothing else tells a replicate from the candidate's answers under another name.
    """
    if noise is None:
        return None
    for pairs in noise.replicates:
        one, other = pairs.baseline.meta, pairs.candidate.meta
        if None in (one.model_sha256, other.model_sha256):
            return f"nothing shows that {other.variant} is the baseline's model"
    if noise.repeats_candidate():
        return "its answers are the candidate's to the last bit"
    return None


def _set_faults(
    truth: SetTruth | None,
    baseline: Predictions,
    candidate: Predictions,
    baseline_faults: tuple[str, ...] | None = None,
) -> tuple[str, ...]:
    if truth is None:
        return ()
    known = baseline_faults
    if known is None:
        known = tuple(differences(truth, baseline, "baseline"))
    return (*known, *differences(truth, candidate, "candidate"))


def _superseded(
    spec: JudgeSpec,
    statistics: PairStatistics,
    noise: ReplicateNoise | None,
    floors: Mapping[str, BaselineFloor],
) -> SupersededVerdict | None:
    old = spec.superseded
    if old is None:
        return None
    pairs = statistics.pairs
    # The old file's policies, not the new one's of the same name, and the old file's seed.
    own = replace(
        statistics.spec,
        gate_file_sha256=old.seed,
        policies=old.gates.policies,
        thresholds=old.gates.thresholds,
    )
    statistics = replace(statistics, spec=own, _memo={})
    noise = None if noise is None else replace(noise, statistics=statistics)
    source = StatisticsSource(statistics, noise, no_excuse(noise))
    evidence = VerdictInputs(
        gates=old.gates,
        results=judge_gates(old.gates, source),
        coverage=_with_doubts(
            coverage_of(pairs, old.gates.coverage, spec),
            old.gates,
            floors,
            _unexpected(statistics, old.gates),
        ),
        baseline=pairs.baseline.meta,
        candidate=pairs.candidate.meta,
        mean_tv=statistics.metrics["tv"].estimate,
    )
    verdict, results = draw_verdict(evidence)
    return SupersededVerdict(old, verdict, results)


def gate_banners(status: str, superseded: tuple[str, str, str] | None) -> tuple[str, ...]:
    """What stands above a verdict because of its gate file.

    Args:
        status: The pre-registration's status.
        superseded: Name, hash and verdict of the gate file that was replaced, or None.
    """
    found = []
    if superseded is not None:
        name, sha, word = superseded
        found.append(
            f"{OTHER_GATES}: by the gate file {name} {sha[:12]} that this one replaces, "
            f"the verdict is {word.upper()}"
        )
    if status == AFTER_RESULTS:
        found.append("the gates were committed after the candidate was run")
    return tuple(found)


def agreement_floors(gates: GateFile) -> dict[str, float]:
    """The lowest floor that the gates set on each kind of agreement over all questions."""
    found: dict[str, float] = {}
    for gate in gates.gates:
        plain = gate.slice is None and gate.reference == "baseline"
        if plain and gate.metric in AGREEMENTS and gate.bound is not None:
            found[gate.metric] = min(gate.bound, found.get(gate.metric, 1.0))
    return found


def gated_overall(gates: GateFile) -> set[str]:
    """Metrics that a gate reads over all questions."""
    return {gate.metric for gate in gates.gates if gate.slice is None}


def _unpaired(
    baseline: PredictionsMeta,
    candidate: PredictionsMeta,
    spec: JudgeSpec,
    prereg: Preregistration,
    reasons: tuple[str, ...],
) -> CandidateReport:
    read = spec.truth is not None or spec.set_read
    verdict = Verdict(
        word=INVALID,
        sentence=f"Nothing can be said about {candidate.variant}: the predictions contradict "
        + ("each other or the set." if read else "each other."),
        reasons=reasons,
        next_step="Predict both models again on the same set, with the same clefq.",
        more_questions=None,
        banners=gate_banners(prereg.status, None),
    )
    coverage = Coverage(0, 0, 0, 0, spec.loaded.gates.coverage, set_read=read)
    looks = Looks(spec.loaded.gates.looks, tuple(spec.before.get(candidate.variant, ())))
    return CandidateReport(
        baseline, candidate, spec.loaded, prereg, coverage, None, (), verdict, looks=looks
    )
