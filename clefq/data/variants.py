"""Variants of a record that ask the same thing in another form.

Option keys can be the source's own, letters, or opaque (`option_0`…); a key that is replaced
becomes the description where there was none, so that nothing is lost. Because Clef sorts choice
options by key, an order can be varied only together with the keys.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from clefq.clef.json_values import render
from clefq.clef.records import Question, Record
from clefq.data.definition import Keys, SourceUse
from clefq.data.hashed import stable_order

INDEX_QUESTION = "q1"


def apply_variant(record: Record, use: SourceUse, seed: str) -> Record:
    """The record in the form that a definition asks for; its id stays the same."""
    if use.keys != "natural":
        salt = f"{seed}\0{record.id}" if use.order == "shuffled" else None
        record = rekey(record, use.keys, salt)
    if use.layout == "decision-index":
        record = index_layout(record)
    return record if use.cohort is None else replace(record, cohort=use.cohort)


def rekey(record: Record, keys: Keys, salt: str | None) -> Record:
    """Replaces the option keys of every choice question.

    Args:
        record: The record.
        keys: `letters` or `opaque`.
        salt: Deals the options in an order of its own per salt; None keeps their order.
    """
    questions = []
    gold = dict(record.gold)
    for question in record.questions:
        if question.type != "choice":
            questions.append(question)
            continue
        mapping = _mapping(question, keys, salt)
        criteria = {
            mapping[option.id]: option.id if option.description is None else option.description
            for option in question.options
        }
        questions.append(replace(question, criteria=dict(sorted(criteria.items()))))
        if question.id in gold:
            gold[question.id] = mapping[gold[question.id]]
    return replace(record, questions=tuple(questions), gold=gold)


def index_layout(record: Record) -> Record:
    """Empty state, one question `q1`, the former state in front of its instructions.

    The form of the public decision index's records. A record with several questions keeps them
    as `q1`, `q2`, ….
    """
    text = render(record.state)
    names = {q.id: f"q{number}" for number, q in enumerate(record.questions, start=1)}
    questions = []
    for question in record.questions:
        asked = render(question.instructions) if question.instructions else question.id
        combined = f"{text}\n\n{asked}" if text else asked
        questions.append(replace(question, id=names[question.id], instructions=combined))
    gold = {names[qid]: option for qid, option in record.gold.items()}
    return replace(record, state="", questions=tuple(questions), gold=gold)


def _mapping(question: Question, keys: Keys, salt: str | None) -> dict[str, str]:
    ids = list(question.option_ids)
    if salt is not None:
        ids = stable_order(ids, f"{salt}\0{question.id}")
    return {option: _KEYS[keys](index) for index, option in enumerate(ids)}


def _letter(index: int) -> str:
    """A, B, …, Z, AA, AB and so on."""
    text = ""
    index += 1
    while index:
        index, digit = divmod(index - 1, 26)
        text = chr(ord("A") + digit) + text
    return text


def _opaque(index: int) -> str:
    return f"option_{index}"


_KEYS: dict[str, Callable[[int], str]] = {"letters": _letter, "opaque": _opaque}
