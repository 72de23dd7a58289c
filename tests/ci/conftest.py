"""A small eval set, a good checkpoint and a damaged one, made once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from clefq.console import Console
from clefq.nano import SETS, WEIGHTS
from clefq.store.sets import SetDraft, open_set, write_set

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ci")


@pytest.fixture(scope="session")
def eval_set(base: Path) -> Path:
    """The first 160 short records of the bundled eval set."""
    found = open_set(SETS / "nano-eval").records()
    short = [record for record in found if len(str(record.state)) < 600 and not record.images]
    draft = SetDraft(role="eval", name="few", definition={"first": 160}, sources=())
    return write_set(base / "few", short[:160], {}, draft).path


@pytest.fixture(scope="session")
def good(base: Path) -> Path:
    """The miniature in NVFP4A16."""
    from clefq.quantize.run import QuantizeSpec, quantize

    spec = QuantizeSpec(str(WEIGHTS), scheme="nvfp4a16")
    return quantize(spec, base / "good", Console(quiet=True)).folder


@pytest.fixture(scope="session")
def damaged(base: Path, good: Path) -> Path:
    """The same with random bytes for the weights of its MLPs."""
    tool = ROOT / "tools" / "damage_checkpoint.py"
    subprocess.run([sys.executable, str(tool), str(good), str(base / "damaged")], check=True)
    return base / "damaged"
