"""What a model's name means: a folder, a variant of the run folder, `nano`, or a hub id."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from clefq.clef.checkpoint import checkpoint_sha256
from clefq.clef.images import PROCESSOR_FILES
from clefq.errors import CheckpointError, InputError
from clefq.names.hub import (
    cached_snapshot,
    find_commit,
    resolve_model,
    snapshot_commit,
    split_model,
)
from clefq.names.run_folder import RunFolder
from clefq.plain_files import compact_json, read_json, sha256_bytes, sha256_file
from clefq.store.atomic import write_json

NANO = "nano"
_ORIGIN = ".clefq-origin.json"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")


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
        name: A folder, a variant of `run`, `nano`, or `owner/name` with an optional `@revision`
            (a commit may be shortened).
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
    hub_id, revision = split_model(name)
    snapshot = cached_snapshot(hub_id, revision)
    if snapshot is None:
        snapshot = resolve_model(name)
    commit = snapshot_commit(snapshot, revision)
    return ModelRef(snapshot, hub_id, commit, hub_id.rpartition("/")[2])


def find_here(name: str, run: RunFolder | None = None) -> ModelRef | None:
    """The model of a name that is no hub id, or None; nothing is downloaded.

    A variant of the run folder goes before a folder of that name here, which `./NAME` means.
    `nano` is the bundled one unless there is another so called.
    """
    if run is not None and name in run.variants():
        model_id, revision = origin_of(run.model(name))
        return ModelRef(run.model(name), model_id or name, revision, name)
    folder = Path(name).expanduser()
    if folder.is_dir():
        leaf = folder.resolve().name
        model_id, revision = origin_of(folder)
        return ModelRef(folder, model_id or leaf, revision, leaf)
    if name == NANO:
        from clefq.nano import WEIGHTS

        return ModelRef(WEIGHTS, NANO, None, NANO)
    return None


def record_origin(folder: Path, model_id: str, revision: str) -> None:
    """Writes into a copy of a hub's checkpoint what it is a copy of; its hash does not change."""
    write_json(folder / _ORIGIN, {"schema_version": 1, "model_id": model_id, "revision": revision})


def origin_of(folder: Path) -> tuple[str | None, str | None]:
    """Hub id and commit that a checkpoint folder was copied from, or None and None."""
    if not (folder / _ORIGIN).is_file():
        return None, None
    value = read_json(folder / _ORIGIN)
    if not isinstance(value, dict) or value.get("schema_version") != 1:
        raise CheckpointError(
            f"{folder / _ORIGIN} is not of this version.", fix="remove it, or update clefq."
        )
    return str(value.get("model_id")), str(value.get("revision"))


def served_model(name: str) -> ModelRef:
    """A model that a server knows by `name`; it has no folder here."""
    return ModelRef(Path(), name, None, name.rpartition("/")[2])


@dataclass(frozen=True, slots=True)
class ComparedModel:
    """Who a model is, whether it is here or not.

    Attributes:
        variant: Its name in the report.
        given: What the user called it.
        model_id: Hub id, or the folder's name.
        revision: Hub commit, or None for a local folder.
        sha256: Hash of a local checkpoint, or None.
        predictions: The predictions file that stands for it, or None.
        images: Hash over a local checkpoint's image settings, which its own hash leaves out.
        images_since: When those settings were last changed, seconds since 1970.
    """

    variant: str
    given: str
    model_id: str
    revision: str | None = None
    sha256: str | None = None
    predictions: Path | None = None
    images: str | None = None
    images_since: float = 0.0

    @property
    def token(self) -> str:
        """What identifies its weights."""
        return self.sha256 or f"{self.model_id}@{self.revision}"

    def locate(self) -> ModelRef:
        """The checkpoint on this machine, downloaded where needed, under this variant's name."""
        pinned = f"{self.model_id}@{self.revision}" if self.revision else self.given
        found = find_model(pinned)
        return ModelRef(found.folder, self.model_id, self.revision, self.variant)


def identify(name: str, variant: str | None) -> ComparedModel:
    """Says who a model is, without downloading it.

    Args:
        name: Checkpoint folder, hub id with an optional `@revision`, or predictions file.
        variant: Its name in the report; None: the folder's, or that of the predictions.

    Raises:
        ClefqError: It is none of these, or the hub does not know it.
    """
    path = Path(name).expanduser()
    if path.is_file() or name.endswith(".parquet"):
        from clefq.store.predictions import read_meta

        meta = read_meta(path)
        return ComparedModel(meta.variant, name, meta.model_id, predictions=path)
    if path.is_dir():
        leaf = path.resolve().name
        chosen = _checked(variant or leaf)
        return _local(chosen, name, leaf, path)
    hub_id, _ = split_model(name)
    chosen = _checked(variant or hub_id.rpartition("/")[2])
    return ComparedModel(chosen, name, hub_id, revision=find_commit(name))


def _local(variant: str, given: str, leaf: str, folder: Path) -> ComparedModel:
    files = [folder / name for name in PROCESSOR_FILES if (folder / name).is_file()]
    hashes = {file.name: sha256_file(file) for file in files}
    return ComparedModel(
        variant,
        given,
        leaf,
        sha256=checkpoint_sha256(folder),
        images=sha256_bytes(compact_json(hashes).encode()),
        images_since=max((file.stat().st_mtime for file in files), default=0.0),
    )


def _checked(variant: str) -> str:
    if _NAME.fullmatch(variant) is None:
        raise InputError(f"{variant!r} cannot name a variant.", fix="give --name a plain name.")
    return variant


def check_name(name: str, baseline: ComparedModel) -> None:
    """The candidate's name must be its own.

    Raises:
        InputError: It is the baseline's.
    """
    if name == baseline.variant:
        raise InputError(
            f"baseline and candidate are both called {name}.",
            fix="give the candidate another --name.",
        )


def check_apart(sides: Sequence[ComparedModel]) -> None:
    """Baseline and candidate must be two models under two names.

    Raises:
        InputError: They are not.
    """
    baseline, candidate = sides
    check_name(candidate.variant, baseline)
    given = baseline.predictions or candidate.predictions
    if given is None and baseline.token == candidate.token:
        raise InputError(
            f"the candidate {candidate.given} is the baseline itself.",
            fix="give the quantized checkpoint as --candidate.",
        )
