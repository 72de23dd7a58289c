"""A folder of photos with captions: `captions.jsonl` with file and caption (or captions).

For a user's own photos and for small public sets; the licence of each photo stays in its row's
`license`, and photos without one are refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from clefq.data.readers import Row, RowError, jsonl_rows
from clefq.data.sources.base import Example, HubFiles, ReadSpec, Source
from clefq.data.sources.captions import caption_example, link_captions
from clefq.store.reading import Stored

QuestionName = Literal["describes", "caption", "fit", "orientation"]


@dataclass(frozen=True, slots=True)
class Options(Stored):
    """Options of a definition.

    Attributes:
        folder: Folder under the data folder.
        questions: Which questions are asked.
    """

    folder: str = "captioned_images"
    questions: tuple[QuestionName, ...] = ("describes", "caption", "fit", "orientation")


def read(spec: ReadSpec) -> Iterator[Row]:
    """Rows as {image, file, captions}."""
    for file in spec.files:
        for row in jsonl_rows(spec.folder, file):
            yield row if row.fault is not None else _row(spec, row)


def _row(spec: ReadSpec, row: Row) -> Row:
    name = row.value.get("file")
    captions = row.value.get("captions", [row.value.get("caption")])
    if not isinstance(name, str) or not (spec.folder / name).is_file():
        return Row(row.file, row.number, None, f"no image {name!r}")
    if not row.value.get("license"):
        return Row(row.file, row.number, None, "license is missing")
    if not isinstance(captions, list) or not all(isinstance(c, str) for c in captions):
        return Row(row.file, row.number, None, "caption is missing")
    value = {"image": name, "file": spec.folder / name, "captions": captions}
    return Row(row.file, row.number, value)


def from_hub(row: Mapping[str, Any]) -> dict[str, Any]:
    """Not on the hub."""
    raise RowError("not on the hub")


def build(value: dict[str, Any], record_id: str, options: Options) -> Iterable[Example]:
    """One record: the photo, up to four questions."""
    yield caption_example(value, record_id, options.folder, options.questions)


SOURCE = Source(
    name="captioned_images",
    title="Captioned photos of a folder",
    licence="per photo, see its captions.jsonl",
    attribution=None,
    revision=None,
    splits={"all": (("captions.jsonl",),)},
    hub=None,
    hub_files=HubFiles(whole=True),
    read=read,
    from_hub=from_hub,
    build=build,
    link=link_captions,
    options=Options,
)
