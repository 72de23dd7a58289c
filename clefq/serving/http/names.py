"""The names that a server's model goes by."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from clefq.plain_files import read_json

HOSTED_NAME = "jev-latest"
"""What the hosted API's SDKs ask for by default."""
_FLASH_HIDDEN_SIZE = 4096


def model_names(folder: Path, served: Sequence[str] = ()) -> tuple[str, ...]:
    """Names that requests may use; the first is the one that answers state.

    Args:
        folder: The checkpoint.
        served: The user's own names, before all others.

    Returns:
        The user's names, the folder's, `clef-flash` for a backbone of its size or else `clef`,
        and `jev-latest`; each once.

    Raises:
        InputError: The folder has no sound `config.json`.
    """
    config = read_json(folder / "config.json")
    size = config.get("text_config", config).get("hidden_size")
    release = "clef-flash" if size == _FLASH_HIDDEN_SIZE else "clef"
    names = (*served, folder.resolve().name, release, HOSTED_NAME)
    return tuple(dict.fromkeys(name for name in names if name))
