"""Variants of a record that ask the same thing in another form.

A definition asks for one form of a source's records (`apply_variant`); a set with variants holds
the records as they were and beside them what `make_variants` makes of each, so that answers can be
held against each other. What ids of variants mean stands in `clefq.store.variant_links`.

Option keys can be the source's own, letters, or opaque (`option_0`…); a key that is replaced
becomes the description where there was none, so that nothing is lost. Because Clef sorts choice
options by key, an order can be varied only together with the keys.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from clefq.clef.json_values import render
from clefq.clef.records import Question, Record
from clefq.data.definition import Keys, SourceUse
from clefq.plain_files import stable_order
from clefq.store.variant_links import (
    TRANSFORMS,
    VariantRef,
    renamed_options,
    variant_id,
)

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
    return _renamed(record, lambda question: _mapping(question, keys, salt))


def _renamed(record: Record, mapping_of: Callable[[Question], Mapping[str, str]]) -> Record:
    questions = []
    gold = dict(record.gold)
    for question in record.questions:
        if question.type != "choice":
            questions.append(question)
            continue
        mapping = mapping_of(question)
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


# About nothing that anybody decides on; part of the form of `before` and `after`.
IRRELEVANT = (
    "The water in the building will be off on Tuesday between eight and ten while a valve is "
    "replaced. The lift on the north side is not affected. Bicycles may stay in the yard."
)
NEGATION = "Is it wrong, or is the answer no: "
MOST_ADDED = 4


def make_variants(
    record: Record, other: Record, names: Sequence[str], seed: str = ""
) -> Iterator[Record]:
    """Every variant of a record that differs from it, without gold.

    Args:
        record: The record.
        other: Another record, whose questions `crowded` adds.
        names: Transforms, from `TRANSFORMS`; `order` needs `opaque` beside it.
        seed: What deals the options of `order`; empty for the default.
    """
    for name in names:
        for detail, made in _MAKERS[name](record, other, seed):
            if not _same(made, record):
                yield replace(made, id=variant_id(record.id, name, detail), gold={})


def _same(one: Record, other: Record) -> bool:
    return all(
        getattr(one, name) == getattr(other, name)
        for name in ("state", "questions", "images", "videos")
    )


Made = Iterator[tuple[str, Record]]


def _rename(name: str) -> Callable[[Record, Record, str], Made]:
    def make(record: Record, _: Record, seed: str) -> Made:
        detail = seed if name == "order" else ""
        ref = VariantRef(record.id, TRANSFORMS[name], detail)
        yield detail, _renamed(record, lambda q: renamed_options(ref, q.id, q.option_ids))

    return make


def _negated(record: Record, _: Record, __: str) -> Made:
    questions = tuple(_negate(q) if q.type == "noul" else q for q in record.questions)
    yield "", replace(record, questions=questions)


def _negate(question: Question) -> Question:
    """Asks for the opposite; what the author said of true and of false change places."""
    asked = render(question.instructions) if question.instructions else question.id
    given = question.criteria
    if given is not None:
        given = {{"true": "false", "false": "true"}[key]: text for key, text in given.items()}
    return replace(question, instructions=f"{NEGATION}{asked}", criteria=given)


def _alone(record: Record, _: Record, __: str) -> Made:
    for question in record.questions:
        yield question.id, replace(record, questions=(question,))


def _crowded(record: Record, other: Record, _: str) -> Made:
    known = {question.id for question in record.questions}
    added = []
    for question in other.questions[:MOST_ADDED]:
        name = f"~{question.id}"  # sorts behind what a set asks, which prompts follow
        while name in known:
            name = f"~{name}"
        known.add(name)
        instructions = question.instructions or question.id
        added.append(replace(question, id=name, instructions=instructions))
    yield "", replace(record, questions=(*record.questions, *added))


def _state(change: Callable[[Any], Any]) -> Callable[[Record, Record, str], Made]:
    def make(record: Record, _: Record, __: str) -> Made:
        yield "", replace(record, state=change(record.state))

    return make


def _empty(record: Record, _: Record, __: str) -> Made:
    yield "", replace(record, state="", images=(), videos=())


def _in_texts(change: Callable[[str], str]) -> Callable[[Any], Any]:
    """Changes every text of a state, its keys left alone."""

    def walk(value: Any) -> Any:
        if isinstance(value, str):
            return change(value)
        if isinstance(value, dict):
            return {key: walk(child) for key, child in value.items()}
        return [walk(child) for child in value] if isinstance(value, list) else value

    return walk


def _other_case(text: str) -> str:
    return text.lower() if text != text.lower() else text.upper()


def _other_unicode(text: str) -> str:
    """Alike to a reader: accents as signs of their own, typographic quotes and dots, one space.

    Only a text's first space becomes a no-break one: all of them would be another language.
    """
    text = unicodedata.normalize("NFD", text).replace(" ", "\u00a0", 1)
    text = re.sub(r"(?<!\w)'(?=\w)", "\u2018", text)
    text = re.sub(r'(?<!\w)"(?=\w)', "\u201c", text)
    return text.replace("'", "\u2019").replace('"', "\u201d").replace("...", "\u2026")


def _other_notation(state: Any) -> Any:
    """A text as JSON with one key; JSON as a text with line breaks."""
    if isinstance(state, str):
        return {"text": state} if state else state
    return json.dumps(state, sort_keys=True, indent=2, ensure_ascii=False)


def _around(state: Any, before: bool) -> str:
    parts = [IRRELEVANT, render(state)]
    return "\n\n".join(part for part in (parts if before else parts[::-1]) if part)


_MAKERS: dict[str, Callable[[Record, Record, str], Made]] = {
    "opaque": _rename("opaque"),
    "order": _rename("order"),
    "negated": _negated,
    "alone": _alone,
    "crowded": _crowded,
    "before": _state(lambda state: _around(state, before=True)),
    "after": _state(lambda state: _around(state, before=False)),
    "whitespace": _state(_in_texts(lambda text: re.sub(r"\s", lambda m: m[0] * 2, text))),
    "case": _state(_in_texts(_other_case)),
    "unicode": _state(_in_texts(_other_unicode)),
    "json": _state(_other_notation),
    "empty": _empty,
}
