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
from clefq.parity.report_files import REPORT_FILE, SUMMARY_FILE
from clefq.parity.report_json import check_document, document_digest, read_parity
from clefq.parity.verdict import ORDER
from clefq.quantize.manifest import MANIFEST, Manifest, read_manifest
from clefq.release.diff import place_of
from clefq.release.media import Media, media_of
from clefq.release.speed import BenchRow, bench_rows
from clefq.release.weights import Weights, open_weights
from clefq.store import set_manifest
from clefq.store.atomic import read_json, sha256_file
from clefq.store.run import RunFolder
from clefq.store.sets import MANIFEST_FILE

EVIDENCE = "evidence"
REPORT = REPORT_FILE
AUDIT = "audit.json"
PLUGIN = "vllm_plugin"
RECIPE = "recipe.yaml"
RELEASE_CODE = "joint_schema_model.py"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a checkpoint's evidence lies.

    Attributes:
        variant: Its name in the reports.
        model: Its folder.
        root: Folder that holds `sets/`, `predictions/` and `report/`, or None.
        reports: The `parity.json` files about it.
    """

    variant: str
    model: Path
    root: Path | None
    reports: tuple[Path, ...]


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


def find_place(
    folder: Path | None, variant: str | None, model: Path | None, reports: Sequence[Path]
) -> Place:
    """Finds a checkpoint and its reports.

    Args:
        folder: Run folder or published folder; None with `model`.
        variant: Name of the variant, or None where there is only one.
        model: A checkpoint folder outside of a run folder, or None.
        reports: With `model`: report folders, or `parity.json` files.

    Raises:
        InputError: Nothing there, nothing judged, or several variants and no name.
    """
    if model is not None:
        return _loose_place(model, variant, reports)
    root = Path.cwd() if folder is None else folder
    if is_published(root):
        return _published_place(root, variant)
    run = find_run_folder(folder)
    name = variant or _only(judged_variants(run), run.root)
    if not run.model(name).is_dir():
        raise InputError(
            f"{run.root} has no checkpoint {name}.",
            fix=f"there are: {', '.join(run.variants()) or 'none'}.",
        )
    found = tuple(sorted(run.root.glob(f"report/*/{name}/{REPORT}")))
    if not found:
        raise InputError(
            f"{run.root} has no report about {name}.",
            fix="judge it: clefq parity --baseline bf16",
        )
    return Place(name, run.model(name), run.root, found)


def find_run_folder(folder: Path | None) -> RunFolder:
    """The run folder given, or the current one.

    Raises:
        InputError: It is none.
    """
    try:
        return RunFolder.find(folder)
    except InputError as error:
        raise InputError(
            error.message, fix="give one (`clefq demo --out DIR` makes one), or change into it."
        ) from error


def is_published(folder: Path) -> bool:
    """Whether a folder is one that `clefq bundle --publish` made."""
    return (folder / "config.json").is_file() and (folder / EVIDENCE / "report").is_dir()


def judged_variants(run: RunFolder) -> list[str]:
    """Variants with a checkpoint and a report, sorted."""
    judged = {path.parent.name for path in run.root.glob(f"report/*/*/{REPORT}")}
    return sorted(judged & set(run.variants()))


def _only(names: Sequence[str], where: Path) -> str:
    if len(names) == 1:
        return names[0]
    if not names:
        raise InputError(
            f"{where} has no judged checkpoint.", fix="judge one: clefq parity --baseline bf16"
        )
    raise InputError(
        f"{where} has several judged checkpoints: {', '.join(names)}.", fix="give --variant NAME."
    )


def _loose_place(model: Path, variant: str | None, reports: Sequence[Path]) -> Place:
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
        name = folder if folder in known else _only(known, model)
    chosen = tuple(path for path in paths if named[path] == name)
    if not chosen:
        raise InputError(f"no report given is about {name}.", fix="check --variant and --report.")
    return Place(name, model, _root_of(chosen[0]), chosen)


def _root_of(report: Path) -> Path | None:
    """The run folder that a report lies in, where it lies in one."""
    parents = report.resolve().parents
    root = parents[3] if len(parents) > 3 else None
    return root if root is not None and (root / "predictions").is_dir() else None


def _published_place(folder: Path, variant: str | None) -> Place:
    root = folder / EVIDENCE
    found = tuple(sorted(root.glob(f"report/*/{variant or '*'}/{REPORT}")))
    name = variant or _only(sorted({path.parent.name for path in found}), folder)
    return Place(name, folder, root, found)


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
        manifest=read_manifest(place.model) if recorded else None,
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
