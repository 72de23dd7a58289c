"""Checks a bundle: every hash, then every statistic and verdict, computed from the predictions.

The same seeds give the same resamples, so that a sound bundle is reproduced to the last bit on
the same library versions. Elsewhere figures may differ by rounding; more than that is a fault.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from clefq import __version__
from clefq.console import Console
from clefq.errors import ClefqError, InputError
from clefq.names.run_folder import REPORT
from clefq.parity.gates.compare import CandidateReport
from clefq.parity.rejudge import judge_again
from clefq.parity.report.documents import Provenance, check_document
from clefq.parity.report.files import report_page, write_breakdown
from clefq.parity.report.flips import flips_frame
from clefq.parity.report.html_page import index_html
from clefq.parity.report.junit import junit_xml
from clefq.parity.report.keeping import SUMMARY_FILE
from clefq.parity.report.markdown import report_markdown
from clefq.parity.report.parity_json import document_digest, parity_document, read_parity
from clefq.parity.report.summary import sizes_in
from clefq.plain_files import compact_json, read_json, sha256_bytes, sha256_file
from clefq.quantize.finish import identity
from clefq.quantize.manifest import MANIFEST, Manifest, read_build_manifest
from clefq.release.archive import unpacked
from clefq.release.bundle import CONFIG, REDACTED_FILE, gates_name, sides_of, summary_of
from clefq.release.evidence import AUDIT, RECIPE
from clefq.release.hash_tree import TREE, HashTree, read_tree, tree_faults
from clefq.release.media import media_of
from clefq.store.set_manifest import read_manifest as read_set_manifest

TOLERANCE = 1e-9


@dataclass
class Verified:
    """What a check of a bundle found.

    Attributes:
        bundle: The folder or file.
        root: The root hash as stored, or None where there is none.
        files: Files whose hashes were compared.
        verdicts: `set/variant` → the verdict as computed now.
        faults: Everything that is wrong, one line each.
        notes: What could not be checked.
    """

    bundle: Path
    root: str | None = None
    files: int = 0
    verdicts: dict[str, str] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """The JSON document of `clefq bundle --verify --json`."""
        return {
            "bundle": str(self.bundle),
            "sha256": self.root,
            "files": self.files,
            "verdicts": self.verdicts,
            "faults": self.faults,
            "notes": self.notes,
        }


def verify(bundle: Path, root: str | None, console: Console) -> Verified:
    """Checks a bundle.

    Args:
        bundle: A folder with `evidence.json`, or a tar file of one.
        root: The root hash that it must have, as the publisher stated it, or None.
        console: For progress.

    Raises:
        InputError: There is no bundle at all.
    """
    found = Verified(bundle)
    if bundle.is_dir():
        _verify_folder(bundle, root, found, console)
        return found
    if not bundle.is_file():
        raise InputError(f"no bundle {bundle}.", fix="make one with `clefq bundle RUN`.")
    try:
        with unpacked(bundle) as (folder, sound):
            if not sound:
                found.faults.append(f"{bundle.name} is not laid out as it was written")
            _verify_folder(folder, root, found, console)
    except InputError as error:
        found.faults.append(error.message)
    return found


def _verify_folder(folder: Path, root: str | None, found: Verified, console: Console) -> None:
    if not (folder / TREE).is_file():
        found.faults.append(
            f"it has no {TREE}, which every bundle has (`clefq bundle RUN` makes one)"
        )
        return
    try:
        tree = read_tree(folder)
    except InputError as error:
        found.faults.append(error.message.replace(f"{folder}/", ""))
        return
    found.root, found.files = tree.sha256, len(tree.files)
    if root is not None and root != tree.sha256:
        found.faults.append(f"the root hash is {tree.sha256}, expected {root}")
    found.faults += tree_faults(folder, tree)
    if found.faults:
        return  # figures of a bundle that is damaged say nothing
    _compute_again(folder, tree, found, console)


def _compute_again(folder: Path, tree: HashTree, found: Verified, console: Console) -> None:
    paths = sorted(folder.glob(f"report/*/*/{REPORT}"))
    if not paths:
        found.faults.append("it holds no report")
    with console.progress("compute again", len(paths)) as advance:
        for path in paths:
            _guarded(found, folder, _report_faults(path, folder, found))
            advance(1)
    for path in sorted(folder.glob(f"report/*/{SUMMARY_FILE}")):
        _guarded(found, folder, _summary_faults(path))
    for path in sorted(folder.glob("sets/*/manifest.json")):
        _guarded(found, folder, _set_faults(path))
    for path in sorted(folder.glob("models/*")):
        _guarded(found, folder, _model_faults(path))
    _guarded(found, folder, _stray_faults(folder, tree))
    if REDACTED_FILE in tree.files:
        found.notes.append("it is redacted: ids and names are opaque, texts are left out")


def _guarded(found: Verified, folder: Path, faults: Iterator[str]) -> None:
    """Collects faults; an error of the reading is one more."""
    try:
        found.faults += [fault.replace(f"{folder}/", "") for fault in faults]
    except ClefqError as error:
        found.faults.append(error.message.replace(f"{folder}/", ""))
    except (AttributeError, KeyError, OSError, TypeError, ValueError) as error:
        found.faults.append(f"malformed: {error!r}".replace(f"{folder}/", ""))


def _report_faults(path: Path, folder: Path, found: Verified) -> Iterator[str]:
    document = read_parity(path)
    name = path.relative_to(folder).as_posix()
    if document_digest(document) != document["provenance"]["digest"]:
        yield f"{name}: its digest does not match"
    home = folder / "predictions" / str(document["eval_set"]["name"])
    files = [home / f"{file}.parquet" for file, _ in sides_of(document)]
    for file, (_, side) in zip(files, sides_of(document), strict=True):
        if not file.is_file():
            yield f"{name}: {file.relative_to(folder)} is not in the bundle"
            return
        if side["predictions"] is None or sha256_file(file) != side["predictions"]["sha256"]:
            yield f"{name} is not of {file.relative_to(folder)}"
            return
    stored = dict(document["provenance"])
    del stored["digest"]
    report = judge_again(document, path, files)
    now = parity_document(report, Provenance(**stored))
    found.verdicts[f"{path.parent.parent.name}/{path.parent.name}"] = now["verdict"]["word"]
    ours, own = _figures(document), _figures(now)
    if stored["clefq_version"] != __version__:
        # another version may compute more; what is stored must be right all the same
        own = _of_same_keys(own, ours)
        found.notes.append(
            f"{name} was made by clefq {stored['clefq_version']}, this is {__version__}"
        )
    apart = list(differences(ours, own))
    yield from (f"{name}: {line}" for line in apart)
    yield from _gate_faults(document, folder, name)
    if apart:
        return
    if compact_json(ours) != compact_json(_figures(now)):
        found.notes.append(
            f"{name}: reproduced, but not to the last bit (other versions or another processor): "
            "the files that show it are not compared"
        )
        return
    # of the fresh document: a stored one has its slices in alphabetical order
    shown = {**now, "verdict": document["verdict"]}
    yield from _view_faults(path.parent, name.removesuffix(REPORT), shown, report)


def _figures(document: Mapping[str, Any]) -> dict[str, Any]:
    """All but how and when it was made."""
    return {key: value for key, value in document.items() if key != "provenance"}


def _of_same_keys(value: Any, like: Any) -> Any:
    """A JSON value without the keys that the other one lacks."""
    if isinstance(value, Mapping) and isinstance(like, Mapping):
        return {key: _of_same_keys(value[key], like[key]) for key in value if key in like}
    return value


def differences(stored: Any, now: Any, at: str = "") -> Iterator[str]:
    """Where two JSON values differ by more than rounding, one line each.

    Args:
        stored: The value in the bundle.
        now: The value as computed now.
        at: Path of the value.
    """
    if isinstance(stored, Mapping) and isinstance(now, Mapping):
        for key in sorted({*stored, *now}):
            yield from differences(stored.get(key), now.get(key), f"{at}.{key}".lstrip("."))
    elif isinstance(stored, list) and isinstance(now, list | tuple) and len(stored) == len(now):
        for index, (one, other) in enumerate(zip(stored, now, strict=True)):
            yield from differences(one, other, f"{at}[{index}]")
    elif not _same(stored, now):
        yield f"{at} says {_short(stored)}, computed anew it is {_short(now)}"


def _same(one: Any, other: Any) -> bool:
    numbers = all(isinstance(v, int | float) and not isinstance(v, bool) for v in (one, other))
    if numbers:
        return math.isclose(one, other, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
    return type(one) is type(other) and bool(one == other)


def _short(value: Any) -> str:
    text = compact_json(value)
    return text if len(text) <= 50 else text[:49] + "…"


def _view_faults(
    folder: Path, name: str, document: Mapping[str, Any], report: CandidateReport
) -> Iterator[str]:
    """The files that show a report must be those that it gives."""
    sizes = sizes_in(_read_summary(folder.parent / SUMMARY_FILE))
    texts = {
        "report.html": [report_page(document, report, sizes)],
        "report.md": [report_markdown(document)],
        # whether inconclusive gates are failures was the publisher's choice
        "junit.xml": [junit_xml([document], inconclusive_fails=flag) for flag in (True, False)],
    }
    for file, options in texts.items():
        if (folder / file).read_text("utf-8") not in options:
            yield f"{name}{file} does not show this report"
    with TemporaryDirectory(prefix="clefq-") as scratch:
        write_breakdown(Path(scratch) / "breakdown.csv", document)
        made = (Path(scratch) / "breakdown.csv").read_bytes()
    if (folder / "breakdown.csv").read_bytes() != made:
        yield f"{name}breakdown.csv does not show this report"
    if report.statistics is not None:
        yield from _flips_faults(folder / "flips.parquet", f"{name}flips.parquet", report)


def _flips_faults(path: Path, name: str, report: CandidateReport) -> Iterator[str]:
    import pandas as pd
    from pandas.testing import assert_frame_equal

    assert report.statistics is not None
    frame = flips_frame(report.statistics.pairs, report.statistics.values)
    try:
        assert_frame_equal(pd.read_parquet(path), frame, check_exact=True, check_dtype=False)
    except (AssertionError, ValueError, OSError):
        yield f"{name} does not list these flips"


def _gate_faults(document: Mapping[str, Any], folder: Path, name: str) -> Iterator[str]:
    gate_file = document["gate_file"]
    for embedded in (gate_file, gate_file["superseded"]):
        if embedded is None:
            continue
        path = folder / "gates" / gates_name(embedded)
        if not path.is_file() or sha256_file(path) != embedded["sha256"]:
            yield f"{name}: gates/{path.name} is not the gate file that it embeds"


def _read_summary(path: Path) -> Mapping[str, Any]:
    stored: Mapping[str, Any] = read_json(path)
    check_document(stored, "summary", path.name)
    return stored


def _summary_faults(path: Path) -> Iterator[str]:
    stored = _read_summary(path)
    documents = [read_parity(p) for p in sorted(path.parent.glob(f"*/{REPORT}"))]
    named = {row["variant"] for row in stored["candidates"]}
    if named != {document["candidate"]["variant"] for document in documents}:
        yield f"{path} does not list the reports beside it"
        return
    now = summary_of(stored, documents)
    yield from (f"{path}: {line}" for line in differences(stored, now))
    if (path.parent / "index.html").read_text("utf-8") != index_html(stored):
        yield f"{path.parent / 'index.html'} does not show this comparison"


def _set_faults(path: Path) -> Iterator[str]:
    manifest = read_set_manifest(path)
    if manifest.name != path.parent.name:
        yield f"{path} is of {manifest.name}"
    definition = compact_json(manifest.definition)
    if sha256_bytes(definition.encode("utf-8")) != manifest.definition_sha256:
        yield f"{path}: the definition does not match its hash"
    if compact_json(read_json(path.with_name("definition.json"))) != definition:
        yield f"{path.with_name('definition.json')} is not the set's definition"
    media = media_of(path.parent)
    if media is not None and media.records != manifest.records:
        yield f"{path}: {manifest.records} records, but media.json counts {media.records}"
    root = path.parent.parent.parent
    for report in sorted(root.glob(f"report/{path.parent.name}/*/{REPORT}")):
        if read_parity(report)["eval_set"]["sha256"] != manifest.sha256:
            yield f"{report} is of another state of {manifest.name}"


def _model_faults(folder: Path) -> Iterator[str]:
    if not (folder / MANIFEST).is_file():
        return
    manifest = read_build_manifest(folder)
    if identity(manifest.files) != manifest.sha256:
        yield f"{folder / MANIFEST}: the checkpoint's hash is not that of its files"
    if sha256_file(folder / CONFIG) != manifest.files.get("config.json"):
        yield f"{folder / CONFIG} is not the one that {MANIFEST} names"
    if sha256_file(folder / RECIPE) != manifest.recipe["sha256"]:
        yield f"{folder / RECIPE} is not the one that {MANIFEST} names"
    if (folder / AUDIT).is_file():
        yield from _audit_faults(folder / AUDIT, manifest)
    root = folder.parent.parent
    for report in sorted(root.glob(f"report/*/{folder.name}/{REPORT}")):
        side = read_parity(report)["candidate"]
        if side["model_sha256"] not in (None, manifest.sha256):
            yield f"{report} is of another checkpoint than {folder / MANIFEST}"


def _audit_faults(path: Path, manifest: Manifest) -> Iterator[str]:
    body = read_json(path)
    if body["passed"] is not (not body["breaches"]):
        yield f"{path}: passed is {body['passed']}, against its own list of breaches"
    for name, digest in body.get("sha256", {}).items():
        if manifest.files.get(name) != digest:
            yield f"{path} is of another {name} than {MANIFEST}"


_KNOWN = ("report/", "predictions/", "sets/", "models/", "gates/", "bench/", REDACTED_FILE)


def _stray_faults(folder: Path, tree: HashTree) -> Iterator[str]:
    for name in tree.files:
        if not name.startswith(_KNOWN):
            yield f"{name} is no part of a bundle ({TREE} lists it all the same)"
