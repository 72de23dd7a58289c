"""A run folder with synthetic predictions, and the real command line called in this process."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from clefq.cli.main import run
from tests.parity.synthetic import Dial, World, make_world, predictions, write

Clefq = Callable[..., int]


@pytest.fixture(scope="session")
def world() -> World:
    """Enough questions to decide the release gates."""
    return make_world(360)


@pytest.fixture(scope="session")
def small() -> World:
    """Too few questions to decide them."""
    return make_world(120, seed=3)


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

    monkeypatch.setattr("clefq.parity.run.RESAMPLES", 1000)
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    return call


@pytest.fixture(autouse=True)
def set_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests judge made-up answers, of no set; what the set says is tested on its own."""
    monkeypatch.setattr("clefq.parity.gates.compare.differences", lambda truth, side, role: [])
    monkeypatch.setattr("clefq.parity.gates.verdict.set_caps", lambda gates, coverage: ())


@pytest.fixture
def run_folder(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run folder with a baseline and a good candidate; the current folder."""
    folder = tmp_path / "run" / "predictions" / "synthetic"
    write(folder / "bf16.parquet", predictions(world, "bf16"))
    write(folder / "fp8.parquet", predictions(world, "fp8", Dial(noise=0.02)))
    monkeypatch.chdir(tmp_path / "run")
    return tmp_path / "run"
