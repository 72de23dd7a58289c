"""The pool: all examples of one entry of a definition, on disk, with what sampling needs in memory.

One JSON line per record and a table of about 40 bytes per record, so that a million records are
read in bounded memory and a stopped build goes on with the sources that it has already read.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clefq.clef.records import Question, Record, record_to_json
from clefq.data.definition import Dimension
from clefq.data.loading import Malformed
from clefq.data.sampling import length_stratum, sample_key
from clefq.data.sources.base import Example
from clefq.errors import DefinitionError
from clefq.plain_files import compact_json, read_json
from clefq.store.atomic import write_json
from clefq.store.reading import to_plain

_TABLE = "table.npz"
_LINES = "records.jsonl"
_STATE = "state.json"


@dataclass(frozen=True, slots=True)
class Pool:
    """A pool that was read to its end.

    Attributes:
        folder: Where it lies.
        keys: uint64[n], sample keys.
        offsets: int64[n + 1], byte offsets of the lines.
        strata: Dimension → int64[n].
        rows_read: Rows of the source.
        malformed: Refused rows.
        canary: Record id and text of the first canary string, or None.
    """

    folder: Path
    keys: NDArray[np.uint64]
    offsets: NDArray[np.int64]
    strata: Mapping[Dimension, NDArray[np.int64]]
    rows_read: int
    malformed: tuple[Malformed, ...]
    canary: tuple[str, str] | None

    def __len__(self) -> int:
        return len(self.keys)

    def reader(self) -> PoolReader:
        """Random access to the records."""
        return PoolReader(self)


class PoolReader:
    """Reads records of a pool by position; keeps one file open."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._file = (pool.folder / _LINES).open("rb")

    def __enter__(self) -> PoolReader:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def get(self, index: int) -> tuple[Record, dict[str, Path]]:
        """The record and its media (path in the set → file)."""
        start, end = self._pool.offsets[index : index + 2]
        self._file.seek(int(start))
        line = json.loads(self._file.read(int(end - start)))
        media = {name: Path(path) for name, path in line["media"].items()}
        return _trusted(line["record"]), media

    def all(self) -> Iterator[tuple[Record, dict[str, Path]]]:
        """Every record in order."""
        for index in range(len(self._pool)):
            yield self.get(index)


def _trusted(value: dict[str, Any]) -> Record:
    """A record that was checked before it was stored, decoded without checking it again."""
    questions = tuple(
        Question(name, asked["type"], asked.get("instructions"), asked.get("criteria"))
        for name, asked in value["questions"].items()
    )
    return Record(
        id=value["id"],
        cohort=value["cohort"],
        state=value["state"],
        questions=questions,
        images=tuple(value.get("images", ())),
        videos=tuple(value.get("videos", ())),
        gold=value.get("gold", {}),
        cohorts=value.get("cohorts", {}),
    )


@dataclass(slots=True)
class _Table:
    keys: array[int] = field(default_factory=lambda: array("Q"))
    offsets: array[int] = field(default_factory=lambda: array("q", [0]))
    label: array[int] = field(default_factory=lambda: array("q"))
    cohort: array[int] = field(default_factory=lambda: array("q"))
    length: array[int] = field(default_factory=lambda: array("q"))
    options: array[int] = field(default_factory=lambda: array("q"))


class PoolWriter:
    """Fills a pool folder.

    Args:
        folder: A new or half-filled folder; what it holds is written over.
        seed: Seed of the definition.
        canaries: Lower-case strings to look for.
    """

    def __init__(self, folder: Path, seed: str, canaries: tuple[str, ...] = ()) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / _STATE).unlink(missing_ok=True)
        self._folder = folder
        self._seed = seed
        self._canaries = canaries
        self._canary: tuple[str, str] | None = None
        self._table = _Table()
        self._names: dict[str, int] = {}
        self._file = (folder / _LINES).open("wb")

    def __enter__(self) -> PoolWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def add(self, example: Example) -> None:
        """Stores one example."""
        record = example.record
        media = {name: str(self._media(name, file)) for name, file in example.media.items()}
        text = compact_json({"media": media, "record": record_to_json(record)})
        line = (text + "\n").encode("utf-8")
        self._file.write(line)
        table = self._table
        table.offsets.append(table.offsets[-1] + len(line))
        table.keys.append(sample_key(self._seed, record.id))
        table.label.append(self._number("label " + example.label))
        table.cohort.append(self._number("cohort " + record.cohort))
        table.length.append(length_stratum(len(line)))
        table.options.append(max(len(question.option_ids) for question in record.questions))
        if self._canary is None:
            lowered = text.lower()
            for canary in self._canaries:
                if canary in lowered:
                    self._canary = (record.id, canary)

    def close(self, key: str, rows_read: int, malformed: list[Malformed]) -> Pool:
        """Finishes the pool; `key` names what it was made from."""
        self._file.close()
        table = self._table
        np.savez(
            self._folder / _TABLE,
            keys=np.array(table.keys, dtype=np.uint64),
            offsets=np.array(table.offsets, dtype=np.int64),
            label=np.array(table.label, dtype=np.int64),
            cohort=np.array(table.cohort, dtype=np.int64),
            length=np.array(table.length, dtype=np.int64),
            options=np.array(table.options, dtype=np.int64),
        )
        state = {
            "key": key,
            "rows_read": rows_read,
            "malformed": to_plain(malformed),
            "canary": self._canary,
        }
        write_json(self._folder / _STATE, state)
        pool = open_pool(self._folder, key)
        if pool is None:
            raise DefinitionError(f"{self._folder} cannot be read back.")
        return pool

    def _media(self, name: str, file: Path | bytes) -> Path:
        if isinstance(file, Path):
            return file.resolve()
        path = self._folder / "media" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(file)
        return path.resolve()

    def _number(self, name: str) -> int:
        return self._names.setdefault(name, len(self._names))


def open_pool(folder: Path, key: str) -> Pool | None:
    """The pool in `folder` if it was finished and made from `key`, else None."""
    if not (folder / _STATE).is_file():
        return None
    state: dict[str, Any] = read_json(folder / _STATE)
    if state["key"] != key:
        return None
    with np.load(folder / _TABLE) as table:
        arrays = {name: table[name] for name in table.files}
    return Pool(
        folder=folder,
        keys=arrays["keys"],
        offsets=arrays["offsets"],
        strata={
            "label": arrays["label"],
            "cohort": arrays["cohort"],
            "length": arrays["length"],
            "options": arrays["options"],
        },
        rows_read=state["rows_read"],
        malformed=tuple(Malformed(**row) for row in state["malformed"]),
        canary=tuple(state["canary"]) if state["canary"] else None,
    )
