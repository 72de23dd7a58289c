"""Gate files: what a candidate must prove, written down before its results are known.

A gate file is YAML, strict on unknown keys, and every fault is reported at once. Without
`eval_set` and `baseline` it is a *template*, usable on any set and reported as not
pre-registered; `clefq gate --freeze` binds it to one set (name and hash) and one baseline.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from clefq.errors import GateFileError
from clefq.parity.gates.schema import BoundBaseline, BoundSet, GateFile, parse_gates
from clefq.plain_files import sha256_bytes
from clefq.store.data_files import data_folder
from clefq.store.yaml_text import load_yaml

TEMPLATES = ("release", "smoke", "strict", "labels", "coherence")


@dataclass(frozen=True, slots=True)
class LoadedGates:
    """A gate file with the exact bytes it came from.

    Attributes:
        gates: The parsed file.
        text: Its text, embedded in every report.
        sha256: Hash of the bytes.
        path: Where it lies.
        bundled: Whether it is one of clefq's own templates.
    """

    gates: GateFile
    text: str
    sha256: str
    path: Path
    bundled: bool = field(default=False)

    @property
    def seed(self) -> str:
        """The hash that seeds resamples: the bytes', or of a redacted copy its original's."""
        return self.gates.redacted_from or self.sha256


def load_gates(name_or_path: str) -> LoadedGates:
    """Reads a gate file by path, or a bundled template by name (`TEMPLATES`).

    Raises:
        GateFileError: Missing, not YAML, or at fault; lists every fault.
    """
    bundled = name_or_path in TEMPLATES
    path = (
        data_folder("metrics") / "gates" / f"{name_or_path}.yaml" if bundled else Path(name_or_path)
    )
    try:
        data = path.read_bytes()
    except OSError as error:
        raise GateFileError(
            f"cannot read the gate file {path}: {error.strerror}.",
            fix=f"give a YAML file, or one of the templates {', '.join(TEMPLATES)}.",
        ) from error
    gates = parse_gates(data, str(path))
    if gates.redacted_from is not None:  # whoever may choose the seeds may choose the verdict
        raise GateFileError(
            f"{path} is a redacted copy of another gate file.",
            fix="judge by the original; `clefq gate` judges a redacted report again.",
        )
    return LoadedGates(gates, data.decode("utf-8"), sha256_bytes(data), path, bundled)


def freeze_text(text: str, eval_set: BoundSet, baseline: BoundBaseline) -> str:
    """The text of a template with its binding appended; comments are kept.

    Raises:
        GateFileError: The text is bound already.
    """
    value: Any = load_yaml(text)
    if value.get("eval_set") is not None or value.get("baseline") is not None:
        raise GateFileError(
            "the gate file is bound already.",
            fix="freeze a template, and name the old file's hash under `supersedes`.",
        )
    kept = [
        line
        for line in text.rstrip("\n").splitlines()
        if not line.startswith(("eval_set:", "baseline:"))
    ]
    binding = {
        "eval_set": {"name": eval_set.name, "sha256": eval_set.sha256},
        "baseline": {
            "model_id": baseline.model_id,
            "model_revision": baseline.model_revision,
            "model_sha256": baseline.model_sha256,
        },
    }
    return "\n".join(kept) + "\n\n" + yaml.safe_dump(binding, sort_keys=False, allow_unicode=True)
