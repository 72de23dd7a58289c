"""What `parity.json` and `summary.json` hold: the models behind their published JSON Schemas.

The reports are made and shown as plain JSON values; every file is held against its model before it
is written and after it is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from clefq.errors import InputError
from clefq.parity.gates.choosing import Choice
from clefq.parity.gates.judging import GateResult
from clefq.parity.gates.looks import Looks
from clefq.parity.gates.preregistration import Preregistration
from clefq.parity.gates.schema import PolicySpec
from clefq.parity.gates.verdict import Coverage, Verdict
from clefq.parity.statistics.alarms import Alarm
from clefq.parity.statistics.metric import Metric
from clefq.store.predictions import PredictionsMeta
from clefq.store.reading import Count, Rule, Stored, json_schema, read_value, sha256_digits

SCHEMA = "clefq.parity/1"
SUMMARY_SCHEMA = "clefq.summary/1"
MAX_FAULTS = 12

Word = Literal["pass", "fail", "inconclusive", "invalid"]
ExitNumber = Literal[0, 1, 3, 4]
Sha256 = Annotated[str, sha256_digits()]
JudgedFrom = Literal["predictions", "stored bounds"]
Metrics = Mapping[str, Metric]


@dataclass(frozen=True, slots=True)
class SetName(Stored):
    """The eval set.

    Attributes:
        name: Its name.
        sha256: Its hash.
    """

    name: str
    sha256: Sha256


@dataclass(frozen=True, slots=True)
class StoredFile(Stored):
    """A file beside the report.

    Attributes:
        path: Relative to the report.
        sha256: Hash of its bytes.
    """

    path: str
    sha256: Sha256


@dataclass(frozen=True, slots=True, kw_only=True)
class Side(PredictionsMeta):
    """Provenance of one side, as its predictions file states it.

    Attributes:
        predictions: The file, or null where it is not kept.
    """

    predictions: StoredFile | None


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictEntry(Verdict):
    """The verdict.

    Attributes:
        exit_code: The process exit code.
    """

    word: Word
    exit_code: ExitNumber = field()  # type: ignore[assignment]  # a property there


@dataclass(frozen=True, slots=True, kw_only=True)
class CoverageEntry(Coverage):
    """How many of the expected questions have a valid answer.

    Attributes:
        share: Valid questions over expected ones.
        status: Whether the coverage gate is met.
    """

    share: float = field()
    status: Literal["pass", "invalid"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GateEntry(GateResult):
    """One judged gate; differences use margin, floors and ceilings bound, the other is null."""

    direction: Literal["at_least", "at_most"]
    reference: Literal["baseline", "replicate"]
    status: Literal["pass", "fail", "inconclusive", "not_gated"]


@dataclass(frozen=True, slots=True)
class GateFileName(Stored):
    """A gate file.

    Attributes:
        name: Its name.
        description: What it is meant to prove.
        sha256: Hash of its bytes.
        bundled: Whether it comes with clefq.
        bound: Whether it is bound to a set and a baseline.
        text: Its whole text.
    """

    name: str
    description: str
    sha256: Sha256
    bundled: bool
    bound: bool
    text: str


@dataclass(frozen=True, slots=True)
class SupersededEntry(GateFileName):
    """The gate file that this one replaces, and what it would have said.

    Attributes:
        verdict: Its verdict.
        gates: Its judged gates.
    """

    verdict: VerdictEntry
    gates: tuple[GateEntry, ...]


@dataclass(frozen=True, slots=True)
class GateFileEntry(GateFileName):
    """The gate file.

    Attributes:
        preregistration: Whether the gates predate the candidate's results.
        superseded: The gate file that it replaces, or null.
        looks: Verdicts that were planned and made on the set while it grew.
    """

    preregistration: Preregistration
    superseded: SupersededEntry | None
    looks: Looks = field(default_factory=Looks)


@dataclass(frozen=True, slots=True)
class Ties(Stored):
    """Questions whose two best options are equally probable.

    Attributes:
        baseline: Of the baseline.
        candidate: Of the candidate.
        bracket: Questions that agree or not as a tie is broken.
    """

    baseline: Count
    candidate: Count
    bracket: Count


@dataclass(frozen=True, slots=True)
class MarginPercentiles(Stored):
    """Percentiles of the baseline's margin, or null where there is none.

    Attributes:
        flips: Where the answer changed.
        agreements: Where it did not.
    """

    flips: Mapping[str, float] | None
    agreements: Mapping[str, float] | None


@dataclass(frozen=True, slots=True)
class MovedQuestion(Stored):
    """One question, with both answers.

    Attributes:
        record_id: Its record.
        question_id: Its id.
        cohort: Cohort of the record.
        question_type: `noul`, `choice` or `score`.
        options: Number of options.
        input_tokens: Length of the prompt.
        length_band: Its band.
        gold: The right option, or null.
        baseline_choice: The baseline's answer.
        baseline_confidence: Its probability.
        baseline_margin: Its lead over the second option.
        candidate_choice: The candidate's answer.
        candidate_confidence: Its probability.
        candidate_margin: Its lead over the second option.
        tv: Total variation.
        kl: KL(baseline‖candidate), nats; null where it is infinite.
    """

    record_id: str
    question_id: str
    cohort: str
    question_type: str
    options: Count
    input_tokens: Count
    length_band: str
    gold: str | None
    baseline_choice: str | None
    baseline_confidence: float | None
    baseline_margin: float | None
    candidate_choice: str | None
    candidate_confidence: float | None
    candidate_margin: float | None
    tv: float | None
    kl: float | None


@dataclass(frozen=True, slots=True)
class Flips(Stored):
    """Questions whose answer changed.

    Attributes:
        count: How many.
        questions: Of how many.
        gained: Wrong before, right now.
        lost: Right before, wrong now.
        mcnemar_p: Exact p value of gained against lost.
        confident_new: Changed answers with a margin of 0.5 or more; None for labels.
        ties: Ties.
        baseline_margin: Where the baseline was sure.
        worst: The questions that moved most: changed answers first, then by total variation.
    """

    count: Count
    questions: Count
    gained: Count
    lost: Count
    mcnemar_p: float | None
    confident_new: Count | None
    ties: Ties
    baseline_margin: MarginPercentiles
    worst: Annotated[
        tuple[MovedQuestion, ...],
        Rule(lambda rows: len(rows) <= 20, "must hold at most 20 entries", {"maxItems": 20}),
    ]


@dataclass(frozen=True, slots=True)
class NoFlips(Stored):
    """An empty object: nothing was compared."""


@dataclass(frozen=True, slots=True)
class Move(Stored):
    """Changed answers of one question id, from one option to another.

    Attributes:
        question: The question.
        baseline: The baseline's answer.
        candidate: The candidate's answer.
        count: How many.
        gained: Of them, right now and wrong before.
        lost: Of them, wrong now and right before.
    """

    question: str
    baseline: str
    candidate: str
    count: Count
    gained: Count
    lost: Count


@dataclass(frozen=True, slots=True)
class Confusion(Stored):
    """Which answers moved where: the confusion table without its diagonal.

    Attributes:
        moves: The commonest, at most 100.
        left_out: Changed answers in further ones.
    """

    moves: tuple[Move, ...]
    left_out: Count


@dataclass(frozen=True, slots=True)
class Details(Stored):
    """Figures for display, as published cards quote them; never gated on.

    Attributes:
        percentiles: Percentiles of KL and TV.
        confident_new: Share of confident changed answers.
        spearman: Rank correlation of the option probabilities.
        score: Level shifts of score questions.
        reliability: Confidence against accuracy.
        gaps: Accuracy differences by cohort.
        accuracy: Accuracy with failures counted as wrong.
        wilson: Wilson intervals.
        clustering: By metric, how many records its interval rests on, and which of them move it.
        operating: By gate, how likely this set passes it at a true loss.
        confusion: Which answers moved where.
        slices_left_out: By key, slices beyond the largest, which are not reported.
    """

    percentiles: Mapping[str, Any] | None
    confident_new: Mapping[str, Any] | None
    spearman: float | None
    score: Mapping[str, Any] | None
    reliability: Mapping[str, Any] | None
    gaps: Mapping[str, Any] | None
    accuracy: Mapping[str, Any] | None
    wilson: Mapping[str, Any] | None
    clustering: Mapping[str, Any] | None = None
    operating: tuple[Mapping[str, Any], ...] = ()
    confusion: Confusion | None = None
    slices_left_out: Mapping[str, Count] | None = None


@dataclass(frozen=True, slots=True)
class NoiseFloor(Stored):
    """What replicates of the baseline differ by.

    Attributes:
        metrics: The figures, of the loudest replicate.
        replicates: Provenance of each.
        identical: For each, questions that it answered as the baseline to the last bit.
        valid: For each, questions that both answered.
    """

    metrics: Metrics
    replicates: Annotated[tuple[Side, ...], Rule(bool, "is empty", {"minItems": 1})]
    identical: tuple[Count, ...] = ()
    valid: tuple[Count, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyEntry(PolicySpec):
    """A decision policy and its figures.

    Attributes:
        metrics: Figure by name.
    """

    metrics: Metrics


@dataclass(frozen=True, slots=True)
class Provenance(Stored):
    """How and when a report was made.

    Attributes:
        clefq_version: Version that judged.
        created_at: RFC 3339, UTC.
        judged_from: `predictions`, or `stored bounds` where a stored report was judged again.
        versions: Package → version of what computed the figures.
        command: The command line, for people.
    """

    clefq_version: str
    created_at: str
    judged_from: JudgedFrom
    versions: Mapping[str, str]
    command: str


@dataclass(frozen=True, slots=True)
class SignedProvenance(Provenance):
    """How and when a report was made.

    Attributes:
        digest: SHA-256 over the compact JSON (sorted keys, no spaces) of the document without
            this field.
    """

    digest: Sha256


@dataclass(frozen=True, slots=True)
class ParityReport(Stored):
    """`parity.json`: one candidate on one set; every other file is a view of it.

    Attributes:
        schema: Version of this form.
        verdict: The verdict.
        eval_set: The set.
        baseline: Provenance of the baseline's answers.
        candidate: Provenance of the candidate's answers.
        coverage: The coverage gate.
        metrics: Figure by name, over all questions.
        slices: The same by slice.
        alarms: Slices in which the candidate is worse.
        gates: The judged gates.
        gate_file: Where they stand.
        flips: Questions whose answer changed.
        details: Figures for display.
        noise_floor: What replicates differ by, or null without them.
        policies: Decision policies.
        provenance: How and when it was made.
    """

    schema: Literal["clefq.parity/1"]
    verdict: VerdictEntry
    eval_set: SetName
    baseline: Side
    candidate: Side
    coverage: CoverageEntry
    metrics: Metrics
    slices: Mapping[str, Metrics]
    alarms: tuple[Alarm, ...]
    gates: tuple[GateEntry, ...]
    gate_file: GateFileEntry
    flips: Flips | NoFlips
    details: Details | None
    noise_floor: NoiseFloor | None
    policies: tuple[PolicyEntry, ...]
    provenance: SignedProvenance


@dataclass(frozen=True, slots=True, kw_only=True)
class Size(Stored):
    """What is known of a model beyond its answers.

    Attributes:
        size_bytes: Bytes on disk of its weights, or null.
        size_gb: The same in units of 10⁹ bytes.
        throughput: What was measured, or null.
    """

    size_bytes: int | None
    size_gb: float | None
    throughput: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineRow(Size):
    """The baseline.

    Attributes:
        variant: Its name.
        model_id: Folder name or hub id.
        model_revision: Hub commit, or null.
        model_sha256: Hash of the checkpoint, or null.
        accuracy: Its accuracy, where there is gold.
    """

    variant: str
    model_id: str
    model_revision: str | None
    model_sha256: str | None
    accuracy: Metric | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateRow(Size):
    """One candidate; figures of one that could not be judged are null.

    Attributes:
        variant: Its name.
        verdict: Its verdict.
        sentence: What that means.
        next_step: What to do now.
        more_questions: Further questions that would probably settle it, or null.
        exit_code: Exit code of its verdict.
        scheme: Its scheme.
        kernels: `real` or `simulated`.
        arithmetic: What ran.
        engine: What ran it.
        accuracy: Its accuracy.
        accuracy_delta: Candidate minus baseline.
        agreement: Share of questions with the same answer.
        confident_agreement: The same where the baseline was sure.
        kl: KL(baseline‖candidate), nats.
        tv: Total variation.
        report: Its page, relative to this file.
        qualifiers: What the verdict's word alone does not say, such as `on simulated kernels`.
        reasons: Why it did not pass, the deciding one first.
        advisory: Broken advisory gates, a line each.
    """

    variant: str
    verdict: Word
    sentence: str
    next_step: str
    more_questions: int | None
    exit_code: ExitNumber
    scheme: str
    kernels: str
    arithmetic: str
    engine: str
    accuracy: Metric | None
    accuracy_delta: Metric | None
    agreement: Metric | None
    confident_agreement: Metric | None
    kl: Metric | None
    tv: Metric | None
    report: str
    qualifiers: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    advisory: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SummaryGates(Stored):
    """The gate file.

    Attributes:
        name: Its name.
        sha256: Hash of its bytes.
        bound: Whether it is bound to a set and a baseline.
    """

    name: str
    sha256: Sha256
    bound: bool


@dataclass(frozen=True, slots=True)
class SummaryProvenance(Stored):
    """When the reports were made.

    Attributes:
        clefq_version: Version that judged.
        created_at: RFC 3339, UTC.
    """

    clefq_version: str
    created_at: str


@dataclass(frozen=True, slots=True)
class Summary(Stored):
    """`summary.json`: all candidates of one set side by side.

    Attributes:
        schema: Version of this form.
        verdict: The worst of all.
        exit_code: Its exit code.
        eval_set: The set.
        baseline: The baseline.
        gate_file: What judged them.
        candidates: One row each.
        provenance: When they were judged.
        choice: Which candidate is recommended (`clefq parity --pick`), or null.
    """

    schema: Literal["clefq.summary/1"]
    verdict: Word
    exit_code: ExitNumber
    eval_set: SetName
    baseline: BaselineRow
    gate_file: SummaryGates
    candidates: tuple[CandidateRow, ...]
    provenance: SummaryProvenance
    choice: Choice | None = None


# name → model, version
DOCUMENTS: dict[str, tuple[type[Stored], str]] = {
    "parity": (ParityReport, SCHEMA),
    "summary": (Summary, SUMMARY_SCHEMA),
}


def load_schema(name: str) -> dict[str, Any]:
    """The published JSON Schema of `parity` or `summary`."""
    model, version = DOCUMENTS[name]
    return json_schema(model) | {"$id": version}


def check_document(document: Any, name: str, where: str) -> None:
    """Checks a document against its model.

    Args:
        document: The JSON value.
        name: `parity` or `summary`.
        where: The file's name, for the message.

    Raises:
        InputError: It does not follow the model; lists every fault.
    """
    model, version = DOCUMENTS[name]
    if not isinstance(document, Mapping) or document.get("schema") != version:
        raise InputError(
            f"{where} is not a {name}.json of this version (schema {version}).",
            fix="make the report again with `clefq parity`.",
        )
    faults: list[str] = []
    if read_value(model, document, faults) is None:
        more = len(faults) - MAX_FAULTS
        raise InputError(
            f"{where} does not follow the schema of {name}.json.",
            fix="make the report again with `clefq parity`.",
            faults=[*faults[:MAX_FAULTS], *([f"and {more} more"] if more > 0 else [])],
        )
