"""What a set is held against: other sets, lists of records or texts, and held-out splits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from clefq.clef.records import Question, Record, iter_records
from clefq.data.pool import Pool, PoolWriter, open_pool
from clefq.data.sources.base import Example
from clefq.errors import DefinitionError
from clefq.plain_files import sha256_file
from clefq.store.sets import open_set


@dataclass(frozen=True, slots=True)
class Reference:
    """Something that records are compared with and that nothing is removed from.

    Attributes:
        name: Name in the manifest.
        sha256: Hash of it.
        pool: Its records.
    """

    name: str
    sha256: str
    pool: Pool


def read_reference(path: Path, folder: Path) -> Reference:
    """Reads a set folder, a JSON Lines file of records, or a text file with one text per line.

    Args:
        path: What the user gave.
        folder: Working folder for its pool.

    Raises:
        DefinitionError: It is none of the three.
        InputError: A set folder or a record is malformed.
    """
    if path.is_dir():
        opened = open_set(path)
        digest = opened.manifest.sha256
        return Reference(opened.name, digest, _pool(folder, digest, _of_set(path)))
    if not path.is_file():
        raise DefinitionError(f"--against {path}: no such set or file.")
    digest = sha256_file(path)
    if path.suffix == ".jsonl":
        examples = (Example(record, "") for record in iter_records(path) if not record.images)
        return Reference(path.name, digest, _pool(folder, digest, examples))
    return Reference(path.name, digest, _pool(folder, digest, _of_text(path)))


def _pool(folder: Path, key: str, examples: Iterator[Example]) -> Pool:
    known = open_pool(folder, key)
    if known is not None:
        return known
    with PoolWriter(folder, seed="") as writer:
        rows = 0
        for example in examples:
            rows += 1
            writer.add(example)
        return writer.close(key, rows, [])


def _of_set(path: Path) -> Iterator[Example]:
    opened = open_set(path)
    for record in opened.records():
        names = (*record.images, *record.videos)
        yield Example(record, "", {name: opened.media_path(name) for name in names})


def _of_text(path: Path) -> Iterator[Example]:
    """Each line as a record whose state is the line and whose question says nothing."""
    asked = (Question(id="q", type="noul"),)
    try:
        with path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    yield Example(Record(f"{number}", "list", line.strip(), asked), "")
    except UnicodeDecodeError as error:
        raise DefinitionError(f"--against {path} is not UTF-8 text.") from error
