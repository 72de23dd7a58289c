"""The BF16 checkpoint to quantize: a folder, or a pinned revision on the hub."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from clefq.clef.hub import resolve_model, snapshot_commit, split_model
from clefq.errors import CheckpointError

_SHORT_COMMIT = re.compile(r"[0-9a-f]{7,40}")
_BLOB = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Source:
    """A source on this machine.

    Attributes:
        folder: Its folder.
        model_id: Hub id, or the folder's name.
        revision: Full commit on the hub, or None for a folder of the user's.
    """

    folder: Path
    model_id: str
    revision: str | None


def find_source(model: str) -> Source:
    """Finds a model, downloading it only if its revision is not in the hub's cache.

    Args:
        model: A folder, or `org/name` with an optional `@revision` (a commit may be shortened).

    Raises:
        CheckpointError: No such folder, repository or revision, or no connection.
    """
    folder = Path(model).expanduser()
    if folder.is_dir():
        return Source(folder, folder.resolve().name, None)
    repo, revision = split_model(model)
    snapshot = _cached(repo, revision)
    if snapshot is None:
        snapshot = resolve_model(model)
    return Source(snapshot, repo, snapshot_commit(snapshot, revision))


def _cached(repo: str, revision: str | None) -> Path | None:
    """The cached snapshot of a commit: a commit never changes, so no connection is needed."""
    from huggingface_hub.constants import HF_HUB_CACHE

    if revision is None or _SHORT_COMMIT.fullmatch(revision) is None:
        return None
    snapshots = Path(HF_HUB_CACHE) / f"models--{repo.replace('/', '--')}" / "snapshots"
    found = [path for path in snapshots.glob(f"{revision}*") if (path / "config.json").exists()]
    return found[0] if len(found) == 1 else None


def verify_download(folder: Path, files: Mapping[str, str]) -> None:
    """Compares a hub snapshot's files with the hashes that the hub gave them.

    The cache names a large file's blob after its SHA-256.

    Args:
        folder: The snapshot.
        files: Relative path to SHA-256 of the bytes on disk.

    Raises:
        CheckpointError: A file is not what the hub announced.
    """
    for name, digest in files.items():
        path = folder / name
        if not path.is_symlink():
            continue
        announced = path.readlink().name
        if _BLOB.fullmatch(announced) and announced != digest:
            raise CheckpointError(
                f"{path} is damaged: its hash is not the one on the hub.",
                fix=f"remove {path.resolve()} and run it again.",
            )
