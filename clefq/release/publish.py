"""The folder people upload: checkpoint, card, metrics, definitions, evidence and vLLM plugin."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from clefq.console import Console
from clefq.errors import AuditError, InputError
from clefq.names.run_folder import EVIDENCE, RunFolder, find_place
from clefq.parity.report.files import write_breakdown
from clefq.parity.statistics.slices import slice_order
from clefq.plain_files import read_json
from clefq.quantize.finish import hash_files
from clefq.quantize.manifest import MANIFEST
from clefq.release.bundle import BundleJob, pack_evidence
from clefq.release.card import CardOptions, make_card
from clefq.release.card_text import WrittenCard, card_text, compare, read_card, updated_text
from clefq.release.evidence import AUDIT, PLUGIN, RECIPE, RELEASE_CODE, Evidence, gather
from clefq.release.hash_tree import HashTree
from clefq.release.names import Names
from clefq.release.redact import pack_redacted
from clefq.release.vendor import write_plugin
from clefq.store.atomic import atomic_folder, write_text
from clefq.store.linking import place

CARD = "README.md"
OVERRIDES = ("audit", "card")
# file name → the slices that go into it
METRICS = {"cohorts": "cohort", "length-bands": "length", "margin-bands": "margin"}
_SHOWN = 12


@dataclass(frozen=True, slots=True)
class PublishJob:
    """What is published.

    Attributes:
        run: The run folder.
        variant: The checkpoint.
        out: The folder to make.
        options: What the publisher adds to the card; `overrides` holds what may be wrong.
        redact: Whether names and ids are left out (`clefq.release.redact`).
    """

    run: RunFolder
    variant: str
    out: Path
    options: CardOptions
    redact: bool = False


@dataclass(frozen=True, slots=True)
class Published:
    """A folder that is ready for upload.

    Attributes:
        folder: The folder.
        repo: Hub id, or None where the publisher gave none.
        tree: Hash tree of its evidence.
        verdicts: Set → verdict.
        nbytes: Bytes of all files.
        methods: How the checkpoint's files got there → number of files.
        notes: What the publisher should know.
        names: What stands for what in a redacted folder, or None.
    """

    folder: Path
    repo: str | None
    tree: HashTree
    verdicts: Mapping[str, str]
    nbytes: int
    methods: Mapping[str, int]
    notes: tuple[str, ...]
    names: Names | None = None

    @property
    def command(self) -> str:
        """The upload command."""
        repo = self.repo or "ORG/NAME"
        return f"hf upload {shlex.quote(repo)} {shlex.quote(str(self.folder))} ."

    def to_json(self) -> dict[str, Any]:
        """The JSON document of `clefq bundle --publish --json`."""
        return {
            "folder": str(self.folder),
            "repo": self.repo,
            "evidence_sha256": self.tree.sha256,
            "verdicts": dict(self.verdicts),
            "bytes": self.nbytes,
            "methods": dict(self.methods),
            "command": self.command,
            "notes": list(self.notes),
        }


def publish(job: PublishJob, console: Console) -> Published:
    """Makes the folder, whole or not at all.

    Args:
        job: What to publish.
        console: For notes.

    Raises:
        AuditError: The checkpoint fails its audit, and `audit` is not among the overrides.
        InputError: The evidence contradicts itself, the card at the checkpoint is not that of the
            evidence and `card` is not among the overrides, or `out` is there.
    """
    if job.redact and "card" in job.options.overrides:
        raise InputError(
            "--redact cannot keep a card that is out of date: it may hold names.",
            fix="leave out --despite card; the card is written from the redacted evidence.",
        )
    found = gather(find_place(job.run.root, job.variant))
    old = _old_card(job, found)
    with atomic_folder(job.out) as partial:
        methods = _place_checkpoint(found.place.model, partial, console)
        (partial / EVIDENCE).mkdir()
        console.note("evidence")
        tree, names = _place_evidence(job, partial, console)
        _check_audit(job, partial)
        placed = gather(find_place(partial, job.variant))
        for item in placed.sets:
            write_metrics(partial / "metrics", item.name, item.document)
        _write_definitions(partial)
        console.note("vllm_plugin")
        write_plugin(partial / PLUGIN)
        _write_card(job, placed, partial / CARD, old)
    files = [path for path in job.out.rglob("*") if path.is_file()]
    return Published(
        folder=job.out,
        repo=_options(job, old).repo,
        tree=tree,
        verdicts={item.name: item.word for item in placed.sets},
        nbytes=sum(path.stat().st_size for path in files),
        methods=methods,
        notes=tuple(_notes(job.out)),
        names=names,
    )


def _place_evidence(
    job: PublishJob, partial: Path, console: Console
) -> tuple[HashTree, Names | None]:
    """The evidence, and of a redacted one the checkpoint's own words on its recipe and set."""
    packed = BundleJob(job.run, (job.variant,))
    if not job.redact:
        return pack_evidence(packed, partial / EVIDENCE, console), None
    tree, names = pack_redacted(packed, partial / EVIDENCE, console)
    for name in (MANIFEST, RECIPE):
        copy = partial / EVIDENCE / "models" / job.variant / name
        if copy.is_file():
            shutil.copyfile(copy, partial / name)
    return tree, names


