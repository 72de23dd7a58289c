"""What other tools answered becomes the rows of a predictions file, checked against the set.

Options, order, cohort, type and gold come from the set, never from the file. What is no answer
(NaN, a sum that is off, an option that nobody offered) becomes a row with an error and counts
against coverage; what contradicts the set (another state, other options, another gold) is refused.

An import holds probabilities or labels, not both: of a label alone nothing but agreement and
accuracy can be judged, and nothing is made up to judge more.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import pandas as pd

from clefq.clef.records import Question, Record
from clefq.errors import PredictionsError
from clefq.plain_files import compact_json
from clefq.store.predictions import schema_for

MAX_FAULTS = 10
SUM_SLACK = 1e-3
# this many questions whose every probability is a multiple of one decimal step were rounded
ROUNDED_FROM = 20
# options that hold less than this of a first token's probability are not what the model answered
LEAST_MASS = 0.5
NOT_ANSWERED = "no answer in the imported file"
# in place of a question's id: the only one of its record
ONLY = ""

# record and question; no question: all of the record
Key = tuple[str, str | None]
# how the names in `Answer.values` become option ids: as they are; ids or descriptions, compared
# without the space around them; tokens, of which those that are no option are left out
Naming = Literal["ids", "texts", "tokens"]


@dataclass(frozen=True, slots=True)
class Asked:
    """What a file says of the question itself, for a new set or to be held against one.

    Attributes:
        question: As in a record: `type`, `instructions`, `criteria`.
        state: The record's state; None where the file does not hold it.
        cohort: Name of the record's cohort.
        gold: The right option, or None.
        verbatim: Whether the state is what a record would hold, and not a prompt made of it.
    """

    question: Mapping[str, Any]
    state: Any = None
    cohort: str = "imported"
    gold: str | None = None
    verbatim: bool = True


@dataclass(slots=True)
class Answer:
    """What a file says about one question.

    Attributes:
        where: `file:line`, for messages.
        values: Option → probability, or natural log of it; empty for a label.
        logs: Whether `values` are logs.
        label: The chosen option where nothing else is known.
        naming: What the names in `values` and `label` are.
        relative: Whether logs are to be made to sum to one, as log-likelihoods of texts are.
        single: Whether `values` come from one probability, that of `true`.
        error: Why there is no answer, or None.
        input_tokens: Tokens of the prompt; 0 where the file does not say.
        truncated_tokens: Tokens cut off the state.
        asked: What the file says of the question.
    """

    where: str
    values: dict[str, float] = field(default_factory=dict)
    logs: bool = False
    label: str | None = None
    naming: Naming = "ids"
    relative: bool = False
    single: bool = False
    error: str | None = None
    input_tokens: int = 0
    truncated_tokens: int = 0
    asked: Asked | None = None


@dataclass(frozen=True, slots=True)
class ImportSummary:
    """What an import found.

    Attributes:
        questions: Questions of the set.
        answered: Those with a valid answer.
        missing: Those that the file lacks.
        failed: Those whose answer is unusable or an error.
        renormalised: Those whose sum was off one by up to 1e-3 and was divided out.
        first_error: The commonest error, or None.
    """

    questions: int
    answered: int
    missing: int
    failed: int
    renormalised: int
    first_error: str | None = None


def import_answers(
    records: Iterable[Record], answers: Mapping[Key, Answer], quantum: float | None
) -> tuple[pd.DataFrame, ImportSummary]:
    """Builds a predictions frame for a set.

    Args:
        records: The set's records.
        answers: What the file says; questions that it lacks become rows with an error.
        quantum: Rounding step of the probabilities; they are then kept as they are. Without one,
            sums that are off by up to 1e-3 are divided out.

    Raises:
        PredictionsError: Answers to questions that the set lacks, or that contradict the set.
    """
    rows: list[dict[str, Any]] = []
    faults: list[str] = []
    missing = renormalised = 0
    unused = set(answers)
    for record in records:
        for question in record.questions:
            key, answer = _find(answers, record, question)
            unused.discard(key)
            if answer is None:
                missing += 1
                answer = Answer("", error=NOT_ANSWERED)
            fault = _contradiction(answer, record, question)
            if fault is not None:
                faults.append(f"{answer.where}: {record.id}/{question.id}: {fault}")
                continue
            outcome = _logprobs(answer, question, quantum)
            renormalised += outcome[2]
            rows.append(_row(record, question, answer, outcome[:2]))
    faults += [
        f"{answers[key].where}: {_no_such(key)}"
        for key in sorted(unused, key=lambda key: (key[0], key[1] or ""))
    ]
    if faults:
        raise PredictionsError(
            f"{len(faults)} answers do not belong to this set.",
            fix="import the file with the set it was made on.",
            faults=first_faults(faults),
        )
    further = ["cohorts"] if any(row["cohorts"] is not None for row in rows) else []
    frame = pd.DataFrame(rows, columns=schema_for(further).names)
    errors = [row["error"] for row in rows if row["error"] is not None]
    own = [error for error in errors if error != NOT_ANSWERED]
    return frame, ImportSummary(
        questions=len(rows),
        answered=len(rows) - len(errors),
        missing=missing,
        failed=len(errors) - missing,
        renormalised=renormalised,
        first_error=max(own, key=own.count) if own else None,
    )


def are_labels(answers: Mapping[Key, Answer]) -> bool:
    """Whether the answers are labels.

    Raises:
        PredictionsError: Some are, others are probabilities.
    """
    labels = [answer for answer in answers.values() if answer.label is not None]
    given = [answer for answer in answers.values() if answer.values]
    if labels and given:
        raise PredictionsError(
            f"{len(labels):,} answers are labels without probabilities, {len(given):,} have "
            f"probabilities; first {labels[0].where} and {given[0].where}.",
            fix="import one kind: as labels, all of them, or those with probabilities alone.",
        )
    return bool(labels)


def is_one_hot(answers: Mapping[Key, Answer]) -> bool:
    """Whether every probability is 0 or 1, as tools write labels."""
    given = [answer for answer in answers.values() if answer.values]
    return bool(given) and all(
        not answer.logs and set(answer.values.values()) <= {0.0, 1.0} for answer in given
    )


def as_labels(answers: Mapping[Key, Answer]) -> None:
    """Makes labels of probabilities, in place: the most probable option; ties are an error."""
    for answer in answers.values():
        if not answer.values:
            continue
        best = max(answer.values.values())
        chosen = [option for option, value in answer.values.items() if value == best]
        answer.values = {}
        if len(chosen) == 1 and not math.isnan(best):
            answer.label = chosen[0]
        elif answer.error is None:
            answer.error = "several options are the most probable, or none"


def rounding_step(answers: Mapping[Key, Answer]) -> float | None:
    """The decimal step of which every probability is a multiple, or None.

    Looks at probabilities only (not logs), down to six decimals; fewer than 20 questions decide
    nothing.
    """
    given = [a for a in answers.values() if a.values and not a.logs]
    if len(given) < ROUNDED_FROM:
        return None
    values = np.array([p for a in given for p in a.values.values()])
    values = values[np.isfinite(values)]
    for decimals in range(1, 7):
        scaled = values * 10**decimals
        if bool(np.all(np.abs(scaled - np.rint(scaled)) < 1e-6)):
            return float(f"1e-{decimals}")
    return None


def first_faults(faults: list[str]) -> list[str]:
    """The first ten, and how many more there are."""
    more = len(faults) - MAX_FAULTS
    return faults if more <= 0 else [*faults[:MAX_FAULTS], f"and {more} more"]


def _find(
    answers: Mapping[Key, Answer], record: Record, question: Question
) -> tuple[Key, Answer | None]:
    keys: list[Key] = [(record.id, question.id)]
    if len(record.questions) == 1:
        keys.append((record.id, ONLY))
    keys.append((record.id, None))
    found = next((key for key in keys if key in answers), keys[0])
    return found, answers.get(found)


def _no_such(key: Key) -> str:
    if key[1] == ONLY:
        return f"the set has no record {key[0]!r} with one question; name the question_id"
    return f"the set has no {'record' if key[1] is None else 'question'} " + "/".join(
        part for part in key if part
    )


def _contradiction(answer: Answer, record: Record, question: Question) -> str | None:
    """What the answer says of the question that the set does not."""
    asked = answer.asked
    if asked is not None and asked.verbatim and asked.state not in (None, record.state):
        return "its state is not the set's"
    if asked is not None and asked.gold is not None:
        gold = record.gold.get(question.id, asked.gold)
        if gold != asked.gold:
            return f"its right answer is {asked.gold!r}, the set's {gold!r}"
    if answer.error is not None or answer.label is not None or answer.naming == "tokens":
        return None
    if answer.single and question.type != "noul":
        return f"one probability is no answer to a {question.type} question; give one an option"
    names = option_names(question, answer.values, answer.naming)
    given = {names.get(name, name) for name in answer.values}
    if given == set(question.option_ids) and len(given) == len(answer.values):
        return None
    return _option_fault(given, question)


def option_names(question: Question, names: Iterable[str], naming: Naming) -> dict[str, str]:
    """Option ids of the names that a file uses; names that are none are left out.

    Args:
        question: The question.
        names: Names as the file has them.
        naming: What they are.
    """
    ids = set(question.option_ids)
    if naming == "ids":
        return {name: name for name in names if name in ids}
    texts = {option: option for option in question.option_ids}
    if naming == "texts":
        described = [
            (o.description, o.id) for o in question.options if isinstance(o.description, str)
        ]
        once = [text for text, _ in described]
        texts |= {t.strip(): o for t, o in described if once.count(t) == 1 and t.strip() not in ids}
    if question.type == "noul":
        texts |= {option.capitalize(): option for option in question.option_ids}
    return {name: texts[name.strip()] for name in names if name.strip() in texts}


def _option_fault(given: set[str], question: Question) -> str:
    extra = sorted(given - set(question.option_ids))
    lacking = sorted(set(question.option_ids) - given)
    parts = []
    if extra:
        parts.append(f"unknown {', '.join(map(repr, extra[:3]))}")
    if lacking:
        parts.append(f"missing {', '.join(map(repr, lacking[:3]))}")
    return f"options differ: {'; '.join(parts) or 'one stands twice'}"


Outcome = tuple[list[float] | None, str | None, bool]


def _logprobs(answer: Answer, question: Question, quantum: float | None) -> Outcome:
    """Logs in canonical order, or the reason why there are none, and whether a sum was divided."""
    if answer.error is not None:
        return None, answer.error, False
    if answer.label is not None:
        return _of_label(answer.label, question, answer.naming)
    names = option_names(question, answer.values, answer.naming)
    if answer.naming == "tokens":
        return _of_tokens(answer, question, names)
    by_option = {names[name]: value for name, value in answer.values.items()}
    values = np.array([by_option[option] for option in question.option_ids])
    if answer.relative:
        return _relative(values)
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        probabilities = np.exp(values) if answer.logs else values
        logs = values if answer.logs else np.log(values)
    if not bool(np.isfinite(probabilities).all()):
        return None, "probabilities hold NaN or infinities", False
    if bool((probabilities < 0).any()):
        return None, "a probability is negative", False
    off = abs(math.fsum(probabilities) - 1.0)
    slack = SUM_SLACK if quantum is None else len(values) * quantum / 2 + 1e-12
    if off > slack:
        return None, f"probabilities sum to {math.fsum(probabilities):.6g}", False
    if quantum is not None:
        return logs.tolist(), None, False
    return _summing_to_one(logs), None, off > 1e-9


def _of_label(label: str, question: Question, naming: Naming) -> Outcome:
    chosen = option_names(question, [label], naming).get(label)
    if chosen is None:
        shown = label if len(label) <= 40 else label[:39] + "…"
        return None, f"the answer {shown!r} is none of the options", False
    logs = [0.0 if option == chosen else -math.inf for option in question.option_ids]
    return logs, None, False


def _of_tokens(answer: Answer, question: Question, names: Mapping[str, str]) -> Outcome:
    """The first token's distribution, among the options alone."""
    mass = dict.fromkeys(question.option_ids, 0.0)
    for name, option in names.items():
        mass[option] += math.exp(answer.values[name])
    lacking = sorted(set(question.option_ids) - set(names.values()))
    if lacking:
        return None, f"the logprobs lack the option {lacking[0]!r}; ask for more of them", False
    total = math.fsum(mass.values())
    if not LEAST_MASS <= total <= 1 + SUM_SLACK:
        return None, f"the options hold {total:.3g} of the first token's probability", False
    with np.errstate(divide="ignore"):
        logs = np.log(np.array([mass[option] for option in question.option_ids]))
    return _summing_to_one(logs), None, False


def _relative(values: np.ndarray) -> Outcome:
    if bool(np.isnan(values).any() or np.isposinf(values).any() or np.isneginf(values).all()):
        return None, "log-likelihoods hold NaN or infinities", False
    return _summing_to_one(values - values.max()), None, False


def _summing_to_one(logs: np.ndarray) -> list[float]:
    # twice: the first division leaves a rounding error in the logs of a long list
    for _ in range(2):
        logs = logs - math.log(math.fsum(np.exp(logs)))
    found: list[float] = logs.tolist()
    return found


def _row(
    record: Record,
    question: Question,
    answer: Answer,
    outcome: tuple[list[float] | None, str | None],
) -> dict[str, Any]:
    return {
        "record_id": record.id,
        "cohort": record.cohort,
        "question_id": question.id,
        "question_type": question.type,
        "option_ids": list(question.option_ids),
        "logprobs": outcome[0],
        "gold": record.gold.get(question.id),
        "input_tokens": answer.input_tokens,
        "truncated_tokens": answer.truncated_tokens,
        "error": outcome[1],
        "cohorts": compact_json(dict(record.cohorts)) if record.cohorts else None,
    }
