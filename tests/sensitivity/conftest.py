"""One sweep of a tiny random Clef, shared by the tests; nothing here needs a GPU."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from clefq.clef.checkpoint import Checkpoint, open_checkpoint
from clefq.clef.records import Record
from clefq.console import Console
from clefq.engines.base import EngineSpec
from clefq.sensitivity.blocks import Block, find_blocks
from clefq.sensitivity.cost import DEFAULT_SPEEDS
from clefq.sensitivity.schema import Budget, Sensitivity
from clefq.sensitivity.session import SweepSpec
from clefq.sensitivity.workflow import SearchSpec, run_sensitivity
from tests.engines.conftest import build_release, build_set, make_record

os.environ.setdefault("OMP_NUM_THREADS", "1")
QUIET = Console(quiet=True)
# few large batches: the tiny model's time is spent on calls
ENGINE = EngineSpec(threads=1, batch_tokens=3000)
SCHEMES = ("fp8", "nvfp4a16", "nvfp4")


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    """Small matrices run fastest, and reproducibly, on one thread."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sensitivity")


@pytest.fixture(scope="session")
def release(base: Path) -> Path:
    """A tiny random checkpoint: four layers, the last with full attention."""
    folder = build_release(base / "bf16")
    (folder / "LICENSE").write_text("Apache-2.0\n")
    return folder


@pytest.fixture(scope="session")
def checkpoint(release: Path) -> Checkpoint:
    return open_checkpoint(release)


@pytest.fixture(scope="session")
def blocks(checkpoint: Checkpoint) -> tuple[Block, ...]:
    return find_blocks(checkpoint)


@pytest.fixture(scope="session")
def records() -> list[Record]:
    """12 short records: enough for intervals."""
    rng = random.Random(7)
    return [make_record(number, rng, rng.choice([0, 3, 8])) for number in range(12)]


@pytest.fixture(scope="session")
def set_path(records: list[Record], base: Path) -> Path:
    return build_set(base / "eval", records)


@pytest.fixture(scope="session")
def calibration(base: Path) -> Path:
    rng = random.Random(8)
    return build_set(base / "calibration", [make_record(number, rng, 8) for number in range(4)])


@dataclass(frozen=True)
class Swept:
    """A finished run."""

    spec: SweepSpec
    found: Sensitivity


@pytest.fixture(scope="session")
def spec_of(release: Path, set_path: Path, calibration: Path) -> Callable[..., SweepSpec]:
    def make(out: Path, model: Path | None = None, schemes: tuple[str, ...] = SCHEMES) -> SweepSpec:
        return SweepSpec(
            model=model or release,
            eval_set=set_path,
            calibration=calibration,
            schemes=schemes,
            out=out,
            model_id="tiny",
            engine=ENGINE,
        )

    return make


@pytest.fixture(scope="session")
def swept(base: Path, spec_of: Callable[..., SweepSpec]) -> Swept:
    """Every block in every scheme, a recipe at 60% of the bytes, and the published layouts."""
    spec = spec_of(base / "swept")
    wanted = SearchSpec(Budget("bytes", 520_000.0, "--budget-bytes 520,000"), DEFAULT_SPEEDS)
    return Swept(spec, run_sensitivity(spec, wanted, QUIET))
