"""The two models of a job, and who they are.

A model is a checkpoint folder, a hub id, or a predictions file that was made elsewhere. A hub id
is pinned to its commit before anything is downloaded, so that a cached prediction of it costs no
download.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from clefq.clef.checkpoint import checkpoint_sha256
from clefq.clef.hub import find_commit, split_model
from clefq.clef.images import PROCESSOR_FILES
from clefq.engines.models import ModelRef, find_model
from clefq.errors import InputError
from clefq.store.atomic import compact_json, sha256_bytes, sha256_file
from clefq.store.predictions import read_meta

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two models.

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


def identify(name: str, variant: str | None) -> Side:
    """Says who a model is, without downloading it.

    Args:
        name: Checkpoint folder, hub id with an optional `@revision`, or predictions file.
        variant: Its name in the report; None: the folder's, or that of the predictions.

    Raises:
        ClefqError: It is none of these, or the hub does not know it.
    """
    path = Path(name).expanduser()
    if path.is_file() or name.endswith(".parquet"):
        meta = read_meta(path)
        return Side(meta.variant, name, meta.model_id, predictions=path)
    if path.is_dir():
        leaf = path.resolve().name
        chosen = _checked(variant or leaf)
        return _local(chosen, name, leaf, path)
    hub_id, _ = split_model(name)
    chosen = _checked(variant or hub_id.rpartition("/")[2])
    return Side(chosen, name, hub_id, revision=find_commit(name))


def _local(variant: str, given: str, leaf: str, folder: Path) -> Side:
    files = [folder / name for name in PROCESSOR_FILES if (folder / name).is_file()]
    hashes = {file.name: sha256_file(file) for file in files}
    return Side(
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


def check_name(name: str, baseline: Side) -> None:
    """The candidate's name must be its own.

    Raises:
        InputError: It is the baseline's.
    """
    if name == baseline.variant:
        raise InputError(
            f"baseline and candidate are both called {name}.",
            fix="give the candidate another --name.",
        )


def check_apart(sides: Sequence[Side]) -> None:
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
