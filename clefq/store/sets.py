"""Set folders: `records.jsonl`, `images/`, `manifest.json`.

The hash of a set covers the exact bytes of its records and the bytes of its images; every
predictions file and report names it, and what was made on another set is refused.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from clefq.clef.records import Record, iter_records, record_to_json
from clefq.errors import InputError
from clefq.plain_files import compact_json, sha256_bytes, sha256_file
from clefq.store.atomic import atomic_folder, disk_error, write_json
from clefq.store.reading import to_plain
from clefq.store.set_manifest import (
    LENGTH_BANDS,
    SCHEMA_VERSION,
    Decontamination,
    Role,
    SetManifest,
    SourceInfo,
    TokenCounter,
    TokenLengths,
    length_band,
    read_manifest,
    summarize_lengths,
)

__all__ = [
    "LENGTH_BANDS",
    "MANIFEST_FILE",
    "RECORDS_FILE",
    "SCHEMA_VERSION",
    "Decontamination",
    "Role",
    "SetDraft",
    "SetFolder",
    "SetManifest",
    "SourceInfo",
    "TokenCounter",
    "TokenLengths",
    "length_band",
    "open_set",
    "read_manifest",
    "set_sha256",
    "summarize_lengths",
    "write_set",
]

RECORDS_FILE = "records.jsonl"
MANIFEST_FILE = "manifest.json"
MEDIA_FOLDERS = ("images", "videos")
MAX_CLASS_QUESTIONS = 1000
MAX_CLASSES = 255


@dataclass(frozen=True, slots=True)
class SetDraft:
    """What the writer of a set knows before the records are written.

    Attributes:
        role: `calibration` or `eval`.
        name: Name of the set.
        definition: JSON of the definition (for generated sets: the generator's parameters).
        sources: One entry per source.
        decontamination: Result, or None.
        counter: Counts tokens for the histogram, or None.
        attachments: Name in the set folder → file to copy (`removed.jsonl`, `malformed.jsonl`).
    """

    role: Role
    name: str
    definition: Any
    sources: tuple[SourceInfo, ...]
    decontamination: Decontamination | None = None
    counter: TokenCounter | None = None
    attachments: Mapping[str, Path] = field(default_factory=dict)


@dataclass(slots=True)
class SetFolder:
    """A set on disk.

    Attributes:
        path: The folder.
        manifest: Its manifest.
    """

    path: Path
    manifest: SetManifest

    @property
    def name(self) -> str:
        """Name of the set."""
        return self.manifest.name

    def records(self) -> Iterator[Record]:
        """Streams the records in file order.

        Raises:
            RecordError: A line is malformed; names the line.
        """
        return iter_records(self.path / RECORDS_FILE)

    def sha256(self) -> str:
        """The set's hash, from the bytes on disk (not from the manifest)."""
        return set_sha256(self.path)

    def media_path(self, relative: str) -> Path:
        """Path of a record's image or video."""
        return self.path / relative

    def media(self) -> dict[str, Path]:
        """Every image and video: its path in the set → the file."""
        return {relative: self.path / relative for relative in _media_files(self.path)}


def set_sha256(folder: Path) -> str:
    r"""SHA-256 over the bytes of `records.jsonl`, then `path\0sha256hex\n` per image in path order.

    Paths are relative to the set, with forward slashes, in code point order.

    Raises:
        InputError: The folder has no `records.jsonl`.
    """
    digest = hashlib.sha256()
    try:
        with (folder / RECORDS_FILE).open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    except OSError as error:
        raise _no_set(folder) from error
    for path in _media_files(folder):
        digest.update(f"{path}\0{sha256_file(folder / path)}\n".encode())
    return digest.hexdigest()


def open_set(path: Path) -> SetFolder:
    """Opens a set folder and checks that its bytes are the ones that were built.

    Raises:
        InputError: Not a set folder, a malformed manifest, or records or images that were
            changed after the set was built.
    """
    if not (path / RECORDS_FILE).is_file() or not (path / MANIFEST_FILE).is_file():
        raise _no_set(path)
    manifest = read_manifest(path / MANIFEST_FILE)
    found = set_sha256(path)
    if found != manifest.sha256:
        raise InputError(
            f"{path}: records or images were changed after the set was built "
            f"(hash {found[:12]}, manifest {manifest.sha256[:12]}).",
            fix="build it again with `clefq build`.",
        )
    return SetFolder(path, manifest)


def write_set(
    folder: Path, records: Iterable[Record], media: Mapping[str, Path], draft: SetDraft
) -> SetFolder:
    """Writes a set folder, whole or not at all, in bounded memory.

    Args:
        folder: The final folder; must not exist or be empty.
        records: The records, in the order of the file.
        media: Path in the set (`images/a.png`, as records name it) → file to copy.
        draft: Everything else that the manifest says.

    Raises:
        InputError: The folder exists, the disk is full, an image is missing or unused, two
            records share an id, or there is no record at all.
    """
    tally = _Tally()
    with atomic_folder(folder) as partial:
        try:
            _write_records(partial / RECORDS_FILE, records, tally, draft.counter)
            _copy_media(partial, media, tally)
            for name, source in draft.attachments.items():
                shutil.copyfile(source, partial / name)
            manifest = _manifest(draft, tally, set_sha256(partial))
            write_json(partial / MANIFEST_FILE, to_plain(manifest))
        except OSError as error:
            raise disk_error(error, folder) from error
    return SetFolder(folder, manifest)


class ClassCounts:
    """Right answers of every question, option by option.

    Questions beyond the first 1,000 ids, and of one id the options beyond 255 that are never
    right, are left out: logs with ids of their own have no classes.
    """

    def __init__(self) -> None:
        self._counts: dict[str, Counter[str]] = {}

    def add(self, record: Record) -> None:
        """Counts a record's right answers."""
        for question in record.questions:
            counts = self._counts.get(question.id)
            if counts is None:
                if len(self._counts) >= MAX_CLASS_QUESTIONS:
                    continue
                counts = self._counts[question.id] = Counter()
            if len(counts) < MAX_CLASSES:
                for option in question.option_ids:
                    counts.setdefault(option, 0)
            counts[record.gold.get(question.id, "")] += 1

    def result(self) -> dict[str, dict[str, int]]:
        """Question id → option id → count, the ids sorted; `""` for no right answer."""
        return {name: dict(sorted(self._counts[name].items())) for name in sorted(self._counts)}


class _Tally:
    """Counts while records stream past; ids are kept as 16-byte digests."""

    def __init__(self) -> None:
        self.records = 0
        self.questions: Counter[str] = Counter()
        self.cohorts: Counter[str] = Counter()
        self.lengths: Counter[int] = Counter()
        self.media: set[str] = set()
        self.classes = ClassCounts()
        self._ids: set[bytes] = set()

    def add(self, record: Record) -> None:
        key = hashlib.blake2b(record.id.encode(), digest_size=16).digest()
        if key in self._ids:
            raise InputError(f"two records have the id {record.id!r}.")
        self._ids.add(key)
        self.records += 1
        self.cohorts[record.cohort] += 1
        self.questions.update(question.type for question in record.questions)
        self.classes.add(record)
        self.media.update(record.images)
        self.media.update(record.videos)


def _write_records(
    path: Path, records: Iterable[Record], tally: _Tally, counter: TokenCounter | None
) -> None:
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for record in records:
            tally.add(record)
            if counter is not None:
                tally.lengths[counter.count(record)] += 1
            file.write(compact_json(record_to_json(record)))
            file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    if tally.records == 0:
        raise InputError("the set would hold no record.", fix="raise --limit or the counts.")


def _copy_media(partial: Path, media: Mapping[str, Path], tally: _Tally) -> None:
    if tally.media != set(media):
        wrong = sorted(tally.media ^ set(media))[0]
        what = "is named by a record but missing" if wrong in tally.media else "is named by none"
        raise InputError(f"the image {wrong} {what}.")
    for relative, source in sorted(media.items()):
        pure = PurePosixPath(relative)
        if pure.parts[0] not in MEDIA_FOLDERS or len(pure.parts) < 2 or ".." in pure.parts:
            raise InputError(f"{relative}: images lie under images/, videos under videos/.")
        target = partial / pure
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            shutil.copyfile(source, target)
        except FileNotFoundError as error:
            raise InputError(f"no image {source}.") from error


def _manifest(draft: SetDraft, tally: _Tally, sha256: str) -> SetManifest:
    from clefq import __version__

    lengths = None
    if draft.counter is not None:
        lengths = summarize_lengths(draft.counter, tally.lengths)
    return SetManifest(
        role=draft.role,
        name=draft.name,
        definition=to_plain(draft.definition),
        definition_sha256=sha256_bytes(compact_json(to_plain(draft.definition)).encode()),
        sources=draft.sources,
        records=tally.records,
        questions=dict(sorted(tally.questions.items())),
        cohorts=dict(sorted(tally.cohorts.items())),
        sha256=sha256,
        token_lengths=lengths,
        decontamination=draft.decontamination,
        clefq_version=__version__,
        classes=tally.classes.result(),
    )


def _media_files(folder: Path) -> list[str]:
    """Relative POSIX paths of the images and videos, in code point order."""
    found = []
    for top in MEDIA_FOLDERS:
        for path in (folder / top).rglob("*"):
            if path.is_file():
                found.append(path.relative_to(folder).as_posix())
    return sorted(found)


def _no_set(folder: Path) -> InputError:
    return InputError(
        f"{folder} is not a set folder (records.jsonl and manifest.json).",
        fix="build it with `clefq build eval|calibration NAME_OR_FILE --out DIR`.",
    )
