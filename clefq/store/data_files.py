"""Finds the project's data folders: from the checkout when editable, else from the wheel."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from clefq.errors import InputError

DataFolder = Literal["recipes", "calibration", "evals", "metrics"]


def data_folder(name: DataFolder) -> Path:
    """The folder `recipes/`, `calibration/`, `evals/` or `metrics/`.

    Raises:
        InputError: The installation is broken and carries no such folder.
    """
    package = Path(__file__).resolve().parent.parent
    for folder in (package / "_data" / name, package.parent / name):
        if folder.is_dir():
            return folder
    raise InputError(f"this installation lacks {name}/.", fix="reinstall clefq.")
