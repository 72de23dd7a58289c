"""A folder of images with labels: `labels.csv` with a column `file` and columns of labels.

OpenMoji's layout is the default: file, annotation (what it shows) and group (its kind). A record
asks for the kind among all kinds of the file, and for the name among four of the same kind.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clefq.clef.records import Record
from clefq.data.readers import Row, RowError, csv_rows, text_field
from clefq.data.sources.base import Example, HubFiles, ReadSpec, Source, choice
from clefq.plain_files import stable_order
from clefq.store.reading import Stored

STATE = "One image is attached."
MAX_LABELS = 255
NAMES = 4


@dataclass(frozen=True, slots=True)
class Options(Stored):
    """Options of a definition.

    Attributes:
        folder: Folder under the data folder.
        label: Column of the kind.
        name: Column of the name, or empty to ask for the kind only.
    """

    folder: str = "labelled_images"
    label: str = "group"
    name: str = "annotation"


def read(spec: ReadSpec) -> Iterator[Row]:
    """Rows as {file, image, label, name}."""
    options: Options = spec.options
    for file in spec.files:
        for row in csv_rows(spec.folder, file):
            yield row if row.fault is not None else _row(spec, row, options)


def _row(spec: ReadSpec, row: Row, options: Options) -> Row:
    columns = [name for name in ("file", options.label, options.name) if name]
    missing = [name for name in columns if not row.value.get(name)]
    if missing:
        return Row(row.file, row.number, None, f"{', '.join(missing)} is missing")
    path = spec.folder / row.value["file"]
    if not path.is_file():
        return Row(row.file, row.number, None, f"no image {row.value['file']!r}")
    value = {"image": row.value["file"], "file": path, "label": row.value[options.label]}
    value["name"] = row.value[options.name] if options.name else ""
    return Row(row.file, row.number, value)


def link(rows: Iterable[Row]) -> Iterator[Row]:
    """Adds to each row all labels, and three names of other images with its label."""
    kept = list(rows)
    good = [row.value for row in kept if row.fault is None]
    labels = sorted({value["label"] for value in good})
    names: dict[str, set[str]] = {}
    for value in good:
        names.setdefault(value["label"], set()).add(value["name"])
    for row in kept:
        if row.fault is not None:
            yield row
            continue
        same = names[row.value["label"]] - {row.value["name"]}
        others = stable_order(same, row.value["image"])[: NAMES - 1]
        yield Row(row.file, row.number, {**row.value, "labels": labels, "others": others})


def from_hub(row: Mapping[str, Any]) -> dict[str, Any]:
    """Not on the hub."""
    raise RowError("not on the hub")


def build(value: dict[str, Any], record_id: str, options: Options) -> Iterable[Example]:
    """One record: the image, one or two choice questions."""
    labels = value["labels"]
    if not 2 <= len(labels) <= MAX_LABELS:
        raise RowError(f"{len(labels)} labels in the file")
    kind = choice("kind", "Which kind of thing does the image show?", dict.fromkeys(labels))
    questions, gold = [kind], {kind.id: text_field(value, "label")}
    if options.name:
        names = [value["name"], *value["others"]]
        if len(names) < 2:
            raise RowError(f"no other image with the label {value['label']!r}")
        asked = choice("name", "What does the image show?", dict.fromkeys(sorted(names)))
        questions.append(asked)
        gold[asked.id] = value["name"]
    media = "images/" + record_id + Path(value["image"]).suffix.lower()
    record = Record(
        id=record_id,
        cohort=options.folder,
        state=STATE,
        questions=tuple(questions),
        images=(media,),
        gold=gold,
    )
    yield Example(record, label=value["label"], media={media: value["file"]})


SOURCE = Source(
    name="labelled_images",
    title="Labelled images of a folder",
    licence="see the folder's own notice",
    attribution=None,
    revision=None,
    splits={"all": (("labels.csv",),)},
    hub=None,
    hub_files=HubFiles(whole=True),
    read=read,
    from_hub=from_hub,
    build=build,
    link=link,
    options=Options,
)
