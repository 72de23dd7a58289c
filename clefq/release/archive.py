"""Folders as tar files that depend on names and contents alone."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from clefq.errors import InputError
from clefq.plain_files import sha256_file
from clefq.store.atomic import atomic_file


def pack(folder: Path, target: Path) -> None:
    """Writes every file of a folder to a tar file: sorted, without owners, modes or times.

    Raises:
        InputError: The file cannot be written.
    """
    with (
        atomic_file(target) as partial,
        tarfile.open(partial, "w", format=tarfile.PAX_FORMAT) as tar,
    ):
        for path in sorted(p for p in folder.rglob("*") if p.is_file()):
            info = tarfile.TarInfo(path.relative_to(folder).as_posix())
            info.size, info.mode = path.stat().st_size, 0o644
            with path.open("rb") as file:
                tar.addfile(info, file)


@contextmanager
def unpacked(archive: Path) -> Iterator[tuple[Path, bool]]:
    """Yields a temporary folder with a tar file's contents, and whether `pack` made that file.

    Raises:
        InputError: Not a tar file, damaged, or with names that leave the folder.
    """
    with TemporaryDirectory(prefix="clefq-") as scratch:
        folder = Path(scratch) / "bundle"
        folder.mkdir()
        try:
            with tarfile.open(archive, "r:") as tar:
                _extract(tar, folder)
        except (tarfile.TarError, OSError, EOFError, ValueError) as error:
            raise InputError(
                f"{archive} is not a whole tar file: {error}.", fix="fetch it again."
            ) from error
        again = Path(scratch) / "again.tar"
        pack(folder, again)
        yield folder, sha256_file(again) == sha256_file(archive)


def _extract(tar: tarfile.TarFile, folder: Path) -> None:
    for member in tar:
        if not member.isfile():
            raise ValueError(f"{member.name!r} is no file")
        target = (folder / member.name).resolve()
        if not target.is_relative_to(folder.resolve()) or target.exists():
            raise ValueError(f"{member.name!r} is doubled or leaves the folder")
        target.parent.mkdir(parents=True, exist_ok=True)
        data = tar.extractfile(member) or io.BytesIO()
        with target.open("wb") as file:
            while block := data.read(1 << 20):
                file.write(block)
