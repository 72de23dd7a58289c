"""Gate files: what a candidate must prove, written down before its results are known.

A gate file is YAML, strict on unknown keys, and every fault is reported at once. Without
`eval_set` and `baseline` it is a *template*, usable on any set and reported as not
pre-registered; `clefq gate --freeze` binds it to one set (name and hash) and one baseline.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from clefq.errors import GateFileError
from clefq.parity.cards import Card, find_card, load_cards
from clefq.parity.fields import Fields
from clefq.store.atomic import sha256_bytes
from clefq.store.data_files import data_folder

SCHEMA = "clefq.gates/1"
DIRECTIONS = ("at_least", "at_most")
SLICE_KEYS = ("cohort", "question_type", "option_count", "length_band", "margin_band")
REFERENCES = ("baseline", "replicate")
TEMPLATES = ("release", "smoke", "strict")
MIN_RECORDS_KL = 256
_NAME_CHARS = frozenset("abcdefghijklmnopqrstuvwxyz0123456789-_.")


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
class PolicySpec:
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
        alarm_confidence: Family-wise two-sided confidence of the slice alarms (Holm).
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

    @property
    def bound(self) -> bool:
        """Whether it is bound to a set and a baseline."""
        return self.eval_set is not None and self.baseline is not None


@dataclass(frozen=True, slots=True)
class LoadedGates:
    """A gate file with the exact bytes it came from.

    Attributes:
        gates: The parsed file.
        text: Its text, embedded in every report.
        sha256: Hash of the bytes.
        path: Where it lies.
        bundled: Whether it is one of clefq's own templates.
    """

    gates: GateFile
    text: str
    sha256: str
    path: Path
    bundled: bool = field(default=False)


def load_gates(name_or_path: str) -> LoadedGates:
    """Reads a gate file by path, or a bundled template by name (`release`, `smoke`, `strict`).

    Raises:
        GateFileError: Missing, not YAML, or at fault; lists every fault.
    """
    bundled = name_or_path in TEMPLATES
    path = (
        data_folder("metrics") / "gates" / f"{name_or_path}.yaml" if bundled else Path(name_or_path)
    )
    try:
        data = path.read_bytes()
    except OSError as error:
        raise GateFileError(
            f"cannot read the gate file {path}: {error.strerror}.",
            fix=f"give a YAML file, or one of the templates {', '.join(TEMPLATES)}.",
        ) from error
    return LoadedGates(
        parse_gates(data, str(path)), data.decode("utf-8"), sha256_bytes(data), path, bundled
    )


def parse_gates(data: bytes, where: str) -> GateFile:
    """Parses a gate file's bytes.

    Args:
        data: UTF-8 YAML.
        where: The file's name, for messages.

    Raises:
        GateFileError: At fault; lists every fault.
    """
    try:
        value = yaml.safe_load(data.decode("utf-8"))
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        line = " ".join(str(error).split())
        raise GateFileError(f"{where} is not valid YAML: {line}.") from error
    faults: list[str] = []
    gates = _gate_file(Fields(value, "", faults), faults)
    if faults:
        raise GateFileError(
            f"{where}: {faults[0]}.",
            faults=faults[1:],
            fix="mend the gate file (docs/parity.md shows the form).",
        )
    return gates


def _gate_file(top: Fields, faults: list[str]) -> GateFile:
    top.choice("schema", (SCHEMA,))
    confidence = top.number("confidence", 0.5, 0.9999, 0.975)
    policies = tuple(
        _policy(Fields(entry, f"policies[{index}]", faults))
        for index, entry in enumerate(top.sequence("policies", []))
    )
    gates = tuple(
        _gate(Fields(entry, f"gates[{index}]", faults), confidence)
        for index, entry in enumerate(top.sequence("gates"))
    )
    bound_set, bound_baseline = top.take("eval_set", None), top.take("baseline", None)
    if (bound_set is None) != (bound_baseline is None):
        top.fault("eval_set", "and baseline are bound together or not at all")
    result = GateFile(
        name=top.text("name"),
        description=top.text("description"),
        gates=gates,
        coverage=top.number("coverage", 0.5, 1.0, 0.999),
        kernels=top.choice("kernels", ("any", "real"), "any"),
        eval_set=None if bound_set is None else _bound_set(Fields(bound_set, "eval_set", faults)),
        baseline=(
            None
            if bound_baseline is None
            else _bound_baseline(Fields(bound_baseline, "baseline", faults))
        ),
        supersedes=top.optional_digest("supersedes"),
        policies=policies,
        thresholds=_thresholds(top),
        alarm_confidence=top.number("alarm_confidence", 0.5, 0.9999, 0.95),
    )
    top.done()
    _check_names(top, result)
    return result


def _thresholds(top: Fields) -> tuple[float, ...]:
    values = top.sequence("thresholds", [0.5])
    good = [v for v in values if isinstance(v, int | float) and 0 < v < 1]
    if len(good) != len(values):
        top.fault("thresholds", "must hold numbers between 0 and 1")
    return tuple(sorted({float(v) for v in good}))


def _bound_set(fields: Fields) -> BoundSet:
    bound = BoundSet(fields.text("name"), fields.digest("sha256"))
    fields.done()
    return bound


def _bound_baseline(fields: Fields) -> BoundBaseline:
    bound = BoundBaseline(
        fields.text("model_id"),
        fields.optional_text("model_revision"),
        fields.optional_digest("model_sha256"),
    )
    if bound.model_revision is None and bound.model_sha256 is None:
        fields.fault(None, "needs model_revision or model_sha256")
    fields.done()
    return bound


def _policy(fields: Fields) -> PolicySpec:
    policy = PolicySpec(
        name=fields.text("name"),
        questions=fields.text("questions"),
        option=fields.text("option"),
        threshold=fields.number("threshold", 0.0, 1.0),
        cost_act_to_hold=fields.number("cost_act_to_hold", 0.0, 1e12),
        cost_hold_to_act=fields.number("cost_hold_to_act", 0.0, 1e12),
    )
    fields.done()
    return policy


def _gate(fields: Fields, confidence: float) -> Gate:
    raw_slice = fields.take("slice", None)
    gate = Gate(
        name=fields.text("name"),
        metric=fields.text("metric"),
        direction=fields.choice("direction", DIRECTIONS),
        margin=fields.optional_number("margin", 0.0, 1e12),
        bound=fields.optional_number("bound", 0.0, 1e12),
        slice=None if raw_slice is None else _slice(raw_slice, fields),
        confidence=fields.number("confidence", 0.5, 0.9999, confidence),
        min_n=fields.integer("min_n", 1, 200),
        min_records=fields.integer("min_records", 10, 10),
        required=fields.boolean("required", True),
        reference=fields.choice("reference", REFERENCES, "baseline"),
    )
    fields.done()
    _check_gate(fields, gate)
    return gate


def _slice(value: object, parent: Fields) -> SliceSelector:
    entries = list(value.items()) if isinstance(value, dict) else []
    if len(entries) != 1 or entries[0][0] not in SLICE_KEYS:
        parent.fault(
            "slice",
            f"must be one of {', '.join(SLICE_KEYS)} and a value, such as {{length_band: '*'}}",
        )
        return SliceSelector(SLICE_KEYS[0], "*")
    by, name = entries[0]
    return SliceSelector(str(by), str(name))


def _check_gate(fields: Fields, gate: Gate) -> None:
    card = find_card(gate.metric)
    if card is None:
        fields.fault("metric", f"{gate.metric!r} is unknown; known: {', '.join(_gateable())}")
        return
    if not card.gate:
        fields.fault("metric", f"{gate.metric} is for display only and cannot be gated")
    expected = "at_least" if card.direction == "higher" else "at_most"
    if gate.direction != expected:
        fields.fault("direction", f"must be {expected}: {card.direction} {gate.metric} is better")
    _check_limits(fields, gate, card)
    _check_parameter(fields, gate)
    if gate.metric == "coverage":
        fields.fault("metric", "coverage is set by the top-level key `coverage`, always required")


def _check_limits(fields: Fields, gate: Gate, card: Card) -> None:
    by_margin = card.kind == "difference" or gate.reference == "replicate"
    given, other = (gate.margin, gate.bound) if by_margin else (gate.bound, gate.margin)
    name, wrong = ("margin", "bound") if by_margin else ("bound", "margin")
    if given is None or not math.isfinite(given):
        fields.fault(name, f"is missing: {gate.metric} needs a {name}")
    if other is not None:
        fields.fault(wrong, f"does not apply: {gate.metric} takes a {name}")
    if card.unit == "fraction" and given is not None and given > 1:
        fields.fault(name, f"is {given:g}; figures are fractions, so 2 points are 0.02")
    if gate.reference == "replicate" and card.kind == "difference":
        fields.fault("reference", f"{gate.metric} is a difference already; replicate is for levels")


def _check_parameter(fields: Fields, gate: Gate) -> None:
    if not gate.metric.startswith("threshold_flips@"):
        return
    try:
        good = 0 < float(gate.metric.split("@", 1)[1]) < 1
    except ValueError:
        good = False
    if not good:
        fields.fault("metric", f"{gate.metric} needs a threshold between 0 and 1 after the @")


def _check_names(top: Fields, gates: GateFile) -> None:
    if not set(gates.name) <= _NAME_CHARS:
        top.fault("name", "may hold lower-case letters, digits, `-`, `_` and `.` only")
    for key, names in (
        ("gates", [gate.name for gate in gates.gates]),
        ("policies", [policy.name for policy in gates.policies]),
    ):
        for name in sorted({name for name in names if names.count(name) > 1}):
            top.fault(key, f"name {name!r} appears more than once")
    known = {policy.name for policy in gates.policies}
    for gate in gates.gates:
        stem, _, parameter = gate.metric.partition("@")
        if stem.startswith("policy_") and parameter not in known:
            top.fault("policies", f"{gate.metric} names a policy that the file does not declare")


def _gateable() -> Sequence[str]:
    return [name for name, card in load_cards().items() if card.gate and name != "coverage"]


def freeze_text(text: str, eval_set: BoundSet, baseline: BoundBaseline) -> str:
    """The text of a template with its binding appended; comments are kept.

    Raises:
        GateFileError: The text is bound already.
    """
    value: Any = yaml.safe_load(text)
    if value.get("eval_set") is not None or value.get("baseline") is not None:
        raise GateFileError(
            "the gate file is bound already.",
            fix="freeze a template, and name the old file's hash under `supersedes`.",
        )
    kept = [
        line
        for line in text.rstrip("\n").splitlines()
        if not line.startswith(("eval_set:", "baseline:"))
    ]
    binding = {
        "eval_set": {"name": eval_set.name, "sha256": eval_set.sha256},
        "baseline": {
            "model_id": baseline.model_id,
            "model_revision": baseline.model_revision,
            "model_sha256": baseline.model_sha256,
        },
    }
    return "\n".join(kept) + "\n\n" + yaml.safe_dump(binding, sort_keys=False, allow_unicode=True)
