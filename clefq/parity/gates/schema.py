"""A gate file: what it says, as frozen dataclasses, and what makes one at fault.

Types and single values are checked as the dataclasses say (`store/reading.py`); what only several
keys together, or a metric's facts, can make wrong stands in `faults`. `parse_gates` reads one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Any, Literal

import yaml

from clefq.errors import GateFileError
from clefq.parity.statistics.metric_facts import (
    MetricFacts,
    find_facts,
    load_facts,
    noise_floor_metrics,
)
from clefq.parity.statistics.slices import FURTHER
from clefq.store.reading import Rule, Stored, expected, read_value, sha256_digits
from clefq.store.variant_links import COMPARED
from clefq.store.yaml_text import load_yaml, yaml_fault

SCHEMA = "clefq.gates/1"
MIN_RECORDS_KL = 256
MOST_LOOKS = 20
# at 0.5 the one-sided bound is the estimate itself, and no interval is left
LEAST_CONFIDENCE = 0.51
# limits beyond which a gate shows nothing, by unit
LEAST_FLOOR, MOST_LOSS = 0.01, 0.5
_FAR = {"nats": 10.0, "levels": 100.0}
_NAME_CHARS = frozenset("abcdefghijklmnopqrstuvwxyz0123456789-_.")
_FIX = "mend the gate file (docs/parity.md shows the form)."


def _within(low: float, high: float) -> Rule:
    return Rule(
        lambda value: low <= value <= high,
        f"must be from {low:g} to {high:g}",
        {"minimum": low, "maximum": high},
    )


def _from(low: int) -> Rule:
    return Rule(lambda value: value >= low, f"must be at least {low}", {"minimum": low})


Text = Annotated[str, Rule(lambda text: bool(text.strip()), "must not be empty", {"minLength": 1})]
Confidence = Annotated[float, _within(LEAST_CONFIDENCE, 0.9999)]
Limit = Annotated[float, _within(0.0, 1e12)]
Digest = Annotated[str, sha256_digits()]
Scalar = str | int | float
Threshold = Annotated[
    float,
    Rule(
        lambda value: 0 < value < 1,
        "must be a number between 0 and 1",
        {"exclusiveMinimum": 0, "exclusiveMaximum": 1},
    ),
]


@dataclass(frozen=True, slots=True)
class SliceSelector(Stored):
    """The part of the questions that a gate looks at: one key and a slice's name.

    `*` for the name: every slice of that key, each judged on its own; of `gold` also
    `QUESTION/*`, the right answers of one question.

    Attributes:
        cohort: Name of a cohort.
        question: Question id.
        gold: Right answer, `QUESTION/OPTION`.
        type: Type of question.
        options: Band of the number of options.
        length: Band of the prompt's length.
        margin: Band of the baseline's margin.
        cohorts: One further cohort and its value, such as `{language: de}`.
    """

    cohort: Scalar | None = None
    question: Scalar | None = None
    gold: Scalar | None = None
    type: Scalar | None = None
    options: Scalar | None = None
    length: Scalar | None = None
    margin: Scalar | None = None
    cohorts: Mapping[str, Scalar] | None = None

    @property
    def by(self) -> str:
        """The key."""
        return next(name for name, value in self._given())

    @property
    def value(self) -> str:
        """The slice's name, or `*`."""
        return next(str(value) for name, value in self._given())

    def _given(self) -> list[tuple[str, Scalar]]:
        names = (field.name for field in fields(self) if field.name != "cohorts")
        pairs = [(name, getattr(self, name)) for name in names]
        pairs += [(f"{FURTHER}{name}", value) for name, value in (self.cohorts or {}).items()]
        return [(name, value) for name, value in pairs if value is not None]

    def faults(self) -> Iterable[str]:
        """Exactly one key."""
        if len(self._given()) != 1:
            names = ", ".join(field.name for field in fields(self))
            yield f"the file must be one of {names} and a value, such as {{length: '*'}}"


