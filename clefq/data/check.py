"""What is wrong with a set that exists: contradictions, duplicates, empty texts, odd labels.

Problems make a set unfit to judge on (or its right answers doubtful) and fail `clefq check`; notes
are what a reader of its figures should know.
"""

from __future__ import annotations

import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from clefq.clef.encoding import DEFAULT_MAX_LENGTH
from clefq.clef.records import Record
from clefq.data.content import contradict
from clefq.data.duplicates import Fingerprints, Removal, find_duplicates
from clefq.data.labels import NOTHING_WORDS, plain_space, several_labels, spelling
from clefq.data.pool import Pool, PoolReader, PoolWriter
from clefq.data.prints import PoolPrints, Similarity, learn_schema
from clefq.data.sources.base import Example
from clefq.data.tokens import PromptCounter
from clefq.store.sets import SetFolder
from clefq.store.variant_links import parse_variant_id

NGRAM = 5
THRESHOLD = 0.8
# A class of fewer records has no interval worth reading (as in reports).
SMALL_CLASS = 10
# Share of one answer from which a set says little about the others.
ONE_SIDED = 0.9
SHOWN = 5


@dataclass(frozen=True, slots=True)
class SetFinding:
    """One thing that a check found.

    Attributes:
        kind: `conflict`, `duplicate`, `near`, `empty`, `label`, `text`, `class`, `answer` or
            `length`.
        problem: Whether it fails the check; otherwise it is a note.
        text: One line.
        records: Ids of the first records that it is about.
        count: How many it is about.
    """

    kind: str
    problem: bool
    text: str
    records: tuple[str, ...] = ()
    count: int = 0


@dataclass(slots=True)
class _Gathered:
    """What one pass over the records gathers."""

    empty: list[str] = field(default_factory=list)
    garbled: list[str] = field(default_factory=list)
    long: list[str] = field(default_factory=list)
    types: dict[str, str] = field(default_factory=dict)
    options: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    golds: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))


def check_set(
    folder: SetFolder, counter: PromptCounter | None = None, max_length: int = DEFAULT_MAX_LENGTH
) -> list[SetFinding]:
    """Everything that is odd about a set, problems first.

    Args:
        folder: The set.
        counter: Counts prompts with a model's tokenizer, or None to leave lengths out.
        max_length: Tokens of the longest prompt that will be asked.
    """
    found = _Gathered()
    with tempfile.TemporaryDirectory() as temporary:
        pool = _gather(folder, Path(temporary), found, counter, max_length)
        findings = [*_alike(pool), *_texts(found, max_length), *_labels(found), *_classes(found)]
    return sorted(findings, key=lambda finding: not finding.problem)


def _gather(
    folder: SetFolder,
    work: Path,
    found: _Gathered,
    counter: PromptCounter | None,
    max_length: int,
) -> Pool:
    with PoolWriter(work, seed="") as writer:
        for record in folder.records():
            names = (*record.images, *record.videos)
            media = {name: folder.media_path(name) for name in names}
            # a variant repeats its original by design, without gold, some without a state
            if parse_variant_id(record.id) is None:
                writer.add(Example(record, "", dict(media)))
                _note(record, found)
            if counter is not None and counter.count(record, media) > max_length:
                found.long.append(record.id)
        return writer.close("check", 0, [])


def _note(record: Record, found: _Gathered) -> None:
    if not record.images and not record.videos and _empty(record.state):
        found.empty.append(record.id)
    if "\ufffd" in repr(record.state):
        found.garbled.append(record.id)
    for question in record.questions:
        found.types[question.id] = question.type
        found.options[question.id].update(question.option_ids)
        found.golds[question.id][record.gold.get(question.id, "")] += 1


def _empty(value: object) -> bool:
    if isinstance(value, str):
        return not plain_space(value)
    if isinstance(value, Mapping):
        return all(_empty(item) for item in value.values())
    return value is None or value == []


