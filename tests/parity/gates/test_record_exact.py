"""Exact records: a record counts once, and as right only if all of its questions are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clefq.parity.gates.files import load_gates
from clefq.parity.statistics.metric import Metric
from clefq.parity.statistics.metric_facts import REPORT, shown_in
from clefq.parity.statistics.pair_statistics import StatisticsSpec, compare
from clefq.parity.statistics.pairs import join
from clefq.store.predictions import Predictions
from tests.parity.factory import META, Design, make_pair, single

FAST = StatisticsSpec(resamples=400)
NAMES = ("record_exact_baseline", "record_exact_candidate", "record_exact_delta")
TWIN = ("accuracy_baseline", "accuracy_candidate", "accuracy_delta")


def right(predictions: Predictions) -> pd.Series:
    """Whether each row's answer is gold, by its definition."""
    frame = predictions.frame
    chosen = [
        options[int(np.argmax(values))]
        for options, values in zip(frame.option_ids, frame.logprobs, strict=True)
    ]
    return pd.Series(chosen, frame.index) == frame.gold


def one_question_per_record(predictions: Predictions) -> Predictions:
    """A set in which every record has one question: is it exact? Certain answers, no ties."""
    frame = predictions.frame
    exact = right(predictions).groupby(frame.record_id).all()
    first = frame.groupby("record_id").first().loc[exact.index]
    rows = pd.DataFrame(
        {
            "record_id": exact.index,
            "cohort": first.cohort.to_numpy(),
            "question_id": "exact",
            "question_type": "noul",
            "option_ids": [["true", "false"]] * len(exact),
            "logprobs": [np.log([0.9, 0.1]) if e else np.log([0.1, 0.9]) for e in exact],
            "gold": "true",
            "input_tokens": first.input_tokens.to_numpy(),
            "truncated_tokens": 0,
            "error": None,
        }
    )
    return replace(predictions, frame=rows)


def plain(metric: Metric) -> Metric:
    return replace(metric, bootstrap=None)


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 10**6))
def test_it_is_the_accuracy_of_a_set_of_one_question_per_record(seed: int) -> None:
    """Estimates, intervals and percentiles, overall and by cohort and length, to the bit."""
    base, cand = make_pair(Design(records=40, seed=seed))
    got = compare(join(base, cand), FAST)
    twin = compare(join(one_question_per_record(base), one_question_per_record(cand)), FAST)
    for ours, theirs in zip(NAMES, TWIN, strict=True):
        assert got.metrics[ours] == twin.metrics[theirs], ours
        assert plain(got.for_gate(ours)) == plain(twin.for_gate(theirs))
        for name in got.slices:
            if name.startswith(("cohort=", "length=")):
                assert got.slices[name][ours] == twin.slices[name][theirs], (ours, name)


def test_estimates_by_hand() -> None:
    base, cand = make_pair(Design(records=60, seed=4))
    got = compare(join(base, cand), FAST).metrics
    before, after = (right(side).groupby(base.frame.record_id).all() for side in (base, cand))
    assert got["record_exact_baseline"].estimate == pytest.approx(before.mean())
    assert got["record_exact_candidate"].estimate == pytest.approx(after.mean())
    delta = after.astype(int) - before.astype(int)
    assert got["record_exact_delta"].estimate == pytest.approx(delta.mean())
    assert got["record_exact_delta"].method == "tango"
    for name in NAMES:
        assert got[name].n_questions == got[name].n_records == 60
    # a record is right more rarely than a question
    assert got["record_exact_baseline"].estimate < got["accuracy_baseline"].estimate


def test_a_slice_holds_the_records_that_lie_wholly_in_it() -> None:
    base, cand = make_pair(Design(records=80, seed=6))
    got = compare(join(base, cand), FAST)
    types = base.frame.groupby("record_id").question_type.agg(set)
    for kind in ("noul", "choice", "score"):
        whole = types.index[[found == {kind} for found in types]]
        inside = right(cand)[base.frame.record_id.isin(whole)].groupby(base.frame.record_id).all()
        metric = got.slices[f"type={kind}"]["record_exact_candidate"]
        assert metric.n_records == len(whole) > 3
        assert metric.estimate == pytest.approx(inside.mean())


