"""The bundled miniature's own tasks, written by its generator (Apache-2.0)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from clefq.clef.records import Record
from clefq.data.readers import Row, RowError
from clefq.data.sources.base import Example, ReadSpec, Source
from clefq.errors import DefinitionError
from clefq.store.reading import Stored


@dataclass(frozen=True, slots=True)
class Options(Stored):
    """Options of a definition.

    Attributes:
        task: Name of the task in the generator.
        seed: Seed of the generator.
        pool: Records generated to choose from; None generates as many as are wanted.
    """

    task: str
    seed: int = 0
    pool: int | None = None


def read(spec: ReadSpec) -> Iterator[Row]:
    """Rows as records, as many as the definition wants."""
    from clefq.nano.tasks import generate, images_of

    options: Options = spec.options
    count = options.pool or spec.count
    if count is None:
        raise DefinitionError("nano: a generated source needs a count.")
    records = generate(options.task, spec.split, count, options.seed)
    for number, record in enumerate(records, start=1):
        yield Row(
            f"{options.task}/{spec.split}", number, {"record": record, "images": images_of(record)}
        )


def from_hub(row: Mapping[str, Any]) -> dict[str, Any]:
    """Generated, never downloaded."""
    raise RowError("not on the hub")


def build(value: dict[str, Any], record_id: str, options: Options) -> Iterable[Example]:
    """The record as the generator made it."""
    record: Record = value["record"]
    gold = record.gold.get(record.questions[0].id, "")
    yield Example(record, label=gold, media=value["images"])


SOURCE = Source(
    name="nano",
    title="Tasks of the bundled miniature",
    licence="Apache-2.0",
    attribution=None,
    revision=None,
    splits={part: () for part in ("train", "calibration", "eval")},
    hub=None,
    read=read,
    from_hub=from_hub,
    build=build,
    options=Options,
    origin="generated",
)
