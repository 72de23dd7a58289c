"""`clefq.json`: what a quantized checkpoint was made from, how, and what it weighs."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from clefq.errors import CheckpointError
from clefq.store.atomic import read_json, write_json

MANIFEST = "clefq.json"
SCHEMA_VERSION = 1
_FIX = "download or copy that file again."


@dataclass(frozen=True, slots=True)
class Manifest:
    """Contents of `clefq.json`.

    Attributes:
        schema_version: Version of this form.
        clefq_version: Version that wrote the checkpoint.
        created_at: RFC 3339, UTC.
        scheme: `fp8`, `nvfp4`, `nvfp4a16`, `nvfp4-mlp`, `mixed` or `custom`.
        method: `oneshot` or `stream` (or `repair`).
        source: `{"model_id", "revision", "sha256"}` of the BF16 checkpoint.
        recipe: `{"origin", "sha256"}`; the text is `recipe.yaml`.
        calibration: Null for data-free schemes, else `{"set", "sha256", "records", "tokens",
            "max_length", "truncated_records"}`.
        versions: Library to version.
        audit: `{"passed", "checks", "breaches"}`.
        formats: Arithmetic (`w4a4`, …) to number of modules.
        bytes: `{"source", "output"}`, on disk, of all weights, the joint head included.
        files: File name to SHA-256 of its bytes, for all that is served.
        sha256: Hash over `files`, the checkpoint's identity.
        seconds: Wall time.
        peak_memory_bytes: Highest resident memory of the process that did the work.
    """

    schema_version: int
    clefq_version: str
    created_at: str
    scheme: str
    method: str
    source: dict[str, Any]
    recipe: dict[str, Any]
    calibration: dict[str, Any] | None
    versions: dict[str, str]
    audit: dict[str, Any]
    formats: dict[str, int]
    bytes: dict[str, int]
    files: dict[str, str]
    sha256: str
    seconds: float
    peak_memory_bytes: int


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Writes `clefq.json`."""
    write_json(folder / MANIFEST, asdict(manifest))


def read_manifest(folder: Path) -> Manifest:
    """Reads `clefq.json`, strictly.

    Raises:
        CheckpointError: Missing or unknown keys, values of another type, another schema version.
    """
    path = folder / MANIFEST
    body = read_json(path)
    names = {field.name for field in fields(Manifest)}
    if not isinstance(body, dict) or set(body) != names:
        wrong = sorted(set(body) ^ names) if isinstance(body, dict) else ["not an object"]
        raise CheckpointError(f"{path} differs in {', '.join(wrong)}.", fix=_FIX)
    if body["schema_version"] != SCHEMA_VERSION:
        raise CheckpointError(
            f"{path} has schema version {body['schema_version']}, expected {SCHEMA_VERSION}.",
            fix="use the clefq that wrote it.",
        )
    objects = ("source", "recipe", "versions", "audit", "formats", "bytes", "files")
    broken = [name for name in objects if not isinstance(body[name], dict)]
    if broken:
        raise CheckpointError(f"{path} has no object under {', '.join(broken)}.", fix=_FIX)
    return Manifest(**body)
