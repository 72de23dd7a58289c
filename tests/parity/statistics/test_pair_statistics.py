"""Whole comparisons: invariance to the bit, exact zeros, mirrored signs, adversarial inputs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clefq.errors import InputError
from clefq.parity.report.flips import flips_frame
from clefq.parity.statistics.figures import BOUNDED, STUDENTIZED
from clefq.parity.statistics.metric import Metric
from clefq.parity.statistics.pair_statistics import StatisticsSpec, compare
from clefq.parity.statistics.pairs import join
from tests.parity.factory import META, Design, make_pair, single
from tests.parity.statistics.test_pairs import permuted

FAST = StatisticsSpec(resamples=400)
HALF = [float(np.log(0.5))] * 2


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 10**6))
def test_no_order_and_no_thread_count_changes_a_bit(seed):
    base, cand = make_pair(Design(records=24, seed=seed))
    rng = np.random.default_rng(seed)
    first = compare(join(base, cand), FAST)
    second = compare(
        join(permuted(base, rng, False), permuted(cand, rng, True)), replace(FAST, threads=3)
    )
    assert first.metrics == second.metrics
    assert first.slices == second.slices


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 10**6))
def test_prompt_order_of_the_options_changes_nothing_but_ties(seed):
    base, cand = make_pair(Design(records=24, seed=seed))

    def relisted(predictions):
        frame = predictions.frame.copy()
        choice = frame.question_type != "score"
        for column in ("option_ids", "logprobs"):
            frame[column] = [
                list(v)[::-1] if c else v for v, c in zip(frame[column], choice, strict=True)
            ]
        return replace(predictions, frame=frame)

    first = compare(join(base, cand), FAST)
    second = compare(join(relisted(base), relisted(cand)), FAST)
    assert first.metrics == second.metrics


@settings(max_examples=6, deadline=None)
@given(st.integers(0, 10**6))
def test_identical_predictions_give_exact_zeros(seed):
    base, _ = make_pair(Design(records=20, seed=seed))
    got = compare(join(base, base), FAST)
    for scope in (got.metrics, *got.slices.values()):
        for name, metric in scope.items():
            if metric.n_questions == 0:
                continue
            if name in ("coverage", "agreement", "confident_agreement"):
                assert metric.estimate == 1.0
            elif not name.endswith(("_baseline", "_candidate")):
                assert metric.estimate == 0.0, name
    assert got.metrics["kl"].upper == 0.0
    delta = got.metrics["accuracy_delta"]
    assert delta.lower == -delta.upper < 0


@settings(max_examples=6, deadline=None)
@given(st.integers(0, 10**6))
def test_swapping_sides_flips_signs(seed):
    base, cand = make_pair(Design(records=30, seed=seed))
    one, two = compare(join(base, cand), FAST).metrics, compare(join(cand, base), FAST).metrics
    for name in ("accuracy_delta", "brier_delta", "nll_delta"):
        first, second = one[name], two[name]
        assert first.estimate == -second.estimate
        assert (first.lower, first.upper) == (-second.upper, -second.lower), name
        assert first.bootstrap.lower == -second.bootstrap.upper
    for name in ("tv", "js", "agreement", "score_mae", "threshold_flips@0.5"):
        assert one[name] == two[name], name
    assert one["accuracy_baseline"] == replace(two["accuracy_candidate"])


def test_estimates_by_hand():
    base, cand = make_pair(Design(records=50, seed=3))
    got = compare(join(base, cand), FAST).metrics
    p = [np.exp(row) for row in base.frame.logprobs]
    q = [np.exp(row) for row in cand.frame.logprobs]
    top = [(int(np.argmax(a)), int(np.argmax(b))) for a, b in zip(p, q, strict=True)]
    gold = [list(r.option_ids).index(r.gold) for r in base.frame.itertuples()]
    assert got["agreement"].estimate == pytest.approx(np.mean([a == b for a, b in top]))
    delta = np.mean([(b == g) - (a == g) * 1.0 for (a, b), g in zip(top, gold, strict=True)])
    assert got["accuracy_delta"].estimate == pytest.approx(delta)
    tv = np.mean([np.abs(a - b).sum() / 2 for a, b in zip(p, q, strict=True)])
    assert got["tv"].estimate == pytest.approx(tv)
    kl = np.mean([(a * np.log(a / b)).sum() for a, b in zip(p, q, strict=True)])
    assert got["kl"].estimate == pytest.approx(kl)
    score = base.frame.question_type == "score"
    mae = [abs(np.arange(len(a)) @ (a - b)) for a, b, s in zip(p, q, score, strict=True) if s]
    assert got["score_mae"].estimate == pytest.approx(np.mean(mae))
    assert got["score_mae"].n_questions == score.sum()
    noul = (base.frame.question_type == "noul").to_numpy()
    flips = [(a[0] >= 0.5) != (b[0] >= 0.5) for a, b, s in zip(p, q, noul, strict=True) if s]
    assert got["threshold_flips@0.5"].estimate == pytest.approx(np.mean(flips))
    margins = [np.diff(np.sort(a)[-2:])[0] for a in p]
    sure = [a == b for (a, b), m in zip(top, margins, strict=True) if m >= 0.5]
    assert got["confident_agreement"].estimate == pytest.approx(np.mean(sure))


def test_slices_partition_the_questions():
    base, cand = make_pair(Design(records=60, seed=5))
    got = compare(join(base, cand), FAST)
    for key in ("cohort", "type", "options", "length", "margin"):
        parts = [m["agreement"] for name, m in got.slices.items() if name.startswith(f"{key}=")]
        total = sum(part.n_questions for part in parts)
        assert total == got.metrics["agreement"].n_questions
        weighted = sum(part.estimate * part.n_questions for part in parts) / total
        assert weighted == pytest.approx(got.metrics["agreement"].estimate)
    assert "cohort=alpha" in got.slices
    assert "margin=>=0.5" in got.slices
    assert "length=2-8K" in got.slices


def test_a_slice_that_holds_everything_equals_the_whole():
    base, cand = make_pair(Design(records=20, cohorts=("only",)))
    got = compare(join(base, cand), FAST)
    assert got.slices["cohort=only"] == got.metrics


def test_failures_count_as_disagreements_flips_and_wrong_answers():
    base, cand = make_pair(Design(records=40, noise=0.0, seed=2))
    frame = cand.frame.copy()
    noul = frame.index[(frame.question_type == "noul") & (frame.gold == "true")][:2]
    for index in noul:
        frame.at[index, "logprobs"] = None
        frame.at[index, "error"] = "non-finite logits"
    got = compare(join(base, replace(cand, frame=frame)), FAST).metrics
    n = len(frame)
    assert got["coverage"].estimate == pytest.approx(1 - 2 / n)
    assert got["agreement"].estimate == pytest.approx(1 - 2 / n)
    assert got["threshold_flips@0.5"].estimate * got["threshold_flips@0.5"].n_questions == 2
    assert got["accuracy_delta"].estimate <= 0
    assert got["accuracy_delta"].n_questions == n
    assert got["tv"].n_questions == n - 2
    assert got["tv"].estimate == 0


def test_no_gold_leaves_accuracy_undefined_but_not_zero():
    base, cand = make_pair(Design(records=20, gold=False))
    got = compare(join(base, cand), FAST).metrics
    for name in ("accuracy_delta", "accuracy_baseline", "brier_delta", "nll_delta"):
        metric = got[name]
        assert (metric.estimate, metric.lower, metric.upper) == (None, None, None)
        assert (metric.n_questions, metric.n_records, metric.bootstrap) == (0, 0, None)
    assert got["agreement"].estimate is not None


def test_partial_gold_has_its_own_n():
    base, cand = make_pair(Design(records=30, seed=9))
    gold = base.frame.gold.where(base.frame.index % 3 == 0, None)
    pairs = join(
        replace(base, frame=base.frame.assign(gold=gold)),
        replace(cand, frame=cand.frame.assign(gold=gold)),
    )
    got = compare(pairs, FAST).metrics
    assert got["accuracy_delta"].n_questions == gold.notna().sum()
    assert got["agreement"].n_questions == len(base.frame)


def test_one_record_has_estimates_and_no_bounds():
    base, cand = make_pair(Design(records=1, questions=(6, 6)))
    for metric in compare(join(base, cand), FAST).metrics.values():
        assert metric.n_records <= 1
        assert metric.lower is None
        assert metric.upper is None
        assert metric.bootstrap is None


def test_infinite_divergence_is_counted_and_makes_the_mean_null():
    rows = [HALF] * 20
    base = single(rows, gold=["a"] * 20)
    cand = single([*rows[:-1], [-np.inf, 0.0]], gold=["a"] * 20)
    got = compare(join(base, cand), FAST).metrics
    assert (got["kl"].estimate, got["kl"].n_infinite, got["kl"].lower) == (None, 1, None)
    assert got["nll_delta"].n_infinite == 1
    assert got["tv"].estimate == pytest.approx(0.5 / 20)
    cand = replace(cand, meta=replace(META, probability_quantum=1e-4))
    floored = compare(join(base, cand), FAST).metrics["kl"]
    assert floored.n_infinite == 0
    assert floored.unit == "≥ nats"
    assert floored.estimate is not None


def test_everything_tied():
    base = single([HALF] * 30, gold=["a"] * 30)
    same = compare(join(base, base), FAST)
    assert same.metrics["agreement"].estimate == 1.0
    assert same.for_gate("agreement").estimate == 1.0
    cand = single([[np.log(0.6), np.log(0.4)]] * 30, gold=["a"] * 30)
    got = compare(join(base, cand), FAST)
    assert got.metrics["agreement"].estimate == 1.0
    assert got.for_gate("agreement").estimate == 0.0
    assert got.metrics["accuracy_delta"].estimate == 0.0
    # baseline right by luck of the order, or wrong: the candidate surely gains nothing
    assert got.for_gate("accuracy_delta").estimate == 0.0
    assert compare(join(cand, base), FAST).for_gate("accuracy_delta").estimate == -1.0


def test_255_options():
    base, cand = make_pair(Design(records=15, questions=(1, 1), most_options=255, seed=8))
    got = compare(join(base, cand), FAST)
    assert got.metrics["agreement"].n_questions == 15
    assert "options=>=100" in got.slices


@pytest.mark.parametrize("records", [40, 1400])
def test_means_are_studentized_at_every_size_and_bounded_ones_bounded_above(records):
    rows = [[float(np.log(p)), float(np.log(1 - p))] for p in np.linspace(0.1, 0.9, records)]
    moved = [[float(np.log(p)), float(np.log(1 - p))] for p in np.linspace(0.11, 0.88, records)]
    spec = StatisticsSpec(resamples=200, slices=False)
    metrics = compare(join(single(rows), single(moved)), spec).metrics
    assert metrics["kl"].method == STUDENTIZED
    assert metrics["tv"].method == BOUNDED
    assert metrics["tv"].lower < metrics["tv"].estimate < metrics["tv"].upper


def test_gate_figures_at_another_confidence_and_near_a_margin():
    base, cand = make_pair(Design(records=80, seed=6))
    got = compare(join(base, cand), replace(FAST, slices=False))
    wide, narrow = got.for_gate("tv", confidence=0.99), got.for_gate("tv", confidence=0.8)
    assert wide.lower < narrow.lower < narrow.upper < wide.upper
    assert got.for_gate("tv", margin=1.0).bootstrap.resamples == 400
    edge = got.for_gate("tv", margin=got.metrics["tv"].lower)
    assert edge.bootstrap.resamples > 400
    assert edge.lower == pytest.approx(got.metrics["tv"].lower, rel=0.05)
    # the upper bound is in closed form: no resample moves it
    assert got.for_gate("tv", margin=got.metrics["tv"].upper).bootstrap.resamples == 400
    assert got.for_gate("agreement", "cohort=alpha").n_questions > 0
    assert got.for_gate("agreement", "cohort=nowhere") is None
    assert got.for_gate("threshold_flips@0.7").n_questions > 0
    with pytest.raises(InputError, match="no gate can be set on loss"):
        got.for_gate("loss")


def test_seed_comes_from_gate_file_and_set():
    base, cand = make_pair(Design(records=40, seed=6))
    pairs = join(base, cand)
    first = compare(pairs, FAST).metrics["tv"]
    other = compare(pairs, replace(FAST, gate_file_sha256="f" * 64)).metrics["tv"]
    assert first.estimate == other.estimate
    assert first.bootstrap != other.bootstrap
    assert compare(pairs, FAST).metrics["tv"] == first


def test_metric_json_round_trips_and_is_strict():
    base, cand = make_pair(Design(records=20))
    for metric in compare(join(base, cand), FAST).metrics.values():
        assert Metric.from_json(metric.to_json()) == metric
    value = metric.to_json()
    with pytest.raises(InputError, match="extra"):
        Metric.from_json({**value, "extra": 1})
    del value["unit"]
    with pytest.raises(InputError, match="unit"):
        Metric.from_json(value)


def test_a_string_typed_frame_as_read_from_parquet():
    base, cand = make_pair(Design(records=15))
    typed = base.frame.astype({"record_id": "string", "cohort": "string", "gold": "string"})
    assert isinstance(typed.record_id.dtype, pd.StringDtype)
    got = compare(join(replace(base, frame=typed), cand), FAST)
    assert got.metrics == compare(join(base, cand), FAST).metrics


def test_a_cohort_without_a_single_answer():
    base, cand = make_pair(Design(records=40, seed=12))
    frame = cand.frame.copy()
    rows = frame.index[frame.cohort == "beta"]
    frame["logprobs"] = [None if i in rows else p for i, p in enumerate(frame.logprobs)]
    frame["error"] = [("out of memory" if i in rows else None) for i in range(len(frame))]
    got = compare(join(base, replace(cand, frame=frame)), FAST)
    beta = got.slices["cohort=beta"]
    assert (beta["agreement"].estimate, beta["coverage"].estimate) == (0.0, 0.0)
    assert beta["agreement"].upper > 0
    assert (beta["tv"].estimate, beta["tv"].n_questions) == (None, 0)
    assert beta["ece_delta"].estimate is None
    assert beta["accuracy_candidate"].estimate == 0.0
    assert beta["macro_f1_delta"].estimate < 0
    assert got.slices["cohort=alpha"]["coverage"].estimate == 1.0


def test_frames_with_an_added_question_on_one_side_only():
    base, cand = make_pair(Design(records=15, seed=3))
    extra = cand.frame.iloc[[0]].assign(question_id="new")
    got = compare(join(base, replace(cand, frame=pd.concat([cand.frame, extra]))), FAST).metrics
    assert got["agreement"].n_questions == len(base.frame) + 1
    assert got["coverage"].estimate == pytest.approx(1 - 1 / (len(base.frame) + 1))


def test_means_of_nothing_but_zeros_claim_no_certainty():
    base = single([HALF] * 40)
    metrics = compare(join(base, base), FAST).metrics
    assert metrics["tv"].estimate == 0
    # that of a share without an event, on 40 records
    assert metrics["tv"].upper == pytest.approx(1 - metrics["agreement"].lower)
    assert metrics["tv"].upper > 0.05
    assert 0 < metrics["js"].upper < metrics["tv"].upper


@pytest.mark.parametrize(
    ("rounded", "kl", "nll"),
    [
        ((None, None), "nats", "nats"),
        ((1e-4, None), "≥ nats", "nats"),
        ((None, 1e-4), "≥ nats", "≥ nats"),
    ],
)
def test_what_rounding_hides_is_in_the_unit(rounded, kl, nll):
    base, cand = (
        replace(side, meta=replace(META, probability_quantum=step))
        for side, step in zip(make_pair(Design(records=12)), rounded, strict=True)
    )
    metrics = compare(join(base, cand), FAST).metrics
    assert (metrics["kl"].unit, metrics["nll_delta"].unit) == (kl, nll)


def test_prompts_of_unknown_length_are_in_no_length_band():
    base, cand = make_pair(Design(records=12))
    for side in (base, cand):
        side.frame["input_tokens"] = 0
    found = compare(join(base, cand), FAST)
    assert not [name for name in found.slices if name.startswith("length=")]
    assert set(flips_frame(found.pairs, found.values)["length_band"]) == {"unknown"}


def test_a_set_that_one_record_dominates_has_no_bounds():
    base = single([HALF] * 400)
    base.frame["gold"] = "a"
    base.frame["question_id"] = [f"q{i}" for i in range(400)]
    for held, bounds in ((300, False), (1, True)):
        base.frame["record_id"] = [f"r{max(0, i - held + 1)}" for i in range(400)]
        found = compare(join(base, base), FAST)
        for name in ("agreement", "accuracy_delta", "tv", "kl"):
            metric = found.metrics[name]
            assert metric.n_records == 401 - held
            assert (metric.lower is not None) == bounds, name
            assert (found.for_gate(name).upper is not None) == bounds, name
