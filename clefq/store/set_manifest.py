"""The manifest of a set: what it is made of, how long its prompts are, what was removed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from clefq.clef.records import Record
from clefq.errors import InputError
from clefq.store.atomic import can_name_folder
from clefq.store.reading import Count, Rule, Stored, expected, read_stored

SCHEMA_VERSION = 1

Role = Literal["calibration", "eval"]

# Upper ends of the length bands in input tokens; 1K is 1,024 tokens, as in a 16K limit of 16,384.
LENGTH_BANDS: tuple[tuple[str, int | None], ...] = (
    ("<2K", 2048),
    ("2-8K", 8192),
    ("8-32K", 32768),
    ("32-128K", 131072),
    (">=128K", None),
)


def length_band(tokens: int) -> str:
    """The length band of a prompt of `tokens` input tokens, for example `2-8K`."""
    for name, end in LENGTH_BANDS:
        if end is None or tokens < end:
            return name
    raise AssertionError("the last band is open")


@dataclass(frozen=True, slots=True)
class SourceInfo(Stored):
    """Where some of a set's records come from.

    Attributes:
        source: Name of the source, for example `banking77`.
        split: Split of the source, for example `train`; empty where it has none.
        origin: `local` folder, `hub`, `generated` by clefq, or the user's own file.
        revision: Commit of the hub data set or of the original repository, if known.
        files: Relative path → SHA-256 of every file that was read.
        licence: SPDX-like name of the licence.
        attribution: The line that the licence asks for, or None.
        rows_read: Rows that the source's files hold in the splits read.
        rows_malformed: Rows that were refused; each is listed in `malformed.jsonl`.
        duplicates: Records that were removed as duplicates; each is listed in `removed.jsonl`.
        outside_limits: Records passed over because of their length in tokens.
        taken: Records of this source in the set.
    """

    source: str
    split: str
    origin: Literal["local", "hub", "generated", "user"]
    revision: str | None
    files: Mapping[str, str]
    licence: str
    attribution: str | None
    rows_read: int = 0
    rows_malformed: int = 0
    duplicates: int = 0
    outside_limits: int = 0
    taken: int = 0


@dataclass(frozen=True, slots=True)
class Decontamination(Stored):
    """What was compared with what, and what it removed (listed in `removed.jsonl`).

    Attributes:
        against: Name → hash of every set or list that the records were held against.
        ngram: Words in a shingle.
        threshold: Jaccard similarity of the shingle sets from which two records are near
            duplicates.
        removed: Reason → number of records removed (`exact`, `normalised`, `near`, with
            `-within` or `-against` appended).
    """

    against: Mapping[str, str]
    ngram: int
    threshold: float
    removed: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class TokenLengths(Stored):
    """Distribution of the prompts' lengths in tokens.

    Attributes:
        tokenizer: Name of the tokenizer that counted.
        tokenizer_sha256: SHA-256 of its `tokenizer.json`.
        bands: Length band → number of records, in the order of the bands.
        shortest: Fewest tokens.
        median: Lower median.
        p95: 95th percentile (nearest rank).
        longest: Most tokens.
        total: Tokens of the whole set.
    """

    tokenizer: str
    tokenizer_sha256: str
    bands: Mapping[str, int]
    shortest: int
    median: int
    p95: int
    longest: int
    total: int


@dataclass(frozen=True, slots=True)
class SetManifest(Stored):
    """`manifest.json` of a set folder; says nothing about time, so that a rebuild is identical.

    Attributes:
        role: `calibration` or `eval`.
        name: Name of the set.
        definition: The definition it was built from, as JSON.
        definition_sha256: SHA-256 over the compact JSON of the definition.
        sources: One entry per source.
        records: Number of records.
        questions: Question type → number of questions.
        cohorts: Cohort → number of records.
        classes: Question id → option id → records with it as right answer; `""` counts those
            without one. Options that are never right count 0. Empty in sets of earlier versions.
        sha256: The set's hash (`SetFolder.sha256`).
        token_lengths: Lengths, or None when no tokenizer was given.
        decontamination: Result, or None when it was switched off.
        clefq_version: Version that built the set.
        schema_version: Version of this format.
    """

    role: Role
    name: Annotated[str, Rule(can_name_folder, "cannot be a folder's name")]
    definition: Any
    definition_sha256: str
    sources: tuple[SourceInfo, ...]
    records: Count
    questions: Mapping[str, Count]
    cohorts: Mapping[str, int]
    sha256: str
    token_lengths: TokenLengths | None
    decontamination: Decontamination | None
    clefq_version: str
    classes: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    schema_version: Annotated[int, expected(SCHEMA_VERSION)] = SCHEMA_VERSION


@dataclass(frozen=True, slots=True)
class TokenCounter:
    """Counts a record's prompt tokens while a set is written.

    Attributes:
        tokenizer: Name for the manifest.
        tokenizer_sha256: Hash for the manifest.
        count: Record → input tokens.
    """

    tokenizer: str
    tokenizer_sha256: str
    count: Callable[[Record], int]


def read_manifest(path: Path) -> SetManifest:
    """Reads `manifest.json`, strictly.

    Raises:
        InputError: Missing, not JSON, or not of this schema; lists every fault.
    """
    return read_stored(SetManifest, path, fix="build the set again.")


def summarize_lengths(counter: TokenCounter, lengths: Mapping[int, int]) -> TokenLengths:
    """Length → count as a distribution.

    Raises:
        InputError: There is no record.
    """
    total = sum(lengths.values())
    if total == 0:
        raise InputError("no record to measure.")
    bands = dict.fromkeys((name for name, _ in LENGTH_BANDS), 0)
    for tokens, count in lengths.items():
        bands[length_band(tokens)] += count
    ordered = sorted(lengths.items())

    def ranked(numerator: int, denominator: int) -> int:
        wanted = max(1, -(-total * numerator // denominator))
        seen = 0
        for tokens, count in ordered:
            seen += count
            if seen >= wanted:
                return tokens
        raise AssertionError("rank within total")

    return TokenLengths(
        tokenizer=counter.tokenizer,
        tokenizer_sha256=counter.tokenizer_sha256,
        bands=bands,
        shortest=ordered[0][0],
        median=ranked(1, 2),
        p95=ranked(95, 100),
        longest=ordered[-1][0],
        total=sum(tokens * count for tokens, count in ordered),
    )
