"""Where the records of a measurement come from: a set folder, or synthetic ones."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from clefq.bench import workload
from clefq.clef.encoding import PromptTokenizer
from clefq.clef.records import Record
from clefq.errors import InputError
from clefq.store.sets import open_set


@dataclass(frozen=True, slots=True)
class RecordSource:
    """Which records to measure with.

    Attributes:
        set_path: A set folder, or None for synthetic records.
        kinds: Kinds of `clefq.bench.workload`: names, or numbers of tokens.
        count: Synthetic records of each kind; of a set, at most so many (None: all).
        tokenizer: Model folder whose tokenizer counts synthetic records.
    """

    set_path: Path | None
    kinds: tuple[str, ...]
    count: int | None
    tokenizer: Path


@dataclass(frozen=True, slots=True)
class Loaded:
    """Records, ready to be run.

    Attributes:
        name: What they are, for the table's heading.
        records: In order.
        root: Folder that image paths are relative to.
        set_sha256: Hash of the set; None for synthetic records.
    """

    name: str
    records: tuple[Record, ...]
    root: Path
    set_sha256: str | None


_PER_KIND = 64


@contextmanager
def opened(source: RecordSource) -> Iterator[Loaded]:
    """Reads or builds the records; synthetic images live as long as the block.

    Raises:
        InputError: Not a set, an unknown kind, or one that is too short.
    """
    if source.set_path is not None:
        found = open_set(source.set_path)
        records = tuple(found.records())[: source.count]
        yield Loaded(found.name, records, found.path, found.manifest.sha256)
        return
    tokenizer = PromptTokenizer.from_folder(source.tokenizer)
    made = workload.records(tokenizer, source.kinds, source.count or _PER_KIND)
    name = "synthetic " + ", ".join(map(_kind_text, source.kinds))
    with tempfile.TemporaryDirectory(prefix="clefq-bench-") as root:
        workload.write_images(made, Path(root))
        yield Loaded(name, tuple(made), Path(root), None)


def parse_kinds(text: str) -> tuple[str, ...]:
    """Reads `500,1000,options-77`.

    Raises:
        InputError: A kind is unknown, or there is none.
    """
    kinds = tuple(part.strip() for part in text.split(",") if part.strip())
    if not kinds:
        raise InputError("--lengths names no kind of record.", fix="use 500,1000 for example.")
    for kind in kinds:
        workload.kind_of(kind)
    return kinds


def _kind_text(kind: str) -> str:
    return f"{int(kind):,} tokens" if kind.isdecimal() else kind
