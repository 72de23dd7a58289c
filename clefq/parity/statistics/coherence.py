"""Coherence: how far a model's own answers move when the same is asked in another form.

A set with variants (`clefq build eval SET --variants`) asks every question as it was and again
with one thing changed that should not matter: the order of the options, the other questions of the
record, text around the state. Here each model is held against itself: the distance between its
answer to a variant and its answer to the original, options mapped back through the transform, and
p("true") of a negated question compared with 1 − p("true"). No gold is needed. What counts for an
exchange of models is the difference of the two, candidate − baseline, question by question.

Without its state a question has no right answer. There it is the other way round: a model whose
answers do not move never read the state.

Every value lies at the original's question, so a record with all of its variants is one cluster.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from clefq.parity.statistics.arrays import BoolArray, FloatArray, IntArray
from clefq.parity.statistics.divergences import on_grid, side_values
from clefq.parity.statistics.flatten import segment_sum
from clefq.parity.statistics.pairs import PairedSet, PairedSide
from clefq.store.variant_links import (
    ALL,
    TRANSFORMS,
    Transform,
    VariantRef,
    parse_variant_id,
    renamed_options,
    variant_id,
)


@dataclass(frozen=True, slots=True)
class Moved:
    """How far both models' answers move under one transform, by the originals' questions.

    Attributes:
        domain: Questions that have such a variant, and that both models answered in both forms,
            bool [n].
        tv: Total variation between a model's two answers: baseline, candidate; float64 [n].
        flipped: Whether its choice is another option, 0 or 1; the mean where there are several.
    """

    domain: BoolArray
    tv: tuple[FloatArray, FloatArray]
    flipped: tuple[FloatArray, FloatArray]


@dataclass(frozen=True, slots=True)
class _Link:
    """One variant of one question: questions of the whole set, but for `question`.

    Attributes:
        question: The question among the originals.
        original: The same in the whole set.
        variant: The question asked in another form.
        against: What that is compared with: the original, or another variant of it.
        ref: What was done.
        against_ref: What was done to `against`, or None.
    """

    question: int
    original: int
    variant: int
    against: int
    ref: VariantRef
    against_ref: VariantRef | None


def moved(pairs: PairedSet) -> Mapping[str, Moved]:
    """How far answers move, by transform in the table's order; empty without variants.

    Args:
        pairs: The originals, as `join` gives them.
    """
    if pairs.variants is None:
        return {}
    memo = pairs.variants.memo
    if "moved" not in memo:
        memo["moved"] = _moved(pairs, pairs.variants.whole)
    found: Mapping[str, Moved] = memo["moved"]
    return found


def over_all(found: Mapping[str, Moved]) -> Moved | None:
    """All transforms after which the right answer is known to be the same.

    Their mean movement, and whether the choice is another in any of them.
    """
    parts = [item for name, item in found.items() if TRANSFORMS[name].asks != "without the state"]
    if not parts:
        return None
    counts = np.sum([part.domain for part in parts], axis=0)

    def mean(side: int) -> FloatArray:
        values = [np.where(part.domain, part.tv[side], 0.0) for part in parts]
        return on_grid(np.sum(values, axis=0) / np.maximum(counts, 1))

    def any_of(side: int) -> FloatArray:
        values = [part.domain & (part.flipped[side] > 0) for part in parts]
        return np.asarray(np.any(values, axis=0), dtype=np.float64)

    return Moved(counts > 0, (mean(0), mean(1)), (any_of(0), any_of(1)))


def by_name(found: Mapping[str, Moved]) -> Iterator[tuple[str, Transform | None, Moved]]:
    """Each transform's name (`all` for all of them together), facts and values."""
    whole = over_all(found)
    if whole is not None:
        yield ALL, None, whole
    for name, item in found.items():
        yield name, TRANSFORMS[name], item


def _moved(pairs: PairedSet, whole: PairedSet) -> dict[str, Moved]:
    links: dict[str, list[_Link]] = {}
    for link in _links(pairs, whole):
        links.setdefault(link.ref.transform.name, []).append(link)
    return {name: _of(pairs, whole, links[name]) for name in TRANSFORMS if name in links}


