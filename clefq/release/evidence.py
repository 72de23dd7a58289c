"""All that is known about one checkpoint that is to be published: its files and its reports.

A run folder holds it (`models/<variant>/`, `report/<set>/<variant>/`, `sets/`, `predictions/`),
and so does a published folder (the checkpoint itself, with the rest in `evidence/`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clefq.clef.checkpoint import checkpoint_sha256, open_checkpoint, scheme_of
from clefq.errors import InputError
from clefq.names.run_folder import REPORT, Place, only_variant
from clefq.parity.gates.verdict import ORDER
from clefq.parity.report.documents import check_document
from clefq.parity.report.keeping import SUMMARY_FILE
from clefq.parity.report.parity_json import document_digest, read_parity
from clefq.plain_files import read_json, sha256_file
from clefq.quantize.manifest import MANIFEST, Manifest, read_build_manifest
from clefq.release.diff import place_of
from clefq.release.media import Media, media_of
from clefq.release.speed import BenchRow, bench_rows
from clefq.release.weights import Weights, open_weights
from clefq.store import set_manifest
from clefq.store.sets import MANIFEST_FILE

AUDIT = "audit.json"
PLUGIN = "vllm_plugin"
RECIPE = "recipe.yaml"
RELEASE_CODE = "joint_schema_model.py"


@dataclass(frozen=True, slots=True)
class SetEvidence:
    """What one set says.

    Attributes:
        path: The `parity.json`.
        document: Its value.
        row: The candidate's entry of `summary.json`, or None where that is not here.
        baseline: The baseline's entry of `summary.json`, or None.
        manifest: The set's manifest, or None where the set is not here.
        media: Images and videos of the set, or None where that is not known.
    """

    path: Path
    document: Mapping[str, Any]
    row: Mapping[str, Any] | None
    baseline: Mapping[str, Any] | None
    manifest: set_manifest.SetManifest | None
    media: Media | None

    @property
    def name(self) -> str:
        """Name of the set."""
        return str(self.document["eval_set"]["name"])

    @property
    def word(self) -> str:
        """The verdict."""
        return str(self.document["verdict"]["word"])


@dataclass(frozen=True, slots=True)
class Evidence:
    """Everything about one checkpoint.

    Attributes:
        place: Where it lies.
        sha256: The checkpoint's hash, from its bytes as they are now.
        scheme: Its scheme, from config and tensors.
        formats: Arithmetic → number of quantized Linears, from config and tensors.
        parts: Part of the model (`MLP`, `attention`, `lm_head`, …) → stored dtype or arithmetic →
            number of tensors.
        nbytes: Bytes of all weights, the head included.
        manifest: `clefq.json`, or None where clefq did not make it.
        audit: `audit.json`, or None outside of a bundle.
        sets: Reports, worst verdict first.
        benches: What was measured of its speed.
    """

    place: Place
    sha256: str
    scheme: str
    formats: Mapping[str, int]
    parts: Mapping[str, Mapping[str, int]]
    nbytes: int
    manifest: Manifest | None
    audit: Mapping[str, Any] | None
    sets: tuple[SetEvidence, ...]
    benches: tuple[BenchRow, ...] = ()

    def has(self, name: str) -> bool:
        """Whether the checkpoint folder holds a file or folder of that name."""
        return (self.place.model / name).exists()

    def recipe_text(self) -> str:
        """The recipe with its comments, which name the set that a search was made on; or ""."""
        path = self.place.model / RECIPE
        return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""


def loose_place(model: Path, variant: str | None, reports: Sequence[Path]) -> Place:
    """A checkpoint outside of a run folder and the reports about it.

    Args:
        model: The checkpoint's folder.
        variant: Its name in the reports; None: its folder's, or the only one that they have.
        reports: Report folders, or `parity.json` files.

    Raises:
        InputError: No report, or none about it.
    """
    paths = []
    for report in reports:
        inside = [report] if report.is_file() else sorted(report.rglob(REPORT))
        if not inside:
            raise InputError(f"{report} holds no {REPORT}.", fix="make one with `clefq parity`.")
        paths += inside
    if not paths:
        raise InputError("--model needs --report.", fix="give the report folder of `clefq parity`.")
    named = {path: str(read_parity(path)["candidate"]["variant"]) for path in paths}
    name = variant
    if name is None:
        known = sorted(set(named.values()))
        folder = model.resolve().name
        name = folder if folder in known else only_variant(known, model)
    chosen = tuple(path for path in paths if named[path] == name)
    if not chosen:
        raise InputError(f"no report given is about {name}.", fix="check --variant and --report.")
    return Place(name, model, _root_of(chosen[0]), chosen)


def _root_of(report: Path) -> Path | None:
    """The run folder that a report lies in, where it lies in one."""
    parents = report.resolve().parents
    root = parents[3] if len(parents) > 3 else None
    return root if root is not None and (root / "predictions").is_dir() else None


def gather(place: Place) -> Evidence:
    """Reads everything; hashes the checkpoint, which takes a minute for a large one.

    Raises:
        InputError: A file is missing or malformed, or the checkpoint is none.
    """
    checkpoint = open_checkpoint(place.model)
    recorded = (place.model / MANIFEST).is_file()
    sets = [_set_evidence(path, place.root) for path in place.reports]
    weights = open_weights(place.model)
    return Evidence(
        place=place,
        sha256=checkpoint_sha256(place.model),
        scheme=scheme_of(checkpoint),
        formats=weights.formats,
        parts=_parts(weights),
        nbytes=checkpoint.nbytes,
        manifest=read_build_manifest(place.model) if recorded else None,
        audit=_audit(place),
        sets=tuple(sorted(sets, key=_worst_first)),
        benches=tuple(bench_rows(place.root, place.variant)),
    )


def _parts(weights: Weights) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for name, weight in weights.weights.items():
        place, part = place_of(name)
        kinds = found.setdefault(part or place, {})
        kinds[weight.dtype] = kinds.get(weight.dtype, 0) + 1
    return found


def _worst_first(item: SetEvidence) -> tuple[int, str]:
    return -ORDER.index(item.word), item.name


def _audit(place: Place) -> Mapping[str, Any] | None:
    if place.root is None:
        return None
    path = place.root / "models" / place.variant / AUDIT
    if not path.is_file():
        return None
    value: Mapping[str, Any] = read_json(path)
    return value


def _set_evidence(path: Path, root: Path | None) -> SetEvidence:
    document = read_parity(path)
    summary_path = path.parent.parent / SUMMARY_FILE
    row = baseline = None
    if summary_path.is_file():
        summary = read_json(summary_path)
        check_document(summary, "summary", str(summary_path))
        variant = document["candidate"]["variant"]
        rows = [found for found in summary["candidates"] if found["variant"] == variant]
        row, baseline = (rows[0] if rows else None), summary["baseline"]
    folder = None if root is None else root / "sets" / str(document["eval_set"]["name"])
    manifest = media = None
    if folder is not None and (folder / MANIFEST_FILE).is_file():
        manifest = set_manifest.read_manifest(folder / MANIFEST_FILE)
        media = media_of(folder)
    return SetEvidence(path, document, row, baseline, manifest, media)


def disagreements(found: Evidence) -> list[str]:
    """Where the pieces of evidence contradict each other, one line each; empty when sound."""
    return [
        *_checkpoint_faults(found),
        *(f for item in found.sets for f in _set_faults(item, found)),
    ]


def _checkpoint_faults(found: Evidence) -> Iterator[str]:
    manifest, model = found.manifest, found.place.model
    if manifest is None:
        return
    if manifest.sha256 != found.sha256:
        yield (
            f"{model / MANIFEST} is of checkpoint {manifest.sha256[:12]}, the files here are "
            f"{found.sha256[:12]}"
        )
    if dict(manifest.formats) != dict(found.formats):
        yield f"{model / MANIFEST} and config.json name other formats"
    recipe = model / RECIPE
    if not recipe.is_file():
        yield f"{recipe} is missing"
    elif sha256_file(recipe) != manifest.recipe["sha256"]:
        yield f"{recipe} is not the recipe that {MANIFEST} names"


def _set_faults(item: SetEvidence, found: Evidence) -> Iterator[str]:
    document, path = item.document, item.path
    if document_digest(document) != document["provenance"]["digest"]:
        yield f"{path} was changed after it was made: its digest does not match"
    side = document["candidate"]
    if side["model_sha256"] not in (None, found.sha256):
        yield (
            f"{path} is of checkpoint {side['model_sha256'][:12]}, {found.place.model} is "
            f"{found.sha256[:12]}"
        )
    if side["scheme"] not in ("unknown", found.scheme):
        yield f"{path} is of scheme {side['scheme']}, the checkpoint is {found.scheme}"
    for role in ("baseline", "candidate"):
        stored = document[role]["predictions"]
        file = None if stored is None else path.parent / stored["path"]
        if file is not None and file.is_file() and sha256_file(file) != stored["sha256"]:
            yield f"{path} is stale: {file.name} was changed since"
    if item.manifest is not None and item.manifest.sha256 != document["eval_set"]["sha256"]:
        yield (
            f"{path} is of {item.name} {document['eval_set']['sha256'][:12]}, the set here is "
            f"{item.manifest.sha256[:12]}"
        )
    yield from _summary_faults(item, found)


def _summary_faults(item: SetEvidence, found: Evidence) -> Iterator[str]:
    if item.row is None:
        return
    where = item.path.parent.parent / SUMMARY_FILE
    shown = {
        "verdict": item.word,
        "accuracy": item.document["metrics"].get("accuracy_candidate"),
        "accuracy_delta": item.document["metrics"].get("accuracy_delta"),
        "agreement": item.document["metrics"].get("agreement"),
    }
    for name, value in shown.items():
        if item.row[name] != value:
            yield f"{where} and {item.path} differ in {name}"
    size = item.row["size_bytes"]
    if size is not None and size != found.nbytes:
        yield f"{where} says {size:,} bytes, the checkpoint has {found.nbytes:,}"
