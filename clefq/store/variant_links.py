"""Variants of a record inside a set: how ids link them to their original, and options to options.

A set made with `clefq build eval SET --variants` holds every record as it was, and beside it the
same questions asked in another form, under an id that says what was changed:

    billing-7::variant=order        billing-7::variant=alone/intent

Ids are all that predictions keep of a record, so they must be enough: from them, with the options
of the original, follows which answer of a variant stands for which answer of the original.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from clefq.plain_files import stable_order

MARK = "::variant="
# What deals options where `--seed` gives nothing else; part of the form, never to be changed.
DEFAULT_SEED = "clefq-variants-1"
ALL = "all"

Asks = Literal["the same", "the opposite", "without the state"]


@dataclass(frozen=True, slots=True)
class Transform:
    """One way to ask again.

    Attributes:
        name: As in ids, manifests and metric names.
        title: What was changed, for tables.
        asks: What the variant asks, and so what an unmoved answer is: the same option, the other
            one of true and false, or none: without its state a question has no right answer.
        types: Question types whose answers are compared.
        renamed: Whether options have other ids.
        against: The transform whose variant it is compared with where the set has that; else,
            and where None, the original.
    """

    name: str
    title: str
    asks: Asks = "the same"
    types: tuple[str, ...] = ("noul", "choice", "score")
    renamed: bool = False
    against: str | None = None


TRANSFORMS: dict[str, Transform] = {
    found.name: found
    for found in (
        Transform("opaque", "option ids without meaning", types=("choice",), renamed=True),
        Transform(
            "order", "options in another order", types=("choice",), renamed=True, against="opaque"
        ),
        Transform("negated", "question negated", "the opposite", types=("noul",)),
        Transform("alone", "other questions removed"),
        Transform("crowded", "other questions added"),
        Transform("before", "irrelevant text before the state"),
        Transform("after", "irrelevant text after the state"),
        Transform("whitespace", "other whitespace"),
        Transform("case", "other case"),
        Transform("unicode", "other Unicode form"),
        Transform("json", "text as JSON, JSON as text"),
        Transform("empty", "no state", "without the state"),
    )
}


# what `coherence_*@` may be followed by
COMPARED = (ALL, *(t.name for t in TRANSFORMS.values() if t.asks != "without the state"))


@dataclass(frozen=True, slots=True)
class VariantRef:
    """What a variant's id says.

    Attributes:
        original: Id of the record that it was made of.
        transform: What was done.
        detail: The question that is left (`alone`), the seed (`order`), or empty.
    """

    original: str
    transform: Transform
    detail: str


def variant_id(record_id: str, transform: str, detail: str = "") -> str:
    """The id of a variant."""
    return f"{record_id}{MARK}{transform}" + (f"/{detail}" if detail else "")


def parse_variant_id(record_id: str) -> VariantRef | None:
    """What an id says of a variant; None where it is no variant's."""
    original, mark, rest = record_id.partition(MARK)
    name, _, detail = rest.partition("/")
    if not original or not mark or name not in TRANSFORMS:
        return None
    return VariantRef(original, TRANSFORMS[name], detail)


def renamed_options(ref: VariantRef, question_id: str, options: Sequence[str]) -> Mapping[str, str]:
    """For each option of the original its id in a variant with renamed options.

    `opaque` keeps the order, `order` never does: two options change places.

    Args:
        ref: The variant.
        question_id: The question.
        options: Option ids of the original.
    """
    ids = sorted(options)
    if ref.transform.name == "order":
        salt = f"{ref.detail or DEFAULT_SEED}\0{ref.original}\0{question_id}"
        dealt = stable_order(ids, salt)
        ids = dealt if dealt != ids else [*ids[1:], ids[0]]
    # padded, because prompts sort options by id
    width = len(str(len(ids) - 1))
    return {option: f"option_{index:0{width}}" for index, option in enumerate(ids)}
