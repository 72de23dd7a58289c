"""Chat completions with logprobs: batch output files, or one saved response a line.

The first token that says something decides: its alternatives that are an option are the
distribution, made to sum to one among the options. An option that is not among the alternatives,
or options that hold less than half of the probability, make the row an error. Without logprobs
the text is a label; a called tool is one too.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from clefq.importing.answers import ONLY, Answer, Key
from clefq.importing.values import Gathered, mapping, number, tokens

_IDS = ("custom_id", "record_id", "id")


def read_openai(path: Path, file: Iterable[str]) -> dict[Key, Answer]:
    """Reads a JSON Lines file of chat or text completions.

    The record's id is `custom_id`, `record_id` or `id`; `question_id` may stand beside it. The
    completion is the line itself, its `response`, or `response.body`.

    Raises:
        PredictionsError: Lines are malformed.
    """
    gathered = Gathered(path)
    for line, value in gathered.lines(file):
        with gathered.reading(line):
            outer = mapping(value, "the line")
            record = next((outer[name] for name in _IDS if isinstance(outer.get(name), str)), "")
            if not record:
                raise ValueError("needs a string custom_id")
            question = str(outer.get("question_id") or ONLY)
            gathered.add((record, question), _answer(outer, f"{path}:{line}"))
    return gathered.result()


def _answer(outer: Mapping[str, Any], where: str) -> Answer:
    response = outer.get("response") or outer
    status = response.get("status_code", 200) if isinstance(response, dict) else 200
    if outer.get("error") or status != 200:
        text = " ".join(str(outer.get("error") or f"status {status}").split())
        return Answer(where, error=text[:200])
    body = mapping(mapping(response, "response").get("body") or response, "body")
    choices = body.get("choices")
    if not isinstance(choices, list) or not choices:
        raise ValueError("needs choices")
    choice = mapping(choices[0], "choices.0")
    answer = Answer(where, naming="tokens")
    usage = body.get("usage") or {}
    answer.input_tokens = tokens(usage.get("prompt_tokens") or 0, "prompt_tokens")
    alternatives = _alternatives(choice.get("logprobs"))
    if alternatives:
        answer.values, answer.logs = alternatives, True
    else:
        answer.label, answer.naming = _text(choice), "texts"
    return answer


def _text(choice: Mapping[str, Any]) -> str:
    message = choice.get("message") or {}
    calls = message.get("tool_calls")
    if calls:
        return str(mapping(calls[0], "tool_calls.0").get("function", {}).get("name"))
    return str(message.get("content") or choice.get("text") or "").strip()


def _alternatives(logprobs: Any) -> dict[str, float]:
    """Token → logprob at the first place whose token is more than space; empty without any."""
    if not isinstance(logprobs, dict):
        return {}
    for place in logprobs.get("content") or ():
        if str(place.get("token", "")).strip():
            given = [*(place.get("top_logprobs") or ()), place]
            found = {str(item["token"]): number(item["logprob"], "logprob") for item in given}
            return _finite(found)
    for token, top in zip(
        logprobs.get("tokens") or (), logprobs.get("top_logprobs") or (), strict=False
    ):
        if str(token).strip():
            return _finite({str(name): number(value, "logprob") for name, value in top.items()})
    return {}


def _finite(values: dict[str, float]) -> dict[str, float]:
    if any(math.isnan(value) or value > 1e-6 for value in values.values()):
        raise ValueError("a logprob is above 0 or no number")
    return values
