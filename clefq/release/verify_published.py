"""Checks a published folder: its evidence, and that checkpoint, card and metrics are of it."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import yaml

from clefq import __version__
from clefq.console import Console
from clefq.errors import ClefqError
from clefq.names.run_folder import EVIDENCE, find_place
from clefq.plain_files import read_json, sha256_file
from clefq.quantize.audit import audit_checkpoint
from clefq.quantize.finish import LOADED, hash_files, served_files
from clefq.quantize.manifest import MANIFEST
from clefq.release.bundle import CONFIG
from clefq.release.card import make_card
from clefq.release.card_text import compare, read_card
from clefq.release.evidence import PLUGIN, Evidence, disagreements, gather
from clefq.release.publish import CARD, write_metrics
from clefq.release.vendor import write_plugin
from clefq.release.verify import Verified, verify


def verify_published(folder: Path, root: str | None, console: Console) -> Verified:
    """Checks a folder that `clefq bundle --publish` made.

    Args:
        folder: The folder, or a copy of it downloaded from the hub.
        root: The root hash that its evidence must have, or None.
        console: For progress.
    """
    found = verify(folder / EVIDENCE, root, console)
    found.bundle = folder
    if found.faults:
        return found
    try:
        evidence = gather(find_place(folder, None))
        found.faults += disagreements(evidence)
        found.faults += _file_faults(folder, evidence)
        found.faults += _audit_faults(folder, evidence)
        _check_others(folder, evidence, found)
        written = read_card(folder / CARD)
        found.faults += compare(written, make_card(evidence, written.options))
        found.faults += _metric_faults(folder, evidence)
        found.faults += _definition_faults(folder)
    except (ClefqError, OSError) as error:
        found.faults.append(getattr(error, "message", None) or str(error))
    differing = _plugin_differences(folder)
    if differing is not None:
        # of another version it must differ
        (found.faults if _is_own_version(folder) else found.notes).append(differing)
    return found


def _file_faults(folder: Path, evidence: Evidence) -> Iterator[str]:
    """Every file that was recorded when the checkpoint was made."""
    if evidence.manifest is None:
        return
    for name, digest in evidence.manifest.files.items():
        if name == CARD:
            continue
        if not (folder / name).is_file():
            yield f"{name} is missing"
        elif sha256_file(folder / name) != digest:
            yield f"{name} was changed"
    home = folder / EVIDENCE / "models" / evidence.place.variant
    for path in sorted(home.glob("*")):
        copy = folder / ("config.json" if path.name == CONFIG else path.name)
        if copy.is_file() and copy.read_bytes() != path.read_bytes():
            yield f"{copy.name} is not the one in {EVIDENCE}"


def _audit_faults(folder: Path, evidence: Evidence) -> Iterator[str]:
    """What an audit finds here and now must be what the evidence, and so the card, says."""
    if evidence.audit is None:
        yield f"{EVIDENCE} holds no audit of {evidence.place.variant}"
        return
    stored = {(b["check"], b["subject"], b["message"]) for b in evidence.audit["breaches"]}
    for breach in audit_checkpoint(folder).breaches:
        if (breach.check, breach.subject, breach.message) not in stored:
            yield f"audit: {breach.check}: {breach.subject} {breach.message}"


_OWN = (f"{EVIDENCE}/", "metrics/", "definitions/", f"{PLUGIN}/")


def _check_others(folder: Path, evidence: Evidence, found: Verified) -> None:
    """Files that nothing vouches for: a fault where something would load them, else a note."""
    known = {CARD, MANIFEST, *(() if evidence.manifest is None else evidence.manifest.files)}
    others = [n for n in hash_files(folder) if n not in known and not n.startswith(_OWN)]
    if evidence.manifest is None:
        # weights, config and tokenizer are covered by the checkpoint's own hash
        covered = set(served_files(folder))
        found.notes += [
            f"{name}: nothing here says what it should be" for name in others if name not in covered
        ]
        return
    loaded = [name for name in others if name.endswith(LOADED)]
    found.faults += [f"{name} is no part of what was published" for name in loaded]
    found.notes += [f"{name}: added by somebody" for name in others if name not in loaded]


def _metric_faults(folder: Path, evidence: Evidence) -> Iterator[str]:
    with TemporaryDirectory(prefix="clefq-") as scratch:
        wanted = {
            name
            for item in evidence.sets
            for name in write_metrics(Path(scratch) / "metrics", item.name, item.document)
        }
        there = {path.name for path in (folder / "metrics").glob("*")}
        yield from (f"metrics/{name} is missing" for name in sorted(wanted - there))
        yield from (f"metrics/{name} is of no report" for name in sorted(there - wanted))
        for name in sorted(wanted & there):
            made = (Path(scratch) / "metrics" / name).read_bytes()
            if (folder / "metrics" / name).read_bytes() != made:
                yield f"metrics/{name} is not that of the report"


def _definition_faults(folder: Path) -> Iterator[str]:
    for path in sorted((folder / EVIDENCE / "sets").glob("*/definition.json")):
        copy = folder / "definitions" / f"{path.parent.name}.yaml"
        try:
            same = yaml.safe_load(copy.read_text("utf-8")) == read_json(path)
        except (OSError, yaml.YAMLError):
            same = False
        if not same:
            yield f"definitions/{copy.name} is not the set's definition"


_BUILT = ("build", "clef_systemone.egg-info")


def _plugin_differences(folder: Path) -> str | None:
    """The plugin is code that people run: it is compared with what this clefq would write."""
    plugin = folder / PLUGIN
    with TemporaryDirectory(prefix="clefq-") as scratch:
        own = Path(scratch) / PLUGIN
        names = set(write_plugin(own))
        there = {
            path.relative_to(plugin).as_posix()
            for path in plugin.rglob("*")
            if path.is_file() and path.suffix != ".pyc"
        }
        both = names & there
        changed = {n for n in both if (plugin / n).read_bytes() != (own / n).read_bytes()}
    wrong = sorted(changed | (names ^ there))
    if not wrong:
        return None
    tops = {name.split("/")[0] for name in wrong}
    if not names & set(wrong) and tops <= set(_BUILT):
        # not passed over: pip installs what it finds in build/
        left = " and ".join(f"{PLUGIN}/{top}" for top in sorted(tops))
        return f"{PLUGIN} was installed from here; remove what pip left: {left}"
    return (
        f"{PLUGIN} is not what this clefq writes: {', '.join(wrong[:3])}"
        + (f" and {len(wrong) - 3} more" if len(wrong) > 3 else "")
        + "; read it before you install it"
    )


def _is_own_version(folder: Path) -> bool:
    try:
        text = (folder / PLUGIN / "pyproject.toml").read_text("utf-8")
        return bool(tomllib.loads(text)["project"]["version"] == __version__)
    except (OSError, KeyError, TypeError, ValueError):
        return True
