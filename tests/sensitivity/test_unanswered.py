"""Questions that a variant answers infinitely wrong, or not at all, are never left out quietly."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np

from clefq.engines.base import RecordResult
from clefq.sensitivity.figures import Damage, Judge
from clefq.sensitivity.search import Costs
from tests.sensitivity.test_paired import BASE, EACH, RECORDS

N = RECORDS * EACH


def damage(broken: int) -> Damage:
    """BF16's own answers, the first ones missing."""
    results = []
    for number, (name, rows) in enumerate(BASE.frame.groupby("record_id", sort=False)):
        values = dict(zip(rows["question_id"], map(np.array, rows["logprobs"]), strict=True))
        lost = number < broken
        errors = {question: "not finite" for question in values} if lost else {}
        results.append(RecordResult(str(name), {}, {} if lost else values, errors, 10))
    records: list[Any] = [
        SimpleNamespace(
            id=result.record_id,
            cohort="c",
            cohorts={},
            gold={},
            questions=[
                SimpleNamespace(id=f"q{i}", type="choice", option_ids=("a", "b", "c"))
                for i in range(EACH)
            ],
        )
        for result in results
    ]
    bare = SimpleNamespace(meta=BASE.meta, frame=BASE.frame.assign(gold=None), path=None)
    return Judge(records, bare).measure(results).damage  # type: ignore[arg-type]


def cost(found: Damage) -> float:
    stored: Any = {("0.mlp", "fp8"): SimpleNamespace(result=SimpleNamespace(damage=found))}
    return Costs(SimpleNamespace(), stored, ("fp8",)).kl("0.mlp", "fp8")  # type: ignore[arg-type]


def test_a_block_that_leaves_questions_unanswered_is_not_chosen_for_it() -> None:
    assert cost(damage(0)) == 0.0
    assert cost(damage(1)) == math.inf


def test_a_prediction_over_an_infinite_block_is_infinite() -> None:
    judge = Judge([], BASE)
    assert judge.mean_kl([0.5] * N).estimate == 0.5
    found = judge.mean_kl([None, *[0.5] * (N - 1)])
    assert (found.estimate, found.n_infinite) == (None, 1)
