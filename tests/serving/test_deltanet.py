"""Which DeltaNet kernel is chosen, from what is installed."""

from __future__ import annotations

from pathlib import Path

import pytest

from clefq.serving import deltanet
from clefq.serving.deltanet import (
    chosen_backend,
    fits_flashinfer,
    flashinfer_lacks,
    nvcc_version,
)


def compiler(folder: Path, release: str) -> Path:
    """A stand-in nvcc in `folder`/bin."""
    nvcc = folder / "bin" / "nvcc"
    nvcc.parent.mkdir(parents=True)
    nvcc.write_text(f"#!/bin/sh\necho 'Cuda compilation tools, release {release}, V{release}.1'\n")
    nvcc.chmod(0o755)
    return nvcc


@pytest.mark.parametrize(
    ("installed", "compiled", "nvcc", "says"),
    [
        (False, True, (13, 0), "not installed"),
        (True, True, None, None),
        (True, False, None, "no nvcc"),
        (True, False, (12, 4), "12.4"),
        (True, False, (12, 6), None),
        (True, False, (13, 0), None),
    ],
)
def test_what_flashinfer_needs(
    installed: bool, compiled: bool, nvcc: tuple[int, int] | None, says: str | None
) -> None:
    lacks = flashinfer_lacks(installed=installed, compiled=compiled, nvcc=nvcc)
    assert lacks is None if says is None else says in str(lacks)


def test_nvcc_where_flashinfer_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deltanet, "_DEFAULT_CUDA", tmp_path / "default")
    assert nvcc_version({"PATH": str(tmp_path)}) is None
    compiler(tmp_path / "default", "12.8")
    assert nvcc_version({"PATH": str(tmp_path)}) == (12, 8)
    nvcc = compiler(tmp_path / "path", "13.0")
    assert nvcc_version({"PATH": f"/bin:{nvcc.parent}"}) == (13, 0)
    compiler(tmp_path / "home", "12.4")
    home = {"CUDA_HOME": str(tmp_path / "home"), "PATH": f"/bin:{nvcc.parent}"}
    assert nvcc_version(home) == (12, 4)
    # a home without a compiler: flashinfer would not look further either
    assert nvcc_version({**home, "CUDA_HOME": str(tmp_path / "none")}) is None


def test_the_choice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = {"flashinfer"}
    monkeypatch.setattr(deltanet, "find_spec", lambda name: name if name in here else None)
    monkeypatch.setattr(deltanet, "nvcc_version", lambda _: None)
    assert chosen_backend() == "triton"
    monkeypatch.setattr(deltanet, "nvcc_version", lambda _: (13, 0))
    assert chosen_backend() == "auto"
    here.clear()
    assert chosen_backend() == "triton"


def test_whose_heads_fit() -> None:
    fits = {"linear_key_head_dim": 128, "linear_value_head_dim": 128}
    assert fits_flashinfer(fits)
    assert not fits_flashinfer({**fits, "linear_value_head_dim": 64})
    assert not fits_flashinfer({**fits, "linear_key_head_dim": 256})
    assert not fits_flashinfer({})
