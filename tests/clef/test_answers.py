from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import log_softmax as scipy_log_softmax

from clefq.clef.answers import answer, log_softmax
from clefq.clef.records import parse_record
from tests.clef.generate import record


def test_answers_equal_the_release(release: ModuleType) -> None:
    rng = np.random.default_rng(0)
    kinds = set()
    for seed in range(300):
        raw = record(seed)
        for question in parse_record(raw, "test").questions:
            logits = rng.normal(scale=3, size=len(question.option_ids))
            shares = np.exp(log_softmax(logits)).tolist()
            if seed % 3 == 0:  # ties, so that the order of options decides
                shares = [1 / len(shares)] * len(shares)
            probabilities = dict(zip(question.option_ids, shares, strict=True))
            expected = release.systemone_answer(raw["questions"][question.id], probabilities)
            ours = answer(question, probabilities)
            assert ours == expected
            assert list(ours) == list(expected)
            if "probabilities" in ours:
                assert list(ours["probabilities"]) == list(expected["probabilities"])
            kinds.add(question.type)
    assert kinds == {"noul", "choice", "score"}


def test_full_precision_is_not_rounded() -> None:
    raw = {"type": "choice", "criteria": {"b": 1, "a": 2}}
    one = parse_record({"id": "r", "cohort": "c", "state": 0, "questions": {"q": raw}}, "test")
    exact = {"a": 1 / 3, "b": 2 / 3}
    ours = answer(one.questions[0], exact, digits=None)
    assert ours["probabilities"] == exact
    assert list(ours["probabilities"]) == ["b", "a"]
    assert answer(one.questions[0], exact)["confidence"] == 0.6667


@given(st.lists(st.floats(-500, 500), min_size=1, max_size=255))
@settings(max_examples=200, deadline=None)
def test_log_softmax_sums_to_one(logits: list[float]) -> None:
    ours = log_softmax(np.array(logits))
    assert abs(np.exp(ours).sum() - 1) <= 1e-12
    np.testing.assert_allclose(ours, scipy_log_softmax(logits), rtol=1e-12, atol=1e-12)


def test_log_softmax_keeps_zero_probabilities_and_refuses_non_finite() -> None:
    assert log_softmax(np.array([0.0, -np.inf])).tolist() == [0.0, -np.inf]
    for bad in ([np.nan, 1.0], [np.inf, 1.0], [-np.inf, -np.inf], []):
        with pytest.raises(ValueError, match="not finite"):
            log_softmax(np.array(bad))
