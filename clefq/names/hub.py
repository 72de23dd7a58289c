"""Hub ids: `org/name` with an optional `@revision`, their commits and their local copies."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from clefq.errors import CheckpointError
from clefq.store.atomic import disk_error

_HUB_ID = re.compile(r"(?P<repo>\w[\w.-]*/\w[\w.-]*)(?:@(?P<revision>[\w./-]+))?")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_SHORT_COMMIT = re.compile(r"[0-9a-f]{7,40}")
_BLOB = re.compile(r"[0-9a-f]{64}")


def split_model(model: str) -> tuple[str, str | None]:
    """`org/name@revision` as (`org/name`, revision or None).

    Raises:
        CheckpointError: Not of that form.
    """
    match = _HUB_ID.fullmatch(model)
    if match is None:
        raise CheckpointError(
            f"{model} is neither a checkpoint folder nor a hub id.",
            fix="give a folder, or org/name with an optional @revision.",
        )
    return match["repo"], match["revision"]


def is_hub_id(text: str) -> bool:
    """Whether a text is `org/name`, without a revision."""
    match = _HUB_ID.fullmatch(text)
    return match is not None and match["revision"] is None


def is_commit(revision: str) -> bool:
    """Whether a revision is a full commit: 40 hex digits."""
    return _COMMIT.fullmatch(revision) is not None


def snapshot_commit(snapshot: Path, revision: str | None) -> str | None:
    """The commit of a downloaded folder, which the hub's cache names after it; else `revision`."""
    return snapshot.name if is_commit(snapshot.name) else revision


def resolve_model(model: str) -> Path:
    """The folder of a model, downloaded from the hub where needed.

    A folder is taken as it is. A hub id is downloaded into the hub's cache; without a connection
    (or with HF_HUB_OFFLINE=1) the copy in the cache serves.

    Args:
        model: A folder, or `org/name` with an optional `@revision`.

    Raises:
        CheckpointError: No such folder or repository, no access, or no connection.
        InputError: The cache's disk is full or cannot be written to.
    """
    folder = Path(model).expanduser()
    if folder.is_dir():
        return folder
    repo, revision = split_model(model)
    return _download(repo, revision)


def cached_snapshot(repo: str, revision: str | None) -> Path | None:
    """The cached snapshot of a commit, which may be shortened, or None.

    A commit never changes, so no connection is needed.
    """
    from huggingface_hub.constants import HF_HUB_CACHE

    if revision is None or _SHORT_COMMIT.fullmatch(revision) is None:
        return None
    snapshots = Path(HF_HUB_CACHE) / f"models--{repo.replace('/', '--')}" / "snapshots"
    found = [path for path in snapshots.glob(f"{revision}*") if (path / "config.json").exists()]
    return found[0] if len(found) == 1 else None


def find_commit(model: str) -> str:
    """The commit that a hub id means; nothing is downloaded.

    A full commit is taken as it is. Anything else asks the hub, or the cache without a connection.

    Args:
        model: `org/name` with an optional `@revision`.

    Raises:
        CheckpointError: No such repository or revision, no access, or no connection.
    """
    repo, revision = split_model(model)
    if revision is not None and is_commit(revision):
        return revision
    with _one_line(repo, revision):
        import httpx
        from huggingface_hub import HfApi, snapshot_download
        from huggingface_hub.errors import OfflineModeIsEnabled

        try:
            commit = HfApi().model_info(repo, revision=revision).sha
        except (OfflineModeIsEnabled, httpx.TransportError):
            commit = Path(snapshot_download(repo, revision=revision, local_files_only=True)).name
    if commit is None or not is_commit(commit):
        raise CheckpointError(f"the hub names no commit for {model}.", fix="give one: @COMMIT.")
    return commit


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


def _download(repo: str, revision: str | None) -> Path:
    from huggingface_hub import snapshot_download

    with _one_line(repo, revision):
        return Path(snapshot_download(repo, revision=revision))


@contextmanager
def _one_line(repo: str, revision: str | None) -> Iterator[None]:
    """Turns what the hub's client raises into one line with its fix."""
    import httpx
    from huggingface_hub.constants import HF_HUB_CACHE
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    name = repo if revision is None else f"{repo}@{revision}"
    try:
        yield
    except GatedRepoError as error:
        raise CheckpointError(
            f"{name} is gated.", fix="ask for access on its page, then run `hf auth login`."
        ) from error
    except RevisionNotFoundError as error:
        raise CheckpointError(f"{repo} has no revision {revision}.", fix="check it.") from error
    except RepositoryNotFoundError as error:
        raise CheckpointError(
            f"the hub has no model {repo}, or it is private.",
            fix="check the name; for a private model run `hf auth login`.",
        ) from error
    except (LocalEntryNotFoundError, HfHubHTTPError, httpx.HTTPError) as error:
        raise CheckpointError(
            f"{name} is not in the local cache and the hub cannot be reached.",
            fix="connect, or copy the checkpoint to this machine and give its folder.",
        ) from error
    except OSError as error:
        raise disk_error(error, Path(HF_HUB_CACHE)) from error
