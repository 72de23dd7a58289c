"""Gate files: strict, every fault at once, templates and bound ones."""

from pathlib import Path

import pytest
import yaml

from clefq.errors import GateFileError
from clefq.parity.gates.files import TEMPLATES, freeze_text, load_gates
from clefq.parity.gates.schema import BoundBaseline, BoundSet, SliceSelector, parse_gates

SET = BoundSet("nano-eval", "a" * 64)
BASELINE = BoundBaseline("nano", None, "b" * 64)


def file_with(*gates: dict, **top: object) -> bytes:
    value = {"schema": "clefq.gates/1", "name": "t", "description": "d", "gates": list(gates)}
    return yaml.safe_dump(value | top).encode()


def gate(**changes: object) -> dict:
    base = {"name": "g", "metric": "agreement", "direction": "at_least", "bound": 0.9}
    return {key: value for key, value in (base | changes).items() if value is not None}


def faults_of(data: bytes) -> list[str]:
    with pytest.raises(GateFileError) as caught:
        parse_gates(data, "g.yaml")
    return [caught.value.message, *caught.value.faults]


def test_what_is_no_yaml_names_the_line_and_a_fix() -> None:
    with pytest.raises(GateFileError) as caught:
        parse_gates(b"gates: [1]\ngates: []\n", "g.yaml")
    assert caught.value.message == "g.yaml is not valid YAML, line 2: the key gates appears twice."
    assert caught.value.fix is not None


def test_bundled_templates_are_what_the_names_say() -> None:
    release = load_gates("release").gates
    required = {g.metric: (g.margin, g.bound) for g in release.gates if g.required}
    assert required == {
        "accuracy_delta": (0.02, None),
        "confident_agreement": (None, 0.98),
        "tv": (None, 0.05),
    }
    assert release.coverage == 0.999
    assert all(g.min_n >= 200 for g in release.gates if g.slice is not None and g.required)
    strict = load_gates("strict").gates
    by_name = {g.name: g for g in strict.gates}
    assert by_name["agreement"].bound == 0.95
    lengths = by_name["agreement-by-length"]
    assert (lengths.bound, lengths.slice.by, lengths.slice.value) == (0.90, "length", "*")
    assert lengths.required
    smoke = load_gates("smoke").gates
    assert all(g.min_n <= 100 for g in smoke.gates)
    assert max(g.margin or 0 for g in smoke.gates) >= 0.05


def test_templates_are_the_files_in_the_folder() -> None:
    folder = load_gates("release").path.parent
    assert {path.stem for path in folder.glob("*.yaml")} == set(TEMPLATES)
    for name in TEMPLATES:
        loaded = load_gates(name)
        assert loaded.gates.name == name
        assert loaded.bundled and not loaded.gates.bound
        assert {g.confidence for g in loaded.gates.gates} == {0.975}


def test_every_fault_is_reported_at_once() -> None:
    data = file_with(
        gate(name="a", metric="agreeement"),
        gate(name="a", metric="accuracy_delta", bound=0.02),
        gate(name="c", direction="at_most", min_n=0, spare=1),
        gate(name="d", slice={"colour": "red"}),
        confidence=1.5,
        supersedes="abc",
        other=3,
    )
    text = "\n".join(faults_of(data))
    for part in (
        "gates.0.metric 'agreeement' is unknown",
        "gates.1.margin is missing",
        "gates.1.bound does not apply",
        "gates.2.direction must be at_least",
        "gates.2.min_n must be at least 1, found 0",
        "gates.2.spare is unknown",
        "gates.3.slice.colour is unknown; known here: cohort, question, gold, type, options",
        "confidence must be from 0.51 to 0.9999, found 1.5",
        "supersedes must be 64 hex digits, found 'abc'",
        "other is unknown; known here: name",
        "gates: name 'a' appears more than once",
    ):
        assert part in text, part


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"metric": "ece_delta", "direction": "at_most", "bound": None, "margin": 0.1}, "display"),
        ({"metric": "coverage"}, "top-level key"),
        ({"bound": 98}, "2 points are 0.02"),
        ({"bound": True}, "must be a number"),
        ({"metric": "threshold_flips@1.5", "direction": "at_most"}, "between 0 and 1"),
        (
            {"metric": "coherence_tv_delta@empty", "direction": "at_most"},
            "needs one of all, opaque",
        ),
        ({"metric": "policy_cost@none", "direction": "at_most"}, "does not declare"),
        ({"required": "yes"}, "true or false"),
        ({"reference": "replicate"}, "needs a margin"),
    ],
)
def test_single_faults(changes: dict, part: str) -> None:
    assert part in "\n".join(faults_of(file_with(gate(**changes))))


