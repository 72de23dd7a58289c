from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import settings

from clefq.console import Console
from clefq.quantize.calibration import load_calibration
from clefq.quantize.finish import copy_side_files
from clefq.quantize.oneshot_worker import OneshotJob, run_job
from clefq.quantize.quiet import quiet_libraries
from clefq.quantize.recipes import bundled_recipe
from clefq.quantize.run import QuantizeSpec, Result, quantize
from tests.quantize.models import build_image, build_release, build_set

os.environ.setdefault("OMP_NUM_THREADS", "1")
# a busy machine is no failure
settings.register_profile("quantize", deadline=None)
settings.load_profile("quantize")

Make = Callable[[str, str], Result]


def run_here(job: OneshotJob, log: Path, progress: Callable[[int, int], None]) -> None:
    """`run_oneshot` without a process of its own: a new process imports for seconds."""
    with quiet_libraries():
        run_job(job)
    log.touch()


def in_this_process() -> AbstractContextManager[object]:
    return patch("clefq.quantize.run.run_oneshot", run_here)


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("quantize")


@pytest.fixture(scope="session")
def source(base: Path) -> Path:
    """A random miniature Clef in BF16."""
    return build_release(base / "source")


@pytest.fixture(scope="session")
def calibration_set(base: Path) -> Path:
    return build_set(base / "calibration")


@pytest.fixture(scope="session")
def image_file(base: Path) -> Path:
    return build_image(base / "a.png")


@pytest.fixture(scope="session")
def image_set(base: Path, image_file: Path) -> Path:
    """Records of which one has an image."""
    return build_set(base / "images", image=image_file)


@pytest.fixture(scope="session")
def made(base: Path, source: Path, calibration_set: Path, image_set: Path) -> Make:
    """Makes each scheme by each method once per session; nvfp4-mlp calibrates on images.

    `int4` is rounded to nearest, `int4-gptq` by GPTQ; `SCHEME+ROUNDING` names another rounding.
    """
    results: dict[tuple[str, str], Result] = {}
    sets = {"nvfp4-mlp": image_set, "int4": None}

    def make(scheme: str, method: str = "oneshot") -> Result:
        key = (scheme, method)
        if key not in results:
            name, _, rounding = scheme.removesuffix("-gptq").partition("+")
            spec = QuantizeSpec(
                str(source),
                name,
                calibration=sets.get(scheme, calibration_set),
                method=method,
                rounding=rounding or None,
            )
            results[key] = quantize(spec, base / f"{scheme}-{method}", Console(quiet=True))
        return results[key]

    return make


@pytest.fixture(scope="session")
def unshared(base: Path, source: Path, calibration_set: Path) -> Path:
    """What llm-compressor makes by itself: no shared DeltaNet pair, norms rounded, no head."""
    calibration = load_calibration(calibration_set, source, 16384)
    prompts = base / "prompts.json"
    prompts.write_text(calibration.to_job())
    recipe = base / "nvfp4.yaml"
    recipe.write_text(bundled_recipe("nvfp4", 4).text)
    folder = base / "unshared"
    job = OneshotJob(str(source), str(recipe), str(folder), str(prompts), shared_scales=False)
    run_here(job, base / "unshared.log", lambda step, steps: None)
    copy_side_files(source, folder)
    return folder


@pytest.fixture
def copy(made: Make, tmp_path: Path) -> Path:
    """A writable copy of the NVFP4 checkpoint, without its recorded hashes."""
    shutil.copytree(made("nvfp4").folder, tmp_path / "copy")
    (tmp_path / "copy" / "clefq.json").unlink()
    return tmp_path / "copy"
