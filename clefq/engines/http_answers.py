"""SystemOne answers back into log-probabilities, and how finely a server rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from clefq.engines.base import RecordResult

if TYPE_CHECKING:
    from clefq.clef.records import Question, Record

# Decimals that servers round to: four is the protocol's. Finer ones than six are not told apart
# from FP32 probabilities.
_DECIMALS = (4, 5, 6)
_ON_GRID = 1e-9
# FP32 probabilities sum to one within this; what is nearer is normalised.
_FP32_SUM = 1e-5


class AnswerError(Exception):
    """A response that cannot be read at all; the message is one line."""


def read_answers(record: Record, reply: Mapping[str, Any]) -> RecordResult:
    """Turns one response into a result; a question whose answer is malformed becomes an error.

    Args:
        record: What was asked.
        reply: The decoded response.

    Raises:
        AnswerError: There is no object `answers` in it.
    """
    answers = reply.get("answers")
    if not isinstance(answers, dict):
        raise AnswerError("the response has no answers")
    logprobs: dict[str, NDArray[np.float64]] = {}
    errors: dict[str, str] = {}
    for question in record.questions:
        try:
            logprobs[question.id] = _logprobs(question, answers.get(question.id))
        except AnswerError as error:
            errors[question.id] = str(error)
    usage = reply.get("usage")
    counts = usage if isinstance(usage, dict) else {}
    return RecordResult(
        record_id=record.id,
        option_ids={question.id: question.option_ids for question in record.questions},
        logprobs=logprobs,
        errors=errors,
        input_tokens=_count(counts.get("input_tokens")),
        truncated_tokens=_count(counts.get("x_truncated_tokens")),
    )


def _count(value: Any) -> int:
    """A count that a server may leave out."""
    return value if isinstance(value, int) and value >= 0 else 0


def settle(results: Sequence[RecordResult]) -> tuple[list[RecordResult], float | None]:
    """Finds how finely the server rounds, and fails the answers that its rounding cannot excuse.

    Rounded to d decimals, K probabilities may sum to 1 ± K·10⁻ᵈ/2: the predictions file declares
    the step, and the parity gates know what it hides.

    Returns:
        The results, and the step that every probability is a multiple of; None for exact ones.
    """
    values = [np.exp(row) for result in results for row in result.logprobs.values()]
    flat = np.concatenate(values) if values else np.zeros(0)
    quantum = next((10.0**-d for d in _DECIMALS if flat.size and _on_grid(flat, d)), None)
    return [_settled(result, quantum) for result in results], quantum


def _settled(result: RecordResult, quantum: float | None) -> RecordResult:
    kept: dict[str, NDArray[np.float64]] = {}
    errors = dict(result.errors)
    for question, row in result.logprobs.items():
        total = float(np.exp(row).sum())
        slack = 1e-12 if quantum is None else len(row) * quantum / 2 + 1e-12
        if abs(total - 1.0) <= slack:
            kept[question] = row
        else:
            errors[question] = _sum_error(total)
    return replace(result, logprobs=kept, errors=errors)


def _logprobs(question: Question, answer: Any) -> NDArray[np.float64]:
    """Natural-log probabilities in prompt order."""
    probabilities = _probabilities(question, answer)
    if bool((~np.isfinite(probabilities)).any() or (probabilities < 0).any()):
        raise AnswerError("the server's probabilities are not between 0 and 1")
    total = float(probabilities.sum())
    decimals = next((d for d in _DECIMALS if _on_grid(probabilities, d)), None)
    slack = _FP32_SUM if decimals is None else len(probabilities) * 10.0**-decimals / 2 + 1e-12
    if abs(total - 1.0) > slack:
        raise AnswerError(_sum_error(total))
    if decimals is None:
        probabilities = probabilities / total
    with np.errstate(divide="ignore"):  # a rounded zero is minus infinity
        return np.asarray(np.log(probabilities))


def _sum_error(total: float) -> str:
    return f"the server's probabilities sum to {total:.6f}"


def _probabilities(question: Question, answer: Any) -> NDArray[np.float64]:
    if not isinstance(answer, dict):
        raise AnswerError("the server did not answer this question")
    if answer.get("type") != question.type:
        raise AnswerError(f"the server answered with type {answer.get('type')!r}")
    if question.type == "noul":
        true = _number(answer.get("noul"))
        return np.array([true, 1.0 - true])
    given = answer.get("probabilities")
    if not isinstance(given, dict) or set(given) != set(question.option_ids):
        raise AnswerError("the server's options are not those that were asked")
    return np.array([_number(given[option]) for option in question.option_ids])


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise AnswerError(f"the server's probability is {value!r}")
    return float(value)


def _on_grid(values: NDArray[np.float64], decimals: int) -> bool:
    scaled = values * 10.0**decimals
    return bool((np.abs(scaled - np.round(scaled)) <= _ON_GRID * 10.0**decimals).all())
