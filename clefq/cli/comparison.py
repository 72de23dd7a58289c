"""What `clefq parity` is asked to compare: names, files and checkpoints become predictions files.

What is missing is predicted first. No figure is computed here.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from clefq.errors import ClefqError, InputError
from clefq.names.models import find_model
from clefq.names.predictions import PredictionsRef, check_file, find_predictions, is_predictions
from clefq.names.run_folder import (
    RunFolder,
    find_set,
    known_variants,
    manifest_of,
    own_sets,
    predicted_sets,
)
from clefq.store.predictions import PredictionsMeta, read_meta

if TYPE_CHECKING:
    from clefq.console import Console
    from clefq.engines.base import EngineName
    from clefq.parity.gates.schema import GateFile
    from clefq.parity.report.summary import Sizes

_VARIANT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")
RESERVED = ("index.html", "summary.json")


@dataclass(frozen=True, slots=True)
class Request:
    """The names on the command line.

    Attributes:
        baseline: Predictions file, checkpoint or variant.
        candidates: The same; empty for every other variant of the run folder.
        sets: Set folders or names; empty for every eval set of the run folder.
        engine: Engine for what is missing, or None for the default.
        replicates: Predictions files of further runs of the baseline.
    """

    baseline: str
    candidates: tuple[str, ...]
    sets: tuple[str, ...]
    engine: str | None
    replicates: tuple[Path, ...]


@dataclass(frozen=True, slots=True)
class SetPlan:
    """All that is compared on one set.

    Attributes:
        name: Name of the set.
        set_path: Folder of the set, or None where only predictions are there.
        baseline: The baseline.
        candidates: The candidates, in table order.
        replicates: Replicates of the baseline on this set.
    """

    name: str
    set_path: Path | None
    baseline: PredictionsRef
    candidates: tuple[PredictionsRef, ...]
    replicates: tuple[Path, ...]


def plan(request: Request, run: RunFolder | None) -> tuple[SetPlan, ...]:
    """What to compare on which set.

    Raises:
        InputError: A name means nothing here, or there is nothing to compare.
    """
    names = (request.baseline, *request.candidates)
    files = [Path(name) for name in names if is_predictions(name)]
    sets = [_set_of_file(files[0], request, run)] if files else _sets(request, run)
    plans = tuple(_plan_set(request, run, name, path) for name, path in sets)
    plans = tuple(found for found in plans if found.candidates)
    if not plans:
        raise InputError(
            f"there is no candidate to compare with {request.baseline}.",
            fix="name one with --candidate, or make one with `clefq quantize`.",
        )
    used = {file for found in plans for file in found.replicates}
    for file in request.replicates:
        if file not in used:
            raise InputError(
                f"the replicate {file} is of none of the sets compared here "
                f"({', '.join(found.name for found in plans)}).",
                fix="give another run of the baseline on the same set.",
            )
    return plans


def _set_of_file(file: Path, request: Request, run: RunFolder | None) -> tuple[str, Path | None]:
    meta = read_meta(file)
    if len(request.sets) > 1:
        raise InputError(
            f"{file} is of one set, {meta.eval_set}.", fix="give --eval once, or not at all."
        )
    if request.sets:
        return meta.eval_set, find_set(request.sets[0], run)
    return meta.eval_set, None if run is None else own_sets(run).get(meta.eval_set)


def _sets(request: Request, run: RunFolder | None) -> list[tuple[str, Path | None]]:
    if request.sets:
        found = [find_set(name, run) for name in request.sets]
        return [(manifest_of(path).name, path) for path in found]
    if run is None:
        raise InputError(
            f"{request.baseline} is no predictions file, and no --eval SET is given.",
            fix="give --eval SET, or change into a run folder.",
        )
    own = own_sets(run)
    sets: dict[str, Path | None] = {
        name: folder for name, folder in own.items() if manifest_of(folder).role == "eval"
    }
    sets |= {name: None for name in predicted_sets(run) if name not in own}
    if not sets:
        raise InputError(
            f"{run.root} has no eval set.", fix="build one with `clefq build eval NAME_OR_FILE`."
        )
    return sorted(sets.items())


def _plan_set(request: Request, run: RunFolder | None, name: str, path: Path | None) -> SetPlan:
    baseline = find_predictions(request.baseline, name, path, run)
    wanted: Sequence[str] = request.candidates
    if not wanted and run is not None:
        wanted = [v for v in known_variants(run, name) if v != baseline.variant]
    candidates = tuple(find_predictions(candidate, name, path, run) for candidate in wanted)
    _check_variants(candidates)
    _check_apart(baseline, candidates)
    sha = _sha_of(path, baseline)
    if path is not None:
        _check_unseen(path, candidates, run)
    replicates = tuple(
        file for file in request.replicates if read_meta(file).eval_set_sha256 == sha
    )
    return SetPlan(name, path, baseline, candidates, replicates)


def _check_unseen(
    set_path: Path, candidates: Sequence[PredictionsRef], run: RunFolder | None
) -> None:
    """Refuses calibration sets, and sets that a candidate was calibrated on."""
    from clefq.quantize.manifest import MANIFEST, read_build_manifest

    manifest = manifest_of(set_path)
    if manifest.role != "eval":
        raise InputError(
            f"{manifest.name} is a {manifest.role} set: no verdict can rest on it.",
            fix="give an eval set that no candidate was calibrated on.",
        )
    for slot in candidates:
        folder = _folder_of(slot, manifest.name, run)
        if folder is None or not (folder / MANIFEST).is_file():
            continue
        try:
            used = read_build_manifest(folder).calibration
        except ClefqError:  # of another version, or damaged: it says nothing
            continue
        if isinstance(used, dict) and used.get("sha256") == manifest.sha256:
            raise InputError(
                f"{slot.variant} was calibrated on {manifest.name}: no verdict can rest on it.",
                fix="judge it on a set that it was not calibrated on.",
            )


def _sha_of(set_path: Path | None, baseline: PredictionsRef) -> str | None:
    """Hash of the set, from its manifest or from the baseline's predictions."""
    if set_path is not None:
        return manifest_of(set_path).sha256
    return read_meta(baseline.path).eval_set_sha256 if baseline.path.is_file() else None


