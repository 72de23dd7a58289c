"""Binds a gate template to one eval set and one baseline, before any candidate is run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import yaml

from clefq.errors import GateFileError, InputError
from clefq.parity.gates.files import freeze_text, load_gates
from clefq.parity.gates.schema import BoundBaseline, BoundSet, parse_gates
from clefq.plain_files import sha256_bytes, sha256_file
from clefq.store.atomic import write_text
from clefq.store.predictions import PredictionsMeta


@dataclass(frozen=True, slots=True)
class FreezeJob:
    """What to bind.

    Attributes:
        template: Path or name of the gate file.
        eval_set: The set.
        baseline: The baseline.
        out: The file to write, or None for `<name>.<set>.yaml` in the current folder.
        supersedes: The gate file that the new one replaces, or None.
    """

    template: str
    eval_set: BoundSet
    baseline: BoundBaseline
    out: Path | None = None
    supersedes: Path | None = None


@dataclass(frozen=True, slots=True)
class Frozen:
    """A bound gate file.

    Attributes:
        path: Where it was written.
        sha256: Its hash.
        eval_set: The set it is for.
        baseline: The baseline it is for.
        supersedes: Hash of the gate file it replaces, or None.
    """

    path: Path
    sha256: str
    eval_set: BoundSet
    baseline: BoundBaseline
    supersedes: str | None


def freeze(job: FreezeJob) -> Frozen:
    """Writes the bound gate file; never over another one.

    Raises:
        GateFileError: The template is at fault or bound already, or the output is there.
    """
    loaded = load_gates(job.template)
    out = job.out or Path(f"{loaded.gates.name}.{job.eval_set.name}.yaml")
    text = freeze_text(loaded.text, job.eval_set, job.baseline)
    if out.exists():
        same = job.supersedes is None and _same_but_for_names(out, text)
        raise GateFileError(
            f"{out} is there already; a frozen gate file is not overwritten.",
            fix=f"it holds these gates for this set and baseline: judge with --gates {out}."
            if same
            else "write a new one with --out, and name the old one with --supersedes.",
        )
    replaced = None
    if job.supersedes is not None:
        if loaded.gates.supersedes is not None:
            raise GateFileError(f"{job.template} names `supersedes` already.")
        load_gates(str(job.supersedes))
        replaced = sha256_file(job.supersedes)
        text += yaml.safe_dump({"supersedes": replaced})
    data = text.encode("utf-8")
    parse_gates(data, str(out))
    write_text(out, text)
    return Frozen(out, sha256_bytes(data), job.eval_set, job.baseline, replaced)


def _same_but_for_names(path: Path, text: str) -> bool:
    """Whether a file holds these gates for the set and baseline with these hashes."""
    try:
        found, wanted = yaml.safe_load(path.read_bytes()), yaml.safe_load(text)
        found["baseline"].pop("model_id")
    except (OSError, yaml.YAMLError, KeyError, TypeError, AttributeError):
        return False
    wanted["baseline"].pop("model_id")
    return bool(found == wanted)


def baseline_of(meta: PredictionsMeta, eval_set: BoundSet) -> BoundBaseline:
    """The baseline that a predictions file is of.

    Raises:
        InputError: It was made on another set, or names neither revision nor hash.
    """
    if meta.eval_set_sha256 != eval_set.sha256:
        raise InputError(
            f"the baseline's predictions are of {meta.eval_set} {meta.eval_set_sha256[:12]}, "
            f"not of {eval_set.name} {eval_set.sha256[:12]}.",
            fix="predict the baseline on this set.",
        )
    if meta.model_revision is None and meta.model_sha256 is None:
        raise InputError(
            f"the predictions of {meta.model_id} name neither a revision nor a hash.",
            fix="bind to the checkpoint itself, or predict with a local engine.",
        )
    return BoundBaseline(meta.model_id, meta.model_revision, meta.model_sha256)
