"""What of a record is compared when looking for duplicates.

A schema that many records share (77 intents, a fixed instruction) would make every pair of short
records look alike, so only what is the record's own is compared: its state, its media, and those
instructions and options that do not come with different contexts elsewhere in the set.
"""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from clefq.clef.json_values import render
from clefq.clef.records import Question, Record

# The schema is learned from this many records of a source: shared texts recur at once.
SCHEMA_SAMPLE = 20_000
PERMUTATIONS = 64
# Records and shingles from which common shingles are learned.
COMMON_SAMPLE = 2_000
COMMON_SHINGLES = 5_000_000
NOTHING: NDArray[np.uint64] = np.zeros(0, dtype=np.uint64)
_CHUNK = 8192
_SHORT = 256
_MASK = (1 << 64) - 1


@dataclass(slots=True)
class SchemaTexts:
    """Learns which instruction and option texts are schema: seen in more than one context.

    Attributes:
        shared: Digests of the texts that are schema.
        limit: Records that are looked at; later ones are not.
    """

    limit: int = SCHEMA_SAMPLE
    shared: set[bytes] = field(default_factory=set)
    _context: dict[bytes, bytes] = field(default_factory=dict)
    _seen: int = 0

    def learn(self, record: Record) -> None:
        """Notes the texts of one record."""
        if self._seen >= self.limit:
            return
        self._seen += 1
        state = _digest(render(record.state))
        instructions = [_digest(text) for text in _instructions(record)]
        for text in instructions:
            self._note(text, state)
        around = _digest(state + b"".join(instructions))
        for option in _options(record):
            self._note(_digest(option), around)

    def _note(self, text: bytes, context: bytes) -> None:
        if text in self.shared:
            return
        if self._context.setdefault(text, context) != context:
            self.shared.add(text)
            del self._context[text]


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """What is kept of a record's own content.

    Attributes:
        exact: 16 bytes over the texts and the media.
        normalised: 16 bytes over the texts without case, punctuation, spacing and order of
            options, and the media.
        signature: MinHash, uint32[PERMUTATIONS], of the character shingles of the normalised
            text; None when near duplicates are not looked for.
    """

    exact: bytes
    normalised: bytes
    signature: NDArray[np.uint32] | None


class CommonShingles:
    """Learns which shingles many records hold: keys of JSON states, greetings, templates.

    They are not compared: two bookings that differ in every value would otherwise be near
    duplicates because their fields have the same names. A shingle is common when at least a
    tenth of the looked-at records hold it, and at least ten of them.

    Args:
        ngram: Characters in a shingle.
    """

    def __init__(self, ngram: int) -> None:
        self._ngram = ngram
        self._parts: list[NDArray[np.uint64]] = []
        self._size = 0

    @property
    def full(self) -> bool:
        """Whether enough was looked at; memory stays below 100 MB."""
        return len(self._parts) >= COMMON_SAMPLE or self._size >= COMMON_SHINGLES

    def learn(self, texts: tuple[str, ...]) -> None:
        """Notes the shingles of a record's own texts."""
        part = shingles([normalise(text) for text in texts], self._ngram)
        self._parts.append(part)
        self._size += len(part)

    def found(self) -> NDArray[np.uint64]:
        """The common shingles, sorted."""
        if not self._parts:
            return NOTHING
        hashes, counts = np.unique(np.concatenate(self._parts), return_counts=True)
        common: NDArray[np.uint64] = hashes[counts >= max(10, len(self._parts) / 10)]
        return common


