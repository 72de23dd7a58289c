from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from clefq.console import Console
from clefq.quantize.run import QuantizeSpec, Result, quantize
from tests.quantize.models import build_release, build_set

os.environ.setdefault("OMP_NUM_THREADS", "1")

Make = Callable[[str, str], Result]


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
def made(base: Path, source: Path, calibration_set: Path) -> Make:
    """Makes each scheme by each method once per session."""
    results: dict[tuple[str, str], Result] = {}

    def make(scheme: str, method: str = "oneshot") -> Result:
        key = (scheme, method)
        if key not in results:
            spec = QuantizeSpec(str(source), scheme, calibration=calibration_set, method=method)
            results[key] = quantize(spec, base / f"{scheme}-{method}", Console(quiet=True))
        return results[key]

    return make
