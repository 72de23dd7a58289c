"""Parses a gate file strictly: unknown keys, wrong directions and limits, every fault at once."""

from __future__ import annotations

import math
from collections.abc import Sequence

import yaml

from clefq.errors import GateFileError
from clefq.parity.gates.fields import Fields
from clefq.parity.gates.schema import (
    DIRECTIONS,
    REFERENCES,
    SCHEMA,
    SLICE_KEYS,
    BoundBaseline,
    BoundSet,
    Gate,
    GateFile,
    PolicySpec,
    SliceSelector,
)
from clefq.parity.statistics.baseline_floor import CHANCE, MAJORITY
from clefq.parity.statistics.metric_facts import (
    MetricFacts,
    find_facts,
    load_facts,
    noise_floor_metrics,
)
from clefq.store.yaml_text import load_yaml, yaml_fault

_FIX = "mend the gate file (docs/parity.md shows the form)."
# at 0.5 the one-sided bound is the estimate itself, and no interval is left
LEAST_CONFIDENCE = 0.51
# limits beyond which a gate shows nothing, by unit
LEAST_FLOOR, MOST_LOSS = 0.01, 0.5
_FAR = {"nats": 10.0, "levels": 100.0}
_NAME_CHARS = frozenset("abcdefghijklmnopqrstuvwxyz0123456789-_.")


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
    gates = _gate_file(Fields(value, "", faults), faults)
    if faults:
        raise GateFileError(
            f"{where}: {faults[0]}.",
            faults=faults[1:],
            fix=_FIX,
        )
    return gates


def _gate_file(top: Fields, faults: list[str]) -> GateFile:
    top.choice("schema", (SCHEMA,))
    confidence = top.number("confidence", LEAST_CONFIDENCE, 0.9999, 0.975)
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
        alarm_confidence=top.number("alarm_confidence", LEAST_CONFIDENCE, 0.9999, 0.95),
        set_check=top.choice("set_check", ("any", "required"), "any"),
        baseline_floor=top.choice("baseline_floor", ("none", CHANCE, MAJORITY), "none"),
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
    if policy.threshold in (0.0, 1.0):
        fields.fault("threshold", f"is {policy.threshold:g}: both models act alike there")
    if policy.cost_act_to_hold == policy.cost_hold_to_act == 0:
        fields.fault("cost_act_to_hold", "and cost_hold_to_act are both 0: nothing costs anything")
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
        confidence=fields.number("confidence", LEAST_CONFIDENCE, 0.9999, confidence),
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
            f"must be one of {', '.join(SLICE_KEYS)} and a value, such as {{length: '*'}}",
        )
        return SliceSelector(SLICE_KEYS[0], "*")
    by, name = entries[0]
    return SliceSelector(str(by), str(name))


def _check_gate(fields: Fields, gate: Gate) -> None:
    facts = find_facts(gate.metric)
    if facts is None:
        fields.fault("metric", f"{gate.metric!r} is unknown; known: {', '.join(_gateable())}")
        return
    if not facts.gate:
        fields.fault("metric", f"{gate.metric} is for display only and cannot be gated")
    expected = "at_least" if facts.direction == "higher" else "at_most"
    if gate.direction != expected:
        fields.fault("direction", f"must be {expected}: {facts.direction} {gate.metric} is better")
    _check_limits(fields, gate, facts)
    _check_parameter(fields, gate)
    if gate.metric == "coverage":
        fields.fault("metric", "coverage is set by the top-level key `coverage`, always required")


def _check_limits(fields: Fields, gate: Gate, facts: MetricFacts) -> None:
    by_margin = facts.kind == "difference" or gate.reference == "replicate"
    given, other = (gate.margin, gate.bound) if by_margin else (gate.bound, gate.margin)
    name, wrong = ("margin", "bound") if by_margin else ("bound", "margin")
    if given is None or not math.isfinite(given):
        fields.fault(name, f"is missing: {gate.metric} needs a {name}")
    if other is not None:
        fields.fault(wrong, f"does not apply: {gate.metric} takes a {name}")
    if facts.unit == "fraction" and given is not None and given > 1:
        fields.fault(name, f"is {given:g}; figures are fractions, so 2 points are 0.02")
    elif given is not None and _shows_nothing(gate, facts, given):
        points = given == 1 and facts.unit == "fraction"
        hint = " (100 points); figures are fractions, so 1 point is 0.01" if points else ""
        fields.fault(name, f"is {given:g}: a limit that shows nothing{hint}")
    stem = gate.metric.partition("@")[0]
    if gate.reference == "replicate" and stem not in noise_floor_metrics():
        fields.fault("reference", f"{gate.metric} has no noise floor to be compared with")


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
        policy = next((p for p in gates.policies if p.name == parameter), None)
        if stem == "policy_cost" and policy is not None and gate.bound is not None:
            most = 10_000 * max(policy.cost_act_to_hold, policy.cost_hold_to_act)
            if gate.bound >= most:
                top.fault(
                    "gates",
                    f"{gate.name} allows a cost of {gate.bound:g}, and {parameter} can cost "
                    f"{most:g} at most: a limit that shows nothing",
                )


def _gateable() -> Sequence[str]:
    return [name for name, facts in load_facts().items() if facts.gate and name != "coverage"]
