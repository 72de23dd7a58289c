"""The evidence of a run folder in one place: gates, manifests, predictions, reports, audits.

    report/<set>/…                      as `clefq parity` wrote it
    predictions/<set>/<variant>.parquet all that the reports were computed from
    sets/<set>/                         manifest.json, definition.json, media.json; no records
    models/<variant>/                   checkpoint-config.json, clefq.json, recipe.yaml, audit.json
    gates/<name>-<hash>.yaml            every gate file that a report embeds
    bench/                              what `clefq bench offline` measured of them
    redacted.json                       of a redacted bundle only (`clefq.release.redact`)
    evidence.json                       the hash of each of them, and the root

Nothing in it depends on when or where it was packed.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clefq.clef.checkpoint import checkpoint_sha256
from clefq.console import Console
from clefq.errors import ClefqError, InputError
from clefq.names.models import find_model
from clefq.names.run_folder import REPORT, Place, RunFolder
from clefq.parity.rejudge import replicates_of
from clefq.parity.report.documents import check_document
from clefq.parity.report.html_page import index_html
from clefq.parity.report.keeping import SUMMARY_FILE
from clefq.parity.report.parity_json import read_parity
from clefq.parity.report.summary import Sizes, sizes_in, summary_document
from clefq.plain_files import read_json, sha256_file
from clefq.quantize.audit import audit_checkpoint
from clefq.quantize.manifest import MANIFEST, read_build_manifest
from clefq.release.evidence import AUDIT, RECIPE, disagreements, gather
from clefq.release.hash_tree import HashTree, write_tree
from clefq.release.media import MEDIA_FILE, count_media, write_media
from clefq.release.speed import BENCH, bench_rows
from clefq.store.atomic import write_json, write_text
from clefq.store.set_manifest import read_manifest as read_set_manifest
from clefq.store.sets import MANIFEST_FILE, RECORDS_FILE

VIEWS = ("report.html", "report.md", "junit.xml", "breakdown.csv", "flips.parquet")
REDACTED_FILE = "redacted.json"
# In a published folder a second config.json would be taken for a part of the checkpoint.
CONFIG = "checkpoint-config.json"
_MODEL_FILES = {"config.json": CONFIG, MANIFEST: MANIFEST, RECIPE: RECIPE}


@dataclass(frozen=True, slots=True)
class BundleJob:
    """What is packed.

    Attributes:
        run: The run folder.
        variants: The checkpoints whose reports go in.
    """

    run: RunFolder
    variants: tuple[str, ...]

    def reports(self) -> list[Path]:
        """The `parity.json` files that go in, sorted."""
        found = [
            path
            for variant in self.variants
            for path in self.run.root.glob(f"report/*/{variant}/{REPORT}")
        ]
        return sorted(found)


def pack_evidence(job: BundleJob, target: Path, console: Console) -> HashTree:
    """Fills an empty folder with the evidence; audits every checkpoint that lies here.

    Args:
        job: What to pack.
        target: The folder.
        console: For notes.

    Raises:
        InputError: The evidence contradicts itself, or predictions are missing.
    """
    reports = job.reports()
    if not reports:
        raise InputError(
            f"{job.run.root} holds no report about {', '.join(job.variants) or 'any variant'}.",
            fix="judge it: clefq parity --baseline bf16",
        )
    _check(job)
    documents = {path: read_parity(path) for path in reports}
    for path, document in documents.items():
        _pack_report(path, document, target)
        _pack_predictions(path, document, target)
        _pack_gates(document, target)
    for folder in sorted({path.parent.parent for path in reports}):
        _pack_summary(folder, documents, target)
    names = {str(document["eval_set"]["name"]) for document in documents.values()}
    for name in sorted(names | _calibration_sets(job)):
        _pack_set(job.run, name, target)
    baselines = {str(document["baseline"]["variant"]) for document in documents.values()}
    for variant in sorted({*job.variants, *baselines}):
        _pack_model(job.run, variant, variant in job.variants, target, console)
    _pack_benches(job, target)
    return write_tree(target)


def _pack_benches(job: BundleJob, target: Path) -> None:
    paths = {row.path for v in job.variants for row in bench_rows(job.run.root, v)}
    for path in sorted(paths):
        (target / BENCH).mkdir(exist_ok=True)
        shutil.copyfile(path, target / BENCH / path.name)


def _check(job: BundleJob) -> None:
    faults = []
    for variant in job.variants:
        if job.run.model(variant).is_dir():
            paths = tuple(sorted(job.run.root.glob(f"report/*/{variant}/{REPORT}")))
            place = Place(variant, job.run.model(variant), job.run.root, paths)
            faults += disagreements(gather(place))
    if faults:
        raise InputError(
            "the evidence contradicts itself; nothing is packed.",
            fix="judge the checkpoints again: clefq parity --baseline bf16",
            faults=faults,
        )


def _pack_report(path: Path, document: Mapping[str, Any], target: Path) -> None:
    goal = target / "report" / path.parent.parent.name / path.parent.name
    goal.mkdir(parents=True)
    for name in (REPORT, *VIEWS):
        source = path.parent / name
        if source.is_file():
            shutil.copyfile(source, goal / name)
        elif name != "flips.parquet" or document["metrics"]:
            raise InputError(f"{source} is missing.", fix="judge again with `clefq parity`.")


def sides_of(document: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """Name of the file in a bundle, and side, of all predictions behind a report."""
    sides = [(document[r]["variant"], document[r]) for r in ("baseline", "candidate")]
    for number, side in enumerate(replicates_of(document), start=1):
        sides.append((f"{side['variant']}.replicate-{number}", side))
    return sides


def _pack_predictions(path: Path, document: Mapping[str, Any], target: Path) -> None:
    folder = target / "predictions" / str(document["eval_set"]["name"])
    folder.mkdir(parents=True, exist_ok=True)
    for name, side in sides_of(document):
        stored = side["predictions"]
        source = None if stored is None else path.parent / stored["path"]
        if source is None or not source.is_file():
            raise InputError(
                f"{path}: the predictions of {side['variant']} are not here, so that nobody could "
                "compute the report again.",
                fix="bring the predictions file back, or predict and judge again.",
            )
        if sha256_file(source) != stored["sha256"]:
            raise InputError(f"{source} was changed after {path}.", fix="judge it again.")
        shutil.copyfile(source, folder / f"{name}.parquet")


def _pack_gates(document: Mapping[str, Any], target: Path) -> None:
    gate_file = document["gate_file"]
    for found in (gate_file, gate_file["superseded"]):
        if found is not None:
            name = gates_name(found)
            write_text(target / "gates" / name, str(found["text"]))


def gates_name(gate_file: Mapping[str, Any]) -> str:
    """Name of a gate file in a bundle."""
    plain = "".join(c if c.isalnum() or c in "-_" else "-" for c in str(gate_file["name"]))
    return f"{plain}-{gate_file['sha256'][:12]}.yaml"


def _pack_summary(folder: Path, documents: Mapping[Path, Mapping[str, Any]], target: Path) -> None:
    """The comparison of the candidates that go in; of all of them, it is the stored one."""
    stored = read_json(folder / SUMMARY_FILE)
    check_document(stored, "summary", str(folder / SUMMARY_FILE))
    summary = summary_of(stored, [d for p, d in documents.items() if p.parent.parent == folder])
    write_json(target / "report" / folder.name / SUMMARY_FILE, summary)
    write_text(target / "report" / folder.name / "index.html", index_html(summary))


def summary_of(
    stored: Mapping[str, Any], documents: Sequence[Mapping[str, Any]], sizes: Sizes | None = None
) -> dict[str, Any]:
    """A summary of these reports, with the sizes and speeds that a stored one knows, or others."""
    order = [row["variant"] for row in stored["candidates"]]
    sizes = sizes or sizes_in(stored)
    ordered = sorted(documents, key=lambda d: order.index(d["candidate"]["variant"]))
    found: dict[str, Any] = json.loads(json.dumps(summary_document(ordered, sizes)))
    return found


def _calibration_sets(job: BundleJob) -> set[str]:
    names = set()
    for variant in job.variants:
        folder = job.run.model(variant)
        if not (folder / MANIFEST).is_file():
            continue
        used = read_build_manifest(folder).calibration
        home = None if used is None else job.run.set_folder(str(used["set"]))
        if used is None or home is None or not (home / MANIFEST_FILE).is_file():
            continue
        if read_set_manifest(home / MANIFEST_FILE).sha256 == used["sha256"]:
            names.add(str(used["set"]))
    return names


def _pack_set(run: RunFolder, name: str, target: Path) -> None:
    folder = run.set_folder(name)
    if not (folder / MANIFEST_FILE).is_file():
        return  # judged from predictions alone; the card says what is not known
    goal = target / "sets" / name
    goal.mkdir(parents=True)
    shutil.copyfile(folder / MANIFEST_FILE, goal / MANIFEST_FILE)
    write_json(goal / "definition.json", read_set_manifest(folder / MANIFEST_FILE).definition)
    if (folder / RECORDS_FILE).is_file():
        write_media(goal / MEDIA_FILE, count_media(folder))


def _pack_model(run: RunFolder, variant: str, judged: bool, target: Path, console: Console) -> None:
    folder = run.model(variant)
    if not folder.is_dir():
        console.note(f"{variant}: its checkpoint is not here, so it is not audited")
        return
    goal = target / "models" / variant
    goal.mkdir(parents=True)
    for name, kept in _MODEL_FILES.items():
        if (folder / name).is_file():
            shutil.copyfile(folder / name, goal / kept)
    if judged:
        console.note(f"{variant}: audit")
        write_json(goal / AUDIT, audit(folder, source_of(run, folder)))


def source_of(run: RunFolder, folder: Path) -> Path | None:
    """What a checkpoint was quantized from: a variant of the run folder, or on the hub; or None."""
    if not (folder / MANIFEST).is_file():
        return None
    source = read_build_manifest(folder).source
    others = (run.model(name) for name in run.variants())
    made_by_others = (other for other in others if not (other / MANIFEST).is_file())
    for other in made_by_others:
        if checkpoint_sha256(other) == source["sha256"]:
            return other
    if "/" not in str(source["model_id"]) or source["revision"] is None:
        return None
    with contextlib.suppress(ClefqError):  # no connection: the audit says that it did not compare
        found = find_model(f"{source['model_id']}@{source['revision']}").folder
        return found if checkpoint_sha256(found) == source["sha256"] else None
    return None


def audit(folder: Path, source: Path | None) -> dict[str, Any]:
    """An audit as JSON, without the folder's name, so that it is the same everywhere."""
    report = audit_checkpoint(folder, source).to_json()
    del report["folder"]
    return {**report, "compared_with_source": source is not None}
