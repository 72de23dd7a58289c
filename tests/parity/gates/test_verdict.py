"""From judged gates to one verdict: order, caps, bindings, next step."""

from dataclasses import replace

import pytest

from clefq.clef.formats import MEANT_ARITHMETIC
from clefq.errors import ExitCode
from clefq.parity.gates.judging import GateResult
from clefq.parity.gates.schema import BoundBaseline, BoundSet, Gate, GateFile
from clefq.parity.gates.verdict import (
    Coverage,
    Verdict,
    VerdictInputs,
    caps,
    draw_verdict,
    worst,
)
from tests.parity.synthetic import OTHER_SHA, SET_SHA, meta

GATES = GateFile("t", "d", (Gate("g", "agreement", "at_least", None, 0.9),))
FULL = Coverage(1000, 0, 0, 1000, 0.999)


def result(status: str, name: str = "g", *, required: bool = True, needed: int | None = None):
    return GateResult(
        name=name, metric="agreement", slice=None, direction="at_least", margin=None, bound=0.9,
        reference="baseline", confidence=0.975, status=status, required=required,
        reason="because", estimate=0.95, lower=0.89, upper=0.97, n_questions=1000,
        n_records=500, questions_needed=needed,
    )  # fmt: skip


def evidence(*results: GateResult, **changes: object) -> VerdictInputs:
    base = VerdictInputs(GATES, tuple(results), FULL, meta("bf16"), meta("fp8"))
    return replace(base, **changes)


def verdict(*results: GateResult, **changes: object) -> Verdict:
    return draw_verdict(evidence(*results, **changes))[0]


def test_verdicts_order_and_exit_codes() -> None:
    assert worst(["pass", "inconclusive", "fail", "invalid"]) == "invalid"
    assert worst(["pass", "inconclusive", "fail"]) == "fail"
    assert worst(["pass", "inconclusive"]) == "inconclusive"
    assert worst(["pass"]) == "pass"
    assert worst([]) == "inconclusive"
    codes = {
        "pass": verdict(result("pass")),
        "fail": verdict(result("pass"), result("fail", "h")),
        "inconclusive": verdict(result("pass"), result("inconclusive", "h")),
        "invalid": verdict(result("fail"), coverage=replace(FULL, valid=998, candidate_failed=2)),
    }
    assert {word: found.word for word, found in codes.items()} == {word: word for word in codes}
    assert [int(found.exit_code) for found in codes.values()] == [0, 1, 3, 4]


def test_a_required_gate_that_is_not_gated_counts_as_inconclusive() -> None:
    assert verdict(result("pass"), result("not_gated", "h")).word == "inconclusive"
    assert verdict(result("pass"), result("not_gated", "h", required=False)).word == "pass"
    assert verdict(result("pass"), result("fail", "h", required=False)).word == "pass"


def test_no_required_gate_is_inconclusive() -> None:
    assert verdict().word == "inconclusive"
    assert verdict(result("pass", required=False)).word == "inconclusive"


def test_coverage_comes_first_and_its_edge_counts_as_met() -> None:
    edge = Coverage(1000, 0, 1, 999, 0.999)
    assert verdict(result("pass"), coverage=edge).word == "pass"
    broken = verdict(result("fail"), coverage=Coverage(1000, 0, 2, 998, 0.999, ("r1/q1: NaN",)))
    assert broken.word == "invalid"
    assert any("r1/q1" in reason for reason in broken.reasons)
    assert verdict(result("pass"), coverage=Coverage(0, 0, 0, 0, 0.999)).word == "invalid"


@pytest.mark.parametrize("scheme", sorted(MEANT_ARITHMETIC))
def test_other_arithmetic_than_the_scheme_means_never_passes_but_can_fail(scheme: str) -> None:
    wrong = "w4a16" if MEANT_ARITHMETIC[scheme] != "w4a16" else "bf16"
    ran = meta("x", scheme=scheme, arithmetic=wrong)
    found, results = draw_verdict(evidence(result("pass"), candidate=ran))
    assert found.word == "inconclusive"
    assert [r.status for r in results] == ["inconclusive"]
    assert wrong in found.reasons[0] and scheme in found.reasons[0]
    assert verdict(result("fail"), candidate=ran).word == "fail"
    assert (
        verdict(result("pass"), candidate=replace(ran, arithmetic=MEANT_ARITHMETIC[scheme])).word
        == "pass"
    )


def test_unknown_scheme_is_not_checked() -> None:
    assert verdict(result("pass"), candidate=meta("imported")).word == "pass"


def test_simulated_kernels_put_up_a_banner_and_cannot_pass_where_real_ones_are_required() -> None:
    simulated = meta("nvfp4", kernels="simulated")
    found = verdict(result("pass"), candidate=simulated)
    assert found.word == "pass"
    assert "real kernels" in found.next_step and "Ship" not in found.next_step
    assert any("simulated" in banner for banner in found.banners)
    real = replace(GATES, kernels="real")
    assert verdict(result("pass"), candidate=simulated, gates=real).word == "inconclusive"
    assert verdict(result("pass"), candidate=meta("nvfp4"), gates=real).word == "pass"


def test_a_server_that_does_not_say_what_it_runs_is_no_proof_of_real_kernels() -> None:
    silent = replace(meta("unknown"), engine="http", dtype="unknown", device="unknown")
    found = verdict(result("pass"), candidate=silent)
    assert found.word == "pass"
    assert any("unknown arithmetic (candidate)" in banner for banner in found.banners)
    real = replace(GATES, kernels="real")
    capped = verdict(result("pass"), candidate=silent, gates=real)
    assert capped.word == "inconclusive"
    assert any("does not say" in reason for reason in capped.reasons)
    spoken = replace(silent, dtype="unspecified")
    assert verdict(result("pass"), candidate=spoken, gates=real).word == "pass"


