"""The site, built once, and a quick set of the bundled records."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from clefq.nano import SETS
from clefq.store.sets import SetDraft, open_set, write_set

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The documentation as HTML, and Sphinx's warnings."""
    out = tmp_path_factory.mktemp("site")
    command = [Path(sys.executable).parent / "sphinx-build", "--quiet", "-b", "html"]
    done = subprocess.run(
        [*command, ROOT / "docs", out], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return out, done.stderr


@pytest.fixture(scope="session")
def site(built: tuple[Path, str]) -> Path:
    return built[0]


@pytest.fixture(scope="session")
def quick_set(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shortest records of the bundled eval set."""
    found = [record for record in open_set(SETS / "nano-eval").records() if not record.images]
    short = sorted(found, key=lambda record: len(str(record.state)))[:20]
    draft = SetDraft(role="eval", name="quick", definition={"shortest": 20}, sources=())
    return write_set(tmp_path_factory.mktemp("sets") / "quick", short, {}, draft).path
