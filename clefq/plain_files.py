"""Files as they lie on disk: text, JSON, hashes. Written they are in `clefq.store.atomic`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from clefq.errors import InputError

_BLOCK = 1 << 20


def read_text(path: Path) -> str:
    """Reads UTF-8 text.

    Raises:
        InputError: The file is missing, may not be read, or is not UTF-8.
    """
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}.") from error
    except ValueError as error:
        raise InputError(f"{path} is not UTF-8 text: {error}.") from error


def read_json(path: Path) -> Any:
    """Reads a JSON file.

    Raises:
        InputError: The file is missing, not UTF-8 or not JSON.
    """
    text = read_text(path)
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not valid JSON: {error}.") from error


def compact_json(value: Any) -> str:
    """JSON with sorted keys, no spaces and non-ASCII kept: the form of records and of prompts."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def harmless_cell(text: str) -> str:
    """Text that no spreadsheet takes for a formula."""
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t", "\r") else text


def sha256_file(path: Path) -> str:
    """SHA-256 of a file's bytes, as 64 hex digits.

    Raises:
        InputError: The file is missing or may not be read.
    """
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while block := file.read(_BLOCK):
                digest.update(block)
    except OSError as error:
        raise InputError(
            f"cannot read {path}: {error.strerror}.", fix="check that it is there and readable."
        ) from error
    return digest.hexdigest()


def sha256_bytes(data: bytes) -> str:
    """SHA-256 of bytes, as 64 hex digits."""
    return hashlib.sha256(data).hexdigest()


def stable_order(items: Iterable[str], salt: str) -> list[str]:
    """Items in an order that looks random but is the same on every machine.

    Sorted by SHA-256 of `salt`, a NUL and the item: no random-number library, whose streams
    differ between versions, is involved.
    """
    return sorted(items, key=lambda item: stable_key(salt, item))


def stable_key(salt: str, item: str) -> bytes:
    """SHA-256 of `salt`, a NUL and `item`."""
    return hashlib.sha256(f"{salt}\0{item}".encode("utf-8", "surrogatepass")).digest()
