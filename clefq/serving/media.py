"""Images of a request, in any of the forms that callers have them in."""

from __future__ import annotations

import base64
import binascii
import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clefq.errors import InputError

if TYPE_CHECKING:
    from PIL.Image import Image

_ORIENTATION = 0x0112  # of EXIF
# PNG, JPEG, GIF, WebP and BMP as base64 begin with these; a path does not.
_BASE64_STARTS = ("iVBORw0KGgo", "/9j/", "R0lGOD", "UklGR", "Qk")


def load_image(source: Any, root: Path | None = None) -> Image:
    """An upright RGB image from a PIL image, bytes, a path, a data URL or base64 text.

    Args:
        source: The image.
        root: Folder that relative paths are relative to.

    Raises:
        InputError: Not an image, no such file, or a remote URL (never fetched).
    """
    from PIL import Image, ImageOps, UnidentifiedImageError

    try:
        if isinstance(source, Image.Image):
            opened = source
        else:
            opened = Image.open(io.BytesIO(_read(source, root)))
            opened.load()
        # each of the two copies, of a photograph 100 MB, only where it is needed
        upright = ImageOps.exif_transpose(opened) if _is_turned(opened) else opened
        return upright if upright.mode == "RGB" else upright.convert("RGB")
    except (UnidentifiedImageError, OSError, Image.DecompressionBombError) as error:
        raise InputError(f"image {_name(source)} cannot be read: {error}.") from error


def _is_turned(image: Image) -> bool:
    return image.getexif().get(_ORIENTATION, 1) != 1


def contract_placeholders(
    token_ids: Sequence[int], media_span: tuple[int, int], pads: tuple[int, ...]
) -> list[int]:
    """Leaves one pad token per image, which is what vLLM expands by itself.

    Args:
        token_ids: A prompt with expanded placeholders.
        media_span: Where its media block stands.
        pads: Ids of the pad tokens.
    """
    start, end = media_span
    kept = list(token_ids[:start])
    previous = None
    for token in token_ids[start:end]:
        if token not in pads or token != previous:
            kept.append(token)
        previous = token
    return kept + list(token_ids[end:])


def _read(source: Any, root: Path | None) -> bytes:
    if isinstance(source, bytes | bytearray):
        return bytes(source)
    if isinstance(source, Path):
        return (root / source if root is not None else source).read_bytes()
    if not isinstance(source, str):
        raise InputError(f"an image is a {type(source).__name__}; give a path, base64 or PIL.")
    if source.startswith(("http://", "https://")):
        raise InputError("an image is a remote URL.", fix="download it and give its bytes.")
    if source.startswith("data:"):
        return _decode(source.partition(",")[2])
    if source.startswith(_BASE64_STARTS) and len(source) > 64:
        return _decode(source)
    return (root / source if root is not None else Path(source)).read_bytes()


def _decode(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InputError(f"an image is not valid base64: {error}.") from error


def _name(source: Any) -> str:
    return str(source)[:60] if isinstance(source, str | Path) else f"({type(source).__name__})"