def _alike(pool: Pool) -> Iterator[SetFinding]:
    """Contradictions, duplicates and near duplicates inside the set."""
    schema = learn_schema([pool], NGRAM)
    prints = PoolPrints(pool, schema, NGRAM)
    count = len(pool)
    places = np.stack([np.zeros(count, np.int64), np.arange(count)], axis=1)
    joined = Fingerprints(
        exact=prints.exact,
        normalised=prints.normalised,
        signatures=prints.signatures,
        rank=np.arange(count),
        fixed=np.zeros(count, np.bool_),
        golds=prints.golds,
    )
    with pool.reader() as reader, Similarity([prints], places, NGRAM, schema.shingles) as similar:
        removals = find_duplicates(
            joined,
            similar,
            THRESHOLD,
            lambda left, right: contradict(reader.get(left)[0], reader.get(right)[0]),
        )
        yield from _told(removals, reader)


_KINDS = {
    "conflict": ("conflict", True, "records have the content of another and another right answer"),
    "exact": ("duplicate", True, "records repeat another"),
    "normalised": ("duplicate", True, "records repeat another but for case, spacing or order"),
    "near": ("near", False, "records are nearly another (similarity 0.8 and more)"),
}


def _told(removals: list[Removal], reader: PoolReader) -> Iterator[SetFinding]:
    for kind, (name, problem, words) in _KINDS.items():
        rows = [removal for removal in removals if removal.kind == kind]
        if rows:
            ids = [reader.get(row.index)[0].id for row in rows[:SHOWN]]
            kept = [reader.get(row.kept)[0].id for row in rows[:SHOWN]]
            pairs = ", ".join(f"{one} ({two})" for one, two in zip(ids, kept, strict=True))
            text = f"{len(rows):,} {words}: {pairs}{_more(len(rows))}"
            yield SetFinding(name, problem, text, tuple(ids), len(rows))


def _texts(found: _Gathered, max_length: int) -> Iterator[SetFinding]:
    groups = (
        ("empty", True, found.empty, "records have an empty state"),
        ("text", True, found.garbled, "records hold U+FFFD: letters that were lost in decoding"),
        ("length", True, found.long, f"records are longer than {max_length:,} tokens"),
    )
    for kind, problem, ids, words in groups:
        if ids:
            text = f"{len(ids):,} {words}: {', '.join(ids[:SHOWN])}{_more(len(ids))}"
            yield SetFinding(kind, problem, text, tuple(ids[:SHOWN]), len(ids))


def _labels(found: _Gathered) -> Iterator[SetFinding]:
    """Options of a choice that are spellings of one, no answer, or several."""
    for name, options in found.options.items():
        if found.types[name] != "choice" or len(options) > 255:
            continue
        groups: dict[str, list[str]] = defaultdict(list)
        for option in sorted(options):
            groups[spelling(option)].append(option)
        odd = [f"{', '.join(map(repr, g))} look like one option" for g in groups.values() if g[1:]]
        for option in sorted(options):
            if spelling(option) in NOTHING_WORDS:
                odd.append(f"{option!r} looks like no answer")
            elif several_labels(option, options):
                odd.append(f"{option!r} looks like several labels")
        for text in odd:
            yield SetFinding("label", True, f"{name}: {text}")


def _classes(found: _Gathered) -> Iterator[SetFinding]:
    for name, counts in found.golds.items():
        answered = {option: count for option, count in counts.items() if option}
        total = sum(answered.values())
        if counts[""]:
            text = f"{name}: {counts['']:,} of {total + counts['']:,} have no right answer"
            yield SetFinding("answer", False, text, count=counts[""])
        if not total:
            continue
        never = sorted(found.options[name] - answered.keys())
        if never and len(found.options[name]) <= 255:
            shown = ", ".join(never[:SHOWN]) + _more(len(never))
            text = f"{name}: {len(never):,} options are never right: {shown}"
            yield SetFinding("class", False, text, count=len(never))
        rare = sorted(option for option, count in answered.items() if count < SMALL_CLASS)
        if rare:
            text = f"{name}: fewer than {SMALL_CLASS} records of {', '.join(rare[:SHOWN])}"
            yield SetFinding("class", False, text + _more(len(rare)), count=len(rare))
        most, often = max(answered.items(), key=lambda item: (item[1], item[0]))
        if often >= ONE_SIDED * total:
            text = f"{name}: {most} is right in {often / total:.0%}; always answering it is as good"
            yield SetFinding("class", False, text, count=often)


def _more(count: int) -> str:
    return f" and {count - SHOWN:,} more" if count > SHOWN else ""
