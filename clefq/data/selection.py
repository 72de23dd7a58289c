"""Which records of the pools go into the set: duplicates out, then a prefix of the order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from clefq.clef.records import Record
from clefq.data.content import answers, contradict
from clefq.data.definition import Decontaminate, SourceUse
from clefq.data.duplicates import Fingerprints, find_duplicates
from clefq.data.pool import PoolReader
from clefq.data.prints import PoolPrints, Schema, Similarity
from clefq.data.sampling import Indices, stratified_order

TokensOf = Callable[[Record, dict[str, Path]], int]


@dataclass(frozen=True, slots=True)
class Removed:
    """A record left out as a duplicate; a line of `removed.jsonl`.

    Attributes:
        id: The record.
        source: Its source.
        split: Its split.
        kind: `exact`, `normalised` or `near`; or `conflict`, the same content with another right
            answer, where none of them is kept.
        of: Id of the record that it duplicates.
        where: Name of the set or list that holds that record; this set's own name for `within`.
        scope: `within` the set or `against` another.
        similarity: Jaccard similarity of the shingles.
    """

    id: str
    source: str
    split: str
    kind: str
    of: str
    where: str
    scope: str
    similarity: float


@dataclass(frozen=True, slots=True)
class Conflict:
    """A record whose content has another right answer elsewhere; a line of `conflicts.jsonl`.

    Attributes:
        id: The record.
        source: Its source.
        split: Its split.
        answers: Question id → its right answer, in words.
        of: Id of a record that contradicts it.
        of_answers: Question id → that record's right answer.
    """

    id: str
    source: str
    split: str
    answers: Mapping[str, str]
    of: str
    of_answers: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class PassedOver:
    """A record left out for its length; a line of `passed_over.jsonl`.

    Attributes:
        id: The record; a public source's id ends in the row's number.
        source: Its source.
        split: Its split.
        tokens: Its length.
        shortest: Fewest tokens that were allowed.
        longest: Most tokens that were allowed, or None.
    """

    id: str
    source: str
    split: str
    tokens: int
    shortest: int
    longest: int | None


@dataclass(slots=True)
class Selected:
    """What was taken from one pool.

    Attributes:
        indices: Positions in the pool, in file order.
        tokens: Tokens of each, or empty when nothing counted them.
        removed: Duplicates.
        passed_over: Records passed over for their length.
        conflicts: Those of the removed that contradict each other.
    """

    indices: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    removed: list[Removed] = field(default_factory=list)
    passed_over: list[PassedOver] = field(default_factory=list)
    conflicts: list[Conflict] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class TokenLimits:
    """Token limits of one entry.

    Attributes:
        shortest: Fewest tokens of a record.
        longest: Most tokens of a record, or None.
        budget: Most tokens of all together, or None.
    """

    shortest: int = 0
    longest: int | None = None
    budget: int | None = None

    def allows(self, tokens: int) -> bool:
        """Whether a record of this length may be taken."""
        return tokens >= self.shortest and (self.longest is None or tokens <= self.longest)


class Selector:
    """Selects entry by entry; what an earlier entry took is never taken again.

    Args:
        name: Name of the set.
        settings: What is compared.
        schema: What many records share.
        references: Name and prints of what the set is held against.
        golds: Whether right answers matter: in eval sets, where a contradiction is kept by nobody
            and minimal pairs are no duplicates.
    """

    def __init__(
        self,
        name: str,
        settings: Decontaminate,
        schema: Schema,
        references: Sequence[tuple[str, PoolPrints]],
        golds: bool = False,
    ) -> None:
        self._golds = golds
        self._name = name
        self._settings = settings
        self._common = schema.shingles
        self._fixed = [(where, p, np.arange(len(p.pool))) for where, p in references]
        self._scopes = ["against"] * len(self._fixed)
        self._ids: set[str] = set()

    def select(
        self,
        use: SourceUse,
        prints: PoolPrints,
        count_tokens: TokensOf | None,
        limits: TokenLimits,
        advance: Callable[[int], None],
    ) -> Selected:
        """Walks the pool in stratified order until the count or the budget is reached."""
        pool = prints.pool
        order = stratified_order(
            pool.keys, [pool.strata[name] for name in use.stratify], use.allocate
        )
        result = Selected()
        gone = self._duplicates(use, prints, order, result)
        with pool.reader() as reader:
            walk = _Walk(use, limits, order[~gone[order]])
            self._walk(walk, reader, count_tokens, advance, result)
        order_in_file = np.argsort(result.indices, kind="stable")
        result.indices = [result.indices[i] for i in order_in_file]
        if count_tokens is not None:
            result.tokens = [result.tokens[i] for i in order_in_file]
        self._fixed.append((self._name, prints, np.array(result.indices, dtype=np.int64)))
        self._scopes.append("within")
        return result

    def _walk(
        self,
        walk: _Walk,
        reader: PoolReader,
        count_tokens: TokensOf | None,
        advance: Callable[[int], None],
        result: Selected,
    ) -> None:
        spent = 0
        for index in walk.order:
            if walk.use.count is not None and len(result.indices) == walk.use.count:
                return
            record, media = reader.get(int(index))
            if record.id in self._ids:
                continue
            if count_tokens is not None:
                tokens = count_tokens(record, media)
                if not walk.limits.allows(tokens):
                    result.passed_over.append(walk.passed_over(record.id, tokens))
                    continue
                if walk.limits.budget is not None and spent + tokens > walk.limits.budget:
                    return
                spent += tokens
                result.tokens.append(tokens)
            self._ids.add(record.id)
            result.indices.append(int(index))
            advance(1)

    def _duplicates(
        self, use: SourceUse, prints: PoolPrints, order: Indices, result: Selected
    ) -> NDArray[np.bool_]:
        """bool[n]: which records of the pool are duplicates; notes them in `result`."""
        joined, places = self._join(prints, order)
        everything = [p for _, p, _ in self._fixed] + [prints]
        gone = np.zeros(len(prints.pool), dtype=np.bool_)
        with ExitStack() as stack:
            similar = Similarity(everything, places, self._settings.ngram, self._common)
            stack.enter_context(similar)
            readers = [stack.enter_context(p.pool.reader()) for p in everything]

            def record(index: int) -> Record:
                number, position = (int(value) for value in places[index])
                return readers[number].get(position)[0]

            removals = find_duplicates(
                joined,
                similar,
                self._settings.threshold,
                lambda left, right: contradict(record(left), record(right)),
            )
            for removal in removals:
                gone[int(places[removal.index, 1])] = True
                number = int(places[removal.kept, 0])
                removed, other = record(removal.index), record(removal.kept)
                own, kept = removed.id, other.id
                where, scope = self._place(number)
                if scope == "within" and kept == own:
                    continue  # the same row, already taken by an earlier entry
                if removal.kind == "conflict":
                    result.conflicts.append(_conflict(use, removed, other))
                result.removed.append(
                    Removed(
                        id=own,
                        source=use.source,
                        split=use.split,
                        kind=removal.kind,
                        of=kept,
                        where=where,
                        scope=scope,
                        similarity=round(removal.similarity, 4),
                    )
                )
        return gone

    def _place(self, number: int) -> tuple[str, str]:
        """Name and scope of a pool by its number; the last is the one being selected from."""
        if number == len(self._fixed):
            return self._name, "within"
        return self._fixed[number][0], self._scopes[number]

    def _join(self, prints: PoolPrints, order: Indices) -> tuple[Fingerprints, NDArray[np.int64]]:
        """All fingerprints in a row, the fixed ones first, and where each lies."""
        count = len(prints.pool)
        parts = [*self._fixed, ("", prints, np.arange(count))]
        places = np.concatenate(
            [
                np.stack([np.full(len(chosen), number), chosen], axis=1)
                for number, (_, _, chosen) in enumerate(parts)
            ]
        ).astype(np.int64)
        fixed = places[:, 0] < len(self._fixed)
        rank = np.arange(len(places), dtype=np.int64)
        rank[len(places) - count :][order] = len(places) - count + np.arange(count)
        signatures = None
        if self._settings.near and len(parts) == 1:
            signatures = prints.signatures  # stays in its file
        elif self._settings.near:
            signatures = np.concatenate(
                [p.signatures[chosen] for _, p, chosen in parts if p.signatures is not None]
            )
        joined = Fingerprints(
            exact=np.concatenate([p.exact[chosen] for _, p, chosen in parts]),
            normalised=np.concatenate([p.normalised[chosen] for _, p, chosen in parts]),
            signatures=signatures,
            rank=rank,
            fixed=fixed,
            within=self._settings.within,
            golds=self._join_golds(parts) if self._golds and self._settings.within else None,
        )
        return joined, places

    def _join_golds(self, parts: Sequence[_Part]) -> NDArray[np.uint64]:
        """Digests of the right answers; what the set is only held against has none."""
        scopes = [*self._scopes, "within"]
        return np.concatenate(
            [
                prints.golds[chosen] if scope == "within" else np.zeros(len(chosen), np.uint64)
                for scope, (_, prints, chosen) in zip(scopes, parts, strict=True)
            ]
        )


_Part = tuple[str, PoolPrints, NDArray[np.int64]]


def _conflict(use: SourceUse, record: Record, other: Record) -> Conflict:
    return Conflict(record.id, use.source, use.split, answers(record), other.id, answers(other))


@dataclass(frozen=True, slots=True)
class _Walk:
    use: SourceUse
    limits: TokenLimits
    order: Indices

    def passed_over(self, record_id: str, tokens: int) -> PassedOver:
        use, limits = self.use, self.limits
        return PassedOver(record_id, use.source, use.split, tokens, limits.shortest, limits.longest)
