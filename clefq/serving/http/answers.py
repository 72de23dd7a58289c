"""Answers in the two dialects: the release's, digit for digit, and the hosted API's."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from clefq.clef.answers import DIGITS, answer
from clefq.clef.records import Question
from clefq.serving.http.settings import Dialect
from clefq.serving.probabilities import as_released, exact


@dataclass(frozen=True, slots=True)
class Style:
    """How an answer is written.

    Attributes:
        dialect: Whose meaning `confidence` has.
        full: Numbers are not rounded; the typesafe dialect never rounds.
    """

    dialect: Dialect
    full: bool = False


@dataclass(frozen=True, slots=True)
class TokenUsage:
    """Tokens of a request.

    Attributes:
        input_tokens: Length of the prompt as run.
        truncated_tokens: Tokens cut from the end of its state.
    """

    input_tokens: int
    truncated_tokens: int = 0


def response_body(
    model: str,
    questions: tuple[Question, ...],
    logits: Mapping[str, NDArray[Any]],
    usage: TokenUsage,
    style: Style,
) -> dict[str, Any]:
    """The body of a 200 response.

    Args:
        model: Name to state.
        questions: As asked, in the request's order.
        logits: Question id to [options], float32, options in prompt order.
        usage: Token counts; truncation is stated only where there was any, so that the body is
            the release's otherwise.
        style: Dialect and precision.

    Raises:
        ValueError: A logit is NaN or +inf.
    """
    counted: dict[str, int] = {"input_tokens": usage.input_tokens, "output_tokens": 0}
    if usage.truncated_tokens:
        counted["x_truncated_tokens"] = usage.truncated_tokens
    return {
        "model": model,
        "answers": {q.id: _answer(q, logits[q.id], style) for q in questions},
        "usage": counted,
    }


def encode_json(value: Any) -> bytes:
    """Compact UTF-8 JSON, keys in their order.

    Raises:
        ValueError: A number is not finite.
    """
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.encode("utf-8")


def confidence(question: Question, probabilities: Mapping[str, float]) -> float:
    """The hosted API's confidence, from 0 (as good as a guess) to 1.

    choice: how far the top probability is above a uniform guess, (max p − 1/n) / (1 − 1/n).
    score: 1 − Σ pᵢ·|i − mode| / spread, where spread is the mean distance of the levels from
    their middle, what a uniform guess would have.

    Source: TypeSafe's documentation, as the contract suite `jevcompat` states it.
    """
    values = [probabilities[option] for option in question.option_ids]
    n = len(values)
    if n < 2:
        return 1.0
    top = max(values)
    if question.type == "choice":
        value = (top - 1 / n) / (1 - 1 / n)
    else:
        mode = values.index(top)
        middle = (n - 1) / 2
        spread = sum(abs(level - middle) for level in range(n)) / n
        value = 1 - sum(p * abs(level - mode) for level, p in enumerate(values)) / spread
    return min(1.0, max(0.0, value))


def _answer(question: Question, logits: NDArray[Any], style: Style) -> dict[str, Any]:
    if style.dialect == "release" and not style.full:
        return answer(question, as_released(question, logits), DIGITS)
    probabilities = exact(question, logits)
    value = answer(question, probabilities, None)
    if style.dialect == "typesafe" and question.type != "noul":
        value["confidence"] = confidence(question, probabilities)
    return value