def _check_variants(candidates: Sequence[PredictionsRef]) -> None:
    names = [slot.variant for slot in candidates]
    for name in names:
        if not _VARIANT.fullmatch(name) or name in RESERVED:
            raise InputError(
                f"the variant name {name!r} cannot name a folder.",
                fix="predict with --variant NAME.",
            )
        if names.count(name) > 1:
            raise InputError(
                f"two candidates are called {name}.", fix="predict one with another --variant NAME."
            )


def _check_apart(baseline: PredictionsRef, candidates: Sequence[PredictionsRef]) -> None:
    """Neither the baseline itself nor another model of the same name may be the candidate."""
    for slot in candidates:
        if slot.path.resolve() != baseline.path.resolve():
            continue
        if None in (slot.model, baseline.model) or slot.model == baseline.model:
            raise InputError(
                f"the candidate {slot.variant} is the baseline itself: {slot.path}.",
                fix="name another candidate; another run of the baseline goes to --replicate.",
            )
        raise InputError(
            f"{baseline.model} and {slot.model} are both called {slot.variant}.",
            fix="predict one with another --variant NAME, and give its predictions file.",
        )


def check_bound(plans: Sequence[SetPlan], gates: GateFile) -> None:
    """Refuses to predict on a set that the gates are not for; what is predicted is judged.

    Raises:
        InputError: Predictions are missing, and the gate file is bound to another set.
    """
    bound = gates.eval_set
    for found in plans:
        missing = [s for s in (found.baseline, *found.candidates) if not s.path.is_file()]
        if bound is None or found.set_path is None or not missing:
            continue
        manifest = manifest_of(found.set_path)
        if manifest.sha256 != bound.sha256:
            raise InputError(
                f"gates {gates.name} are for set {bound.name} {bound.sha256[:12]}, this is "
                f"{manifest.name} {manifest.sha256[:12]}: nothing was predicted.",
                fix=f"give --eval {bound.name}, or freeze gates for {manifest.name}.",
            )


def predict_missing(plans: Sequence[SetPlan], request: Request, console: Console) -> None:
    """Predicts what is missing, baseline first, every model of a set with the same engine.

    Raises:
        ClefqError: A model or set is unusable, or predictions are of another state of the set.
    """
    for found in plans:
        slots = (found.baseline, *found.candidates)
        metas = [check_file(slot, found.set_path) for slot in slots if slot.path.is_file()]
        missing = [slot for slot in slots if not slot.path.is_file()]
        for slot in missing:
            console.note(f"{slot.variant} has no predictions on {found.name}: predicting")
            _predict(slot, found, (request.engine, metas[0] if metas else None), console)
            metas = metas or [read_meta(slot.path)]


def _predict(
    slot: PredictionsRef,
    found: SetPlan,
    how: tuple[str | None, PredictionsMeta | None],
    console: Console,
) -> None:
    from clefq.engines.base import EngineSpec
    from clefq.engines.predict import PredictJob, predict_set

    if slot.model is None or found.set_path is None:
        raise InputError(f"no predictions file {slot.path}.", fix="make it with `clefq predict`.")
    engine, like = how
    spec = EngineSpec()
    if like is not None:
        # The same limits on both sides: otherwise they do not answer the same prompts.
        spec = EngineSpec(max_length=like.max_length, truncate_state=like.truncate_state)
    run = RunFolder(slot.path.parent.parent.parent)
    model = find_model(slot.model, run)
    predict_set(PredictJob(model, found.set_path, slot.path, _engine(engine, like), spec), console)


def _engine(name: str | None, like: PredictionsMeta | None) -> EngineName:
    from clefq.engines.select import fastest_engine, parse_engine

    if name is not None:
        return parse_engine(name)
    if like is not None and like.engine in ("transformers", "vllm"):
        return parse_engine(like.engine)
    return fastest_engine()


def sizes(found: SetPlan, run: RunFolder | None = None) -> Sizes:
    """Bytes and measured speed of the checkpoints that lie here; others have none.

    Args:
        found: What is compared.
        run: The run folder: its own predictions files, given by path, have their checkpoints here,
            and its `bench/` says how fast they were.
    """
    from dataclasses import replace

    from clefq.parity.report.summary import sizes_of
    from clefq.release.speed import throughput

    folders = {}
    for slot in (found.baseline, *found.candidates):
        folder = _folder_of(slot, found.name, run)
        if folder is not None:
            folders[slot.variant] = folder
    counted = sizes_of(folders)
    root = None if run is None else run.root
    return replace(counted, throughput=throughput(root, counted.bytes))


def _folder_of(slot: PredictionsRef, set_name: str, run: RunFolder | None) -> Path | None:
    """The checkpoint's folder; of a predictions file only where it is the run's own."""
    if slot.folder is not None or run is None:
        return slot.folder
    own = run.predictions(set_name, slot.variant).resolve() == slot.path.resolve()
    return run.model(slot.variant) if own else None
