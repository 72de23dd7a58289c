"""What the names mean that a prediction is given.

A model is a folder, a variant of the run folder, `nano`, or a hub id; a set is a folder or a set of
the run folder.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from clefq.clef.hub import resolve_model, snapshot_commit, split_model
from clefq.errors import CheckpointError, InputError
from clefq.store.run import RunFolder

NANO = "nano"


@dataclass(frozen=True, slots=True)
class ModelRef:
    """A model on this machine.

    Attributes:
        folder: Its checkpoint folder.
        model_id: Folder name, or hub id.
        revision: Hub commit, or None for a local folder.
        variant: Name for the run folder.
    """

    folder: Path
    model_id: str
    revision: str | None
    variant: str


def find_model(name: str, run: RunFolder | None = None) -> ModelRef:
    """Finds a model, downloading it where `name` is a hub id.

    Args:
        name: A folder, a variant of `run`, `nano`, or `owner/name` with an optional `@revision`.
        run: The run folder, if there is one.

    Raises:
        CheckpointError: None of these, or the hub does not have it.
    """
    here = find_here(name, run)
    if here is not None:
        return here
    if run is not None and "/" not in name:
        known = ", ".join(run.variants()) or "none"
        raise CheckpointError(
            f"no folder {name}, and no such variant in {run.root / 'models'} (there: {known}).",
            fix="give a checkpoint folder, a variant, or a hub id org/name.",
        )
    snapshot = resolve_model(name)
    hub_id, revision = split_model(name)
    commit = snapshot_commit(snapshot, revision)
    return ModelRef(snapshot, hub_id, commit, hub_id.rpartition("/")[2])


def find_here(name: str, run: RunFolder | None = None) -> ModelRef | None:
    """The model of a name that is no hub id, or None; nothing is downloaded.

    `nano` is the bundled one unless there is another so called.
    """
    folder = Path(name).expanduser()
    if folder.is_dir():
        leaf = folder.resolve().name
        return ModelRef(folder, leaf, None, leaf)
    if run is not None and name in run.variants():
        return ModelRef(run.model(name), name, None, name)
    if name == NANO:
        from clefq.nano.build import WEIGHTS

        return ModelRef(WEIGHTS, NANO, None, NANO)
    return None


def served_model(name: str) -> ModelRef:
    """A model that a server knows by `name`; it has no folder here."""
    return ModelRef(Path(), name, None, name.rpartition("/")[2])


def find_set(name: str, run: RunFolder | None = None) -> Path:
    """Finds a set folder.

    Args:
        name: A folder, or a set of `run`.
        run: The run folder, if there is one.

    Raises:
        InputError: Neither.
    """
    folder = Path(name).expanduser()
    if folder.is_dir():
        return folder
    if run is not None and name in run.sets():
        return run.set_folder(name)
    known = f" (sets here: {', '.join(run.sets())})" if run is not None and run.sets() else ""
    raise InputError(
        f"no set {name}{known}.",
        fix="give its folder, or change into the run folder that has it (--run DIR); "
        "`clefq build eval NAME_OR_FILE --out DIR` builds one.",
    )
