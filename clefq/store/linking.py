"""Copies that cost no space where the file system allows: reflinks, else hard links, else bytes."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

from clefq.errors import InputError
from clefq.plain_files import sha256_file

_LINKED_FROM = 64 << 20  # bytes; smaller files may well be edited in place
_FICLONE = 0x40049409  # ioctl of Linux: share all blocks of another file
_NOT_HERE = (
    errno.EXDEV, errno.EPERM, errno.EACCES, errno.EMLINK, errno.ENOTSUP, errno.EOPNOTSUPP,
    errno.ENOSYS, errno.EINVAL, errno.ENOTTY,
)  # fmt: skip


def place(source: Path, target: Path, digest: str | None = None) -> str:
    """Puts a file's bytes under another name, and reads them back where a hash is given.

    Args:
        source: The file; a symbolic link (the hub's cache) is followed.
        target: The new name; must not exist.
        digest: SHA-256 that it must have, or None.

    Returns:
        `reflink`, `hardlink` or `copy`.

    Raises:
        InputError: The bytes are not those that the digest is of.
    """
    real = source.resolve()
    target.parent.mkdir(parents=True, exist_ok=True)
    how = "reflink" if _reflink(real, target) else "hardlink" if _hardlink(real, target) else "copy"
    if how == "copy":
        shutil.copyfile(real, target)
    if digest is not None and sha256_file(target) != digest:
        raise InputError(f"{source} changed while it was copied.", fix="run it again.")
    return how


def copy_file(source: Path, target: Path) -> str:
    """Copies a file; a large one, which is weights, without using space where that can be.

    Returns:
        `reflink`, `hardlink` or `copy`.
    """
    if source.stat().st_size >= _LINKED_FROM:
        return place(source, target)
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    return "copy"


def _reflink(source: Path, target: Path) -> bool:
    try:
        import fcntl

        with source.open("rb") as old, target.open("xb") as new:
            fcntl.ioctl(new.fileno(), _FICLONE, old.fileno())
        return True
    except (ImportError, OSError) as error:
        target.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno not in _NOT_HERE:
            raise
        return False


def _hardlink(source: Path, target: Path) -> bool:
    try:
        os.link(source, target)
        return True
    except OSError as error:
        if error.errno not in _NOT_HERE:
            raise
        return False
