"""Counts the tokens of a record's prompt, as inference will see it, images included."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clefq.clef.encoding import EncodeSpec, encode_record
from clefq.clef.records import Record
from clefq.clef.tokenizer import PromptTokenizer
from clefq.errors import DefinitionError
from clefq.plain_files import read_json, sha256_file

MAX_RATIO = 200
_NO_LIMIT = EncodeSpec(max_length=1 << 40)


@dataclass(frozen=True, slots=True)
class ImageRule:
    """How the processor scales an image to a grid of patches.

    Attributes:
        unit: Pixels that one token covers along each side (patch size × merge size).
        min_pixels: Fewest pixels after scaling.
        max_pixels: Most pixels after scaling.
    """

    unit: int
    min_pixels: int
    max_pixels: int

    def tokens(self, width: int, height: int) -> int:
        """Pad tokens of an image, by the rule of the Qwen2-VL image processor.

        The sides are rounded to multiples of `unit`, then scaled into the pixel limits with the
        ratio kept.

        Raises:
            DefinitionError: One side is more than 200 times the other.
        """
        unit = self.unit
        if max(width, height) > MAX_RATIO * min(width, height):
            raise DefinitionError(
                f"an image of {width} × {height} pixels: the model takes ratios up to {MAX_RATIO}."
            )
        high, wide = round(height / unit) * unit, round(width / unit) * unit
        if high * wide > self.max_pixels:
            scale = math.sqrt(height * width / self.max_pixels)
            high = max(unit, math.floor(height / scale / unit) * unit)
            wide = max(unit, math.floor(width / scale / unit) * unit)
        elif high * wide < self.min_pixels:
            scale = math.sqrt(self.min_pixels / (height * width))
            high = math.ceil(height * scale / unit) * unit
            wide = math.ceil(width * scale / unit) * unit
        return (high // unit) * (wide // unit)


class PromptCounter:
    """Counts prompt tokens with the tokenizer of a model folder.

    Args:
        folder: A folder with `tokenizer.json` and, for images, the processor's configuration.
    """

    def __init__(self, folder: Path) -> None:
        # the bundled miniature lies in nano/weights
        self.name = folder.parent.name if folder.name == "weights" else folder.name
        self.sha256 = sha256_file(folder / "tokenizer.json") if folder.is_dir() else ""
        self._tokenizer = PromptTokenizer.from_folder(folder)
        self._folder = folder
        self._rule: ImageRule | None = None

    def count(self, record: Record, media: dict[str, Path]) -> int:
        """Input tokens of the record's prompt.

        Raises:
            DefinitionError: The record has a video, or an image whose size cannot be read.
        """
        if record.videos:
            raise DefinitionError(
                f"record {record.id!r} has a video, whose tokens cannot be counted.",
                fix="leave out videos, or build without token limits.",
            )
        counts = [self._image(media[name]) for name in record.images]
        return len(encode_record(self._tokenizer, record, _NO_LIMIT, counts).token_ids)

    def _image(self, path: Path) -> int:
        if self._rule is None:
            self._rule = image_rule(self._folder)
        return self._rule.tokens(*image_size(path))


def image_rule(folder: Path) -> ImageRule:
    """The image rule of a model folder's processor configuration.

    Raises:
        DefinitionError: The folder has none.
    """
    for name in ("processor_config.json", "preprocessor_config.json"):
        if (folder / name).is_file():
            return _rule(folder / name)
    raise DefinitionError(
        f"{folder} has no processor_config.json, so the tokens of images cannot be counted.",
        fix="give a whole model folder with --tokenizer.",
    )


def _rule(path: Path) -> ImageRule:
    config: dict[str, Any] = read_json(path)
    settings = config.get("image_processor", config)
    size = settings.get("size") or {}
    try:
        return ImageRule(
            unit=int(settings["patch_size"]) * int(settings["merge_size"]),
            min_pixels=int(size.get("shortest_edge") or settings["min_pixels"]),
            max_pixels=int(size.get("longest_edge") or settings["max_pixels"]),
        )
    except KeyError as error:
        raise DefinitionError(
            f"{path} has no {error.args[0]}, so the tokens of images cannot be counted.",
            fix="copy the processor files of the release into the folder.",
        ) from error


def image_size(path: Path) -> tuple[int, int]:
    """Width and height in pixels of a PNG, JPEG, GIF or WebP file, from its header.

    Raises:
        DefinitionError: The file is missing, cut short or of another kind.
    """
    try:
        with path.open("rb") as file:
            head = file.read(32)
            size = _png(head) or _gif(head) or _webp(head)
            if size is None and head[:2] == b"\xff\xd8":
                file.seek(2)
                size = _jpeg(file)
    except FileNotFoundError as error:
        raise DefinitionError(f"no image {path}.") from error
    except (OSError, struct.error) as error:
        raise DefinitionError(f"{path} is not a whole image.") from error
    if size is None or min(size) < 1:
        raise DefinitionError(f"{path} is not a PNG, JPEG, GIF or WebP image.")
    return size


def _png(head: bytes) -> tuple[int, int] | None:
    if head[:8] != b"\x89PNG\r\n\x1a\n":
        return None
    width, height = struct.unpack(">II", head[16:24])
    return width, height


def _gif(head: bytes) -> tuple[int, int] | None:
    if head[:6] not in (b"GIF87a", b"GIF89a"):
        return None
    width, height = struct.unpack("<HH", head[6:10])
    return width, height


def _webp(head: bytes) -> tuple[int, int] | None:
    if head[:4] != b"RIFF" or head[8:12] != b"WEBP":
        return None
    if head[12:16] == b"VP8X":
        return (
            int.from_bytes(head[24:27], "little") + 1,
            int.from_bytes(head[27:30], "little") + 1,
        )
    if head[12:16] == b"VP8L":
        bits = int.from_bytes(head[21:25], "little")
        return (bits & 0x3FFF) + 1, ((bits >> 14) & 0x3FFF) + 1
    width, height = struct.unpack("<HH", head[26:30])
    return width & 0x3FFF, height & 0x3FFF


def _jpeg(file: Any) -> tuple[int, int] | None:
    """Walks the segments to the frame header (SOF), which holds height and width."""
    while True:
        marker = file.read(2)
        if len(marker) < 2 or marker[0] != 0xFF:
            return None
        kind = marker[1]
        (length,) = struct.unpack(">H", file.read(2))
        if 0xC0 <= kind <= 0xCF and kind not in (0xC4, 0xC8, 0xCC):
            height, width = struct.unpack(">xHH", file.read(5))
            return width, height
        file.seek(length - 2, 1)
