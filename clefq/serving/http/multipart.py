"""The hosted API's multipart body: a JSON part named `request`, and images beside it.

The hosted API puts images inside texts, where their names stand. Clef reads images in front of the
state: each name becomes `[image N]`, its place among the request's images.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from typing import Any

from clefq.clef.json_values import Fault
from clefq.serving.http.errors import INVALID_JSON, INVALID_REQUEST, UNSUPPORTED, ApiError

REQUEST = "request"
_BOUNDARY = re.compile(r'boundary=(?:"([^"]{1,70})"|([^\s;]{1,70}))')
_NAME = re.compile(rb'[;\s]name="([^"\r\n]{1,200})"', re.IGNORECASE)
_MOST_PART_HEAD = 1024


def boundary_of(content_type: str) -> bytes | None:
    """What stands between the parts, from a `multipart/form-data` header; None for other types."""
    if content_type.partition(";")[0].strip().lower() != "multipart/form-data":
        return None
    found = _BOUNDARY.search(content_type)
    return (found[1] or found[2]).encode("latin-1", "replace") if found else b""


def read_form(raw: bytes, boundary: bytes, most: int) -> tuple[bytes, dict[str, bytes]]:
    """Splits a body into its JSON and its files.

    Args:
        raw: The body.
        boundary: From `boundary_of`.
        most: Files that it may have.

    Raises:
        ApiError: Not such a body.
    """
    parts = (b"\r\n" + raw).split(b"\r\n--" + boundary, most + 3) if boundary else []
    if len(parts) < 3 or not parts[-1].startswith(b"--"):
        if len(parts) == most + 4:
            raise ApiError.of(INVALID_REQUEST, f"has more than {most} files", "assets")
        raise ApiError.of(INVALID_JSON, "the body is not whole multipart data")
    named: dict[str, bytes] = {}
    for part in parts[1:-1]:
        head, found, content = part.partition(b"\r\n\r\n")
        name = _NAME.search(head) if found and len(head) <= _MOST_PART_HEAD else None
        if name is None:
            raise ApiError.of(INVALID_JSON, "a part of the body has no name")
        text = name[1].decode("utf-8", "replace")
        if text in named:
            raise ApiError.of(INVALID_JSON, f"two parts of the body are named {text!r}")
        named[text] = content
    if REQUEST not in named:
        raise ApiError.of(INVALID_JSON, f"the body has no part named {REQUEST!r} with the JSON")
    return named.pop(REQUEST), named


def place_assets(body: dict[str, Any], files: Mapping[str, bytes], most: int) -> list[bytes]:
    """The images that a body names; their names in its texts become `[image N]`.

    Args:
        body: Changed in place: `assets` leaves it.
        files: Parts by name.
        most: Images of a request.

    Raises:
        ApiError: An asset is malformed or of another kind, a part is missing or not claimed.
    """
    assets = body.pop("assets", None)
    assets = {} if assets is None else assets
    if assets == {} and not files:
        return []
    _check(assets, most)
    if body.get("images"):
        raise ApiError.of(UNSUPPORTED, "send `images` or `assets`, not both", "assets")
    images, faults = _collect(assets, files)
    if faults:
        raise ApiError(INVALID_REQUEST, faults)
    # the longest first: one name may begin with another one
    numbered = sorted(enumerate(assets, start=1), key=lambda item: -len(item[1]))
    places = [(name, f"[image {number}]") for number, name in numbered]
    for key in ("state", "questions"):
        if key in body:
            body[key] = _placed(body[key], places)
    return images


def _check(assets: object, most: int) -> None:
    if not isinstance(assets, dict):
        raise ApiError.of(INVALID_REQUEST, "must be an object", "assets")
    if len(assets) > most:
        raise ApiError.of(INVALID_REQUEST, f"has {len(assets)} images, at most {most}", "assets")
    if not all(assets):
        raise ApiError.of(INVALID_REQUEST, "an asset has an empty name", "assets")


def _collect(assets: dict[str, Any], files: Mapping[str, bytes]) -> tuple[list[bytes], list[Fault]]:
    faults: list[Fault] = []
    images: list[bytes] = []
    claimed: set[str] = set()
    for name, asset in assets.items():
        try:
            images.append(_data(asset, files, claimed))
        except ValueError as error:
            faults.append(Fault(("assets", name), str(error)))
    unclaimed = [part for part in files if part not in claimed]
    faults += [Fault(("assets",), f"no asset names the part {part[:80]!r}") for part in unclaimed]
    return images, faults


def _data(asset: object, files: Mapping[str, bytes], claimed: set[str]) -> bytes:
    if not isinstance(asset, dict) or asset.get("type") not in (None, "image"):
        raise ValueError('must be an object with "type": "image"')
    part, text = asset.get("part"), asset.get("data_base64")
    if part is not None:
        if not isinstance(part, str) or part not in files:
            raise ValueError(f"there is no part {str(part)[:80]!r}")
        if part in claimed:
            raise ValueError(f"the part {part!r} belongs to another asset")
        claimed.add(part)
        return files[part]
    if not isinstance(text, str):
        raise ValueError("needs part or data_base64")
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError("data_base64 is not valid base64") from error


def _placed(value: Any, places: list[tuple[str, str]]) -> Any:
    """The value with every name in its texts replaced; keys, which are ids, stay."""
    if isinstance(value, str):
        for name, place in places:
            value = value.replace(name, place)
        return value
    if isinstance(value, list):
        return [_placed(item, places) for item in value]
    if isinstance(value, dict):
        return {key: _placed(item, places) for key, item in value.items()}
    return value