def _options(job: PublishJob, old: WrittenCard | None) -> CardOptions:
    before = CardOptions() if old is None else old.options
    given = job.options
    return replace(
        given, base_model=given.base_model or before.base_model, repo=given.repo or before.repo
    )


def _old_card(job: PublishJob, found: Evidence) -> WrittenCard | None:
    """The card at the checkpoint, whose own words are kept; it must not be out of date."""
    path = found.place.model / CARD
    if not path.is_file():
        return None
    old = read_card(path)
    faults = compare(old, make_card(found, old.options))
    if faults and "card" not in job.options.overrides:
        raise InputError(
            f"{path} does not agree with its evidence.",
            fix=f"clefq card {job.run.root} --variant {job.variant}",
            faults=faults[:_SHOWN],
        )
    return old


def _place_checkpoint(model: Path, target: Path, console: Console) -> dict[str, int]:
    digests = {name: d for name, d in hash_files(model).items() if name != CARD}
    taken = {EVIDENCE, PLUGIN, "metrics", "definitions"} & {name.split("/")[0] for name in digests}
    if taken:
        raise InputError(
            f"{model} holds {', '.join(sorted(taken))}, which a published folder has of its own.",
            fix="move it away.",
        )
    methods: dict[str, int] = {}
    with console.progress("checkpoint", len(digests)) as advance:
        for name, digest in digests.items():
            # small files people may edit: those must not change the run folder's
            if (model / name).stat().st_size < 1 << 20:
                how = "copy"
                (target / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(model / name, target / name)
            else:
                how = place(model / name, target / name, digest)
            methods[how] = methods.get(how, 0) + 1
            advance(1)
    return methods


def _check_audit(job: PublishJob, partial: Path) -> None:
    body = read_json(partial / EVIDENCE / "models" / job.variant / AUDIT)
    if body["passed"] or "audit" in job.options.overrides:
        return
    lines = [f"{b['check']}: {b['subject']} {b['message']}" for b in body["breaches"]]
    raise AuditError(
        f"{job.variant} fails its audit; nothing is published.",
        fix="clefq repair, or --despite audit, which the card then says first.",
        faults=lines[:_SHOWN],
    )


def write_metrics(folder: Path, set_name: str, document: Mapping[str, Any]) -> list[str]:
    """Writes a set's figures as CSV: all questions, by cohort, length band and margin band.

    Returns:
        Names of the files, in the order of `METRICS`; slices that a set lacks have none.
    """
    folder.mkdir(exist_ok=True)
    names = [f"{set_name}.csv"]
    write_breakdown(folder / names[0], {**document, "slices": {}})
    for name, key in METRICS.items():
        slices = {
            label: metrics
            for label, metrics in sorted(document["slices"].items(), key=_by_band)
            if label.startswith(f"{key}=")
        }
        if slices:
            names.append(f"{set_name}-{name}.csv")
            write_breakdown(folder / names[-1], {"metrics": {}, "slices": slices})
    return names


def _by_band(item: tuple[str, Any]) -> tuple[str, int, str]:
    return slice_order(item[0])


def _write_definitions(partial: Path) -> None:
    for path in sorted((partial / EVIDENCE / "sets").glob("*/definition.json")):
        text = yaml.safe_dump(read_json(path), sort_keys=False, allow_unicode=True)
        write_text(partial / "definitions" / f"{path.parent.name}.yaml", text)


def _write_card(job: PublishJob, found: Evidence, path: Path, old: WrittenCard | None) -> None:
    options = _options(job, old)
    card = make_card(found, options)
    if old is None:
        text = card_text(card)
    else:
        stale = _stale_faults(job, old) if "card" in job.options.overrides else []
        text = _cautioned(old, stale) if stale else updated_text(card, old)
    write_text(path, text)


def _stale_faults(job: PublishJob, old: WrittenCard) -> list[str]:
    found = gather(find_place(job.run.root, job.variant))
    return compare(old, make_card(found, old.options))


def _cautioned(old: WrittenCard, faults: list[str]) -> str:
    """The publisher's card as it stands, under a warning that it is not the evidence's."""
    more = [f"> - and {len(faults) - _SHOWN} more"] if len(faults) > _SHOWN else []
    warning = [
        "> [!CAUTION]",
        "> **This card does not agree with its evidence and was published all the same:**",
        *(f"> - {json.dumps(fault, ensure_ascii=False)[1:-1]}" for fault in faults[:_SHOWN]),
        *more,
        "",
    ]
    at = next(i for i, line in enumerate(old.lines) if line.startswith("<!-- clefq:card "))
    return "\n".join([*old.lines[: at + 1], "", *warning, *old.lines[at + 1 :]]) + "\n"


def _notes(folder: Path) -> list[str]:
    found = []
    if not (folder / RELEASE_CODE).is_file():
        found.append(f"the source has no {RELEASE_CODE}; the card says where to take it from")
    if not (folder / "LICENSE").is_file():
        found.append("the checkpoint has no LICENSE file")
    return found
