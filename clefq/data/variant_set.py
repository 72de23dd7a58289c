"""A set with variants: another set's records as they were, and the same questions asked anew."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from clefq.clef.records import Record
from clefq.console import Console
from clefq.data.tokens import PromptCounter
from clefq.data.variants import make_variants
from clefq.errors import InputError
from clefq.store.atomic import sole_writer
from clefq.store.reading import Stored, to_plain
from clefq.store.sets import SetDraft, SetFolder, TokenCounter, open_set, write_set
from clefq.store.variant_links import ALL, DEFAULT_SEED, MARK, TRANSFORMS

_SEED = re.compile(r"[A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True)
class VariantSpec:
    """What to make.

    Attributes:
        source: Folder of the set.
        out: The set folder to make.
        transforms: Transforms, in the table's order.
        seed: What deals the options of `order`, or None for the default.
        name: Name of the new set.
        tokenizer: Model folder whose tokenizer counts, or None.
    """

    source: Path
    out: Path
    transforms: tuple[str, ...]
    seed: str | None
    name: str
    tokenizer: Path | None


@dataclass(frozen=True, slots=True)
class VariantCounts(Stored):
    """How many variants a set holds.

    Attributes:
        made: Transform → variants.
        unchanged: Transform → records that it leaves as they are: they have no such variant.
    """

    made: Mapping[str, int]
    unchanged: Mapping[str, int]


def parse_transforms(text: str) -> tuple[str, ...]:
    """The transforms that `--variants` names, `opaque` before `order`, in the table's order.

    Raises:
        InputError: A name is unknown.
    """
    wanted = {part.strip() for part in text.split(",") if part.strip()}
    unknown = sorted(wanted - TRANSFORMS.keys() - {ALL})
    if unknown or not wanted:
        raise InputError(
            f"--variants does not know {', '.join(unknown) or 'an empty list'}.",
            fix=f"say {ALL}, or some of {', '.join(TRANSFORMS)}.",
        )
    if ALL in wanted:
        wanted = set(TRANSFORMS)
    wanted |= {TRANSFORMS[name].against or name for name in wanted}
    return tuple(name for name in TRANSFORMS if name in wanted)


def build_variants(spec: VariantSpec, console: Console) -> tuple[SetFolder, VariantCounts]:
    """Makes a set of another set's records and their variants.

    Raises:
        InputError: The source is no eval set or holds variants already, the output exists, or the
            seed cannot stand in an id.
    """
    source = open_set(spec.source)
    _check(spec, source)
    with sole_writer(spec.out):
        counts = _count(source, spec)
        total = source.manifest.records + sum(counts.made.values())
        with console.progress("writing", total) as advance:

            def records() -> Iterator[Record]:
                for record in _with_variants(source, spec):
                    yield record
                    advance(1)

            folder = write_set(spec.out, records(), source.media(), _draft(spec, source, counts))
    return folder, counts


def _check(spec: VariantSpec, source: SetFolder) -> None:
    if spec.out.exists() and (not spec.out.is_dir() or any(spec.out.iterdir())):
        raise InputError(f"{spec.out} exists already.", fix="remove it or choose another --out.")
    if source.manifest.role != "eval":
        raise InputError(f"{spec.source} is a {source.manifest.role} set.", fix="give an eval set.")
    if spec.seed is not None and not _SEED.fullmatch(spec.seed):
        raise InputError(
            f"--seed {spec.seed!r} becomes part of ids.", fix="use letters, digits, `.`, `_`, `-`."
        )
    for record in source.records():
        if MARK in record.id:
            raise InputError(
                f"{spec.source} holds {record.id!r}, a variant already.",
                fix="give the set that it was made of.",
            )


def _with_variants(source: SetFolder, spec: VariantSpec) -> Iterator[Record]:
    for record, other in _with_next(source.records()):
        yield record
        yield from make_variants(record, other, spec.transforms, spec.seed or "")


def _with_next(records: Iterator[Record]) -> Iterator[tuple[Record, Record]]:
    """Every record with the one behind it; the last with the first."""
    first = last = next(records)
    for record in records:
        yield last, record
        last = record
    yield last, first


def _count(source: SetFolder, spec: VariantSpec) -> VariantCounts:
    made, unchanged = Counter[str](), Counter[str]()
    for record, other in _with_next(source.records()):
        for name in spec.transforms:
            found = sum(1 for _ in make_variants(record, other, (name,), spec.seed or ""))
            made[name] += found
            unchanged[name] += not found
    return VariantCounts(dict(made), dict(unchanged))


def _counter(spec: VariantSpec, source: SetFolder) -> TokenCounter | None:
    if spec.tokenizer is None:
        return None
    counter = PromptCounter(spec.tokenizer)
    media = source.media()
    return TokenCounter(counter.name, counter.sha256, lambda record: counter.count(record, media))


def _draft(spec: VariantSpec, source: SetFolder, counts: VariantCounts) -> SetDraft:
    manifest = source.manifest
    definition = {
        "name": spec.name,
        "variants": {
            "of": {"name": manifest.name, "sha256": manifest.sha256},
            "transforms": list(spec.transforms),
            "seed": spec.seed or DEFAULT_SEED,
            **to_plain(counts),
        },
        "definition": manifest.definition,
    }
    return SetDraft(
        role="eval",
        name=spec.name,
        definition=definition,
        sources=manifest.sources,
        decontamination=manifest.decontamination,
        counter=_counter(spec, source),
    )