@pytest.mark.parametrize(
    "data", [b"- 1\n", b"a: [\n", b"\xff\xfe", b"", b"schema: clefq.gates/2\n"]
)
def test_what_is_no_gate_file_is_refused(data: bytes) -> None:
    assert faults_of(data)


def test_gates_named_twice_are_refused_not_halved() -> None:
    data = file_with(gate()) + b"\ngates: []\n"
    with pytest.raises(GateFileError, match="the key gates appears twice"):
        parse_gates(data, "gates.yaml")


def test_missing_file_names_the_templates(tmp_path: Path) -> None:
    with pytest.raises(GateFileError) as caught:
        load_gates(str(tmp_path / "none.yaml"))
    assert "release" in str(caught.value.fix)


def test_frozen_template_is_bound_and_keeps_everything_else() -> None:
    template = load_gates("release")
    text = freeze_text(template.text, SET, BASELINE)
    bound = parse_gates(text.encode(), "bound.yaml")
    assert bound.bound
    assert (bound.eval_set, bound.baseline) == (SET, BASELINE)
    assert bound.gates == template.gates.gates
    assert template.text.splitlines()[0] in text
    with pytest.raises(GateFileError, match="bound already"):
        freeze_text(text, SET, BASELINE)


def test_half_bound_is_a_fault() -> None:
    data = file_with(gate(), eval_set={"name": "s", "sha256": "a" * 64})
    assert "bound together" in "\n".join(faults_of(data))
    nothing = {"model_id": "m", "model_revision": None, "model_sha256": None}
    data = file_with(gate(), eval_set={"name": "s", "sha256": "a" * 64}, baseline=nothing)
    assert "needs model_revision or model_sha256" in "\n".join(faults_of(data))


@pytest.mark.parametrize(
    "changes",
    [
        {"metric": "accuracy_delta", "margin": 1, "bound": None},
        {"metric": "tv", "direction": "at_most", "bound": 1},
        {"metric": "js", "direction": "at_most", "bound": 0.7},
        {"metric": "threshold_flips@0.5", "direction": "at_most", "bound": 1},
        {"metric": "agreement", "bound": 0},
        {"metric": "agreement", "margin": 1, "bound": None, "reference": "replicate"},
    ],
)
def test_a_limit_that_shows_nothing_is_refused(changes: dict) -> None:
    (fault,) = faults_of(file_with(gate(**changes)))
    assert "a limit that shows nothing" in fault


def test_a_floor_of_one_and_a_ceiling_of_zero_are_strict_not_empty() -> None:
    gates = (gate(bound=1.0), gate(name="h", metric="tv", direction="at_most", bound=0.0))
    assert len(parse_gates(file_with(*gates), "g.yaml").gates) == 2


@pytest.mark.parametrize("key", ["confidence", "alarm_confidence"])
def test_a_confidence_that_leaves_no_interval_is_refused(key: str) -> None:
    (fault,) = faults_of(file_with(gate(), **{key: 0.5}))
    assert "must be from 0.51" in fault


def test_slices_of_a_further_cohort_and_of_right_answers_are_read() -> None:
    text = (
        "schema: clefq.gates/1\nname: t\ndescription: d\ngates:\n"
        "- {name: a, metric: macro_f1_delta, direction: at_least, margin: 0.02,"
        " slice: {cohorts: {language: de}}}\n"
        "- {name: b, metric: accuracy_candidate, direction: at_least, bound: 0.8,"
        " slice: {gold: queue/*}}\n"
    )
    slices = [gate.slice for gate in parse_gates(text.encode(), "g.yaml").gates]
    assert slices == [SliceSelector(cohorts={"language": "de"}), SliceSelector(gold="queue/*")]
    with pytest.raises(GateFileError, match="slice"):
        parse_gates(text.replace("{language: de}", "{a: 1, b: 2}").encode(), "g.yaml")
