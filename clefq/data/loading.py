"""Streams the examples of one split of a source, from a local folder or from the hub."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from clefq.clef.records import Record, parse_record, record_to_json
from clefq.data.hub_files import unreachable
from clefq.data.readers import Row, RowError
from clefq.data.sources.base import Example, HubRef, ReadSpec, Source, record_id
from clefq.errors import DefinitionError, RecordError, missing_extra
from clefq.plain_files import sha256_file
from clefq.store.sets import SourceInfo


@dataclass(frozen=True, slots=True)
class Malformed:
    """A row that was refused: source, file, row number from 1, and the reason."""

    source: str
    file: str
    row: int
    reason: str


@dataclass(slots=True)
class SplitPass:
    """One pass over a split.

    Attributes:
        source: The source.
        split: Our name of the split.
        options: The source's options dataclass.
        folder: Folder of the original files, or None for the hub; for the user's own data the
            folder that its paths are relative to.
        seed: Seed of the definition, for generators.
        count: Records wanted, for generators.
        fetched: The hub's commit that the folder was fetched from, or None.
        rows_read: Rows seen so far.
        malformed: Rows refused so far.
    """

    source: Source
    split: str
    options: Any
    folder: Path | None
    seed: str = ""
    count: int | None = None
    fetched: str | None = None
    rows_read: int = 0
    malformed: list[Malformed] = field(default_factory=list)
    _ids: set[bytes] = field(default_factory=set)

    def examples(self) -> Iterator[Example]:
        """Streams the examples in file order; refused rows are noted in `malformed`."""
        for ordinal, row in enumerate(self._rows(), start=1):
            self.rows_read = ordinal
            if row.fault is not None:
                self._refuse(row, row.fault)
                continue
            try:
                key = record_id(self.source.name, self.split, ordinal)
                examples = list(self.source.build(row.value, key, self.options))
                for example in examples:
                    self._check(example.record)
            except RowError as error:
                self._refuse(row, str(error))
                continue
            yield from examples

    def info(self) -> SourceInfo:
        """What the manifest says about this source; the counts are the builder's to fill in."""
        origin, revision = self._origin()
        return SourceInfo(
            source=self.source.name,
            split=self.split,
            origin=origin,
            revision=revision,
            files=self.hashes(),
            licence=getattr(self.options, "licence", None) or self.source.licence,
            attribution=self.source.attribution,
        )

    def _check(self, record: Record) -> None:
        """Refuses what a set could not hold, while the row is still known."""
        try:
            parse_record(record_to_json(record), record.id)
        except RecordError as error:
            faults = [error.message, *error.faults]
            raise RowError("; ".join(faults)) from error
        digest = hashlib.blake2b(record.id.encode(), digest_size=16).digest()
        if digest in self._ids:
            raise RowError(f"the id {record.id!r} occurs twice")
        self._ids.add(digest)

    def _origin(self) -> tuple[Literal["local", "hub", "generated", "user"], str | None]:
        if self.source.origin != "public":
            return self.source.origin, self.source.revision
        if self.fetched is not None:
            return "hub", self.fetched
        if self.folder is None and self.source.hub is not None:
            return "hub", self.source.hub.revision
        return "local", self.source.revision

    def _refuse(self, row: Row, reason: str) -> None:
        self.malformed.append(Malformed(self.source.name, row.file, row.number, reason))

    def files(self) -> tuple[str, ...]:
        """The files that a pass reads, relative to the folder; none for hub and generators."""
        if self.folder is None or self.source.origin == "generated":
            return ()
        if self.source.files is not None:
            return self.source.files(self.options)
        return local_files(self.source, self.split, self.folder)

    def hashes(self) -> dict[str, str]:
        """Relative path → SHA-256 of the files that a pass reads."""
        if self.folder is None:
            return {}
        paths = {file: self.folder / file for file in self.files()}
        return {file: sha256_file(path) for file, path in paths.items() if path.is_file()}

    def _rows(self) -> Iterator[Row]:
        rows = self._plain_rows()
        return rows if self.source.link is None else self.source.link(rows)

    def _plain_rows(self) -> Iterator[Row]:
        if self.folder is None and self.source.origin == "public":
            return hub_rows(self.source, self.split)
        spec = ReadSpec(
            folder=self.folder or Path(),
            files=self.files(),
            split=self.split,
            options=self.options,
            seed=self.seed,
            count=self.count,
        )
        return self.source.read(spec)


def local_files(source: Source, split: str, folder: Path) -> tuple[str, ...]:
    """The files of a split: the first layout whose first file exists; patterns are expanded.

    Raises:
        DefinitionError: No such split, or none of its layouts is there.
    """
    if split not in source.splits:
        known = ", ".join(source.splits)
        raise DefinitionError(f"{source.name} has no split {split!r}; it has {known}.")
    for layout in source.splits[split]:
        files = [name for pattern in layout for name in _expand(folder, pattern)]
        if files and (folder / files[0]).exists():
            return tuple(files)
    names = " or ".join(layout[0] for layout in source.splits[split])
    raise DefinitionError(
        f"{folder} lacks {names}, the {split} split of {source.title}.",
        fix=f"put the original file there{_from_the_hub(source)}.",
    )


def _from_the_hub(source: Source) -> str:
    """How one source alone is read from the hub, where it is known there."""
    found = source.hub or source.hub_files
    if found.path is None or found.revision is None:
        return ""
    return (
        ", or leave out --data-dir to read the hub (beside CLEFQ_DATA_DIR: write "
        f"`hub: {{id: {found.path}, revision: {found.revision}}}` under the source)"
    )


def _expand(folder: Path, pattern: str) -> list[str]:
    if "*" not in pattern:
        return [pattern]
    return sorted(path.relative_to(folder).as_posix() for path in folder.glob(pattern))


def hub_rows(source: Source, split: str) -> Iterator[Row]:
    """Rows of a split from the hub, at the pinned revision, in normal form.

    Raises:
        DefinitionError: The source is not on the hub, lacks the split, or cannot be reached.
        MissingDependencyError: The `datasets` package is not installed.
    """
    hub = source.hub
    if hub is None or split not in hub.splits:
        raise DefinitionError(
            f"{source.title} ({split}) cannot be read from the hub.",
            fix="give the folder of its original files with --data-dir.",
        )
    rows = _load_hub(hub, split)
    name = f"{hub.path}@{hub.revision[:8]}/{hub.splits[split]}"
    for number, row in enumerate(rows, start=1):
        try:
            yield Row(name, number, source.from_hub(row))
        except RowError as error:
            yield Row(name, number, None, str(error))
        except (KeyError, TypeError, ValueError, IndexError) as error:
            yield Row(name, number, None, f"unexpected layout: {error!r}")


def _load_hub(hub: HubRef, split: str) -> Any:
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise missing_extra("datasets", "hub") from error
    # a hub that cannot be reached is one error with its fix, not a page of retries
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    try:
        rows = load_dataset(
            hub.path, hub.config, split=hub.splits[split], revision=hub.revision, streaming=True
        )
    except Exception as error:  # the hub client raises dozens of kinds; all mean "not reachable"
        raise unreachable(hub.path, hub.revision, error) from error
    return _decoded(rows)


def _decoded(rows: Any) -> Iterator[dict[str, Any]]:
    """Rows with class labels given by name instead of number."""
    features = rows.features or {}
    names = {key: kind.names for key, kind in features.items() if hasattr(kind, "names")}
    for row in rows:
        yield {
            key: names[key][value] if key in names and isinstance(value, int) else value
            for key, value in row.items()
        }
