"""`make setup`: nobody waits minutes without a word, and no log is flooded."""

from __future__ import annotations

import os
import pty
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# stands for an interpreter: makes an environment whose pip says how it was called
PYTHON = """#!/bin/sh
mkdir -p .venv/bin
printf '#!/bin/sh\\necho "pip $*"\\n' > .venv/bin/pip
chmod +x .venv/bin/pip
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    (tmp_path / "constraints").mkdir()
    for name in ("Makefile", "pyproject.toml", "constraints/quantize.txt"):
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "python").write_text(PYTHON)
    (tmp_path / "python").chmod(0o755)
    return tmp_path


def make(checkout: Path, out: int) -> subprocess.CompletedProcess[str]:
    command = ["make", "setup", "PYTHON=./python", "PIP_ARGS=--some"]
    # not part of a make that runs these tests
    env = {name: value for name, value in os.environ.items() if "MAKE" not in name}
    return subprocess.run(command, cwd=checkout, stdout=out, text=True, check=True, env=env)


def test_a_log_has_a_line_per_step_and_a_quiet_pip(checkout: Path) -> None:
    steps, calls = [], []
    for line in make(checkout, subprocess.PIPE).stdout.splitlines():
        (calls if line.startswith("pip ") else steps).append(line)
    assert [line.partition(":")[0] for line in steps[:-1]] == [f"setup {n} of 3" for n in (1, 2, 3)]
    assert "export PATH" in steps[-1]
    assert len(calls) == 3 and all(call.startswith("pip install -q --some ") for call in calls)


def test_a_terminal_shows_the_progress_of_pip(checkout: Path) -> None:
    ours, theirs = pty.openpty()
    try:
        make(checkout, theirs)
        shown = os.read(ours, 1 << 16).decode()
    finally:
        os.close(ours)
        os.close(theirs)
    assert shown.count("pip install --some ") == 3 and " -q " not in shown
