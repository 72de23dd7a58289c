"""A run folder with synthetic predictions, and the real command line called in this process."""

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from clefq.cli.main import run
from tests.parity.synthetic import Dial, World, make_world, predictions, with_set, write

Clefq = Callable[..., int]


@pytest.fixture(scope="session")
def sets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the sets of `world` and `small` lie."""
    return tmp_path_factory.mktemp("sets")


@pytest.fixture(scope="session")
def world(sets: Path) -> World:
    """Enough questions to decide the release gates."""
    return with_set(make_world(360), sets / "world")


@pytest.fixture(scope="session")
def small(sets: Path) -> World:
    """Too few questions to decide them."""
    return with_set(make_world(120, seed=3), sets / "small")


@pytest.fixture
def clefq(monkeypatch: pytest.MonkeyPatch) -> Clefq:
    """Runs `clefq ARGUMENTS...` and returns the exit code."""

    def call(*arguments: object) -> int:
        monkeypatch.setattr(sys, "argv", ["clefq", *map(str, arguments)])
        try:
            run()
        except SystemExit as stopped:
            return int(stopped.code or 0)
        return 0

    monkeypatch.setattr("clefq.parity.comparison.RESAMPLES", 1000)
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    return call


@pytest.fixture
def run_folder(world: World, sets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run folder with a set, a baseline and a good candidate; the current folder."""
    run = tmp_path / "run"
    shutil.copytree(sets / "world", run / "sets" / "synthetic")
    folder = run / "predictions" / "synthetic"
    write(folder / "bf16.parquet", predictions(world, "bf16"))
    write(folder / "fp8.parquet", predictions(world, "fp8", Dial(noise=0.02)))
    monkeypatch.chdir(run)
    return run


@pytest.fixture
def small_run(small: World, sets: Path, run_folder: Path) -> Path:
    """The run folder with a set that is too small."""
    shutil.rmtree(run_folder / "sets" / "synthetic")
    shutil.copytree(sets / "small", run_folder / "sets" / "synthetic")
    folder = run_folder / "predictions" / "synthetic"
    write(folder / "bf16.parquet", predictions(small, "bf16"))
    write(folder / "fp8.parquet", predictions(small, "fp8", Dial(noise=0.15)))
    return run_folder
