"""Slices by what data name: further cohorts, questions, right answers; the largest only."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from clefq.parity.statistics import slices
from clefq.parity.statistics.confusion import moved_answers
from clefq.parity.statistics.curves import _reach
from clefq.parity.statistics.divergences import question_values
from clefq.parity.statistics.pair_statistics import StatisticsSpec, compare
from clefq.parity.statistics.pairs import PairingError, join
from clefq.parity.statistics.slices import gateable_slices, left_out, named_mask, slice_masks
from clefq.store.predictions import Predictions
from tests.parity.synthetic import Dial, make_world, meta, predictions

LANGUAGES = ("de", "fr", None)


def choices(rows: list[tuple[str, str, str, str, str]]) -> tuple[Predictions, Predictions]:
    """One question a record: (question, options, gold, baseline's, candidate's)."""
    frames = []
    for which in (3, 4):
        frames.append(
            pd.DataFrame(
                {
                    "record_id": f"r{index}",
                    "cohort": "c",
                    "question_id": row[0],
                    "question_type": "choice",
                    "option_ids": list(row[1]),
                    "logprobs": [
                        float(np.log(0.9 if o == row[which] else 0.1 / (len(row[1]) - 1)))
                        for o in row[1]
                    ],
                    "gold": row[2] or None,
                    "input_tokens": 10,
                    "truncated_tokens": 0,
                    "error": None,
                }
                for index, row in enumerate(rows)
            )
        )
    return Predictions(meta("bf16"), frames[0]), Predictions(meta("nvfp4"), frames[1])


def with_languages(found: Predictions) -> Predictions:
    record = found.frame.record_id.str[1:].astype(int) % len(LANGUAGES)
    texts = [None if (k := LANGUAGES[i]) is None else json.dumps({"language": k}) for i in record]
    return replace(found, frame=found.frame.assign(cohorts=pd.Series(texts, dtype=object)))


def test_figures_of_a_further_cohort_are_those_of_its_questions_alone() -> None:
    world = make_world(90)
    base, other = predictions(world, "bf16"), predictions(world, "nvfp4", Dial(swap=0.2))
    got = compare(join(with_languages(base), with_languages(other)), StatisticsSpec(resamples=50))
    assert [n for n in got.slices if n.startswith("cohort.")] == [
        "cohort.language=de",
        "cohort.language=fr",
    ]
    german = base.frame.record_id.str[1:].astype(int) % 3 == 0
    parts = [replace(side, frame=side.frame[german]) for side in (base, other)]
    alone = compare(join(*parts), StatisticsSpec(resamples=50, slices=False))
    part = got.slices["cohort.language=de"]
    assert part["accuracy_delta"].estimate == alone.metrics["accuracy_delta"].estimate
    assert part["agreement"].lower == alone.metrics["agreement"].lower


def test_a_file_without_further_cohorts_says_nothing_against_them_and_other_ones_do() -> None:
    world = make_world(30)
    base, other = predictions(world, "bf16"), predictions(world, "nvfp4")
    pairs = join(base, with_languages(other))
    assert set(pairs.cohorts) == {"language"}
    moved = with_languages(other)
    moved.frame.loc[moved.frame.cohorts.notna(), "cohorts"] = '{"language":"it"}'
    with pytest.raises(PairingError, match="further cohorts"):
        join(with_languages(base), moved)


def test_recall_of_a_class_is_accuracy_where_it_is_right() -> None:
    rows = [("q", "abc", "a", "a", "a")] * 6 + [("q", "abc", "a", "a", "b")] * 2
    rows += [("q", "abc", "b", "b", "b")] * 5 + [("other", "ab", "a", "b", "a")] * 3
    rows += [("q", "abc", "", "a", "c")]
    got = compare(join(*choices(rows)), StatisticsSpec(resamples=50))
    recall = got.slices["gold=q/a"]
    assert recall["accuracy_baseline"].estimate == 1
    assert recall["accuracy_candidate"].estimate == pytest.approx(6 / 8)
    assert recall["accuracy_delta"].n_questions == 8
    assert got.slices["gold=other/a"]["accuracy_delta"].estimate == 1
    assert {n for n in got.slices if n.startswith("question=")} == {"question=other", "question=q"}
    assert moved_answers(got.pairs, got.values) == {
        "moves": [
            {"question": "other", "baseline": "b", "candidate": "a"}
            | {"count": 3, "gained": 3, "lost": 0},
            {"question": "q", "baseline": "a", "candidate": "b"}
            | {"count": 2, "gained": 0, "lost": 2},
            {"question": "q", "baseline": "a", "candidate": "c"}
            | {"count": 1, "gained": 0, "lost": 0},
        ],
        "left_out": 0,
    }


def test_of_many_slices_the_largest_are_reported_and_all_large_ones_can_be_gated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(slices, "MOST_SLICES", 2)
    sizes = {"d": 12, "c": 30, "b": 12, "a": 3}
    rows = [(name, "xy", "x", "x", "x") for name, size in sizes.items() for _ in range(size)]
    pairs = join(*choices(rows))
    masks = slice_masks(pairs, question_values(pairs))
    assert [n for n in masks if n.startswith("question=")] == ["question=b", "question=c"]
    assert left_out(pairs) == {"question": 2, "gold": 2}
    assert gateable_slices(pairs, "question") == ["question=b", "question=c", "question=d"]
    assert int(named_mask(pairs, "question=a").sum()) == 3
    assert named_mask(pairs, "question=gone") is None
    got = compare(pairs, StatisticsSpec(resamples=50))
    assert got.for_gate("agreement", "question=d").n_questions == 12


def test_macro_f1_without_a_change_claims_no_certainty() -> None:
    rows = [("q", "abc", c, c, c) for c in "abc" for _ in range(100)]
    got = compare(join(*choices(rows)), StatisticsSpec(resamples=50, slices=False))
    figure = got.for_gate("macro_f1_delta", margin=-0.02)
    assert figure.estimate == 0 and figure.bootstrap.lower == figure.bootstrap.upper == 0
    # 1.22% of the answers may change unseen; spread evenly their loss is 1.5 times as large
    assert -0.025 < figure.lower < -0.0122
    few = compare(join(*choices(rows[:15])), StatisticsSpec(resamples=50, slices=False))
    assert few.for_gate("macro_f1_delta").lower < figure.lower


def test_reach_bounds_every_change_of_that_many_answers() -> None:
    rng = np.random.default_rng(3)
    gold = rng.choice(4, 200, p=[0.6, 0.2, 0.15, 0.05])
    before = np.where(rng.random(200) < 0.85, gold, rng.integers(0, 4, 200))

    def totals(answers: np.ndarray) -> list[np.ndarray]:
        right = np.bincount(gold[answers == gold], minlength=4)
        return [np.bincount(answers, minlength=4), right]

    def macro(answers: np.ndarray) -> float:
        predicted, right = totals(answers)
        return float(np.mean(2 * right / (predicted + np.bincount(gold, minlength=4))))

    columns = np.concatenate([np.bincount(gold), *totals(before), *totals(before)]).astype(float)
    reach = _reach(columns, np.full(4, 0.25), 5)
    worst = 0.0
    for target in range(4):  # the rarest class first, all into one other
        rare = np.flatnonzero((before == gold) & (gold == 3))[:5]
        after = before.copy()
        after[rare] = target
        worst = max(worst, macro(before) - macro(after))
    assert 0 < worst <= reach < 0.3
