"""Joining: by id, in one order, with nothing dropped."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clefq.errors import ExitCode, PredictionsError
from clefq.parity.statistics.ordering import hash64, hash_ranks
from clefq.parity.statistics.pairs import MISSING, PairingError, join
from clefq.store.predictions import Predictions
from tests.parity.factory import META, Design, make_pair, single


def fnv_by_hand(text: str) -> int:
    mask = (1 << 64) - 1
    h = 0xCBF29CE484222325
    for byte in text.encode():
        h = ((h ^ byte) * 0x100000001B3) & mask
    h = ((h ^ (h >> 30)) * 0xBF58476D1CE4E5B9) & mask
    h = ((h ^ (h >> 27)) * 0x94D049BB133111EB) & mask
    return h ^ (h >> 31)


@given(st.lists(st.text(), max_size=12))
def test_hash_follows_the_written_rule(texts):
    got = hash64(np.array(texts, dtype=object))
    assert [int(h) for h in got] == [fnv_by_hand(text) for text in texts]


def test_ranks_are_a_permutation_in_hash_order():
    ids = np.array([f"record {i}" for i in range(1000)], dtype=object)
    ranks = hash_ranks(ids)
    hashes = hash64(ids)
    assert sorted(ranks) == list(range(1000))
    assert (np.diff(hashes[np.argsort(ranks)].astype(object)) > 0).all()


def permuted(predictions: Predictions, rng: np.random.Generator, options: bool) -> Predictions:
    frame = predictions.frame.sample(frac=1, random_state=int(rng.integers(2**31)))
    if options:
        # noul and score orders carry meaning; a choice question may list its options anyhow
        for index, row in frame.iterrows():
            order = rng.permutation(len(row.option_ids))
            frame.at[index, "option_ids"] = [row.option_ids[i] for i in order]
            frame.at[index, "logprobs"] = np.asarray(row.logprobs)[order]
    return replace(predictions, frame=frame.reset_index(drop=True))


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10**6))
def test_row_and_option_order_of_the_files_do_not_matter(seed):
    base, cand = make_pair(Design(records=12, seed=seed))
    rng = np.random.default_rng(seed)
    first = join(base, cand)
    second = join(permuted(base, rng, False), permuted(cand, rng, True))
    for name in ("record_ids", "record_index", "question_ids", "option_start", "position", "gold"):
        assert (getattr(first, name) == getattr(second, name)).all(), name
    assert first.candidate.logprobs.tobytes() == second.candidate.logprobs.tobytes()
    assert first.baseline.logprobs.tobytes() == second.baseline.logprobs.tobytes()


def test_every_answer_lands_where_it_belongs():
    base, cand = make_pair(Design(records=20, seed=4))
    pairs = join(base, cand)
    lookup = cand.frame.set_index(["record_id", "question_id"])
    for i in range(pairs.n_questions):
        row = lookup.loc[(pairs.record_ids[pairs.record_index[i]], pairs.question_ids[i])]
        assert pairs.options(i) == row.option_ids
        assert pairs.probabilities(pairs.candidate, i) == pytest.approx(np.exp(row.logprobs))
        code = pairs.option_code[pairs.gold[i]]
        assert pairs.option_names[code] == row.gold
        assert pairs.cohort[i] == row.cohort
        assert pairs.input_tokens[i] == row.input_tokens
    starts = np.concatenate([[0], np.cumsum(np.bincount(pairs.record_index))])
    assert (pairs.record_start == starts).all()


def test_missing_rows_count_as_failed_on_either_side():
    base, cand = make_pair(Design(records=10, seed=1))
    short = replace(cand, frame=cand.frame.iloc[3:].reset_index(drop=True))
    pairs = join(base, short)
    assert pairs.n_questions == len(base.frame)
    assert pairs.candidate.failed.sum() == 3
    assert set(pairs.candidate.error[pairs.candidate.failed]) == {MISSING}
    mirrored = join(short, base)
    assert mirrored.baseline.failed.sum() == 3
    assert (mirrored.gold >= 0).all()
    assert (mirrored.position == pairs.position).all()


@pytest.mark.parametrize(
    ("row", "word"),
    [
        ([np.nan, -0.1], "NaN"),
        ([np.inf, -0.1], "NaN"),
        ([-0.1], "one per option"),
        (None, "one per option"),
        ([np.log(0.5), np.log(0.498)], "sum"),
    ],
)
def test_unusable_answers_fail_and_stay(row, word):
    good = [[np.log(0.5), np.log(0.5)], [np.log(0.25), np.log(0.75)]]
    base = single(good)
    frame = base.frame.copy()
    frame["logprobs"] = pd.Series([np.array(good[0]), None if row is None else np.array(row)])
    pairs = join(base, replace(base, frame=frame))
    assert pairs.n_questions == 2
    assert pairs.candidate.failed.sum() == 1
    assert word in pairs.candidate.error[pairs.candidate.failed][0]
    assert np.isnan(pairs.candidate.logprobs).sum() == 2


def test_a_declared_quantum_widens_the_tolerated_sum():
    k = 78
    p = np.full(k, round(1 / k, 4))
    off = abs(p.sum() - 1)
    assert off > 1e-3
    rounded = single([list(np.log(p))])
    frame = rounded.frame.assign(option_ids=[[f"o{i:02d}" for i in range(k)]])
    exact = Predictions(META, frame)
    assert join(exact, exact).candidate.failed.all()
    declared = Predictions(replace(META, probability_quantum=1e-4), frame)
    assert not join(declared, declared).candidate.failed.any()


def test_files_of_different_sets_are_refused_as_wrong_input():
    base, cand = make_pair(Design(records=3))
    other = replace(cand, meta=replace(cand.meta, eval_set_sha256="cd" * 32))
    with pytest.raises(PredictionsError, match="different sets") as caught:
        join(base, other)
    assert caught.value.exit_code == ExitCode.USAGE


@pytest.mark.parametrize("column", ["option_ids", "gold", "cohort", "question_type"])
def test_contradictions_make_the_comparison_invalid(column):
    base = single([[np.log(0.5), np.log(0.5)]] * 3, gold="a")
    frame = base.frame.copy()
    other = {"option_ids": ["a", "z"], "gold": "b", "cohort": "d", "question_type": "score"}
    frame.at[1, column] = other[column]
    with pytest.raises(PairingError, match="r1/q") as caught:
        join(base, replace(base, frame=frame))
    assert caught.value.exit_code == ExitCode.INVALID


def test_a_contradiction_is_told_with_both_files_and_without_them(tmp_path):
    base = single([[np.log(0.5), np.log(0.5)]])
    other = base.frame.assign(cohort="d")
    paths = tmp_path / "old" / "bf16.parquet", tmp_path / "new" / "bf16.parquet"
    sides = replace(base, path=paths[0]), replace(base, frame=other, path=paths[1])
    with pytest.raises(PairingError) as caught:
        join(*sides)
    difference = "the cohort of r0/q (1 questions in all)"
    assert caught.value.difference == difference
    assert caught.value.message == f"{paths[0]} and {paths[1]} differ in {difference}."


def test_another_number_of_options_is_a_contradiction():
    base = single([[np.log(0.5), np.log(0.5)]] * 2)
    frame = base.frame.copy()
    frame.at[0, "option_ids"] = ["a", "b", "c"]
    frame.at[0, "logprobs"] = np.log([0.2, 0.3, 0.5])
    with pytest.raises(PairingError, match="option ids"):
        join(base, replace(base, frame=frame))


def test_duplicates_empty_files_and_foreign_gold_are_refused():
    base = single([[np.log(0.5), np.log(0.5)]] * 2)
    doubled = replace(base, frame=pd.concat([base.frame, base.frame.iloc[:1]]))
    with pytest.raises(PredictionsError, match="r0/q appears more than once"):
        join(base, doubled)
    empty = replace(base, frame=base.frame.iloc[:0])
    with pytest.raises(PredictionsError, match="no questions"):
        join(empty, empty)
    with pytest.raises(PredictionsError, match="none of its options"):
        join(replace(base, frame=base.frame.assign(gold="zz")), base)


def test_one_empty_side_fails_everything():
    base = single([[np.log(0.5), np.log(0.5)]] * 2)
    pairs = join(base, replace(base, frame=base.frame.iloc[:0]))
    assert pairs.candidate.failed.all()
    assert not pairs.baseline.failed.any()


def test_prompts_that_differ_are_known():
    base = single([[np.log(0.5)] * 2] * 5, input_tokens=[10, 10, 10, 0, 10])
    other = single([[np.log(0.5)] * 2] * 5, input_tokens=[10, 9, 10, 9, 10])
    other.frame["truncated_tokens"] = [0, 0, 3, 0, 0]
    other.frame.at[4, "option_ids"] = ["b", "a"]
    pairs = join(base, other)
    found = dict(zip(pairs.record_ids[pairs.record_index], pairs.other_prompt, strict=True))
    assert found == {"r0": False, "r1": True, "r2": True, "r3": False, "r4": True}
    # a length that one side did not count is the other's
    assert set(pairs.input_tokens[pairs.record_ids[pairs.record_index] == "r3"]) == {9}


def test_a_missing_row_is_no_other_prompt():
    base, cand = make_pair(Design(records=10, seed=1))
    short = replace(cand, frame=cand.frame.iloc[3:].reset_index(drop=True))
    assert not join(base, short).other_prompt.any()
    assert not join(short, base).other_prompt.any()