@dataclass(frozen=True, slots=True)
class Gate(Stored):
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

    name: Text
    metric: Text
    direction: Literal["at_least", "at_most"]
    margin: Limit | None = None
    bound: Limit | None = None
    slice: SliceSelector | None = None
    confidence: Confidence = 0.975
    min_n: Annotated[int, _from(1)] = 200
    min_records: Annotated[int, _from(10)] = 10
    required: bool = True
    reference: Literal["baseline", "replicate"] = "baseline"

    def faults(self) -> Iterable[str]:
        """What the metric's facts do not allow."""
        facts = find_facts(self.metric)
        if facts is None:
            yield f"metric {self.metric!r} is unknown; known: {', '.join(_gateable())}"
            return
        if not facts.gate:
            yield f"metric {self.metric} is for display only and cannot be gated"
        right = "at_least" if facts.direction == "higher" else "at_most"
        if self.direction != right:
            yield f"direction must be {right}: {facts.direction} {self.metric} is better"
        yield from _limit_faults(self, facts)
        if self.metric.startswith("threshold_flips@") and not _is_share(self.metric):
            yield f"metric {self.metric} needs a threshold between 0 and 1 after the @"
        if self.metric.startswith("coherence_") and self.metric.partition("@")[2] not in COMPARED:
            yield f"metric {self.metric} needs one of {', '.join(COMPARED)} after the @"
        if self.metric == "coverage":
            yield "metric coverage is set by the top-level key `coverage`, always required"


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
        candidate_threshold: The candidate acts at or above this instead, or None for the same.
    """

    name: Text
    questions: Text
    option: Text
    threshold: Annotated[float, _within(0.0, 1.0)]
    cost_act_to_hold: Limit
    cost_hold_to_act: Limit
    candidate_threshold: Threshold | None = None

    def faults(self) -> Iterable[str]:
        """Thresholds and costs that show nothing."""
        if self.threshold in (0.0, 1.0):
            yield f"threshold is {self.threshold:g}: both models act alike there"
        if self.cost_act_to_hold == self.cost_hold_to_act == 0:
            yield "cost_act_to_hold and cost_hold_to_act are both 0: nothing costs anything"


@dataclass(frozen=True, slots=True)
class BoundSet(Stored):
    """The eval set that a bound gate file is for.

    Attributes:
        name: For people; not compared.
        sha256: Hash of its manifest.
    """

    name: Text
    sha256: Digest


@dataclass(frozen=True, slots=True)
class BoundBaseline(Stored):
    """The baseline that a bound gate file is for; a revision or a hash, or both.

    Attributes:
        model_id: For people; not compared.
        model_revision: Hub commit, or None.
        model_sha256: Hash of the checkpoint, or None.
    """

    model_id: Text
    model_revision: Text | None = None
    model_sha256: Digest | None = None

    def faults(self) -> Iterable[str]:
        """Something must be compared."""
        if self.model_revision is None and self.model_sha256 is None:
            yield "the file needs model_revision or model_sha256"


@dataclass(frozen=True, slots=True)
class GateFile(Stored):
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
        confidence: Of gates that name none of their own.
        thresholds: Thresholds for the `threshold_flips@T` metrics that are reported.
        alarm_confidence: Family-wise one-sided confidence of the slice alarms (Holm).
        set_check: `any`, or `required`: without the set at hand, against which both files are
            held, no required gate passes.
        looks: Verdicts that are planned on the set while it grows; each has that part of every
            gate's error.
        baseline_floor: `none`, `chance` or `majority`: unless the baseline is shown to be more
            accurate than that, no required gate passes.
        cut_states: `any`, or `invalid`: where a question was answered from a shortened state, on
            either side, the comparison is invalid.
        expected_accuracy: The baseline's accuracy as it is known, by cohort or `overall`, for
            example from a published table: where the interval measured here does not hold it, no
            required gate passes.
        redacted_from: SHA-256 of the gate file that this one is a copy of without its names (`clefq
            bundle --redact`): it has that file's seeds. None in a file to judge by.
        schema: Version of this form.
    """

    name: Text
    description: Text
    gates: tuple[Gate, ...]
    coverage: Annotated[float, _within(0.5, 1.0)] = 0.999
    kernels: Literal["any", "real"] = "any"
    eval_set: BoundSet | None = None
    baseline: BoundBaseline | None = None
    supersedes: Digest | None = None
    policies: tuple[PolicySpec, ...] = ()
    thresholds: tuple[Threshold, ...] = (0.5,)
    confidence: Confidence = 0.975
    alarm_confidence: Confidence = 0.95
    set_check: Literal["any", "required"] = "any"
    baseline_floor: Literal["none", "chance", "majority"] = "none"
    cut_states: Literal["any", "invalid"] = "any"
    looks: Annotated[int, _within(1, MOST_LOOKS)] = 1
    expected_accuracy: Mapping[str, Threshold] = field(default_factory=dict)
    redacted_from: Digest | None = None
    schema: Annotated[str, expected(SCHEMA)] = SCHEMA

    @property
    def bound(self) -> bool:
        """Whether it is bound to a set and a baseline."""
        return self.eval_set is not None and self.baseline is not None

    @property
    def at_each_look(self) -> tuple[Gate, ...]:
        """The gates at the confidence of one look, 1 − (1 − c)/looks."""
        if self.looks == 1:
            return self.gates
        return tuple(
            replace(gate, confidence=1 - (1 - gate.confidence) / self.looks) for gate in self.gates
        )

    def faults(self) -> Iterable[str]:
        """What gates, policies and bindings make wrong together."""
        if (self.eval_set is None) != (self.baseline is None):
            yield "eval_set and baseline are bound together or not at all"
        if not set(self.name) <= _NAME_CHARS:
            yield "name may hold lower-case letters, digits, `-`, `_` and `.` only"
        for gate in self.gates:
            yield from _policy_faults(gate, self.policies)


