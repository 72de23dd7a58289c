"""Builds a set folder from a definition: read, compare, select, write.

Each stage keeps its result in a working folder beside the output, so that a stopped build goes on
where it was; the set itself appears whole or not at all.
"""

from __future__ import annotations

import math
import os
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from clefq import __version__
from clefq.clef.records import Record
from clefq.console import Console
from clefq.data.against import Reference, read_reference
from clefq.data.definition import Definition, SourceUse, source_options
from clefq.data.hub_files import fetch, find_place
from clefq.data.loading import Malformed, SplitPass
from clefq.data.personal import KEY_VARIABLE
from clefq.data.pool import Pool, PoolWriter, open_pool
from clefq.data.prints import PoolPrints, learn_schema
from clefq.data.readers import NOT_UTF8
from clefq.data.selection import Removed, Selected, Selector, TokenLimits, TokensOf
from clefq.data.sources import SOURCES
from clefq.data.tables import not_utf8_fix
from clefq.data.tokens import PromptCounter
from clefq.data.variants import apply_variant
from clefq.errors import DefinitionError
from clefq.plain_files import compact_json, sha256_bytes
from clefq.store.atomic import sole_writer
from clefq.store.reading import to_plain
from clefq.store.sets import (
    Decontamination,
    SetDraft,
    SetFolder,
    SourceInfo,
    TokenCounter,
    write_set,
)

# Strings by which authors ask that a file never be used for training or tuning.
CANARIES = (
    "canary guid",
    "should never appear in training corpora",
    "do not train on this",
)

# Above this share of refused rows a set is another sample than its table.
MOST_MALFORMED = 0.01
FIRST_ROWS = 5


@dataclass(frozen=True, slots=True)
class BuildSpec:
    """What to build and where.

    Attributes:
        definition: The definition, with the seed and limits of the command line applied.
        base: Folder that the definition's own paths are relative to.
        out: The set folder to make.
        data_dir: Folder of original files, or None (then CLEFQ_DATA_DIR, then the hub).
        against: Sets and lists to compare with.
        tokenizer: Model folder whose tokenizer counts, or None to leave tokens uncounted.
        allow_malformed: Largest share of a source's rows that may be refused.
        name: Name of the set; None: the definition's.
    """

    definition: Definition
    base: Path
    out: Path
    data_dir: Path | None = None
    against: tuple[Path, ...] = ()
    tokenizer: Path | None = None
    allow_malformed: float = MOST_MALFORMED
    name: str | None = None


@dataclass(slots=True)
class BuildResult:
    """A set that was built.

    Attributes:
        folder: The set.
        removed: Duplicates, as in `removed.jsonl`.
        skipped_references: Held-out splits that could not be read.
        malformed: Refused rows of each source, in the manifest's order of the sources.
    """

    folder: SetFolder
    removed: list[Removed]
    skipped_references: list[str] = field(default_factory=list)
    malformed: list[tuple[Malformed, ...]] = field(default_factory=list)


def limited(definition: Definition, limit: int | None, seed: str | None) -> Definition:
    """The definition with at most `limit` records per entry, and another seed."""
    uses = definition.sources
    if limit is not None:
        uses = tuple(
            replace(use, count=limit if use.count is None else min(limit, use.count))
            for use in uses
        )
    return replace(definition, sources=uses, seed=definition.seed if seed is None else seed)


def build_set(spec: BuildSpec, console: Console) -> BuildResult:
    """Builds a set.

    Raises:
        DefinitionError: A source lacks its files, forbids this use, or limits need a tokenizer.
        InputError: The output exists, another process is making it, or the disk is full.
    """
    if spec.out.exists() and (not spec.out.is_dir() or any(spec.out.iterdir())):
        raise DefinitionError(
            f"{spec.out} exists already.", fix="remove it or choose another --out."
        )
    with sole_writer(spec.out):
        return _Build(spec, console).run()


@dataclass(slots=True)
class _Entry:
    """One entry of the definition on its way through the stages."""

    use: SourceUse
    load: SplitPass
    pool: Pool
    selected: Selected = field(default_factory=Selected)


