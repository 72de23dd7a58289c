"""One model on one set: from a name on the command line to a predictions file.

A name is a predictions file, a variant of the run folder, a checkpoint folder or a hub id. Nothing
is downloaded or predicted here; a file that is there is checked to be the model's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from clefq.clef.checkpoint import checkpoint_sha256, checkpoint_touched
from clefq.errors import InputError
from clefq.names.hub import split_model
from clefq.names.models import find_here, find_model
from clefq.names.run_folder import RunFolder, manifest_of
from clefq.store.predictions import PredictionsMeta, read_meta


@dataclass(frozen=True, slots=True)
class PredictionsRef:
    """One model on one set.

    Attributes:
        variant: Its name in the report.
        path: Its predictions file, which may not exist yet.
        model: What to predict with where it is missing; None for a predictions file.
        folder: The checkpoint's folder where it lies here, or None.
        in_run: Whether the checkpoint is a variant of the run folder.
    """

    variant: str
    path: Path
    model: str | None
    folder: Path | None = None
    in_run: bool = False


def is_predictions(name: str) -> bool:
    """Whether a name means a predictions file."""
    return name.endswith(".parquet") or Path(name).is_file()


def find_predictions(
    name: str, set_name: str, set_path: Path | None, run: RunFolder | None
) -> PredictionsRef:
    """What a name means on one set.

    Args:
        name: Predictions file, variant, checkpoint folder or hub id.
        set_name: Name of the set in the run folder.
        set_path: Folder of the set, or None where it is not here.
        run: The run folder, or None.

    Raises:
        InputError: It means nothing here, or has no predictions and cannot get any.
    """
    if is_predictions(name):
        return PredictionsRef(read_meta(Path(name)).variant, Path(name), None)
    ref = _of_model(name, set_name, run)
    if set_path is None and not ref.path.is_file():
        raise InputError(
            f"{name} has no predictions on {set_name}, and the set is not here to make them.",
            fix="give --eval SET.",
        )
    return ref


def _of_model(name: str, set_name: str, run: RunFolder | None) -> PredictionsRef:
    home = run if run is not None else RunFolder(Path.cwd())
    here = find_here(name, run)
    in_run = run is not None and name in run.variants()
    if run is not None and "/" not in name and not in_run:
        path = run.predictions(set_name, name)
        if path.is_file():  # its checkpoint is not here any more, or never was
            return PredictionsRef(name, path, name, None, in_run=True)
    if here is not None:
        path = home.predictions(set_name, here.variant)
        return PredictionsRef(here.variant, path, name, here.folder, in_run)
    if "/" not in name:
        find_model(name, home)  # says what is wrong, and what there is
    variant = split_model(name)[0].rpartition("/")[2]
    return PredictionsRef(variant, home.predictions(set_name, variant), name)


def check_file(ref: PredictionsRef, set_path: Path | None) -> PredictionsMeta:
    """The provenance of a file that is there, after checks that it is still the right one.

    Raises:
        InputError: It was made on another state of the set, or with another model.
    """
    meta = read_meta(ref.path)
    if ref.model is not None and meta.variant != ref.variant:
        raise InputError(
            f"{ref.path} holds the predictions of {meta.variant}, not of {ref.variant}.",
            fix="name the file after its variant, or predict again with `clefq predict`.",
        )
    if set_path is not None:
        current = manifest_of(set_path).sha256
        if meta.eval_set_sha256 != current:
            raise InputError(
                f"{ref.path} was made on another set than {set_path} "
                f"({meta.eval_set_sha256[:12]}, now {current[:12]}).",
                fix="predict again on this set (`clefq predict`), or give the right --eval.",
            )
    if ref.folder is not None:
        _check_folder(ref, ref.folder, meta)
    elif ref.model is not None and "/" in ref.model:
        _check_hub_id(ref, ref.model, meta)
    return meta


def _check_folder(ref: PredictionsRef, folder: Path, meta: PredictionsMeta) -> None:
    """Compares hashes; a variant's only where it was touched after its predictions were made.

    Hashing takes a minute for a large model, so an untouched run folder is taken at its word.
    """
    if meta.model_sha256 is None:
        return
    if ref.in_run:
        touched = checkpoint_touched(folder)
        if touched is None or touched <= datetime.fromisoformat(meta.created_at).timestamp():
            return

    if checkpoint_sha256(folder) != meta.model_sha256:
        raise _other_model(ref, f"another checkpoint than the one now in {folder}")


def _check_hub_id(ref: PredictionsRef, model: str, meta: PredictionsMeta) -> None:
    hub_id, revision = split_model(model)
    if meta.model_id != hub_id:
        raise _other_model(ref, f"{meta.model_id}, not with {hub_id}")
    if revision is not None and not (meta.model_revision or "").startswith(revision):
        raise _other_model(ref, f"revision {meta.model_revision}, not with {revision}")


def _other_model(ref: PredictionsRef, what: str) -> InputError:
    return InputError(
        f"{ref.path} was made with {what}.",
        fix="move it away, or predict this model with another --variant NAME.",
    )
