"""What a source of records is: original files or a hub data set, and how a row becomes a record.

A source reads its local files and its hub data set into one normal form per row, so that both
give the same records. The wording of its question and options is part of the source.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from clefq.clef.records import Question, Record
from clefq.data.readers import Row, RowError
from clefq.store.reading import Stored


@dataclass(frozen=True, slots=True)
class HubRef:
    """A data set on the hub.

    Attributes:
        path: `owner/name`.
        revision: Commit; a moving branch would make sets differ from day to day.
        config: Configuration name, or None.
        splits: Our split → the hub's split.
    """

    path: str
    revision: str
    config: str | None
    splits: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class HubFiles:
    """A repository of the hub that holds the original files, in their original form.

    Attributes:
        path: `owner/name`, or None where none is known.
        revision: Commit, or None where none is pinned: the definition then names one.
        archive: A tar file of images in the repository, or None.
        unpacked: Folder of those images in the original layout.
        whole: Whether all of the repository is needed: a table names images that lie beside it.
    """

    path: str | None = None
    revision: str | None = None
    archive: str | None = None
    unpacked: str = ""
    whole: bool = False


@dataclass(frozen=True, slots=True)
class Example:
    """A record and what sampling needs to know of it.

    Attributes:
        record: The record; its gold is one of its options.
        label: Stratum by label, usually the gold of its first question.
        media: Path in the set (`images/…`) → file, or the bytes of one, for records with images.
    """

    record: Record
    label: str
    media: Mapping[str, Path | bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NoOptions(Stored):
    """A source without options of its own."""


@dataclass(frozen=True, slots=True)
class ReadSpec:
    """What a source is asked to read.

    Attributes:
        folder: Folder of the original files; for the user's own data, the definition's folder.
        files: Files of the split, relative to the folder.
        split: Our name of the split.
        options: The source's options dataclass.
        seed: Seed of the definition; only generators use it.
        count: Records wanted, or None; only generators use it.
    """

    folder: Path
    files: tuple[str, ...]
    split: str
    options: Any
    seed: str = ""
    count: int | None = None


@dataclass(frozen=True, slots=True)
class Source:
    """One public data set, a generator, or the user's own data.

    Attributes:
        name: Key in definitions, and the folder's name under the data folder.
        title: Name for people.
        licence: SPDX-like name.
        attribution: The line that the licence asks for, or None.
        revision: Commit or version of the original files that the golden tests were made on.
        splits: Split → the original files, relative to the folder. Of several alternatives
            (tuples in the outer tuple) the first whose files all exist is read.
        hub: The same set on the hub, or None.
        read: ReadSpec → rows in normal form.
        from_hub: Hub row (class labels by name) → normal form; raises RowError.
        build: (normal form, record id, options) → examples; raises RowError.
        link: Adds to every row what only other rows can give (wrong answers, the set of labels),
            for local and hub rows alike; None when rows stand alone.
        options: Frozen dataclass of the options that a definition may set.
        files: Options → files read, where the options name them instead of the split.
        held_out: Splits that calibration must not touch.
        hub_files: For sources without `hub`: where on the hub the original files are.
        origin: `public` data, `generated` by clefq, or the `user`'s own.
    """

    name: str
    title: str
    licence: str
    attribution: str | None
    revision: str | None
    splits: Mapping[str, tuple[tuple[str, ...], ...]]
    hub: HubRef | None
    read: Callable[[ReadSpec], Iterator[Row]]
    from_hub: Callable[[Mapping[str, Any]], Any]
    build: Callable[[Any, str, Any], Iterable[Example]]
    link: Callable[[Iterable[Row]], Iterator[Row]] | None = None
    options: type[Any] = NoOptions
    files: Callable[[Any], tuple[str, ...]] | None = None
    held_out: tuple[str, ...] = ()
    hub_files: HubFiles = HubFiles()
    origin: Literal["public", "generated", "user"] = "public"


def record_id(source: str, split: str, ordinal: int) -> str:
    """Id of the split's `ordinal`-th row, from 1: for example `banking77-test-00017`.

    Malformed rows count too, so that mending one does not rename the others.
    """
    return "-".join(part for part in (source, split, f"{ordinal:05d}") if part)


def named_file(options: Any) -> tuple[str, ...]:
    """The one file that the options name: `Source.files` of the user's own data."""
    return (options.file,)


def choice(qid: str, instructions: str, criteria: Mapping[str, Any]) -> Question:
    """A choice question; `criteria` maps option ids to descriptions (None for none)."""
    return Question(id=qid, type="choice", instructions=instructions, criteria=dict(criteria))


def noul(qid: str, instructions: str, criteria: Mapping[str, Any] | None = None) -> Question:
    """A true/false question."""
    return Question(
        id=qid,
        type="noul",
        instructions=instructions,
        criteria=dict(criteria) if criteria else None,
    )


def score(qid: str, instructions: str, levels: Iterable[str]) -> Question:
    """An ordinal question; `levels` describes its levels from the lowest."""
    return Question(id=qid, type="score", instructions=instructions, criteria=list(levels))


def single(record_id: str, cohort: str, state: Any, question: Question, gold: str) -> Example:
    """The example of a record with one question.

    Raises:
        RowError: The gold is none of the question's options.
    """
    if gold not in question.option_ids:
        raise RowError(f"label {gold!r} is none of the {len(question.option_ids)} options")
    record = Record(
        id=record_id, cohort=cohort, state=state, questions=(question,), gold={question.id: gold}
    )
    return Example(record=record, label=gold)


def letters(count: int) -> tuple[str, ...]:
    """The first `count` capital letters, as option keys."""
    if not 2 <= count <= 26:
        raise RowError(f"{count} options")
    return tuple(string.ascii_uppercase[:count])


@dataclass(frozen=True, slots=True)
class Quiz:
    """A multiple-choice question whose options are texts under letters.

    Attributes:
        cohort: Cohort of the record.
        state: State of the record.
        instructions: What is asked.
        texts: Text of each option, in order.
        gold: Index of the right one.
    """

    cohort: str
    state: Any
    instructions: str
    texts: Sequence[str]
    gold: int


def quiz_example(record_id: str, quiz: Quiz) -> Example:
    """The example of a multiple-choice question `answer`.

    Raises:
        RowError: An option is empty or doubled, or the gold is out of range.
    """
    keys = letters(len(quiz.texts))
    if any(not isinstance(text, str) or not text.strip() for text in quiz.texts):
        raise RowError("an option is empty")
    if not 0 <= quiz.gold < len(keys):
        raise RowError(f"answer {quiz.gold} of {len(keys)} options")
    question = choice("answer", quiz.instructions, dict(zip(keys, quiz.texts, strict=True)))
    return single(record_id, quiz.cohort, quiz.state, question, keys[quiz.gold])


def many(
    record_id: str,
    cohort: str,
    state: Any,
    questions: Sequence[Question],
    gold: Mapping[str, str],
    label: str,
) -> Example:
    """The example of a record with several questions; `gold` may leave some out.

    Raises:
        RowError: A gold is none of its question's options, or there is no question.
    """
    if not questions:
        raise RowError("no question can be asked")
    for question in questions:
        answer = gold.get(question.id)
        if answer is not None and answer not in question.option_ids:
            raise RowError(f"label {answer!r} is no option of {question.id}")
    record = Record(
        id=record_id, cohort=cohort, state=state, questions=tuple(questions), gold=dict(gold)
    )
    return Example(record=record, label=label)
