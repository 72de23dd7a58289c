"""Is this the answer to what was asked? Every reply of a load run is read and checked.

Without expectations a reply must answer each of its record's questions with probabilities over
exactly its options. With a predictions file its probabilities must also be that record's; where
they are another record's instead, the server has swapped two answers.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from clefq.engines.http_answers import AnswerError, read_answers
from clefq.errors import InputError

if TYPE_CHECKING:
    from clefq.clef.records import Record

Fault = Literal["", "malformed", "different", "swapped"]
# Question id to probabilities, options in prompt order.
Expected = Mapping[str, NDArray[np.float64]]
# Replies that were read before are not read again: a server mostly repeats itself bit for bit.
_KNOWN = 20_000


@dataclass(frozen=True, slots=True)
class CheckedReply:
    """What a reply is worth.

    Attributes:
        fault: Empty where nothing is wrong with it; `malformed` where a question has no answer
            of the right form; `different` where probabilities differ from the expected ones;
            `swapped` where they do, and are those of another record.
        tokens: Input tokens that the server reports.
        worst: Largest difference from an expected probability; None where nothing is expected.
    """

    fault: Fault
    tokens: int
    worst: float | None = None


class ReplyChecker:
    """Reads replies and compares them with what is expected.

    Args:
        records: What is asked.
        expected: Record id to what it must be answered; None where nothing is expected.
        tolerance: Largest difference of a probability that is no fault.
    """

    def __init__(
        self,
        records: Sequence[Record],
        expected: Mapping[str, Expected] | None = None,
        tolerance: float = 0.02,
    ) -> None:
        self._records = records
        self._expected = expected
        self._tolerance = tolerance
        self._known: dict[tuple[int, bytes], CheckedReply] = {}
        # only a record that asks the same could have been answered so
        self._alike: dict[object, list[str]] = defaultdict(list)
        for record in records:
            self._alike[_shape(record)].append(record.id)

    def judge(self, index: int, body: bytes) -> CheckedReply:
        """Reads the reply to record `index`."""
        known = self._known.get((index, body))
        if known is None:
            if len(self._known) >= _KNOWN:
                self._known.clear()
            known = self._known[index, body] = self._read(self._records[index], body)
        return known

    def _read(self, record: Record, body: bytes) -> CheckedReply:
        try:
            value = json.loads(body)
            if not isinstance(value, dict):
                return CheckedReply("malformed", 0)
            result = read_answers(record, value)
        except (ValueError, RecursionError, AnswerError):
            return CheckedReply("malformed", 0)
        if result.errors:
            return CheckedReply("malformed", result.input_tokens)
        expected = None if self._expected is None else self._expected.get(record.id)
        if expected is None:
            return CheckedReply("", result.input_tokens)
        got = {question: np.exp(row) for question, row in result.logprobs.items()}
        worst = _distance(got, expected)
        fault: Fault = ""
        if worst > self._tolerance:
            fault = "swapped" if self._is_anothers(record, got) else "different"
        return CheckedReply(fault, result.input_tokens, worst)

    def _is_anothers(self, record: Record, got: Expected) -> bool:
        assert self._expected is not None
        others = (other for other in self._alike[_shape(record)] if other != record.id)
        return any(
            _distance(got, self._expected[other]) <= self._tolerance
            for other in others
            if other in self._expected
        )


def read_expected(
    path: Path, records: Sequence[Record], set_sha256: str | None
) -> dict[str, Expected]:
    """Expected probabilities from a predictions file.

    Records that it holds an error for, or does not hold at all, are left out.

    Args:
        path: The file.
        records: What is asked.
        set_sha256: Hash of their set; None skips that comparison.

    Raises:
        InputError: Made on another set, holds none of the records, or asks other questions.
        PredictionsError: Not a predictions file.
    """
    from clefq.store.predictions import read_predictions

    predictions = read_predictions(path)
    frame, made_on = predictions.frame, predictions.meta
    fix = "give the predictions that were made on this set."
    if set_sha256 not in (None, made_on.eval_set_sha256):
        raise InputError(f"{path} was made on another set ({made_on.eval_set}).", fix=fix)
    rows: dict[str, dict[str, NDArray[np.float64]]] = defaultdict(dict)
    columns = (frame["record_id"], frame["question_id"], frame["option_ids"], frame["logprobs"])
    by_id = {record.id: {q.id: q.option_ids for q in record.questions} for record in records}
    for record_id, question, options, logprobs in zip(*columns, strict=True):
        asked = by_id.get(record_id)
        if asked is None or logprobs is None:
            continue
        if asked.get(question) != tuple(options):
            raise InputError(
                f"{path}: question {question!r} of record {record_id!r} is not the one of the set.",
                fix=fix,
            )
        rows[record_id][question] = np.exp(np.asarray(logprobs, dtype=np.float64))
    whole: dict[str, Expected] = {
        key: value for key, value in rows.items() if len(value) == len(by_id[key])
    }
    if not whole:
        raise InputError(f"{path} holds no answer to any of these records.", fix=fix)
    return whole


def _distance(got: Expected, expected: Expected) -> float:
    if got.keys() != expected.keys():
        return 1.0
    return max(float(np.abs(got[name] - expected[name]).max()) for name in expected)


def _shape(record: Record) -> object:
    return tuple(sorted((q.id, q.type, q.option_ids) for q in record.questions))
