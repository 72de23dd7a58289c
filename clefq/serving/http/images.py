"""The images of a request: sizes and types are checked before a pixel is decoded."""

from __future__ import annotations

import base64
import binascii
import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clefq.errors import InputError
from clefq.serving.http.errors import BODY_TOO_LARGE, INVALID_REQUEST, UNSUPPORTED, ApiError
from clefq.serving.http.settings import Limits
from clefq.serving.media import load_image

if TYPE_CHECKING:
    from PIL.Image import Image

    from clefq.serving.http.admission import Ticket

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_DATA_URL = re.compile(r"data:image/[a-z0-9.+-]+;base64,", re.IGNORECASE)
# What a pixel takes while an image is decoded, turned and converted, and what it takes afterwards,
# as an image and once more on its way to the engine.
_DECODING_BYTES = 12
_KEPT_BYTES = 7
# Scans of a JPEG: each goes over the whole image, and a file of a few bytes per scan could ask for
# minutes of work. Progressive encoders write about ten.
_MAX_SCANS = 64
_SCAN_MARKER = b"\xff\xda"


@dataclass(frozen=True, slots=True)
class Picture:
    """An image file that has been looked at and not been decoded.

    Attributes:
        number: Among the images of its request.
        data: The file.
        size: Width and height in the file; an image that is turned takes the same tokens.
    """

    number: int
    data: bytes
    size: tuple[int, int]


def read_pictures(sources: Sequence[str | bytes], limits: Limits) -> tuple[Picture, ...]:
    """Reads the files of a request's images, and what their headers say.

    Args:
        sources: Base64 texts, data URLs and files; remote URLs are refused, no path is ever read.
        limits: Bytes, pixels and formats.

    Returns:
        In the given order.

    Raises:
        ApiError: Names the image at fault.
    """
    files = []
    total = 0
    for number, source in enumerate(sources):
        data = _decode(source, number, limits.max_image_bytes)
        total += len(data)
        if total > limits.max_images_bytes:
            raise ApiError.of(
                BODY_TOO_LARGE,
                f"the images have more than {limits.max_images_bytes} bytes together",
                "images",
            )
        files.append(data)
    # all headers before the first pixel: a request is refused before it has cost anything
    pictures = tuple(
        Picture(number, data, _check_header(data, number, limits))
        for number, data in enumerate(files)
    )
    pixels = sum(picture.size[0] * picture.size[1] for picture in pictures)
    if pixels > limits.max_images_pixels:
        message = f"the images have {pixels} pixels together, at most {limits.max_images_pixels}"
        raise ApiError.of(INVALID_REQUEST, message, "images")
    return pictures


def load_picture(picture: Picture, fit: Callable[[Image], Image], ticket: Ticket) -> Image:
    """Decodes an image and makes it as small as the model will see it.

    Args:
        picture: From `read_pictures`.
        fit: See `clefq.serving.image_tokens.ImageTokens.fit`.
        ticket: Charged with what the decoding takes, and at the end with what is left of it.

    Returns:
        An upright RGB image.

    Raises:
        ApiError: It is damaged, or the requests in hand hold too much already.
    """
    decoding = _DECODING_BYTES * picture.size[0] * picture.size[1]
    ticket.charge(decoding)
    try:
        image = fit(_load(picture.data, picture.number))
        ticket.charge(_KEPT_BYTES * image.width * image.height)
        return image
    finally:
        ticket.release(decoding)


def _decode(source: str | bytes, number: int, most: int) -> bytes:
    if isinstance(source, bytes):
        if len(source) > most:
            raise _too_large(number, most)
        return source
    head = source[:256]
    if _SCHEME.match(head):
        message = "remote URLs are not fetched; send the image as base64 or a data URL"
        raise ApiError.of(UNSUPPORTED, message, "images", number)
    start = 0
    if head[:5].lower() == "data:":
        found = _DATA_URL.match(head)
        if found is None:
            raise _fault(number, "a data URL must be data:image/TYPE;base64,DATA")
        start = found.end()
    text = "".join(source[start:].split())  # encoders wrap lines
    if len(text) // 4 * 3 > most + 3:
        raise _too_large(number, most)
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise _fault(number, "not valid base64") from error
    if len(data) > most:
        raise _too_large(number, most)
    return data


def _check_header(data: bytes, number: int, limits: Limits) -> tuple[int, int]:
    """Width and height of an image, from its header."""
    from PIL import Image

    size = _early_size(data)
    if size is not None:
        _check_pixels(size, number, limits)
    try:
        with Image.open(io.BytesIO(data), formats=limits.image_formats) as image:
            found = image.size
            animated = bool(getattr(image, "is_animated", False))
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        message = f"has too many pixels, at most {limits.max_image_pixels}"
        raise _fault(number, message) from error
    except Exception as error:  # hostile bytes make Pillow raise almost anything
        names = ", ".join(limits.image_formats)
        raise _fault(number, f"not a sound image in one of the formats {names}") from error
    _check_pixels(found, number, limits)
    if animated:
        raise _fault(number, "animated images are not supported")
    if data.count(_SCAN_MARKER) > _MAX_SCANS and data[:2] == b"\xff\xd8":
        raise _fault(number, f"a JPEG of more than {_MAX_SCANS} scans")
    return found


def _check_pixels(size: tuple[int, int], number: int, limits: Limits) -> None:
    if size[0] * size[1] > limits.max_image_pixels:
        raise _fault(
            number, f"has {size[0]}×{size[1]} pixels, at most {limits.max_image_pixels} in all"
        )


def _load(data: bytes, number: int) -> Image:
    try:
        return load_image(data)
    except InputError as error:
        raise _fault(number, "cannot be decoded: it is damaged or cut short") from error
    except Exception as error:  # as above
        raise _fault(number, "cannot be decoded") from error


def _early_size(data: bytes) -> tuple[int, int] | None:
    """Width and height of a PNG or WebP file, where its header has them.

    Pillow's WebP decoder makes room for the whole canvas as soon as a file is opened, and huge
    images of any kind make it warn.
    """
    if data[:8] == b"\x89PNG\r\n\x1a\n" and data[12:16] == b"IHDR":
        return int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big")
    if data[:4] != b"RIFF" or data[8:12] != b"WEBP" or len(data) < 30:
        return None
    chunk = data[12:16]
    if chunk == b"VP8X":
        width, height = (int.from_bytes(data[at : at + 3], "little") for at in (24, 27))
        return 1 + width, 1 + height
    if chunk == b"VP8L":
        bits = int.from_bytes(data[21:25], "little")
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    width, height = (int.from_bytes(data[at : at + 2], "little") for at in (26, 28))
    return width & 0x3FFF, height & 0x3FFF


def _fault(number: int, message: str) -> ApiError:
    return ApiError.of(INVALID_REQUEST, message, "images", number)


def _too_large(number: int, most: int) -> ApiError:
    return ApiError.of(BODY_TOO_LARGE, f"has more than {most} bytes", "images", number)
