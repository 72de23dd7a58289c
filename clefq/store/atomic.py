"""Files and folders that are either whole or absent.

Everything clefq writes is first written beside its final name, as `.<name>.partial`, flushed,
and renamed at the end. A crash or Ctrl-C leaves at most the partial, never a half file under
the final name.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from clefq.errors import InputError

_LONGEST = 200  # bytes; file systems allow 255, and names beside it are a little longer


def partial_path(path: Path) -> Path:
    """The name beside `path` under which it is written until it is whole."""
    return path.parent / f".{path.name}.partial"


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Yields the partial path to write to; renames it to `path` if the block succeeds.

    Raises:
        InputError: The disk is full or the folder cannot be written to.
    """
    partial = partial_path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield partial
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):  # a folder that is a file, or cannot be written to
            partial.unlink()
        raise disk_error(error, path) from error
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def check_writable(path: Path) -> None:
    """Whether a file could be written, asked before the hours of work that it should hold.

    Raises:
        InputError: `path` is a folder, or its folder cannot be made or written to.
    """
    if path.is_dir():
        raise InputError(f"cannot use {path}: Is a directory.", fix="name a file.")
    partial = partial_path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if not partial.exists():  # else it may be what another process is writing just now
            partial.touch()
            partial.unlink()
    except OSError as error:
        raise disk_error(error, path) from error


@contextmanager
def atomic_folder(path: Path, *, keep_partial: bool = False) -> Iterator[Path]:
    """Yields the partial folder to fill; renames it to `path` if the block succeeds.

    Args:
        path: The final folder; must not exist, or be empty.
        keep_partial: Leave the partial folder after a failure, so that the same command can
            resume from it. Otherwise it is removed.

    Raises:
        InputError: `path` exists already, the disk is full, or the place cannot be written to.
    """
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise InputError(f"{path} exists already.", fix="remove it or choose another folder.")
    partial = partial_path(path)
    done = False
    try:
        if partial.exists() and not keep_partial:
            shutil.rmtree(partial)
        partial.mkdir(parents=True, exist_ok=True)
        yield partial
        if path.exists():
            path.rmdir()
        partial.replace(path)
        done = True
    except OSError as error:
        raise disk_error(error, path) from error
    finally:
        if not done and not keep_partial:
            shutil.rmtree(partial, ignore_errors=True)


@contextmanager
def sole_writer(path: Path) -> Iterator[None]:
    """Keeps every other process from making `path` while the block runs.

    The lock is a file beside it, `.<name>.lock`. A process that is killed loses its lock.

    Raises:
        InputError: Another process is making it, or the place cannot be written to.
    """
    lock = path.parent / f".{path.name}.lock"
    missing = [folder for folder in path.parents if not folder.exists()]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = _lock(lock)
    except BlockingIOError as error:
        raise InputError(
            f"another clefq is writing {path}.", fix="wait for it, or choose another --out."
        ) from error
    except OSError as error:
        raise disk_error(error, path) from error
    try:
        yield
    finally:
        lock.unlink(missing_ok=True)
        os.close(descriptor)
        with contextlib.suppress(OSError):  # what stays empty was made for the lock alone
            for folder in missing:
                folder.rmdir()


def _lock(path: Path) -> int:
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # its last holder may have removed the file between the two calls
            if path.exists() and os.path.samestat(os.fstat(descriptor), path.stat()):
                return descriptor
        except FileNotFoundError:
            pass
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def disk_error(error: OSError, path: Path) -> InputError:
    """Turns an operating-system error while writing `path` into one line with its fix."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return InputError(
            f"no space left while writing {path}.", fix="free disk space and run it again."
        )
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return InputError(f"cannot write {path}.", fix="choose a writable --out.")
    # users know the file, not the name under which it is written
    named = error.filename if error.filename not in (None, str(partial_path(path))) else path
    return InputError(f"cannot use {named}: {error.strerror or error}.")


def write_text(path: Path, text: str) -> None:
    """Writes UTF-8 text with LF line ends, atomically."""
    with atomic_file(path) as partial:
        partial.write_bytes(text.encode("utf-8"))


def write_json(path: Path, value: Any) -> None:
    """Writes readable JSON (two-space indent, sorted keys, NaN refused), atomically."""
    text = json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False)
    write_text(path, text + "\n")


def can_name_folder(name: str) -> bool:
    """Whether a set may have this name: one plain folder name, visible, on every system."""
    plain = name.isprintable() and not any(c in name for c in '/\\:*?"<>|')
    return plain and 0 < len(name.encode()) <= _LONGEST and not name.startswith(".")