def _links(pairs: PairedSet, whole: PairedSet) -> Iterator[_Link]:
    places = {key: place for place, key in enumerate(_keys(whole))}
    originals = {key: place for place, key in enumerate(_keys(pairs))}
    for (record, question), place in places.items():
        ref = parse_variant_id(record)
        if ref is None or (ref.original, question) not in originals:
            continue
        if whole.question_type[place] not in ref.transform.types:
            continue
        original = places[ref.original, question]
        against, against_ref = original, None
        if ref.transform.against is not None:
            name = variant_id(ref.original, ref.transform.against)
            against = places.get((name, question), original)
            against_ref = None if against == original else parse_variant_id(name)
        number = originals[ref.original, question]
        yield _Link(number, original, place, against, ref, against_ref)


def _keys(pairs: PairedSet) -> list[tuple[str, str]]:
    records = pairs.record_ids[pairs.record_index]
    return list(zip(records.tolist(), pairs.question_ids.tolist(), strict=True))


def _of(pairs: PairedSet, whole: PairedSet, links: list[_Link]) -> Moved:
    aligned = [(link, _aligned(whole, link)) for link in links]
    # a variant whose options are not those that its id promises is none of ours
    known = [(link, places) for link, places in aligned if places is not None]
    question = np.array([link.question for link, _ in known], dtype=np.int64)
    variant = np.array([link.variant for link, _ in known], dtype=np.int64)
    against = np.array([link.against for link, _ in known], dtype=np.int64)
    options = [
        np.concatenate([np.zeros(0, dtype=np.int64), *(places[k] for _, places in known)])
        for k in range(2)
    ]
    valid = np.ones(len(known), dtype=np.bool_)
    sides = (whole.baseline, whole.candidate)
    for side in sides:
        valid &= ~side.failed[variant] & ~side.failed[against]
    n = pairs.n_questions
    counts = np.bincount(question[valid], minlength=n)

    def mean(values: FloatArray) -> FloatArray:
        total = np.bincount(question[valid], weights=values[valid], minlength=n)
        return on_grid(total / np.maximum(counts, 1))

    found = [_distance(whole, side, (against, variant), (options[0], options[1])) for side in sides]
    tv, flipped = ((mean(found[0][k]), mean(found[1][k])) for k in range(2))
    return Moved(counts > 0, tv, flipped)


def _aligned(whole: PairedSet, link: _Link) -> tuple[IntArray, IntArray] | None:
    """Flat places of the options of `against` and, one by one, of what they are in the variant."""
    original = _option_places(whole, link.original)
    against, variant = (
        _named(_option_places(whole, place), original, ref, str(whole.question_ids[place]))
        for place, ref in ((link.against, link.against_ref), (link.variant, link.ref))
    )
    if against is None or variant is None:
        return None
    return against, variant[::-1] if link.ref.transform.asks == "the opposite" else variant


def _option_places(whole: PairedSet, question: int) -> dict[str, int]:
    start, end = (int(whole.option_start[question + k]) for k in range(2))
    names = whole.option_names[whole.option_code[start:end]].tolist()
    return dict(zip(names, range(start, end), strict=True))


def _named(
    places: dict[str, int], original: dict[str, int], ref: VariantRef | None, question: str
) -> IntArray | None:
    """Places of the original's options, in its order; None where they are others."""
    wanted = list(original)
    if ref is not None and ref.transform.renamed:
        names = renamed_options(ref, question, wanted)
        wanted = [names[name] for name in wanted]
    if set(wanted) != places.keys():
        return None
    return np.array([places[name] for name in wanted], dtype=np.int64)


def _distance(
    whole: PairedSet,
    side: PairedSide,
    at: tuple[IntArray, IntArray],
    options: tuple[IntArray, IntArray],
) -> tuple[FloatArray, FloatArray]:
    """Total variation and whether the choice differs, float64 [links] each."""
    counts = whole.option_counts[at[0]]
    start = np.concatenate([[0], np.cumsum(counts)])
    with np.errstate(invalid="ignore"):
        one, other = (np.exp(side.logprobs[places]) for places in options)
        tv = segment_sum(np.abs(one - other), start) / 2
    top = side_values(whole, side).top
    chosen = [
        places == np.repeat(top[question], counts)
        for places, question in zip(options, at, strict=True)
    ]
    same = segment_sum((chosen[0] & chosen[1]).astype(np.float64), start)
    return on_grid(tv), 1.0 - same
