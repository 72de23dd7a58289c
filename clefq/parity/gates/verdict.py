"""From judged gates and provenance to one verdict, its reason and the next step.

Order: invalid > fail > inconclusive > pass. What was run other than the scheme means, or on
simulated kernels where real ones are asked for, can fail but never pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from clefq.clef.formats import MEANT_ARITHMETIC, SCHEMES
from clefq.errors import ExitCode
from clefq.parity.gates.banners import (
    COPIED,
    banners_of,
    copied,
    cut_text,
    prompts_text,
    unsaid,
)
from clefq.parity.gates.formatting import figure
from clefq.parity.gates.judging import (
    FAIL,
    INCONCLUSIVE,
    NOT_GATED,
    PASS,
    GateResult,
    leans_to_failure,
    round_up,
)
from clefq.parity.gates.rows import gate_row
from clefq.parity.gates.schema import GateFile
from clefq.parity.statistics.metric_facts import LABELS
from clefq.store.predictions import PredictionsMeta
from clefq.store.reading import Count, Stored

INVALID = "invalid"
# schemes of checkpoints that are not quantized, or of which nobody says what they are
UNCHECKED = ("bf16", "unknown")
ORDER = (PASS, INCONCLUSIVE, FAIL, INVALID)
EXIT_CODES = {
    PASS: ExitCode.PASS,
    FAIL: ExitCode.FAIL,
    INCONCLUSIVE: ExitCode.INCONCLUSIVE,
    INVALID: ExitCode.INVALID,
}


@dataclass(frozen=True, slots=True)
class Coverage(Stored):
    """How many of the expected questions have a valid answer.

    Attributes:
        expected: Questions in the set, as far as either file knows.
        baseline_failed: Questions without a valid answer of the baseline.
        candidate_failed: Questions without a valid answer of the candidate.
        valid: Questions that both answered.
        minimum: Smallest share that the gates accept.
        examples: Up to five failures: `record/question: error`.
        truncated: Questions that either model answered from a shortened state.
        other_prompt: Questions that both answered, but from different prompts.
        set_read: Whether both files were held against the set itself.
        identical: Questions that both answered alike to the last bit.
        copies: Records that are copies of others, under whatever ids.
        doubts: Why the evidence cannot carry a pass, whatever the gates say.
    """

    expected: Count
    baseline_failed: Count
    candidate_failed: Count
    valid: Count
    minimum: float
    examples: tuple[str, ...] = ()
    truncated: Count = 0
    other_prompt: Count = 0
    set_read: bool = True
    identical: Count = 0
    copies: Count = 0
    doubts: tuple[str, ...] = ()

    @property
    def share(self) -> float:
        """Valid questions over expected ones."""
        return self.valid / self.expected if self.expected else 0.0

    @property
    def sound(self) -> bool:
        """Whether the coverage gate is met."""
        return self.expected > 0 and self.share >= self.minimum

    @property
    def same_prompts(self) -> bool:
        """Whether enough of the valid answers are to the same prompts."""
        return not self.valid or 1 - self.other_prompt / self.valid >= self.minimum

    def to_json(self) -> dict[str, Any]:
        """The JSON object of `parity.json`."""
        return {**asdict(self), "share": self.share, "status": PASS if self.sound else INVALID}


@dataclass(frozen=True, slots=True)
class Verdict(Stored):
    """The verdict of one candidate on one set.

    Attributes:
        word: `pass`, `fail`, `inconclusive` or `invalid`.
        sentence: What it means, in one sentence.
        reasons: Every reason for not passing, the deciding one first.
        next_step: What to do now.
        more_questions: Further questions that would probably settle it, or None.
        banners: Warnings that stand above the verdict.
    """

    word: str
    sentence: str
    reasons: tuple[str, ...]
    next_step: str
    more_questions: int | None
    banners: tuple[str, ...]

    @property
    def exit_code(self) -> ExitCode:
        """The process exit code."""
        return EXIT_CODES[self.word]

    def to_json(self) -> dict[str, Any]:
        """The JSON object of `parity.json`."""
        return {**asdict(self), "exit_code": int(self.exit_code)}


@dataclass(frozen=True, slots=True)
class VerdictInputs:
    """All that a verdict is drawn from.

    Attributes:
        gates: The gate file.
        results: Its judged gates, caps not yet applied.
        coverage: The coverage gate.
        baseline: Provenance of the baseline's predictions.
        candidate: Provenance of the candidate's predictions.
        banners: Warnings from elsewhere (pre-registration, stored bounds).
        mean_tv: Mean total variation of the answers; None where there is none.
    """

    gates: GateFile
    results: tuple[GateResult, ...]
    coverage: Coverage
    baseline: PredictionsMeta
    candidate: PredictionsMeta
    banners: tuple[str, ...] = ()
    mean_tv: float | None = None


def worst(words: Sequence[str]) -> str:
    """The worst of several verdicts; of none at all, `inconclusive`."""
    return max(words, key=ORDER.index) if words else INCONCLUSIVE


def binding_faults(
    gates: GateFile, baseline: PredictionsMeta, candidate: PredictionsMeta
) -> tuple[str, ...]:
    """Where the predictions are not those that a bound gate file is for."""
    faults = []
    if gates.eval_set is not None and gates.eval_set.sha256 != candidate.eval_set_sha256:
        faults.append(
            f"the gate file is for set {gates.eval_set.name} {gates.eval_set.sha256[:12]}, "
            f"the predictions are of {candidate.eval_set} {candidate.eval_set_sha256[:12]}"
        )
    bound = gates.baseline
    if bound is not None:
        for name in ("model_revision", "model_sha256"):
            expected, found = getattr(bound, name), getattr(baseline, name)
            if expected is not None and expected != found:
                faults.append(
                    f"the gate file is for a baseline with {name} {expected[:12]}, "
                    f"this one has {found[:12] if found else 'none'}"
                )
    return tuple(faults)


def caps(gates: GateFile, baseline: PredictionsMeta, candidate: PredictionsMeta) -> tuple[str, ...]:
    """Why required gates can be inconclusive at best; empty where nothing stands against it."""
    found = []
    for role, meta in (("baseline", baseline), ("candidate", candidate)):
        if meta.scheme not in SCHEMES and meta.scheme not in UNCHECKED:
            found.append(
                f"the {role}'s scheme {meta.scheme!r} is none that clefq knows, so what it ran "
                "cannot be held against what it means"
            )
        meant = MEANT_ARITHMETIC.get(meta.scheme)
        if meta.arithmetic == "unknown":
            found.append(f"nobody says in what arithmetic the {role} ran")
        elif meant is not None and meant != meta.arithmetic:
            found.append(
                f"the {role} ran {meta.arithmetic} arithmetic, its scheme {meta.scheme} "
                f"means {meant}"
            )
        if gates.kernels == "real" and meta.kernels != "real":
            found.append(f"the gates ask for real kernels, the {role}'s were simulated")
        elif gates.kernels == "real" and unsaid(meta):
            found.append(f"the gates ask for real kernels, the {role}'s server does not say")
    return tuple(found)


def set_caps(gates: GateFile, coverage: Coverage) -> tuple[str, ...]:
    """Why gates that ask for the set can be inconclusive at best without it."""
    if coverage.set_read or gates.set_check != "required":
        return ()
    return (
        "the set is not here: whether these are its questions and its gold was not checked "
        "(give --eval SET)",
    )


def cap_results(results: Sequence[GateResult], reasons: Sequence[str]) -> tuple[GateResult, ...]:
    """Required gates that pass become inconclusive where a cap applies; failures stay."""
    if not reasons:
        return tuple(results)
    return tuple(
        replace(result, status=INCONCLUSIVE, reason=reasons[0])
        if result.required and result.status == PASS
        else result
        for result in results
    )


def draw_verdict(evidence: VerdictInputs) -> tuple[Verdict, tuple[GateResult, ...]]:
    """The verdict, and the gate results with caps applied."""
    limits = (
        *caps(evidence.gates, evidence.baseline, evidence.candidate),
        *set_caps(evidence.gates, evidence.coverage),
        *evidence.coverage.doubts,
    )
    if copied(evidence):
        limits = (COPIED, *limits)
    results = cap_results(evidence.results, limits)
    banners = (*banners_of(evidence), *evidence.banners)
    faults = binding_faults(evidence.gates, evidence.baseline, evidence.candidate)
    name = evidence.candidate.variant
    if faults:
        step = "Judge the predictions that the gate file is bound to, or freeze a new gate file."
        sentence = f"Nothing can be said about {name}: the gate file is bound to other inputs."
        return Verdict(INVALID, sentence, faults, step, None, banners), results
    if not evidence.coverage.sound:
        return _uncovered(evidence, banners), results
    if not evidence.coverage.same_prompts and _count_alike(evidence):
        return _other_prompts(evidence, banners), results
    if evidence.coverage.truncated and evidence.gates.cut_states == INVALID:
        return _cut(evidence, banners), results
    required = [result for result in results if result.required]
    failed = [result for result in required if result.status == FAIL]
    if failed:
        return _failed(evidence, failed, len(required), banners), results
    open_gates = [result for result in required if result.status in (INCONCLUSIVE, NOT_GATED)]
    if open_gates or limits or not required:
        return _open(evidence, open_gates, limits, banners), results
    count = len(required)
    sentence = f"{name} meets {'all ' if count > 1 else 'the '}{count} required " + (
        "gates." if count > 1 else "gate."
    )
    step = "Ship it, and keep this report with the checkpoint."
    if evidence.candidate.kernels == "simulated":
        step = "Confirm it on real kernels before you ship it (`clefq doctor` says where)."
    return Verdict(PASS, sentence, (), step, None, banners), results


def describe(result: GateResult) -> str:
    """A gate in one line: its figure, interval, limit and reason, in percent and points."""
    return gate_row(result).line


def _uncovered(evidence: VerdictInputs, banners: tuple[str, ...]) -> Verdict:
    coverage = evidence.coverage
    name = evidence.candidate.variant
    reasons = (
        f"coverage {figure(coverage.share)} is below {figure(coverage.minimum)}: "
        f"{coverage.expected - coverage.valid} of {coverage.expected} questions lack a valid "
        f"answer (baseline {coverage.baseline_failed}, candidate {coverage.candidate_failed})",
        *coverage.examples,
    )
    sentence = f"Nothing can be said about {name}: too many answers are missing or broken."
    step = "Find out why these answers failed, then run `clefq predict` again."
    return Verdict(INVALID, sentence, reasons, step, None, banners)


def _count_alike(evidence: VerdictInputs) -> bool:
    """Whether both sides built their prompts here, so that their lengths can be compared.

    A server may count or cut otherwise without saying so.
    """
    return {evidence.baseline.engine, evidence.candidate.engine} <= {"transformers", "vllm"}


def _other_prompts(evidence: VerdictInputs, banners: tuple[str, ...]) -> Verdict:
    name = evidence.candidate.variant
    sentence = f"Nothing can be said about {name}: the two models were not asked the same."
    step = "Predict both with the same limits, on the same set with all its images."
    return Verdict(INVALID, sentence, (prompts_text(evidence.coverage),), step, None, banners)


def _cut(evidence: VerdictInputs, banners: tuple[str, ...]) -> Verdict:
    name = evidence.candidate.variant
    sentence = f"Nothing can be said about {name}: states were cut, which the gates do not allow."
    step = "Predict where the whole state is read, or judge on a set of shorter states."
    return Verdict(INVALID, sentence, (cut_text(evidence.coverage),), step, None, banners)


def _failed(
    evidence: VerdictInputs, failed: Sequence[GateResult], required: int, banners: tuple[str, ...]
) -> Verdict:
    name = evidence.candidate.variant
    sentence = f"{name} breaks {len(failed)} of {required} required gates."
    step = "Do not ship it; a scheme that keeps more precision may pass (mixed, nvfp4-mlp, fp8)."
    return Verdict(FAIL, sentence, tuple(map(describe, failed)), step, None, banners)


def _open(
    evidence: VerdictInputs,
    open_gates: Sequence[GateResult],
    limits: Sequence[str],
    banners: tuple[str, ...],
) -> Verdict:
    name = evidence.candidate.variant
    if not any(result.required for result in evidence.results):
        sentence = f"Nothing was asked of {name}: the gate file has no required gate."
        step = "Add a required gate to the gate file."
        return Verdict(INCONCLUSIVE, sentence, ("no required gate",), step, None, banners)
    sentence = f"Neither proven nor disproven: {name} may meet the gates, the evidence is short."
    undecided = tuple(describe(r) for r in open_gates if r.reason not in limits)
    more, step = _more(open_gates, evidence.coverage.expected)
    if limits and limits[0] == COPIED:
        sentence = f"These seem to be the baseline's answers, not those of {name}."
        step = "Predict the candidate again, and make sure which model answers."
    elif limits and limits[0] in (
        *set_caps(evidence.gates, evidence.coverage),
        *evidence.coverage.doubts,
    ):
        sentence = f"What was measured cannot carry a pass of {name}."
        step = "Mend what the first reason names, then judge again."
        if limits[0] not in evidence.coverage.doubts:
            step = "Judge again with the set at hand: `clefq parity … --eval SET`."
    elif limits:
        sentence = f"{name} was not run as it would be in production, so it cannot pass."
        step = "Predict again where the real arithmetic runs (`clefq doctor` says where)."
    return Verdict(INCONCLUSIVE, sentence, (*limits, *undecided), step, more, banners)


def _more(open_gates: Sequence[GateResult], total: int) -> tuple[int | None, str]:
    """Further questions of the whole set, and the next step.

    A gate on a part of the questions needs that part to grow: the set grows in proportion. One
    gate that leans to failure is enough to fail, all must be decided to pass.
    """
    if any(result.reason.endswith(LABELS) for result in open_gates):
        return None, (
            "Labels decide agreement and accuracy alone: judge them with `--gates labels` or a "
            "gate file of your own, or import probabilities."
        )
    failing = [result for result in open_gates if leans_to_failure(result)]
    factors = [
        result.questions_needed / result.n_questions
        for result in failing or open_gates
        if result.questions_needed is not None and result.n_questions > 0
    ]
    if not factors or len(factors) < len(failing or open_gates):
        return None, (
            "More questions alone will hardly settle it: a figure lies at its limit or has no "
            "data; see the open gates."
        )
    more = round_up(total * ((min if failing else max)(factors) - 1))
    if failing:
        names = ", ".join(result.name for result in failing[:3])
        return more, (
            f"As measured it leans to FAIL ({names}): about {more:,} more questions would "
            "probably show that. Improve the checkpoint rather than the set."
        )
    return more, (
        f"Add about {more:,} questions to the set (80% power if the figures stay), "
        "then predict and judge again."
    )
