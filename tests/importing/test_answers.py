"""Probabilities from other tools: three forms, checked against the set."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clefq.clef.records import parse_record
from clefq.errors import PredictionsError
from clefq.importing.answers import NOT_ANSWERED, Answer, import_answers, rounding_step
from clefq.importing.formats import read_answers
from clefq.store.predictions import validate_frame


def record(rid="r1", **questions):
    if not questions:
        questions = {
            "ok": {"type": "noul"},
            "team": {"type": "choice", "criteria": {"b": None, "a": None, "c": None}},
            "mood": {"type": "score", "criteria": ["bad", "fair", "good"]},
        }
    gold = {"ok": "true"} if "ok" in questions else {}
    return parse_record(
        {"id": rid, "cohort": "mail", "state": "x", "questions": questions, "gold": gold}, "test"
    )


def write(tmp_path, name, text):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def lines(*values):
    return "".join(json.dumps(value) + "\n" for value in values)


PROBABILITIES = {
    "ok": {"true": 0.75, "false": 0.25},
    "team": {"c": 0.2, "a": 0.5, "b": 0.3},
    "mood": {"0": 0.1, "1": 0.2, "2": 0.7},
}


def as_csv(column="probability", change=lambda p: p):
    rows = [f"record_id,question_id,option_id,{column},input_tokens"]
    for question, options in PROBABILITIES.items():
        rows += [f"r1,{question},{o},{change(p)!r},12" for o, p in options.items()]
    return "\n".join(rows) + "\n"


def as_jsonl(key="probabilities", change=lambda p: p):
    return lines(
        *(
            {
                "record_id": "r1",
                "question_id": question,
                key: {o: change(p) for o, p in options.items()},
                "input_tokens": 12,
            }
            for question, options in PROBABILITIES.items()
        )
    )


def as_answers():
    return lines(
        {
            "record_id": "r1",
            "input_tokens": 12,
            "answers": {
                "ok": {"type": "noul", "noul": 0.75},
                "team": {"type": "choice", "probabilities": PROBABILITIES["team"]},
                "mood": {"type": "score", "score": 1.6, "probabilities": PROBABILITIES["mood"]},
            },
        }
    )


def log(p):
    return float(np.log(p))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.csv", as_csv()),
        ("b.csv", as_csv("logprob", log)),
        ("c.jsonl", as_jsonl()),
        ("d.jsonl", as_jsonl("logprobs", log)),
        ("e.jsonl", as_answers()),
        ("f.csv", "\ufeff" + as_csv()),
    ],
)
def test_all_forms_give_the_same_rows(tmp_path, name, text):
    answers = read_answers(write(tmp_path, name, text))
    frame, summary = import_answers([record()], answers, None)
    assert (summary.questions, summary.answered, summary.missing, summary.failed) == (3, 3, 0, 0)
    assert list(frame.question_id) == ["ok", "team", "mood"]
    assert frame.option_ids[1] == ["a", "b", "c"]
    assert np.exp(frame.logprobs[1]) == pytest.approx([0.5, 0.3, 0.2])
    assert np.exp(frame.logprobs[0]) == pytest.approx([0.75, 0.25])
    assert frame.gold[0] == "true"
    assert frame.gold[1:].isna().all()
    assert set(frame.cohort) == {"mail"}
    assert list(frame.input_tokens) == [12, 12, 12]
    assert validate_frame(frame) == []


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 255), st.integers(0, 10**6), st.floats(-9e-4, 9e-4))
def test_sums_that_are_nearly_one_are_divided_out(k, seed, off):
    p = np.random.default_rng(seed).dirichlet(np.full(k, 0.3)) * (1 + off)
    names = [f"o{i:03d}" for i in range(k)]
    one = record(q={"type": "choice", "criteria": dict.fromkeys(names)})
    answer = _answer(dict(zip(names, p.tolist(), strict=True)))
    frame, summary = import_answers([one], {("r1", "q"): answer}, None)
    assert summary.answered == 1
    assert validate_frame(frame) == []
    assert np.exp(frame.logprobs[0]) == pytest.approx(p / p.sum(), abs=1e-12)


def _answer(values, **changes):
    return Answer("file:1", values, **changes)


def test_a_quantum_keeps_the_numbers_and_allows_half_a_step_per_option():
    options = {"a": 0.3333, "b": 0.3333, "c": 0.3333}
    one = record(q={"type": "choice", "criteria": dict.fromkeys(options)})
    frame, _ = import_answers([one], {("r1", "q"): _answer(options)}, 1e-4)
    assert np.exp(frame.logprobs[0]) == pytest.approx([0.3333] * 3, abs=1e-15)
    assert validate_frame(frame, 1e-4) == []
    off = {"a": 0.34, "b": 0.3333, "c": 0.3333}
    frame, summary = import_answers([one], {("r1", "q"): _answer(off)}, 1e-4)
    assert summary.failed == 1
    assert "sum to 1.0066" in frame.error[0]


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ({"true": float("nan"), "false": 0.5}, "NaN"),
        ({"true": float("inf"), "false": 0.5}, "NaN or inf"),
        ({"true": -0.1, "false": 1.1}, "negative"),
        ({"true": 0.5, "false": 0.4}, "sum to 0.9"),
        ({"true": 0.0, "false": 0.0}, "sum to 0"),
    ],
)
def test_what_is_no_answer_becomes_a_row_with_its_error(values, word):
    one = record(ok={"type": "noul"})
    frame, summary = import_answers([one], {("r1", "ok"): _answer(values)}, None)
    assert (summary.answered, summary.failed) == (0, 1)
    assert word in frame.error[0]
    assert frame.logprobs[0] is None
    assert validate_frame(frame) == []


def test_zero_probability_is_kept():
    one = record(ok={"type": "noul"})
    frame, _ = import_answers([one], {("r1", "ok"): _answer({"true": 1.0, "false": 0.0})}, None)
    assert list(frame.logprobs[0]) == [0.0, -np.inf]
    assert validate_frame(frame) == []


def test_missing_questions_and_declared_errors_are_kept_apart(tmp_path):
    text = lines({"record_id": "r1", "question_id": "ok", "error": "timeout"})
    answers = read_answers(write(tmp_path, "a.jsonl", text))
    frame, summary = import_answers([record()], answers, None)
    assert (summary.missing, summary.failed, summary.answered) == (2, 1, 0)
    assert list(frame.error) == ["timeout", NOT_ANSWERED, NOT_ANSWERED]
    csv = "record_id,question_id,option_id,probability,error\nr1,ok,,,timeout\n"
    answers = read_answers(write(tmp_path, "a.csv", csv))
    assert import_answers([record()], answers, None)[0].error[0] == "timeout"


def test_answers_of_another_set_are_refused_and_all_named():
    answers = {
        ("r1", "ok"): _answer({"yes": 0.5, "false": 0.5}),
        ("r9", "ok"): _answer({"true": 0.5, "false": 0.5}),
    }
    with pytest.raises(PredictionsError) as caught:
        import_answers([record()], answers, None)
    text = str(caught.value)
    assert "unknown 'yes'; missing 'true'" in text
    assert "no question r9/ok" in text


@pytest.mark.parametrize(
    ("name", "text", "word"),
    [
        ("a.txt", "", "neither .csv nor .jsonl"),
        ("a.csv", "record_id,option_id\n", "lacks the columns probability"),
        ("a.csv", "record_id,question_id,option_id,probability\nr,q,a,x\n", "a.csv:2"),
        ("a.csv", "record_id,question_id,option_id,probability\nr,q,a,1\nr,q,a,1\n", "twice"),
        ("a.csv", "record_id,question_id,option_id,probability\nr,q,,1\n", "empty"),
        ("a.jsonl", "{\n", "a.jsonl:1"),
        ("a.jsonl", "[]\n", "record_id"),
        ("a.jsonl", lines({"record_id": "r"}), "question_id, or answers"),
        ("a.jsonl", lines({"record_id": "r", "answers": []}), "no object"),
        ("a.jsonl", lines({"record_id": "r", "question_id": "q"}), "needs probabilities"),
        (
            "a.jsonl",
            lines({"record_id": "r", "question_id": "q", "probabilities": {"a": True}}),
            "expected a number",
        ),
        (
            "a.jsonl",
            lines({"record_id": "r", "question_id": "q", "error": "x"}) * 2,
            "a.jsonl:2: r/q appears twice",
        ),
        (
            "a.jsonl",
            lines({"record_id": "r", "question_id": "q", "error": "x", "input_tokens": 1.5}),
            "whole number",
        ),
    ],
)
def test_malformed_files_name_line_and_fault(tmp_path, name, text, word):
    with pytest.raises(PredictionsError) as caught:
        read_answers(write(tmp_path, name, text))
    assert word in str(caught.value)


def test_missing_and_binary_files(tmp_path):
    with pytest.raises(PredictionsError, match="no file"):
        read_answers(tmp_path / "nowhere.csv")
    (tmp_path / "b.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(PredictionsError, match="UTF-8"):
        read_answers(tmp_path / "b.csv")


def test_long_lists_of_faults_are_cut(tmp_path):
    with pytest.raises(PredictionsError) as caught:
        read_answers(write(tmp_path, "a.jsonl", "[]\n" * 30))
    assert "30 malformed lines" in caught.value.message
    assert len(caught.value.faults) == 11
    assert caught.value.faults[-1] == "and 20 more"


def test_rounded_probabilities_are_recognised():
    rng = np.random.default_rng(0)

    def answers(decimals):
        found = {}
        for i in range(25):
            p = rng.random() if decimals is None else round(rng.random(), decimals)
            found["r", str(i)] = _answer({"true": p, "false": 1 - p})
        return found

    assert rounding_step(answers(4)) == 1e-4
    assert rounding_step(answers(2)) == 1e-2
    assert rounding_step(answers(None)) is None
    assert rounding_step(dict(list(answers(4).items())[:19])) is None
