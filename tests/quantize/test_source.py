"""Hub ids: a pinned commit is found in the cache without a connection, and verified."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from clefq.console import Console
from clefq.errors import CheckpointError
from clefq.names.models import find_model
from clefq.quantize.run import QuantizeSpec, quantize

COMMIT = "17f0b0ad" + "0" * 32


@pytest.fixture
def cache(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A hub cache that holds the miniature as one commit of a repository."""
    root = tmp_path / "hub"
    snapshot = root / "models--org--clef" / "snapshots" / COMMIT
    blobs = root / "models--org--clef" / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for path in source.iterdir():
        blob = blobs / hashlib.sha256(path.read_bytes()).hexdigest()
        blob.write_bytes(path.read_bytes())
        (snapshot / path.name).symlink_to(os.path.relpath(blob, snapshot))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(root))
    return snapshot


@pytest.mark.parametrize("revision", [COMMIT, COMMIT[:8]])
def test_a_cached_commit_needs_no_connection(cache: Path, revision: str, tmp_path: Path) -> None:
    found = find_model(f"org/clef@{revision}")
    assert (found.folder, found.model_id, found.revision) == (cache, "org/clef", COMMIT)
    spec = QuantizeSpec(f"org/clef@{revision}", "fp8")
    result = quantize(spec, tmp_path / "out", Console(quiet=True))
    assert result.manifest.source["model_id"] == "org/clef"
    assert result.manifest.source["revision"] == COMMIT


def test_a_damaged_download_is_noticed(cache: Path, tmp_path: Path) -> None:
    path = cache / "generation_config.json"
    path.resolve().write_text("{} ")
    with pytest.raises(CheckpointError, match="damaged"):
        quantize(QuantizeSpec(f"org/clef@{COMMIT}", "fp8"), tmp_path / "out", Console(quiet=True))
    assert not (tmp_path / "out").exists()


def test_neither_folder_nor_hub_id(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="neither a checkpoint folder nor a hub id"):
        find_model(str(tmp_path / "nothing here"))
    assert find_model(str(tmp_path)).revision is None