class _Build:
    def __init__(self, spec: BuildSpec, console: Console) -> None:
        self.spec = spec
        self.console = console
        self.definition = spec.definition
        self.work = spec.out.parent / f".{spec.out.name}.work"
        self.counter = PromptCounter(spec.tokenizer) if spec.tokenizer is not None else None
        self.skipped: list[str] = []
        self._check_limits()

    def run(self) -> BuildResult:
        loads = [(use, self._load(use)) for use in self.definition.sources]
        for _, load in loads:
            load.files()  # what is missing is said before anything is read
        references = self._given_references()  # before hours of reading, for the same reason
        entries = [
            self._read(use, load, self.work / f"source-{number:02d}")
            for number, (use, load) in enumerate(loads)
        ]
        for entry in entries:
            self._check_malformed(entry)
            self._check_canary(entry)
        if self.definition.role == "calibration" and self.definition.decontaminate.held_out:
            references += self._held_out()
        self._select(entries, references)
        removed = [row for entry in entries for row in entry.selected.removed]
        self._note_shortage(entries)
        folder = self._write(entries, self._draft(entries, references, removed))
        shutil.rmtree(self.work, ignore_errors=True)
        malformed = [entry.pool.malformed for entry in entries]
        return BuildResult(folder, removed, self.skipped, malformed)

    def _note_shortage(self, entries: Sequence[_Entry]) -> None:
        for entry in entries:
            wanted, taken = entry.use.count, len(entry.selected.indices)
            if wanted is not None and taken < wanted:
                self.console.note(f"{entry.use.title}: {taken:,} records instead of {wanted:,}")

    def _check_limits(self) -> None:
        limited = any(use.token_budget or use.min_tokens for use in self.definition.sources)
        if limited and self.counter is None:
            raise DefinitionError(
                f"{self.definition.name} has token budgets, which need a tokenizer.",
                fix="give a model folder with --tokenizer.",
            )

    def _load(self, use: SourceUse) -> SplitPass:
        source = SOURCES[use.source]
        options = source_options(use)
        if source.origin == "public":
            place = find_place(source, options, self.spec.data_dir, use.hub)
            source, folder = place.source, place.folder
            if place.revision is not None:
                self.console.note(f"{use.title}: fetching {source.hub_files.path}")
                folder = fetch(source, [use.split], self.work / f"hub-{use.source}-{use.split}")
            return SplitPass(source, use.split, options, folder, fetched=place.revision)
        seed = self.definition.seed
        return SplitPass(source, use.split, options, self.spec.base, seed, use.count)

    def _read(self, use: SourceUse, load: SplitPass, folder: Path) -> _Entry:
        """Reads a source into its pool, or finds the pool of an earlier, stopped build."""
        key = self._key(use, load)
        known = open_pool(folder, key)
        if known is not None:
            self.console.note(f"{use.title}: {len(known):,} records read earlier")
            load.rows_read = known.rows_read
            load.malformed = list(known.malformed)
            return _Entry(use, load, known)
        seed = self.definition.seed
        canaries = (*CANARIES, *(c.lower() for c in self.definition.decontaminate.canaries))
        with (
            PoolWriter(folder, seed, canaries) as writer,
            self.console.progress(f"reading {use.title}", None) as advance,
        ):
            for example in load.examples():
                writer.add(example)
                advance(1)
            pool = writer.close(key, load.rows_read, load.malformed)
        if len(pool) == 0:
            reason = f": {load.malformed[0].reason}" if load.malformed else ""
            raise DefinitionError(
                f"{use.title}: none of {load.rows_read:,} rows is usable{reason}.",
                fix=_malformed_fix(use, load.malformed) if load.malformed else None,
            )
        return _Entry(use, load, pool)

    def _key(self, use: SourceUse, load: SplitPass) -> str:
        hub = load.source.hub
        parts = {
            "version": __version__,
            "hub": None if load.folder is not None or hub is None else hub.revision,
            "hash_key": sha256_bytes(os.environ.get(KEY_VARIABLE, "").encode()),
            "use": to_plain(use),
            "files": load.hashes(),
            "local": load.folder is not None,
            "seed": self.definition.seed,
            "canaries": list(self.definition.decontaminate.canaries),
        }
        return sha256_bytes(compact_json(parts).encode())

    def _check_malformed(self, entry: _Entry) -> None:
        """Refuses a source that loses more rows than was allowed: what is left is another sample.

        Raises:
            DefinitionError: Lists the first rows of every reason.
        """
        malformed, read = entry.pool.malformed, entry.pool.rows_read
        share = len(malformed) / read if read else 0.0
        if share <= self.spec.allow_malformed:
            return
        counts = Counter(row.reason for row in malformed)
        first = [next(row for row in malformed if row.reason == reason) for reason in counts]
        listed = [
            f"{row.file} row {row.row}: {row.reason} ({counts[row.reason]:,} such rows)"
            for row in sorted(first, key=lambda row: -counts[row.reason])[:FIRST_ROWS]
        ]
        more = len(counts) - len(listed)
        raise DefinitionError(
            f"{entry.use.title}: {len(malformed):,} of {read:,} rows do not fit, "
            f"more than {100 * self.spec.allow_malformed:g}% of them.",
            fix=f"{_malformed_fix(entry.use, malformed)} To go on without them: --allow-malformed "
            f"{math.ceil(share * 1000) / 1000:g}.",
            faults=[*listed, *([f"and {more:,} more reasons"] if more > 0 else [])],
        )

    def _check_canary(self, entry: _Entry) -> None:
        if entry.pool.canary is None:
            return
        record, text = entry.pool.canary
        source = entry.use.source
        if self.definition.role == "calibration":
            raise DefinitionError(
                f"{entry.use.title}: record {record} carries the canary {text!r}; its "
                "authors forbid calibration on it.",
                fix=f"remove {source} from the definition.",
            )
        self.console.note(f"{source} carries a canary: evaluate on it, never calibrate.")

    def _given_references(self) -> list[Reference]:
        return [
            read_reference(path, self.work / f"against-{number:02d}")
            for number, path in enumerate(self.spec.against)
        ]

    def _held_out(self) -> Iterator[Reference]:
        """Held-out splits of the sources, except those that the definition itself uses."""
        seen = {(use.source, use.split) for use in self.definition.sources}
        for use in self.definition.sources:
            for split in SOURCES[use.source].held_out:
                if (use.source, split) in seen:
                    continue
                seen.add((use.source, split))
                plain = SourceUse(source=use.source, split=split, options=use.options, hub=use.hub)
                try:
                    pool = self.work / f"held-out-{use.source}-{split}"
                    entry = self._read(plain, self._load(plain), pool)
                except DefinitionError as error:
                    self.skipped.append(f"{use.source} {split}")
                    self.console.note(f"not compared with {use.source} {split}: {error.message}")
                    continue
                digest = sha256_bytes(compact_json(entry.load.hashes()).encode())
                yield Reference(f"{use.source}/{split}", digest, entry.pool)

    def _select(self, entries: Sequence[_Entry], references: Sequence[Reference]) -> None:
        settings = self.definition.decontaminate
        pools = [*(e.pool for e in entries), *(r.pool for r in references)]
        ngram = settings.ngram if settings.near else None
        schema = learn_schema(pools, ngram)
        prints = []
        with self.console.progress("comparing", sum(len(pool) for pool in pools)) as advance:
            for pool in pools:
                prints.append(PoolPrints(pool, schema, ngram, advance))
        known = list(zip((r.name for r in references), prints[len(entries) :], strict=True))
        judged = self.definition.role == "eval"
        selector = Selector(self.definition.name, settings, schema, known, judged)
        for entry, printed in zip(entries, prints[: len(entries)], strict=True):
            wanted = min(entry.use.count or len(entry.pool), len(entry.pool))
            with self.console.progress(f"selecting {entry.use.source}", wanted) as advance:
                limits = self._limits(entry.use)
                entry.selected = selector.select(
                    entry.use, printed, self._tokens_of(entry.use), limits, advance
                )

    def _tokens_of(self, use: SourceUse) -> TokensOf | None:
        counter, seed = self.counter, self.definition.seed
        if counter is None:
            return None
        return lambda record, media: counter.count(apply_variant(record, use, seed), media)

    def _limits(self, use: SourceUse) -> TokenLimits:
        caps = [cap for cap in (self.definition.max_tokens, use.max_tokens) if cap is not None]
        return TokenLimits(use.min_tokens or 0, min(caps, default=None), use.token_budget)

    def _draft(
        self,
        entries: Sequence[_Entry],
        references: Sequence[Reference],
        removed: Sequence[Removed],
    ) -> SetDraft:
        definition = self.definition
        settings = definition.decontaminate
        malformed = [row for entry in entries for row in entry.pool.malformed]
        attachments = {
            "removed.jsonl": self._lines("removed.jsonl", removed),
            "malformed.jsonl": self._lines("malformed.jsonl", malformed),
        }
        # a generator's records are made to be passed over
        given = [entry for entry in entries if entry.load.source.origin != "generated"]
        passed_over = [row for entry in given for row in entry.selected.passed_over]
        if passed_over:
            attachments["passed_over.jsonl"] = self._lines("passed_over.jsonl", passed_over)
        conflicts = [row for entry in entries for row in entry.selected.conflicts]
        if conflicts:
            attachments["conflicts.jsonl"] = self._lines("conflicts.jsonl", conflicts)
        kinds = Counter(f"{row.kind}-{row.scope}" for row in removed)
        return SetDraft(
            role=definition.role,
            name=self.spec.name or definition.name,
            definition=_as_recorded(definition),
            sources=tuple(_info(entry) for entry in entries),
            decontamination=Decontamination(
                against={reference.name: reference.sha256 for reference in references},
                ngram=settings.ngram,
                threshold=settings.threshold,
                removed=dict(sorted(kinds.items())),
            ),
            counter=self._token_counter(entries),
            attachments=attachments,
        )

    def _lines(self, name: str, rows: Sequence[Any]) -> Path:
        path = self.work / name
        with path.open("w", encoding="utf-8", newline="\n") as file:
            file.writelines(compact_json(to_plain(row)) + "\n" for row in rows)
        return path

    def _token_counter(self, entries: Sequence[_Entry]) -> TokenCounter | None:
        """Gives the counts of the selection again, in the order of writing."""
        if self.counter is None:
            return None
        counts = iter([tokens for entry in entries for tokens in entry.selected.tokens])
        return TokenCounter(self.counter.name, self.counter.sha256, lambda _: next(counts))

    def _write(self, entries: Sequence[_Entry], draft: SetDraft) -> SetFolder:
        media: dict[str, Path] = {}  # filled while the records stream by

        def records() -> Iterator[Record]:
            total = sum(len(entry.selected.indices) for entry in entries)
            with self.console.progress("writing", total) as advance:
                for entry in entries:
                    with entry.pool.reader() as reader:
                        for index in entry.selected.indices:
                            record, files = reader.get(index)
                            media.update(files)
                            yield apply_variant(record, entry.use, self.definition.seed)
                            advance(1)

        return write_set(self.spec.out, records(), media, draft)


def _malformed_fix(use: SourceUse, malformed: Sequence[Malformed]) -> str:
    """What mends the commonest reason."""
    [(reason, _)] = Counter(row.reason for row in malformed).most_common(1)
    if use.source != "user":
        return "mend the rows."
    if reason == NOT_UTF8:
        return not_utf8_fix(malformed[0].file)
    if "no option of" in reason:
        return "give `values: {cell: option}` in the definition, or mend the cells."
    if reason.endswith((" is empty", "means no answer")):
        return "fill the cells, or `required: false` keeps rows without an answer."
    return "mend the rows."


def _as_recorded(definition: Definition) -> dict[str, Any]:
    """The definition in a manifest: what names no data set of the hub reads as it always did."""
    plain: dict[str, Any] = to_plain(definition)
    for use in plain["sources"]:
        if use["hub"] is None:
            del use["hub"]
    return plain


def _info(entry: _Entry) -> SourceInfo:
    return replace(
        entry.load.info(),
        rows_read=entry.load.rows_read,
        rows_malformed=len(entry.load.malformed),
        duplicates=len(entry.selected.removed),
        outside_limits=len(entry.selected.passed_over),
        taken=len(entry.selected.indices),
    )
