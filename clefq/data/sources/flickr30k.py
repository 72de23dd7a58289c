"""Flickr30k: 31,783 photos with five captions each (photos under Flickr's terms).

Reads the Karpathy split file `dataset_flickr30k.json` ({images: [{filename, split, sentences:
[{raw}]}]}) and the photos in `flickr30k-images/`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from clefq.data.readers import Row, RowError, json_file
from clefq.data.sources.base import Example, HubFiles, ReadSpec, Source
from clefq.data.sources.captioned_images import QuestionName
from clefq.data.sources.captions import caption_example, link_captions
from clefq.errors import DefinitionError
from clefq.store.reading import Stored

IMAGES = "flickr30k-images"


@dataclass(frozen=True, slots=True)
class Options(Stored):
    """Options of a definition.

    Attributes:
        questions: Which questions are asked.
    """

    questions: tuple[QuestionName, ...] = ("describes", "caption", "fit", "orientation")


def read(spec: ReadSpec) -> Iterator[Row]:
    """Rows of the split as {image, file, captions}."""
    for file in spec.files:
        whole = json_file(spec.folder, file)
        if not isinstance(whole, dict) or not isinstance(whole.get("images"), list):
            raise DefinitionError(f"{spec.folder / file} has no list of images.")
        for number, image in enumerate(whole["images"], start=1):
            if not isinstance(image, dict) or image.get("split") not in SOURCE.splits:
                yield Row(file, number, None, "no known split")
            elif image["split"] == spec.split:
                yield _row(spec, file, number, image)


def _row(spec: ReadSpec, file: str, number: int, image: dict[str, Any]) -> Row:
    path = spec.folder / IMAGES / str(image.get("filename"))
    sentences = image.get("sentences")
    if not path.is_file():
        return Row(file, number, None, f"no image {path.name!r}")
    if not isinstance(sentences, list):
        return Row(file, number, None, "sentences is missing")
    captions = [str(sentence.get("raw", "")) for sentence in sentences]
    return Row(file, number, {"image": path.name, "file": path, "captions": captions})


def from_hub(row: Mapping[str, Any]) -> dict[str, Any]:
    """The hub holds the original files, no table."""
    raise RowError("not a table on the hub")


def build(value: dict[str, Any], record_id: str, options: Options) -> Iterable[Example]:
    """One record: the photo, up to four questions."""
    yield caption_example(value, record_id, "flickr30k", options.questions)


SOURCE = Source(
    name="flickr30k",
    title="Flickr30k",
    licence="photos under Flickr's terms, captions CC-BY-SA-3.0",
    attribution="Flickr30k, Young et al. 2014; split by Karpathy and Fei-Fei 2015.",
    revision=None,
    splits={part: (("dataset_flickr30k.json",),) for part in ("train", "val", "test")},
    hub=None,
    hub_files=HubFiles(
        "cjc/flickr30k",
        "5cd04e71affaa3b289d9f545b386d06338aa337c",
        archive="flickr30k-images.tar",
        unpacked=IMAGES,
    ),
    read=read,
    from_hub=from_hub,
    build=build,
    link=link_captions,
    options=Options,
    held_out=("val", "test"),
)
