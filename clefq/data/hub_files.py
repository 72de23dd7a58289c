"""Where a source is read from: original files on this machine, or the hub at a pinned commit.

The hub holds some data sets as tables, which `datasets` reads (`clefq.data.loading`), and some as
the original files, which are fetched here and then read as local ones.
"""

from __future__ import annotations

import os
import re
import shutil
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Annotated, Any

from clefq.data.sources.base import HubFiles, Source
from clefq.errors import DefinitionError, missing_extra
from clefq.names.hub import is_commit
from clefq.plain_files import sha256_bytes
from clefq.store.reading import Rule, Stored

DATA_DIR_VARIABLE = "CLEFQ_DATA_DIR"
_REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")
_DONE = "unpacked"


@dataclass(frozen=True, slots=True)
class HubChoice(Stored):
    """The data set of the hub that a definition names for a source.

    Attributes:
        id: `owner/name`.
        revision: Commit, 40 hexadecimal digits: a branch would make sets differ from day to day.
    """

    id: Annotated[
        str,
        Rule(
            lambda name: _REPOSITORY.fullmatch(name) is not None,
            "must be of the form owner/name",
            {"pattern": f"^{_REPOSITORY.pattern}$"},
        ),
    ]
    revision: Annotated[
        str,
        Rule(is_commit, "must be a commit of 40 hex digits", {"pattern": "^[0-9a-f]{40}$"}),
    ]


@dataclass(frozen=True, slots=True)
class SourcePlace:
    """Where a source's rows are.

    Attributes:
        source: The source, with the hub's data set that the definition names.
        folder: Folder of the original files; None where `datasets` reads them from the hub.
        revision: The hub's commit that the folder was fetched from, or None.
    """

    source: Source
    folder: Path | None
    revision: str | None = None


def find_place(
    source: Source, options: Any, data_dir: Path | None, chosen: HubChoice | None = None
) -> SourcePlace:
    """Finds where a public source is to be read from; fetches nothing yet.

    The first of: `--data-dir`; the hub's data set that the definition names; CLEFQ_DATA_DIR; the
    hub's data set that is known here.

    Args:
        source: The source.
        options: Its options.
        data_dir: `--data-dir`. Holds one folder per source, under its name, or under the
            `folder` that the options name.
        chosen: What the definition names.

    Raises:
        DefinitionError: A data folder is given but lacks this source, or nothing is given and
            no commit on the hub is known.
    """
    if chosen is not None:
        source = choose(source, chosen)
    given = os.environ.get(DATA_DIR_VARIABLE) if chosen is None else None
    root = data_dir if data_dir is not None else Path(given) if given else None
    name = getattr(options, "folder", "") or source.name
    if root is not None:
        folder = root / name
        if not folder.is_dir():
            raise DefinitionError(f"{root} has no folder {name}/.", fix=_fix_of_folder(source))
        return SourcePlace(source, folder)
    if source.hub is None and source.hub_files.revision is None:
        raise DefinitionError(
            f"{source.title} is not on the hub at a commit that clefq knows.",
            fix=f"give the folder that holds {name}/ with --data-dir, or {naming(source)}.",
        )
    return SourcePlace(source, None, None if source.hub else source.hub_files.revision)


def choose(source: Source, chosen: HubChoice) -> Source:
    """The source read from another data set of the hub, in the layout that its own one has."""
    if source.hub is not None:
        hub = replace(source.hub, path=chosen.id, revision=chosen.revision)
        return replace(source, hub=hub)
    files = replace(source.hub_files, path=chosen.id, revision=chosen.revision)
    return replace(source, hub_files=files)


def naming(source: Source) -> str:
    """What to write into a definition so that the hub gives this source."""
    known = source.hub_files.path
    if known is not None:
        return f"write `hub: {{id: {known}, revision: COMMIT}}` under the source"
    files = {layouts[0][0] for layouts in source.splits.values()}
    holder = f"a data set of the hub that holds {min(files)}" if files else "a data set of the hub"
    return f"write `hub: {{id: OWNER/NAME, revision: COMMIT}}` under the source, for {holder}"


def _fix_of_folder(source: Source) -> str:
    fix = f"put the original files of {source.title} there"
    if source.hub is not None or source.hub_files.revision is not None:
        fix += f", or leave out --data-dir (and {DATA_DIR_VARIABLE}) to read the hub"
    return fix + "."


def fetch(source: Source, splits: Sequence[str], work: Path) -> Path:
    """Downloads the original files of some splits, at the pinned commit.

    Args:
        source: A source whose `hub_files` name a repository and a commit.
        splits: Splits that are needed.
        work: Folder for images that are unpacked; what an earlier call left in it is used.

    Returns:
        A folder in the original layout.

    Raises:
        DefinitionError: The hub cannot be reached or lacks the files.
        MissingDependencyError: The hub's client is not installed.
    """
    files = source.hub_files
    assert files.path is not None and files.revision is not None
    wanted = [name for split in splits for layout in source.splits[split] for name in layout]
    # what was unpacked of another commit is not this one's
    work = work / sha256_bytes(f"{files.path}@{files.revision}".encode())[:12]
    archive = [] if files.archive is None else [files.archive]
    names = None if files.whole else [*dict.fromkeys(wanted), *archive]
    folder = _download(files, names)
    if files.archive is None:
        return folder
    return _unpacked(folder, files, wanted, work)


def _download(files: HubFiles, names: list[str] | None) -> Path:
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise missing_extra("huggingface_hub", "hub") from error
    path, revision = str(files.path), str(files.revision)
    try:
        folder = snapshot_download(
            path, repo_type="dataset", revision=revision, allow_patterns=names
        )
    except Exception as error:  # the hub client raises dozens of kinds; all mean "not reachable"
        raise unreachable(path, revision, error) from error
    return Path(folder)


def unreachable(path: str, revision: str, error: Exception) -> DefinitionError:
    """What the hub's clients raise, as one error with its fix."""
    return DefinitionError(
        f"cannot read {path}@{revision[:8]} from the hub: "
        f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}",
        fix="check the network, or give the original files with --data-dir.",
    )


def _unpacked(folder: Path, files: HubFiles, wanted: Sequence[str], work: Path) -> Path:
    """The downloaded files beside the images of their archive."""
    archive = folder / str(files.archive)
    if not archive.is_file():
        raise DefinitionError(f"{files.path}@{str(files.revision)[:8]} holds no {files.archive}.")
    if not (work / _DONE).is_file():
        images = work / files.unpacked
        shutil.rmtree(work, ignore_errors=True)
        images.mkdir(parents=True)
        for name in dict.fromkeys(wanted):
            if (folder / name).is_file():
                shutil.copyfile(folder / name, work / name)
        try:
            with tarfile.open(archive) as tar:
                for member in tar:
                    content = tar.extractfile(member) if member.isfile() else None
                    if content is not None:  # by its last name alone: no path leads elsewhere
                        with (images / PurePosixPath(member.name).name).open("xb") as image:
                            shutil.copyfileobj(content, image)
        except FileExistsError as error:
            raise DefinitionError(
                f"{archive} holds two images called {Path(error.filename).name}."
            ) from error
        except (tarfile.TarError, EOFError) as error:
            raise DefinitionError(f"{archive} is no whole tar file.") from error
        (work / _DONE).touch()
    return work
