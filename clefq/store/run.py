"""The run folder: models, sets, predictions and reports of one comparison.

`models/<variant>/`, `sets/<set>/`, `predictions/<set>/<variant>.parquet`, `report/<set>/`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from clefq.errors import InputError

BASELINE = "bf16"


@dataclass(frozen=True, slots=True)
class RunFolder:
    """A run folder and the names in it.

    Attributes:
        root: The folder.
    """

    root: Path

    @classmethod
    def find(cls, root: Path | None) -> RunFolder:
        """The run folder at `root`, or the current folder if it is one.

        Raises:
            InputError: The folder has neither `models/` nor `predictions/`.
        """
        folder = root if root is not None else Path.cwd()
        if not (folder / "models").is_dir() and not (folder / "predictions").is_dir():
            raise InputError(
                f"{folder} is not a run folder (no models/ or predictions/ in it).",
                fix="change into one, or give --run DIR (`clefq demo --out DIR` makes one).",
            )
        return cls(folder)

    def model(self, variant: str) -> Path:
        """The checkpoint folder of a variant."""
        return self.root / "models" / variant

    def set_folder(self, name: str) -> Path:
        """The folder of a set."""
        return self.root / "sets" / name

    def predictions(self, set_name: str, variant: str) -> Path:
        """The predictions file of a variant on a set."""
        return self.root / "predictions" / set_name / f"{variant}.parquet"

    def report(self, set_name: str) -> Path:
        """The report folder of a set."""
        return self.root / "report" / set_name

    def variants(self) -> list[str]:
        """Names under `models/`, sorted."""
        return _names(self.root / "models")

    def sets(self) -> list[str]:
        """Names under `sets/`, sorted."""
        return _names(self.root / "sets")


def _names(folder: Path) -> list[str]:
    if not folder.is_dir():
        return []
    return sorted(p.name for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))


def can_name_folder(name: str) -> bool:
    """Whether a set may have this name: one plain folder name, visible, on every system."""
    plain = name.isprintable() and not any(c in name for c in '/\\:*?"<>|')
    return plain and 0 < len(name.encode()) <= _LONGEST and not name.startswith(".")


_LONGEST = 200  # bytes; file systems allow 255, and names beside it are a little longer
