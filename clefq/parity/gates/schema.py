"""What a gate file says, as frozen dataclasses."""

from __future__ import annotations

from dataclasses import dataclass

from clefq.store.reading import Stored

SCHEMA = "clefq.gates/1"
DIRECTIONS = ("at_least", "at_most")
SLICE_KEYS = ("cohort", "type", "options", "length", "margin")
REFERENCES = ("baseline", "replicate")
MIN_RECORDS_KL = 256


@dataclass(frozen=True, slots=True)
class SliceSelector:
    """The part of the questions that a gate looks at.

    Attributes:
        by: One of `SLICE_KEYS`.
        value: The slice's name, or `*`: every slice of that key, each judged on its own.
    """

    by: str
    value: str


@dataclass(frozen=True, slots=True)
class Gate:
    """One condition.

    Attributes:
        name: Unique in the file.
        metric: Name of a metric whose card allows gates.
        direction: `at_least` where higher is better, `at_most` where lower is better.
        margin: Largest loss that is tolerated, positive, for differences; else None.
        bound: Floor or ceiling, for levels; else None.
        slice: The slice it looks at, or None for all questions.
        confidence: One-sided confidence of the bound that decides.
        min_n: Fewer questions than this leave it `not_gated`.
        min_records: Fewer records than this leave it `not_gated`.
        required: Whether it decides the verdict; otherwise it is advisory.
        reference: `baseline`, or `replicate`: the excess over the noise floor is judged.
    """

    name: str
    metric: str
    direction: str
    margin: float | None
    bound: float | None
    slice: SliceSelector | None = None
    confidence: float = 0.975
    min_n: int = 200
    min_records: int = 10
    required: bool = True
    reference: str = "baseline"


@dataclass(frozen=True, slots=True)
class PolicySpec(Stored):
    """A decision rule of the user: act when p(option) reaches the threshold.

    Attributes:
        name: Unique in the file; names the metrics `policy_cost@NAME` and its kin.
        questions: Pattern of question ids, with `*` and `?`.
        option: The option id whose probability is compared.
        threshold: Act at or above it.
        cost_act_to_hold: Cost of one decision that changes from act to hold.
        cost_hold_to_act: Cost of one decision that changes from hold to act.
    """

    name: str
    questions: str
    option: str
    threshold: float
    cost_act_to_hold: float
    cost_hold_to_act: float


@dataclass(frozen=True, slots=True)
class BoundSet:
    """The eval set that a bound gate file is for."""

    name: str
    sha256: str


@dataclass(frozen=True, slots=True)
class BoundBaseline:
    """The baseline that a bound gate file is for; a revision or a hash, or both.

    Attributes:
        model_id: For people; not compared.
        model_revision: Hub commit, or None.
        model_sha256: Hash of the checkpoint, or None.
    """

    model_id: str
    model_revision: str | None
    model_sha256: str | None


@dataclass(frozen=True, slots=True)
class GateFile:
    """A whole gate file.

    Attributes:
        name: Short name, for example `release`.
        description: What it is meant to prove.
        coverage: Smallest share of valid answers; below it the comparison is invalid.
        kernels: `any`, or `real`: simulated results then never pass a required gate.
        eval_set: The set it is bound to, or None for a template.
        baseline: The baseline it is bound to, or None for a template.
        supersedes: SHA-256 of the gate file that it replaces, or None.
        gates: The gates, in report order.
        policies: Decision policies to report on and to gate.
        thresholds: Thresholds for the `threshold_flips@T` metrics that are reported.
        alarm_confidence: Family-wise one-sided confidence of the slice alarms (Holm).
        set_check: `any`, or `required`: without the set at hand, against which both files are
            held, no required gate passes.
        baseline_floor: `none`, `chance` or `majority`: unless the baseline is shown to be more
            accurate than that, no required gate passes.
    """

    name: str
    description: str
    gates: tuple[Gate, ...]
    coverage: float = 0.999
    kernels: str = "any"
    eval_set: BoundSet | None = None
    baseline: BoundBaseline | None = None
    supersedes: str | None = None
    policies: tuple[PolicySpec, ...] = ()
    thresholds: tuple[float, ...] = (0.5,)
    alarm_confidence: float = 0.95
    set_check: str = "any"
    baseline_floor: str = "none"

    @property
    def bound(self) -> bool:
        """Whether it is bound to a set and a baseline."""
        return self.eval_set is not None and self.baseline is not None
