"""`clefq.json`: what a quantized checkpoint was made from, how, and what it weighs."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from clefq.errors import CheckpointError
from clefq.store.atomic import write_json
from clefq.store.reading import Stored, expected, read_stored

MANIFEST = "clefq.json"
SCHEMA_VERSION = 1
_FIX = "download or copy that file again; of another version, use the clefq that wrote it."


@dataclass(frozen=True, slots=True)
class Manifest(Stored):
    """Contents of `clefq.json`.

    Attributes:
        schema_version: Version of this form.
        clefq_version: Version that wrote the checkpoint.
        created_at: RFC 3339, UTC.
        scheme: `fp8`, `nvfp4`, `nvfp4a16`, `nvfp4-mlp`, `mixed` or `custom`.
        method: `oneshot` or `stream` (or `repair`).
        source: `{"model_id", "revision", "sha256"}` of the BF16 checkpoint.
        recipe: `{"origin", "sha256", "rounding"}`; the text is `recipe.yaml`. `rounding` is how
            weights are: `nearest`, `search`, `gptq` or the observer that the recipe names.
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
        work_sha256: Hash over everything that the bytes depend on, so that the same command
            recognises its finished output; null where that is not known.
    """

    schema_version: Annotated[int, expected(SCHEMA_VERSION)]
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
    work_sha256: str | None = None


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Writes `clefq.json`."""
    write_json(folder / MANIFEST, asdict(manifest))


def read_build_manifest(folder: Path) -> Manifest:
    """Reads `clefq.json`, strictly.

    Raises:
        CheckpointError: Not of this form or version; lists every fault.
        InputError: The file is missing.
    """
    return read_stored(Manifest, folder / MANIFEST, error=CheckpointError, fix=_FIX)
