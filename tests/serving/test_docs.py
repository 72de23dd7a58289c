"""The examples of docs/serve.md run as they stand, on another folder."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.serve
pytest.importorskip("vllm")

DOCS = Path(__file__).resolve().parents[2] / "docs" / "serve.md"
BLOCKS = re.findall(r"```python\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_example_runs(number: int, random_nano: Path, tmp_path: Path) -> None:
    code = BLOCKS[number]
    assert "models/nvfp4" in code
    script = tmp_path / "example.py"
    code = code.replace("models/nvfp4", str(random_nano))
    # compilation would take most of a minute and is not what is shown
    code = code.replace("    runner=", "    enforce_eager=True,\n        runner=")
    script.write_text(code, encoding="utf-8")
    environment = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1"}
    done = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
        env=environment,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    # vLLM logs to stdout too
    if "split_flat" in code:
        assert re.search(r"^\[-?\d+\.\d+, -?\d+\.\d+\]$", done.stdout, re.MULTILINE)
    else:
        assert re.search(r"^(billing|shipping)$", done.stdout, re.MULTILINE)


def test_there_are_two_examples() -> None:
    assert len(BLOCKS) == 2
