"""JSON lines that are not what their tool writes: refused by their number, never a traceback."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from clefq.errors import PredictionsError
from clefq.importing.lines import read_decision_index
from clefq.importing.lm_eval import read_lm_eval
from clefq.importing.openai import read_openai
from clefq.importing.tables import read_csv
from clefq.importing.values import tokens

FILE = Path("odd.jsonl")


@pytest.mark.parametrize(
    "message",
    [
        "text",
        {"content": "a", "tool_calls": {"a": 1}},
        {"tool_calls": [{"function": None}]},
        {"tool_calls": [3]},
    ],
)
@pytest.mark.parametrize("logprobs", [{"content": ["text"]}, {"content": [{"top_logprobs": [0]}]}])
def test_openai(message: Any, logprobs: Any) -> None:
    choice = {"message": message, "logprobs": logprobs}
    value = {"custom_id": "r1", "response": {"body": {"choices": [choice]}}}
    with pytest.raises(PredictionsError) as caught:
        read_openai(FILE, [json.dumps(value)])
    assert caught.value.faults[0].startswith("odd.jsonl:1: ")


@pytest.mark.parametrize(
    "sample",
    [
        {"doc_id": 1, "arguments": ["text"], "filtered_resps": [[]]},
        {"doc_id": 1, "arguments": [["c", "a"], ["c", "b"]], "filtered_resps": [[], [0.1, False]]},
        {"doc_id": 1, "arguments": [["c", "a"]], "filtered_resps": [{"a": 1}]},
        # a place that is not there is no missing gold
        {
            "doc_id": 1,
            "target": 2,
            "arguments": [["c", "a"], ["c", "b"]],
            "filtered_resps": [[-1.0, False], [-2.0, False]],
        },
    ],
)
def test_lm_eval(sample: Any) -> None:
    with pytest.raises(PredictionsError) as caught:
        read_lm_eval(FILE, [json.dumps(sample)], None)
    assert caught.value.faults[0].startswith("odd.jsonl:1: ")


@pytest.mark.parametrize("template", ["{doc_id:9999999999d}", "{doc_id:{doc_id}d}", "{doc_id"])
def test_a_template_cannot_fill_the_memory(template: str) -> None:
    with pytest.raises(PredictionsError, match="--id") as caught:
        read_lm_eval(FILE, [], template)
    assert caught.value.fix


def test_decision_index() -> None:
    value = {"request_id": "r", "usage": [1], "answers": {"a": {"probabilities": {"x": 1}}}}
    with pytest.raises(PredictionsError):
        read_decision_index(FILE, [json.dumps(value)])


@pytest.mark.parametrize("value", [float("inf"), "1e999", 2**31, int("9" * 401), -1, 0.5])
def test_tokens_fit_their_column(value: Any) -> None:
    with pytest.raises(ValueError, match="input_tokens is"):
        tokens(value, "input_tokens")


def test_a_long_state_in_a_table() -> None:
    rows = ["record_id,choice,state", f"r1,a,{'x' * 140_000}"]
    assert len(read_csv(FILE, rows, None)) == 1
