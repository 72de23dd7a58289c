"""Records that are already in clefq's format: JSON Lines, images beside the file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from clefq.clef.records import Record, parse_record
from clefq.data.personal import PersonalFields
from clefq.data.readers import Row, RowError
from clefq.data.sources.base import Example, ReadSpec, Source, named_file
from clefq.data.tables import table_rows
from clefq.errors import RecordError
from clefq.store.reading import Stored


@dataclass(frozen=True, slots=True)
class Options(Stored):
    """Options of a definition.

    Attributes:
        file: The records, JSON Lines, relative to the definition.
        drop: Fields that are taken out of the state, at any depth.
        hash: Fields that are replaced by a keyed hash.
    """

    file: str
    drop: tuple[str, ...] = ()
    hash: tuple[str, ...] = ()


def read(spec: ReadSpec) -> Iterator[Row]:
    """Rows as {record, folder}."""
    personal = PersonalFields(spec.options.drop, spec.options.hash)
    path = spec.folder / spec.options.file
    for row in personal.watched(table_rows(path), lambda record: record.get("state")):
        yield row if row.fault is not None else _row(row, path.parent)


def _row(row: Row, folder: Path) -> Row:
    try:
        record = parse_record(row.value, f"row {row.number}")
    except RecordError as error:
        reasons = "; ".join([error.message, *error.faults])
        return Row(row.file, row.number, None, reasons)
    return Row(row.file, row.number, {"record": record, "folder": folder})


def from_hub(row: Mapping[str, Any]) -> dict[str, Any]:
    """A local file."""
    raise RowError("not on the hub")


def build(value: dict[str, Any], record_id: str, options: Options) -> Iterable[Example]:
    """The record, its personal fields cleaned."""
    record: Record = value["record"]
    media = {name: value["folder"] / name for name in (*record.images, *record.videos)}
    missing = [name for name, path in media.items() if not path.is_file()]
    if missing:
        raise RowError(f"no image {missing[0]!r}")
    personal = PersonalFields(options.drop, options.hash)
    state, cohorts = personal.clean(record.state), personal.clean(dict(record.cohorts))
    label = next(iter(record.gold.values()), "")
    yield Example(replace(record, state=state, cohorts=cohorts), label=label, media=media)


SOURCE = Source(
    name="records",
    title="The user's own records",
    licence="the user's own",
    attribution=None,
    revision=None,
    splits={},
    hub=None,
    read=read,
    from_hub=from_hub,
    build=build,
    options=Options,
    files=named_file,
    origin="user",
)
