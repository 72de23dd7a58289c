"""Whether a folder still holds the checkpoint that a server was started with.

Hashing weights takes half a minute, a look at the files' sizes and times a millisecond: engines
take the look at each start, before they load and after it, and hash only where it differs.
"""

from __future__ import annotations

from pathlib import Path

from clefq.clef.checkpoint import checkpoint_sha256
from clefq.errors import CheckpointError
from clefq.plain_files import sha256_bytes
from clefq.serving.fleet.wire import Start

_SUFFIXES = (".safetensors", ".json", ".jinja", ".txt")
# What is written beside a checkpoint and decides no answer.
_BESIDE = ("clefq.json",)


def fingerprint(folder: Path) -> str:
    """A hash of the names, sizes, times and places on disk of all files that decide answers.

    Args:
        folder: The checkpoint; links are followed.

    Raises:
        CheckpointError: It cannot be read.
    """
    lines = []
    try:
        for path in sorted(folder.rglob("*")):
            name = path.relative_to(folder).as_posix()
            if path.suffix in _SUFFIXES and not f"/{name}".count("/.") and name not in _BESIDE:
                facts = path.stat()
                lines.append(f"{name}\0{facts.st_size}\0{facts.st_mtime_ns}\0{facts.st_ino}\n")
    except OSError as error:
        raise CheckpointError(f"cannot read {folder}: {error.strerror}.") from error
    return sha256_bytes("".join(lines).encode())


def check_unchanged(start: Start) -> None:
    """Refuses a folder that holds another checkpoint than at the server's start.

    Raises:
        CheckpointError: It does, or it is gone.
    """
    if start.fingerprint is None:
        return
    if not start.folder.is_dir():
        raise CheckpointError(
            f"{start.folder} is gone.", fix="put the checkpoint back, or stop the server."
        )
    if fingerprint(start.folder) == start.fingerprint:
        return
    # copied anew, perhaps, and the same all the same
    if start.sha256 is not None and checkpoint_sha256(start.folder) == start.sha256:
        return
    raise CheckpointError(
        f"{start.folder} holds another checkpoint than at the server's start.",
        fix="put that one back; for the new one, POST /reload on --admin-port, or restart.",
    )
