"""Where a checkpoint keeps its joint head, and whether this plugin may read it. Torch-free."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from clefq.clef.head_config import HEAD_FILE, HEAD_SUBFOLDER, HeadConfig
from clefq.errors import CheckpointError

PROVENANCE_FILE = "clefq.json"
FORMAT_KEY = "schema_version"
# Of `clefq.json`; raised with it when checkpoints come to need what older runners do not know.
READABLE_FORMAT = 1


def head_subfolder(model: str) -> str | None:
    """`clef_head` for folders that keep the head there, None for the release's layout and ids."""
    folder = Path(model)
    if (folder / HEAD_FILE).is_file() or not (folder / HEAD_SUBFOLDER / HEAD_FILE).is_file():
        return None
    return HEAD_SUBFOLDER


def head_config(model: str, given: object = None) -> HeadConfig:
    """The head's dimensions, from `hf_overrides` or else from the folder.

    Args:
        model: Checkpoint folder, or a hub id (then `given` is needed).
        given: `joint_head_config` of `hf_overrides`, or None.

    Raises:
        CheckpointError: Neither has them, or they are not what a joint head needs.
    """
    if given is not None:
        return HeadConfig.from_json(given, "joint_head_config in hf_overrides")
    return HeadConfig.from_folder(Path(model))


def check_format(model: str) -> None:
    """Refuses a checkpoint that was made for a newer runner.

    Args:
        model: Checkpoint folder; one without `clefq.json` (a release) is always readable.

    Raises:
        CheckpointError: `schema_version` in `clefq.json` is not the one this plugin reads.
    """
    found = _stated_format(Path(model) / PROVENANCE_FILE)
    if found != READABLE_FORMAT:
        raise CheckpointError(
            f"{model} has checkpoint format {found}; this clefq serves {READABLE_FORMAT}.",
            fix="upgrade clefq in the serving environment.",
        )


def _stated_format(path: Path) -> Any:
    try:
        provenance = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return READABLE_FORMAT
    if not isinstance(provenance, dict):
        return READABLE_FORMAT
    return provenance.get(FORMAT_KEY, READABLE_FORMAT)
