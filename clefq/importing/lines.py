"""JSON Lines with SystemOne's words: our own form, and the Decision Index's `results.jsonl`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from clefq.importing.answers import Answer, Asked, Key
from clefq.importing.values import Gathered, label, mapping, number, tokens


def read_jsonl(path: Path, file: Iterable[str]) -> dict[Key, Answer]:
    """Reads our own form.

    One question a line: `record_id`, `question_id` and `probabilities`, `logprobs` (objects by
    option) or `choice` (the chosen option); or one record a line: `record_id` and `answers`, as a
    SystemOne server sends them. Beside them `error`, `input_tokens`, `truncated_tokens`.

    Raises:
        PredictionsError: Lines are malformed.
    """
    return _read(path, file, _own)


def read_decision_index(path: Path, file: Iterable[str]) -> dict[Key, Answer]:
    """Reads a `results.jsonl`, with or without payloads, as the Decision Index's kit writes it.

    A record's id is the line's `run_id`. A status other than `ok` is an error of the record.

    Raises:
        PredictionsError: Lines are malformed.
    """
    return _read(path, file, _result)


def _read(path: Path, file: Iterable[str], parse: Any) -> dict[Key, Answer]:
    gathered = Gathered(path)
    for line, value in gathered.lines(file):
        with gathered.reading(line):
            for key, answer in parse(value, f"{path}:{line}"):
                gathered.add(key, answer)
    return gathered.result()


def _own(value: Any, where: str) -> Iterator[tuple[Key, Answer]]:
    if not isinstance(value, dict) or not isinstance(value.get("record_id"), str):
        raise ValueError("needs an object with a string record_id")
    record = value["record_id"]
    counts = [tokens(value.get(name, 0), name) for name in ("input_tokens", "truncated_tokens")]
    if "answers" in value:
        for question, found in mapping(value["answers"], "answers").items():
            answer = systemone_answer(found, where)
            answer.input_tokens, answer.truncated_tokens = counts
            yield (record, question), answer
        return
    if not isinstance(value.get("question_id"), str):
        raise ValueError("needs question_id, or answers")
    answer = Answer(where, input_tokens=counts[0], truncated_tokens=counts[1])
    if value.get("error"):
        answer.error = str(value["error"])
    elif "choice" in value and "probabilities" not in value and "logprobs" not in value:
        answer.label, answer.naming = label(value["choice"]), "texts"
    else:
        answer.logs = "logprobs" in value
        answer.values = _values(value.get("logprobs" if answer.logs else "probabilities"))
    yield (record, value["question_id"]), answer


def systemone_answer(answer: Any, where: str) -> Answer:
    """One question's answer as SystemOne servers send it.

    Raises:
        ValueError: It holds neither probabilities nor a choice.
    """
    if not isinstance(answer, dict):
        return Answer(where, values=_values(None))
    if answer.get("type") == "noul":
        yes = number(answer.get("noul"), "noul")
        return Answer(where, values={"true": yes, "false": 1.0 - yes})
    if "probabilities" not in answer and isinstance(answer.get("choice"), str):
        return Answer(where, label=answer["choice"])
    return Answer(where, values=_values(answer.get("probabilities")))


def _values(value: Any) -> dict[str, float]:
    if not isinstance(value, dict) or not value:
        raise ValueError("needs probabilities or logprobs: an object from option id to number")
    return {option: number(given, f"option {option!r}") for option, given in value.items()}


def _result(value: Any, where: str) -> Iterator[tuple[Key, Answer]]:
    line = mapping(value, "the line")
    record = line.get("run_id")
    if not isinstance(record, str) or not record:
        raise ValueError("needs a string run_id")
    status = line.get("status")
    if status != "ok":
        text = " ".join(str(line.get("error") or "no reason given").split())[:200]
        for question in _payload_questions(line) or (None,):
            answer = Answer(where, error=f"{status}: {text}")
            if question is not None:
                answer.asked = _asked(line, question, {})
            yield (record, question), answer
        return
    response = mapping(line.get("response"), "response")
    usage = response.get("usage") or {}
    count = tokens(usage.get("input_tokens") or 0, "input_tokens")
    for question, found in mapping(response.get("answers"), "answers").items():
        answer = systemone_answer(found, where)
        answer.input_tokens = count
        answer.asked = _asked(line, question, found)
        yield (record, question), answer


def _payload_questions(line: Mapping[str, Any]) -> Mapping[str, Any]:
    payload = line.get("payload")
    questions = payload.get("questions") if isinstance(payload, dict) else None
    return questions if isinstance(questions, dict) else {}


def _asked(line: Mapping[str, Any], question: str, found: Mapping[str, Any]) -> Asked:
    """The question: from the payload, or from the answer where the payload was left out."""
    cohort = str(line.get("dataset") or "imported")
    questions = _payload_questions(line)
    if questions:
        return Asked(questions.get(question) or {}, line["payload"].get("state"), cohort)
    sha256 = line.get("payload_sha256") or line.get("request_sha256")
    state = {"run_id": line["run_id"], "payload_sha256": sha256}
    kind = str(found.get("type"))
    names = list(found.get("probabilities") or ())
    if kind == "score":
        return Asked({"type": kind, "criteria": [None] * len(names)}, state, cohort)
    criteria = dict.fromkeys(names) if kind == "choice" else None
    body = {"type": kind} if criteria is None else {"type": kind, "criteria": criteria}
    return Asked(body, state, cohort)