def test_one_question_per_record_is_the_accuracy() -> None:
    base, cand = make_pair(Design(records=50, questions=(1, 1), seed=2))
    got = compare(join(base, cand), FAST).metrics
    for ours, theirs in zip(NAMES, TWIN, strict=True):
        assert got[ours] == got[theirs]
    rows = {name: metric.to_json() for name, metric in got.items()}
    assert not set(NAMES) & set(shown_in(REPORT, rows))
    base, cand = make_pair(Design(records=50, seed=2))
    rows = {n: m.to_json() for n, m in compare(join(base, cand), FAST).metrics.items()}
    assert set(NAMES) <= set(shown_in(REPORT, rows))
    assert list(shown_in(REPORT, {n: m for n, m in rows.items() if n not in NAMES}))


def test_without_gold_there_is_no_figure() -> None:
    base, cand = make_pair(Design(records=30, gold=False))
    got = compare(join(base, cand), FAST).metrics
    for name in NAMES:
        assert (got[name].estimate, got[name].lower, got[name].n_questions) == (None, None, 0)


def test_questions_without_gold_do_not_count() -> None:
    base, cand = make_pair(Design(records=40, questions=(3, 3), seed=9))
    twins = []
    for side in (base, cand):
        frame = side.frame.copy()
        frame.loc[frame.question_id == "q1", "gold"] = None
        twins.append(replace(side, frame=frame))
    got = compare(join(*twins), FAST).metrics["record_exact_candidate"].estimate
    counted = cand.frame.question_id != "q1"
    expected = right(cand)[counted].groupby(cand.frame.record_id[counted]).all()
    assert got == pytest.approx(expected.mean())


def pair_of(before: list[list[float] | None], after: list[list[float] | None]) -> object:
    """One record of as many questions as there are rows, gold `a`; gates read these figures."""
    sides = [
        replace(
            single(rows, record_id="r", question_id=[f"q{i}" for i in range(len(rows))], gold="a"),
            meta=META if i == 0 else replace(META, variant="nvfp4"),
        )
        for i, rows in enumerate((before, after))
    ]
    found = compare(join(*sides), FAST)
    return found.metrics["record_exact_delta"].estimate, found.for_gate(
        "record_exact_delta"
    ).estimate


A, B, TIE = (
    [float(np.log(0.9)), float(np.log(0.1))],
    [float(np.log(0.1)), float(np.log(0.9))],
    [float(np.log(0.5))] * 2,
)


@pytest.mark.parametrize(
    ("before", "after", "seen", "worst"),
    [
        ([A, A], [A, A], 0, 0),
        ([A, A], [A, B], -1, -1),
        ([A, B], [A, A], 1, 1),
        ([A, B], [B, A], 0, 0),
        # a tie of the candidate may fall to the wrong side, one of the baseline to the right one
        ([A, A], [A, TIE], 0, -1),
        ([B, A], [A, TIE], 1, 0),
        ([A, TIE], [A, A], 0, 0),
        ([A, TIE], [A, B], -1, -1),
        # equal ties fall alike, on whatever side
        ([A, TIE], [A, TIE], 0, 0),
        ([TIE, B], [A, A], 1, 1),
        # what the baseline did not say is no gain; what the candidate did not say is a loss
        ([A, None], [A, A], 1, 0),
        ([B, None], [A, A], 1, 1),
        ([A, A], [A, None], -1, -1),
        ([None, B], [None, A], 0, 0),
    ],
)
def test_ties_and_failures_at_their_worst(
    before: list[list[float] | None], after: list[list[float] | None], seen: int, worst: int
) -> None:
    assert pair_of(before, after) == (seen, worst)


def test_a_gate_can_be_set_on_it(tmp_path: Path) -> None:
    path = tmp_path / "gates.yaml"
    path.write_text(
        """
schema: clefq.gates/1
name: cases
description: Whole cases count.
gates:
  - {name: exact, metric: record_exact_delta, direction: at_least, margin: 0.02}
  - {name: floor, metric: record_exact_candidate, direction: at_least, bound: 0.5}
"""
    )
    loaded = load_gates(str(path))
    assert [gate.metric for gate in loaded.gates.gates] == [
        "record_exact_delta",
        "record_exact_candidate",
    ]
