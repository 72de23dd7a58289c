"""What a verdict must not fall for: foreign rows, rewritten gold, copies, weak baselines."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from clefq.errors import GateFileError
from clefq.parity.gates.compare import CandidateReport, JudgeSpec, judge_candidate
from clefq.parity.gates.files import LoadedGates
from clefq.parity.gates.schema import parse_gates
from clefq.parity.statistics.set_truth import OF_THE_SET, SetTruth, differences
from clefq.store.predictions import Predictions
from tests.parity.report.cases import NO_GIT
from tests.parity.synthetic import SET_SHA, Dial, World, make_world, predictions

GATES = """schema: clefq.gates/1
name: t
description: d.
set_check: {check}
baseline_floor: {floor}
gates:
  - {{name: agreement, metric: agreement, direction: at_least, bound: 0.9, min_n: 20}}
"""
EXCESS = """schema: clefq.gates/1
name: t
description: d.
gates:
  - name: excess
    metric: tv
    direction: at_most
    margin: 0.05
    reference: replicate
    min_n: 20
"""


def loaded(text: str = GATES, check: str = "any", floor: str = "none") -> LoadedGates:
    data = text.format(check=check, floor=floor).encode() if "{check}" in text else text.encode()
    return LoadedGates(parse_gates(data, "t.yaml"), data.decode(), "c" * 64, Path("t.yaml"))


@pytest.fixture(scope="module")
def world() -> World:
    return make_world(260)


@pytest.fixture(scope="module")
def pair(world: World) -> tuple[Predictions, Predictions]:
    return predictions(world, "bf16"), predictions(world, "fp8", Dial(noise=0.02))


def truth_of(file: Predictions) -> SetTruth:
    frame = file.frame
    rows = {
        (r.record_id, r.question_id): (r.cohort, r.question_type, tuple(r.option_ids), r.gold, None)
        for r in frame.itertuples()
    }
    return SetTruth.of(SET_SHA, rows)


def judge(
    pair: tuple[Predictions, Predictions],
    gates: LoadedGates | None = None,
    replicates: tuple[Predictions, ...] = (),
    **known: object,
) -> CandidateReport:
    spec = JudgeSpec(gates or loaded(), NO_GIT, resamples=200, **known)  # type: ignore[arg-type]
    return judge_candidate(*pair, spec, replicates)


def changed(file: Predictions, column: str, value: object, rows: int = 3) -> Predictions:
    frame = file.frame.copy()
    for at in range(rows):
        frame.at[at, column] = value(frame.loc[at]) if callable(value) else value
    return replace(file, frame=frame)


def test_the_set_itself_passes(pair: tuple[Predictions, Predictions]) -> None:
    found = judge(pair, loaded(check="required"), truth=truth_of(pair[0]))
    assert found.verdict.word == "pass" and found.coverage.set_read


@pytest.mark.parametrize(
    ("column", "value", "word"),
    [
        ("gold", lambda row: next(o for o in row.option_ids if o != row.gold), "gold"),
        ("gold", None, "gold"),
        ("cohort", "other", "cohort"),
        ("question_type", "choice2", "question type"),
        ("option_ids", lambda row: list(reversed(row.option_ids)), "options or their order"),
        ("record_id", lambda row: f"foreign-{row.record_id}", "rows that it does not hold"),
    ],
)
def test_what_both_files_changed_alike_is_invalid(
    pair: tuple[Predictions, Predictions], column: str, value: object, word: str
) -> None:
    """The two files agree with each other: only the set tells."""
    both = (changed(pair[0], column, value), changed(pair[1], column, value))
    found = judge(both, truth=truth_of(pair[0]))
    assert found.verdict.word == "invalid"
    assert [r.split(":")[0].split(" in ")[-1] for r in found.verdict.reasons] == [word, word]
    # a stored report keeps them, for those who judge it again without the set
    assert all(reason.startswith(OF_THE_SET) for reason in found.verdict.reasons)
    assert differences(truth_of(pair[0]), pair[0], "baseline") == []


def test_without_the_set_a_banner_says_so_and_gates_that_ask_for_it_do_not_pass(
    pair: tuple[Predictions, Predictions],
) -> None:
    found = judge(pair, set_read=False)
    assert found.verdict.word == "pass"
    assert any("the set was not read" in text for text in found.verdict.banners)
    found = judge(pair, loaded(check="required"), set_read=False)
    assert found.verdict.word == "inconclusive"
    assert "--eval SET" in found.verdict.reasons[0] and "--eval SET" in found.verdict.next_step


def test_a_replicate_that_is_the_candidate_excuses_nothing(
    world: World, pair: tuple[Predictions, Predictions]
) -> None:
    base, candidate = pair[0], predictions(world, "nvfp4", Dial(noise=0.5))
    relabelled = replace(candidate, meta=base.meta)
    found = judge((base, candidate), loaded(EXCESS), (relabelled,))
    assert found.verdict.word == "inconclusive"
    assert "candidate's to the last bit" in found.results[0].reason
    honest = predictions(world, "bf16", Dial(noise=0.01), seed=9)
    assert judge((base, candidate), loaded(EXCESS), (honest,)).results[0].status != "not_gated"
    unproven = replace(honest, meta=replace(honest.meta, model_sha256=None))
    found = judge((base, candidate), loaded(EXCESS), (unproven,))
    assert found.results[0].status == "not_gated" and found.verdict.word == "inconclusive"


def test_copied_records_are_no_evidence(pair: tuple[Predictions, Predictions]) -> None:
    def tenfold(file: Predictions) -> Predictions:
        parts = [
            file.frame.assign(record_id=file.frame.record_id + f"-{turn}") for turn in range(10)
        ]
        return replace(file, frame=pd.concat(parts, ignore_index=True))

    found = judge((tenfold(pair[0]), tenfold(pair[1])))
    records = pair[0].frame.record_id.nunique()
    assert found.coverage.copies == 9 * records
    assert found.verdict.word == "inconclusive" and "copies" in found.verdict.reasons[0]
    assert judge(pair).coverage.copies == 0


def test_answers_that_are_the_baselines_in_part_are_said(
    pair: tuple[Predictions, Predictions],
) -> None:
    base, candidate = pair
    frame = candidate.frame.copy()
    many = int(0.9 * len(frame))
    for at in range(many):
        frame.at[at, "logprobs"] = base.frame.at[at, "logprobs"]
    found = judge((base, replace(candidate, frame=frame)))
    assert found.coverage.identical >= many
    assert any("identical answers" in text for text in found.verdict.banners)
    assert not any("identical answers" in text for text in judge(pair).verdict.banners)


def test_a_copy_behind_a_rounding_is_said(pair: tuple[Predictions, Predictions]) -> None:
    frame = pair[0].frame.copy()
    with np.errstate(divide="ignore"):
        frame["logprobs"] = [np.log(np.round(np.exp(p), 2)) for p in frame.logprobs]
    meta = replace(pair[1].meta, probability_quantum=0.01)
    found = judge((pair[0], replace(pair[1], frame=frame, meta=meta)))
    assert any("rounded to the candidate's step" in text for text in found.verdict.banners)


def test_a_baseline_that_guesses_is_said_and_can_be_gated(world: World) -> None:
    rng = np.random.default_rng(3)
    random = World(world.frame, [rng.normal(size=len(x)) for x in world.logits])
    both = (predictions(random, "bf16"), predictions(random, "fp8", Dial(noise=1e-3)))
    found = judge(both)
    assert found.verdict.word == "pass"
    asked = judge(both, loaded(floor="chance"))
    assert asked.verdict.word == "inconclusive" and "uniform guess" in asked.verdict.reasons[0]
    good = (predictions(world, "bf16"), predictions(world, "fp8", Dial(noise=0.02)))
    assert judge(good, loaded(floor="chance")).verdict.word == "pass"
    assert judge(good, loaded(floor="majority")).verdict.word in ("pass", "inconclusive")


def test_a_constant_baseline_is_no_better_than_the_commonest_answer(world: World) -> None:
    ids = [f"x{k}" for k in range(len(world.frame))]
    rows = world.frame.assign(question_id="q", record_id=ids)
    rows = rows[rows.question_type == "noul"].reset_index(drop=True)
    constant = World(rows, [np.array([3.0, 0.0]) for _ in range(len(rows))])
    both = (predictions(constant, "bf16"), predictions(constant, "fp8", Dial(noise=1e-3)))
    found = judge(both)
    assert any(text.startswith("weak baseline") for text in found.verdict.banners)


@pytest.mark.parametrize(
    "gate",
    [
        "metric: agreement, direction: at_least, bound: 0.0001",
        "metric: agreement, direction: at_least, bound: 0",
        "metric: accuracy_delta, direction: at_least, margin: 0.999",
        "metric: tv, direction: at_most, bound: 0.999",
        "metric: kl, direction: at_most, bound: 1.0e+9",
        "metric: score_mae, direction: at_most, bound: 1000",
        "metric: policy_cost@p, direction: at_most, bound: 10000",
    ],
)
def test_limits_that_cannot_fail_are_refused(gate: str) -> None:
    policy = "{name: p, questions: '*', option: 'true', threshold: %s, " + (
        "cost_act_to_hold: %s, cost_hold_to_act: 0}"
    )
    head = "schema: clefq.gates/1\nname: t\ndescription: d\n"
    text = f"{head}policies: [{policy % ('0.5', '1')}]\ngates: [{{name: g, {gate}}}]\n"
    with pytest.raises(GateFileError, match="shows nothing"):
        parse_gates(text.encode(), "t.yaml")
    good = "{name: g, metric: agreement, direction: at_least, bound: 0.9}"
    for threshold, cost in (("0", "1"), ("1", "1"), ("0.5", "0")):
        text = f"{head}policies: [{policy % (threshold, cost)}]\ngates: [{good}]\n"
        with pytest.raises(GateFileError):
            parse_gates(text.encode(), "t.yaml")


@pytest.mark.parametrize(("rule", "word"), [("any", "pass"), ("invalid", "invalid")])
def test_cut_states_make_a_comparison_invalid_where_the_gates_say_so(
    pair: tuple[Predictions, Predictions], rule: str, word: str
) -> None:
    one, other = (changed(side, "truncated_tokens", 900) for side in pair)
    text = GATES.format(check="any", floor="none") + f"cut_states: {rule}\n"
    report = judge((one, other), loaded(text))
    assert report.verdict.word == word
    assert any(banner.startswith("states were cut: 3 of") for banner in report.verdict.banners)


def test_a_further_cohort_that_the_set_does_not_have_is_said(world: World) -> None:
    base = predictions(world, "bf16")
    moved = replace(base, frame=base.frame.assign(cohorts='{"language":"de"}'))
    assert differences(truth_of(base), base, "baseline") == []
    (fault,) = differences(truth_of(base), moved, "baseline")
    assert "further cohorts" in fault
