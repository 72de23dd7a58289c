"""The shipped checkpoint folder: pinned, small, whole, in the release layout."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from clefq.clef.checkpoint import checkpoint_sha256, open_checkpoint, scheme_of
from clefq.nano import WEIGHTS
from tools.nano.build import build_random, write_static_files

SHA256 = "20f9ba01cc2928c87504e7f3321f0e511572e3ee93c6e5b764194181b1918b24"


def test_weights_are_the_trained_ones() -> None:
    assert checkpoint_sha256(WEIGHTS) == SHA256


def test_folder_is_small_and_whole() -> None:
    checkpoint = open_checkpoint(WEIGHTS)
    assert sum(path.stat().st_size for path in WEIGHTS.iterdir()) <= 12_000_000
    assert scheme_of(checkpoint) == "bf16"
    assert {info.dtype for info in checkpoint.tensors.values()} == {"BF16"}
    assert len(checkpoint.weight_files) == 2  # shards, as the release has them
    index = json.loads((WEIGHTS / "model.safetensors.index.json").read_text())
    assert set(index["weight_map"]) == set(checkpoint.tensors)
    assert (WEIGHTS / "LICENSE").read_text().lstrip().startswith("Apache License")


def test_everyone_may_read_every_file(tmp_path: Path) -> None:
    built = build_random(tmp_path / "random")
    for folder in (built, WEIGHTS):
        assert [
            path.name for path in folder.iterdir() if path.stat().st_mode & 0o044 != 0o044
        ] == []


def test_other_files_are_what_the_builder_writes(tmp_path: Path) -> None:
    write_static_files(tmp_path, WEIGHTS / "tokenizer.json", WEIGHTS / "LICENSE")
    written = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert written == {name: (WEIGHTS / name).read_bytes() for name in written}


def test_random_weights_have_the_shipped_shape(tmp_path: Path) -> None:
    ours, random = open_checkpoint(WEIGHTS), open_checkpoint(build_random(tmp_path / "random"))
    shapes = {name: tuple(info.shape) for name, info in ours.tensors.items()}
    assert {name: tuple(info.shape) for name, info in random.tensors.items()} == shapes
    assert random.head_config == ours.head_config
    assert random.config == ours.config


@pytest.mark.parametrize("name", ["q_proj", "in_proj_qkv", "gate_proj", "down_proj", "out_proj"])
def test_dimensions_suit_the_kernels(name: str) -> None:
    """Marlin wants inputs in multiples of 128 and outputs in multiples of 64."""
    found = [
        info.shape
        for key, info in open_checkpoint(WEIGHTS).tensors.items()
        if key.endswith(f"{name}.weight") and "language_model" in key
    ]
    assert found
    assert all(rows % 64 == 0 and columns % 128 == 0 for rows, columns in found)
