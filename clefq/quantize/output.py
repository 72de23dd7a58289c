"""The folder being made: resumable after a kill, whole or absent to everyone else.

It is filled under its partial name. A mark in it says what its bytes depend on; a later run of
the same work keeps what is finished, a run of other work starts anew.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from clefq.errors import AuditError, CheckpointError, InputError
from clefq.plain_files import read_json
from clefq.store.atomic import atomic_folder, partial_path, sole_writer, write_json

MARK = ".fingerprint.json"


@contextmanager
def output_folder(out: Path, fingerprint: Callable[[], dict[str, Any]]) -> Iterator[Path]:
    """Yields the folder to fill.

    What an interrupted run of the same work has finished is still in it. After an error it is
    kept for the next run, except when the result would be wrong and no calibration went into it.

    Args:
        out: The final folder.
        fingerprint: What the bytes depend on, as JSON values; asked again at the end, so that
            a source that changed while it was read is noticed.

    Raises:
        InputError: `out` exists, cannot be written to, or is being written by another process.
        CheckpointError: The source changed while it was read.
    """
    partial = partial_path(out)
    mark = _plain(fingerprint())
    try:
        with sole_writer(out), atomic_folder(out, keep_partial=True) as folder:
            if _read(folder) != mark:
                # other work, or what cannot be told from it
                shutil.rmtree(folder)
                folder.mkdir()
                write_json(folder / MARK, mark)
            yield folder
            if _plain(fingerprint()) != mark:
                shutil.rmtree(partial)
                raise CheckpointError("the source changed while it was read.", fix="run it again.")
            (folder / MARK).unlink()
    except AuditError:
        _keep_calibration(partial)
        raise


def _keep_calibration(partial: Path) -> None:
    """Removes a wrong result, but for a finished calibration: that took long and may be right."""
    work = next((done.parent for done in partial.glob("*/saved.done")), None)
    if work is None:
        shutil.rmtree(partial, ignore_errors=True)
        return
    for path in partial.iterdir():
        if path.is_dir() and path != work:
            shutil.rmtree(path, ignore_errors=True)
        elif path.is_file() and path.name != MARK:
            path.unlink()


def bytes_there(out: Path) -> int:
    """Bytes that an interrupted run has left."""
    files = partial_path(out).rglob("*")
    return sum(path.stat().st_size for path in files if path.is_file())


def _read(partial: Path) -> Any:
    with contextlib.suppress(InputError):
        return read_json(partial / MARK)
    return None


def _plain(value: dict[str, Any]) -> Any:
    return json.loads(json.dumps(value))