def parse_gates(data: bytes, where: str) -> GateFile:
    """Parses a gate file's bytes.

    Args:
        data: UTF-8 YAML.
        where: The file's name, for messages.

    Raises:
        GateFileError: At fault; lists every fault.
    """
    try:
        value = load_yaml(data.decode("utf-8"))
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        raise GateFileError(f"{where} {yaml_fault(error)}", fix=_FIX) from error
    faults: list[str] = []
    gates = read_value(GateFile, _each_gate(value, faults), faults)
    if isinstance(value, dict) and "schema" not in value:
        faults.append("schema is missing")
    faults += [*_doubled(value, "gates"), *_doubled(value, "policies")]
    if gates is None or faults:
        raise GateFileError(f"{where}: {faults[0]}.", faults=faults[1:], fix=_FIX)
    return replace(gates, thresholds=tuple(sorted(set(gates.thresholds))))


def _each_gate(value: Any, faults: list[str]) -> Any:
    """The file without the gates that are at fault by themselves, so that one hides no other's.

    A gate without a confidence of its own has the file's.
    """
    if not isinstance(value, dict) or not isinstance(value.get("gates"), list):
        return value
    sound, common = [], value.get("confidence")
    for index, entry in enumerate(value["gates"]):
        if isinstance(entry, dict) and "confidence" not in entry and _is_confidence(common):
            entry = {**entry, "confidence": common}
        if read_value(Gate, entry, faults, f"gates.{index}") is not None:
            sound.append(entry)
    return {**value, "gates": sound}


def _doubled(value: Any, key: str) -> Iterable[str]:
    """Names that several entries have, those at fault included."""
    listed = value.get(key) if isinstance(value, dict) else None
    entries = [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
    names = [str(entry["name"]) for entry in entries if "name" in entry]
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield f"{key}: name {name!r} appears more than once"


def _is_confidence(value: Any) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and LEAST_CONFIDENCE <= value <= 0.9999


def _limit_faults(gate: Gate, facts: MetricFacts) -> Iterable[str]:
    by_margin = facts.kind == "difference" or gate.reference == "replicate"
    given, other = (gate.margin, gate.bound) if by_margin else (gate.bound, gate.margin)
    name, wrong = ("margin", "bound") if by_margin else ("bound", "margin")
    if given is None:
        yield f"{name} is missing: {gate.metric} needs a {name}"
    if other is not None:
        yield f"{wrong} does not apply: {gate.metric} takes a {name}"
    if facts.unit == "fraction" and given is not None and given > 1:
        yield f"{name} is {given:g}; figures are fractions, so 2 points are 0.02"
    elif given is not None and _shows_nothing(gate, facts, given):
        points = given == 1 and facts.unit == "fraction"
        hint = " (100 points); figures are fractions, so 1 point is 0.01" if points else ""
        yield f"{name} is {given:g}: a limit that shows nothing{hint}"
    stem = gate.metric.partition("@")[0]
    if gate.reference == "replicate" and stem not in noise_floor_metrics():
        yield f"reference {gate.metric} has no noise floor to be compared with"


def _shows_nothing(gate: Gate, facts: MetricFacts, limit: float) -> bool:
    """Whether no candidate that anyone would judge can miss the limit.

    That is at the end of what the metric can be, and so near to it that only a broken model gets
    there: a floor of 1%, a loss of half of all answers, a divergence of ten nats.
    """
    if gate.metric == "js":
        return limit >= math.log(2)
    if facts.unit != "fraction":
        return limit > _FAR.get(facts.unit, math.inf)
    if gate.direction == "at_least" and gate.bound is not None:
        return limit <= LEAST_FLOOR
    return limit > MOST_LOSS if gate.margin is not None else limit >= 1 - LEAST_FLOOR


def _is_share(metric: str) -> bool:
    try:
        return 0 < float(metric.split("@", 1)[1]) < 1
    except ValueError:
        return False


def _policy_faults(gate: Gate, policies: Sequence[PolicySpec]) -> Iterable[str]:
    stem, _, parameter = gate.metric.partition("@")
    if not stem.startswith("policy_"):
        return
    policy = next((p for p in policies if p.name == parameter), None)
    if policy is None:
        yield f"policies: {gate.metric} names a policy that the file does not declare"
    elif stem == "policy_cost" and gate.bound is not None:
        most = 10_000 * max(policy.cost_act_to_hold, policy.cost_hold_to_act)
        if gate.bound >= most:
            yield (
                f"gates: {gate.name} allows a cost of {gate.bound:g}, and {parameter} can cost "
                f"{most:g} at most: a limit that shows nothing"
            )


def _gateable() -> Sequence[str]:
    return [name for name, facts in load_facts().items() if facts.gate and name != "coverage"]
