"""How many images and videos a set holds: what a model was never asked, no card may imply."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from clefq.clef.records import iter_records
from clefq.store.atomic import write_json
from clefq.store.reading import Stored, read_stored
from clefq.store.sets import RECORDS_FILE

MEDIA_FILE = "media.json"


@dataclass(frozen=True, slots=True)
class Media(Stored):
    """Images and videos of a set.

    Attributes:
        records: Records of the set.
        with_images: Records with at least one image.
        with_videos: Records with at least one video.
    """

    records: int
    with_images: int
    with_videos: int


def count_media(folder: Path) -> Media:
    """Counts them in the records of a set folder.

    Raises:
        RecordError: A record is malformed.
    """
    records = images = videos = 0
    for record in iter_records(folder / RECORDS_FILE):
        records += 1
        images += bool(record.images)
        videos += bool(record.videos)
    return Media(records, images, videos)


def media_of(folder: Path) -> Media | None:
    """Counts of a set folder, or what a bundle recorded of it; None where neither is there.

    Raises:
        InputError: The recorded counts are malformed.
    """
    if (folder / RECORDS_FILE).is_file():
        return count_media(folder)
    path = folder / MEDIA_FILE
    return read_stored(Media, path) if path.is_file() else None


def write_media(path: Path, media: Media) -> None:
    """Writes the counts beside a set's manifest, for where the records do not go."""
    write_json(path, asdict(media))