def without(hashes: NDArray[np.uint64], common: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The distinct hashes that are not common; `common` is sorted."""
    if len(common) == 0:
        return hashes
    place = np.minimum(np.searchsorted(common, hashes), len(common) - 1)
    rare: NDArray[np.uint64] = hashes[common[place] != hashes]
    return rare


def own_texts(record: Record, shared: set[bytes]) -> tuple[str, ...]:
    """State first, then the instructions and options that are not schema.

    The options of a question are all schema when half of them are: a record that is offered ten
    of 77 intents may be the only one that is offered some of them.
    """
    own = [text for text in _instructions(record) if _digest(text) not in shared]
    for question in record.questions:
        options = _question_options(question)
        kept = [text for text in options if _digest(text) not in shared]
        if 2 * len(kept) > len(options):
            own += kept
    return (render(record.state), *own)


def fingerprint(
    texts: tuple[str, ...],
    media: Iterable[str] = (),
    ngram: int | None = 5,
    common: NDArray[np.uint64] = NOTHING,
) -> Fingerprint:
    """Fingerprint of a record's own texts.

    Args:
        texts: From `own_texts`.
        media: SHA-256 of every image and video; records with other media are never duplicates.
        ngram: Characters in a shingle; None leaves out the signature.
        common: Shingles that the signature leaves out (`CommonShingles`).
    """
    tail = "\0".join(media)
    plain = (normalise(texts[0]), *sorted(normalise(text) for text in texts[1:]))
    exact = _digest("\0".join((*texts, "", tail)))
    signature = None
    if ngram is not None:
        own = without(shingles(plain, ngram), common)
        if len(own) == 0:
            # nothing but what many records hold: like no other, exact duplicates aside
            own = np.frombuffer(exact[:8], dtype=np.uint64)
        signature = minhash(own, _seed_of(tail))
    return Fingerprint(
        exact=exact,
        normalised=_digest("\0".join((*plain, "", tail))),
        signature=signature,
    )


def answers(record: Record) -> dict[str, str]:
    """Question id → the right answer in words, whatever keys the options have."""
    found = {}
    for question in record.questions:
        gold = record.gold.get(question.id)
        if gold is None:
            continue
        given = {option.id: option.description for option in question.options}
        plain = question.type == "noul" or given[gold] is None
        found[question.id] = normalise(gold if plain else render(given[gold]))
    return found


def contradict(left: Record, right: Record) -> bool:
    """Whether two records have different right answers to a question of one id."""
    ours, theirs = answers(left), answers(right)
    return any(ours[name] != theirs[name] for name in ours.keys() & theirs.keys())


def answer_digest(record: Record) -> int:
    """64 bits over the right answers; 0 where there are none."""
    found = answers(record)
    return int.from_bytes(_digest(render(found))[:8], "little") if found else 0


def normalise(text: str) -> str:
    """Compatibility form, no case, letters and digits only, single spaces.

    A text without any letter or digit (an emoji, say) is kept as it is.
    """
    folded = unicodedata.normalize("NFKC", text).casefold()
    words = "".join(c if c.isalnum() else " " for c in folded).split()
    return " ".join(words) if words else folded.strip()


def shingles(texts: Iterable[str], ngram: int) -> NDArray[np.uint64]:
    """Distinct 64-bit hashes of all runs of `ngram` characters; never empty.

    A text shorter than `ngram` is one shingle.
    """
    found = []
    for text in texts:
        codes = np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32).astype(np.uint64)
        size = min(ngram, len(codes))
        if size == 0:
            continue
        mixed = np.zeros(len(codes) - size + 1, dtype=np.uint64)
        for offset in range(size):
            mixed = mix(mixed ^ codes[offset : offset + len(mixed)])
        found.append(mixed)
    if not found:
        return np.zeros(1, dtype=np.uint64)
    return np.unique(np.concatenate(found))


def minhash(hashes: NDArray[np.uint64], seed: int = 0) -> NDArray[np.uint32]:
    """MinHash signature (Broder 1997): uint32[PERMUTATIONS].

    The share of equal entries of two signatures estimates the Jaccard similarity of the two sets.

    Args:
        hashes: Distinct hashes of the set, uint64[n], n ≥ 1.
        seed: Sets hashed with different seeds share no entry.
    """
    salts = mix(np.arange(1, PERMUTATIONS + 1, dtype=np.uint64) + np.uint64(seed & _MASK))
    best = np.full(PERMUTATIONS, _MASK, dtype=np.uint64)
    for start in range(0, len(hashes), _CHUNK):
        part = mix(hashes[None, start : start + _CHUNK] ^ salts[:, None])
        np.minimum(best, part.min(axis=1), out=best)
    return (best >> np.uint64(32)).astype(np.uint32)


def mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """A bijection of 64-bit integers that scatters them (the SplitMix64 finalizer, Steele 2014)."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def jaccard(left: NDArray[np.uint64], right: NDArray[np.uint64]) -> float:
    """Jaccard similarity of two non-empty sets of distinct hashes."""
    both = len(np.intersect1d(left, right, assume_unique=True))
    return both / (len(left) + len(right) - both)


def _instructions(record: Record) -> list[str]:
    return [render(q.instructions) for q in record.questions if q.instructions]


def _options(record: Record) -> list[str]:
    return [text for question in record.questions for text in _question_options(question)]


def _question_options(question: Question) -> list[str]:
    """Option texts: the description, or the key where there is none (so keys do not matter)."""
    if question.type == "noul" and not question.criteria:
        return []
    return [
        option.id if option.description is None else render(option.description)
        for option in question.options
    ]


def _digest(text: str | bytes) -> bytes:
    """16 bytes; short texts recur in every record of a schema, so theirs are kept."""
    return _short_digest(text) if len(text) <= _SHORT else _plain_digest(text)


def _plain_digest(text: str | bytes) -> bytes:
    data = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
    return hashlib.blake2b(data, digest_size=16).digest()


_short_digest = lru_cache(maxsize=1 << 14)(_plain_digest)


def _seed_of(tail: str) -> int:
    return int.from_bytes(_digest(tail)[:8], "little") if tail else 0
