"""Readers of other tools' layouts, with rows written here in those layouts."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from clefq.clef.records import Record, parse_record
from clefq.data.index_results import result_lines
from clefq.errors import InputError, PredictionsError
from clefq.importing.answers import (
    Answer,
    are_labels,
    as_labels,
    import_answers,
    is_one_hot,
)
from clefq.importing.formats import ImportSpec, detect, read_answers
from clefq.importing.new_set import write_new_set
from clefq.store.predictions import Predictions
from clefq.store.sets import SetFolder, open_set
from tests.parity.factory import META


def record(id_: str = "r1", question: dict | None = None, **more: object) -> Record:
    questions = {"q": question or {"type": "noul"}}
    return parse_record(
        {"id": id_, "cohort": "c", "state": "s", "questions": questions, **more}, "t"
    )


def choice(*names: str) -> dict:
    return {"type": "choice", "criteria": dict.fromkeys(names)}


def write(folder: Path, *lines: object, name: str = "a.jsonl") -> Path:
    path = folder / name
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    path.write_text("\n".join(texts) + "\n", encoding="utf-8")
    return path


def imported(path: Path, *records: Record, spec: ImportSpec | None = None):
    return import_answers(records, read_answers(path, spec), None)


def sample(doc_id: int, logs: list[float], texts: list[str], **more: object) -> dict:
    arguments = {
        f"gen_args_{i}": {"arg_0": "context", "arg_1": f" {text}"} for i, text in enumerate(texts)
    }
    pairs = [[str(value), "False"] for value in logs]
    return {
        "doc_id": doc_id,
        "doc": {"id": f"x{doc_id}"},
        "target": "0",
        "arguments": arguments,
        "resps": [[pair] for pair in pairs],
        "filtered_resps": pairs,
        **more,
    }


def completion(id_: str, top: dict[str, float] | None, content: str = "A", **more: object) -> dict:
    places = [
        {"token": " ", "logprob": 0.0, "top_logprobs": []},
        {
            "token": content,
            "logprob": (top or {}).get(content, -0.5),
            "top_logprobs": [{"token": t, "logprob": v} for t, v in (top or {}).items()],
        },
    ]
    body = {"choices": [{"message": {"content": content}, "logprobs": {"content": places}}]}
    if top is None:
        body["choices"][0]["logprobs"] = None
    body["choices"][0]["message"] |= more
    return {"custom_id": id_, "response": {"status_code": 200, "body": body}, "error": None}


def test_formats_are_told_by_their_first_line(tmp_path: Path) -> None:
    cases = {
        "lm-eval": sample(0, [-1, -2], ["a", "b"]),
        "openai": completion("r", {"A": -0.1}),
        "decision-index": {"run_id": "r", "status": "ok"},
        "jsonl": {"record_id": "r", "question_id": "q", "error": "x"},
    }
    assert {name: detect(write(tmp_path, line)) for name, line in cases.items()} == {
        name: name for name in cases
    }
    assert detect(write(tmp_path, "{")) == "jsonl"
    with pytest.raises(InputError, match="unknown format"):
        read_answers(tmp_path / "a.jsonl", ImportSpec("xml"))
    with pytest.raises(InputError, match="--choice names a column"):
        read_answers(write(tmp_path, cases["jsonl"]), ImportSpec(choice="x", id="y"))


def test_log_likelihoods_become_a_distribution_over_matched_texts(tmp_path: Path) -> None:
    question = {"type": "choice", "criteria": {"A": "four", "B": "three"}}
    path = write(tmp_path, sample(0, [-3.0, -1.0], ["three", "four"]))
    frame, summary = imported(path, record("x0", question), spec=ImportSpec(id="{doc[id]}"))
    assert summary.answered == 1
    p = 1 / (1 + math.exp(-2.0))
    assert np.exp(frame.logprobs[0]) == pytest.approx([p, 1 - p])
    with pytest.raises(PredictionsError, match=r"row-\{doc\[x\]\} does not fit"):
        read_answers(path, ImportSpec(id="row-{doc[x]}"))
    with pytest.raises(PredictionsError, match="unknown 'three'"):
        imported(path, record("0", choice("four", "five")))


def test_a_generated_sample_is_a_label(tmp_path: Path) -> None:
    line = sample(0, [-1], ["x"], filtered_resps=[" blue "])
    frame, _ = imported(write(tmp_path, line), record("0", choice("blue", "red")))
    assert list(frame.logprobs[0]) == [0.0, -math.inf]


@pytest.mark.parametrize(
    ("target", "gold"), [("1", "b"), (0, "a"), ("b", "b"), ("none", None), ("7", None)]
)
def test_the_right_continuation(tmp_path: Path, target: object, gold: str | None) -> None:
    answers = read_answers(write(tmp_path, sample(3, [-1, -2], ["a", "b"], target=target)))
    asked = answers["3", ""].asked
    assert asked is not None and asked.gold == gold


def test_a_target_that_may_be_read_two_ways_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, sample(3, [-1, -2], ["1", "0"], target="1"))
    with pytest.raises(PredictionsError, match="may be a text or a place"):
        read_answers(path)


def test_the_first_tokens_alternatives_among_the_options(tmp_path: Path) -> None:
    top = {"A": math.log(0.6), " A": math.log(0.1), "B": math.log(0.2), "Hm": math.log(0.1)}
    frame, summary = imported(
        write(tmp_path, completion("r1", top)), record("r1", choice("A", "B"))
    )
    assert summary.answered == 1
    assert np.exp(frame.logprobs[0]) == pytest.approx([7 / 9, 2 / 9])
    yes = {"True": math.log(0.7), "false": math.log(0.3)}
    frame, _ = imported(write(tmp_path, completion("r1", yes, "True")), record("r1"))
    assert np.exp(frame.logprobs[0]) == pytest.approx([0.7, 0.3])


@pytest.mark.parametrize(
    ("line", "word"),
    [
        (completion("r1", {"A": -0.1}), "lack the option 'B'"),
        (completion("r1", {"A": -2.0, "B": -2.0}, "Hm"), "options hold 0.271"),
        ({**completion("r1", {}), "error": {"message": "busy"}}, "busy"),
        ({"custom_id": "r1", "response": {"status_code": 503}, "error": None}, "status 503"),
        (completion("r1", None, "neither"), "'neither' is none of the options"),
    ],
)
def test_completions_that_are_no_answer_are_errors_of_their_rows(
    tmp_path: Path, line: dict, word: str
) -> None:
    frame, summary = imported(write(tmp_path, line), record("r1", choice("A", "B")))
    assert summary.failed == 1
    assert word in frame.error[0]


def test_a_called_tool_is_a_label(tmp_path: Path) -> None:
    call = [{"function": {"name": "A", "arguments": "{}"}}]
    path = write(tmp_path, completion("r1", None, "text", tool_calls=call))
    frame, _ = imported(path, record("r1", choice("A", "B")))
    assert list(frame.logprobs[0]) == [0.0, -math.inf]


def test_results_join_by_request_and_errors_are_the_records(tmp_path: Path) -> None:
    answers = {"a": {"type": "choice", "probabilities": {"yes": 0.75, "no": 0.25}}}
    line = {"run_id": "1:x", "dataset": "D", "payload_sha256": "a1", "status": "ok"}
    first = {**line, "response": {"answers": answers, "usage": {"input_tokens": 7}}}
    path = write(tmp_path, first)
    given = read_answers(path)
    assert write_new_set(tmp_path / "set", given, path) == 1
    records = list(open_set(tmp_path / "set").records())
    assert (records[0].cohort, records[0].state["payload_sha256"]) == ("D", "a1")
    frame, _ = import_answers(records, given, None)
    assert frame.input_tokens[0] == 7
    failed = write(tmp_path, {**line, "status": "error", "error": "out of\nmemory"})
    frame, summary = imported(failed, *records)
    assert (summary.failed, frame.error[0]) == (1, "error: out of memory")
    other = write(tmp_path, {**first, "payload_sha256": "b2"})
    with pytest.raises(PredictionsError, match="its state is not the set's"):
        imported(other, *records)


def test_what_export_writes_is_read_back(tmp_path: Path) -> None:
    root = Path(__file__).resolve().parents[2] / "clefq/nano/sets/nano-eval"
    folder = open_set(root)
    rng = np.random.default_rng(0)
    given = {}
    records = list(folder.records())[:30]
    for one in records:
        for question in one.questions:
            p = rng.dirichlet(np.ones(len(question.option_ids)))
            given[one.id, question.id] = Answer("t", dict(zip(question.option_ids, p, strict=True)))
    frame, _ = import_answers(records, given, None)

    class Part(SetFolder):
        def records(self):
            return iter(records)

    part = Part(folder.path, folder.manifest)
    meta = replace(META, eval_set_sha256=folder.manifest.sha256)
    path = write(tmp_path, *result_lines(Predictions(meta, frame), part))
    again, summary = imported(path, *records)
    assert summary.answered == len(frame)
    for one, other in zip(frame.logprobs, again.logprobs, strict=True):
        assert np.exp(one) == pytest.approx(np.exp(other), abs=1e-12)


def test_one_probability_a_row_is_that_of_true(tmp_path: Path) -> None:
    path = write(tmp_path, "id,probability", "r1,0.75", "r2,0.5", name="a.csv")
    frame, _ = imported(path, record("r1"), record("r2"))
    assert np.exp(frame.logprobs[0]) == pytest.approx([0.75, 0.25])
    with pytest.raises(PredictionsError, match="one probability is no answer to a choice"):
        imported(path, record("r1", choice("a", "b")), record("r2"))


def test_labels_and_probabilities_do_not_mix(tmp_path: Path) -> None:
    lines = [
        {"record_id": "r1", "question_id": "q", "choice": True},
        {"record_id": "r2", "question_id": "q", "probabilities": {"true": 0.4, "false": 0.6}},
    ]
    answers = read_answers(write(tmp_path, *lines))
    with pytest.raises(PredictionsError, match="1 answers are labels"):
        are_labels(answers)
    as_labels(answers)
    assert are_labels(answers)
    frame, _ = import_answers([record("r1"), record("r2")], answers, None)
    assert [row[0] for row in frame.logprobs] == [0.0, -math.inf]


def test_zeros_and_ones_are_labels_in_disguise() -> None:
    def answers(*rows: dict[str, float]) -> dict:
        return {("r", str(i)): Answer("t", row) for i, row in enumerate(rows)}

    assert is_one_hot(answers({"a": 1.0, "b": 0.0}))
    assert not is_one_hot(answers({"a": 1.0, "b": 0.0}, {"a": 0.9, "b": 0.1}))
    assert not is_one_hot({})
    tied = answers({"a": 0.5, "b": 0.5})
    as_labels(tied)
    assert tied["r", "0"].error is not None


def test_what_contradicts_the_set_is_refused(tmp_path: Path) -> None:
    head = "id,options,gold,choice"
    path = write(tmp_path, head, "r1,a|b,b,a", name="a.csv")
    asked = record("r1", choice("a", "b"), gold={"q": "a"})
    with pytest.raises(PredictionsError, match="right answer is 'b', the set's 'a'"):
        imported(path, asked)
    two = parse_record(
        {
            "id": "r1",
            "cohort": "c",
            "state": 1,
            "questions": {"q": choice("a", "b"), "z": choice("a", "b")},
        },
        "t",
    )
    with pytest.raises(PredictionsError, match="name the question_id"):
        imported(path, two)
    write(tmp_path, "id,choice", "r1,a", name="b.csv")
    with pytest.raises(PredictionsError, match="no set can be made"):
        source = tmp_path / "b.csv"
        write_new_set(tmp_path / "n", read_answers(source), source)
    assert not (tmp_path / "n").exists()