@pytest.mark.parametrize(
    ("eval_sha", "bound", "word"),
    [
        (SET_SHA, BoundBaseline("m", None, meta("bf16").model_sha256), "pass"),
        (OTHER_SHA, BoundBaseline("m", None, meta("bf16").model_sha256), "invalid"),
        (SET_SHA, BoundBaseline("m", None, OTHER_SHA), "invalid"),
        (SET_SHA, BoundBaseline("m", "deadbeef", None), "invalid"),
    ],
)
def test_bound_gates_are_for_one_set_and_one_baseline(
    eval_sha: str, bound: BoundBaseline, word: str
) -> None:
    gates = replace(GATES, eval_set=BoundSet("s", eval_sha), baseline=bound)
    assert verdict(result("pass"), gates=gates).word == word


def test_next_step_names_the_largest_number_of_further_questions() -> None:
    found = verdict(
        result("inconclusive", "a", needed=1500), result("inconclusive", "b", needed=4000)
    )
    assert found.more_questions == 3000
    assert "3,000 questions" in found.next_step
    # a gate on half of the questions: twice as many must be added to the set
    half = replace(result("inconclusive", needed=1500), n_questions=500)
    assert verdict(half).more_questions == 2000
    # one gate that is on the wrong side already: no further questions make it pass
    leaning = replace(result("inconclusive", "low", needed=2500), estimate=0.89)
    lower = replace(result("inconclusive", "lower", needed=9000), estimate=0.885)
    failing = verdict(result("inconclusive", "b", needed=4000), lower, leaning)
    assert failing.more_questions == 1500
    assert "leans to FAIL (lower, low)" in failing.next_step
    stuck = verdict(
        result("inconclusive", "a", needed=1500), result("inconclusive", "b", needed=None)
    )
    assert stuck.more_questions is None
    assert "hardly" in stuck.next_step


def test_reasons_name_the_gate_its_figure_and_its_limit() -> None:
    (reason,) = verdict(result("fail")).reasons
    assert reason == "g: 95.00% [89.00, 97.00], needs ≥ 90.00%: because"


def test_exit_code_type() -> None:
    assert verdict(result("pass")).exit_code is ExitCode.PASS


def test_different_prompts_are_invalid_where_both_were_built_here() -> None:
    cut = replace(FULL, other_prompt=2)
    found = verdict(result("pass"), coverage=cut)
    assert found.word == "invalid" and "2 of 1,000" in found.reasons[0]
    assert verdict(result("fail"), coverage=cut).word == "invalid"
    edge = verdict(result("pass"), coverage=replace(FULL, other_prompt=1))
    assert edge.word == "pass" and any("different prompts" in text for text in edge.banners)
    # a server may count or cut otherwise without saying so
    served = verdict(result("pass"), coverage=cut, baseline=meta("bf16", engine="http"))
    assert served.word == "pass" and any("different prompts" in text for text in served.banners)


def test_the_baselines_answers_under_another_name_never_pass() -> None:
    same = verdict(result("pass"), mean_tv=0.0)
    assert same.word == "inconclusive" and "baseline's" in same.sentence
    assert verdict(result("pass"), mean_tv=1e-9).word == "pass"
    again = meta("again", model_sha256=meta("bf16").model_sha256)
    control = verdict(result("pass"), candidate=again, mean_tv=0.0)
    assert control.word == "pass" and any("same checkpoint" in text for text in control.banners)
    rounded = meta("fp8", probability_quantum=0.01)
    assert verdict(result("pass"), candidate=rounded, mean_tv=0.0).word == "pass"


def test_clipped_inputs_put_up_a_banner() -> None:
    shares = {"model.layers.0.q_proj": 0.0005, "model.layers.3.down_proj": 0.021}
    found = verdict(result("pass"), candidate=meta("nvfp4", clipped=shares))
    (text,) = (text for text in found.banners if text.startswith("inputs are clipped"))
    assert "in 1 of 2 places" in text and "most in model.layers.3.down_proj (2.1%)" in text
    assert text.endswith("(candidate); calibrate on records like those that it is to serve")
    few = verdict(result("pass"), candidate=meta("nvfp4", clipped=dict.fromkeys(shares, 0.0009)))
    assert not any("clipped" in text for text in few.banners)


def test_a_quantized_baseline_puts_up_a_banner() -> None:
    found = verdict(result("pass"), baseline=meta("nvfp4"), candidate=meta("bf16"))
    assert any("swapped" in text for text in found.banners)
    found = verdict(result("pass"), baseline=meta("fp8"), candidate=meta("nvfp4"))
    assert any("not with BF16" in text for text in found.banners)
    assert not any("swapped" in text for text in found.banners)


@pytest.mark.parametrize("role", ["baseline", "candidate"])
def test_what_nobody_says_caps_the_gates(role: str) -> None:
    """An arithmetic that a server does not state is not taken for the one that is meant."""
    metas = {"baseline": meta("bf16"), "candidate": meta("x")}
    metas[role] = replace(metas[role], arithmetic="unknown")
    assert caps(GATES, metas["baseline"], metas["candidate"]) == (
        f"nobody says in what arithmetic the {role} ran",
    )
