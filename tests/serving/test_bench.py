"""`clefq bench offline --engine vllm`: measured where vLLM is, with what vLLM in fact ran."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.serve
pytest.importorskip("vllm")

from tests.serving.conftest import quantized  # noqa: E402


def test_a_quantized_checkpoint_is_measured(random_nano: Path, tmp_path: Path) -> None:
    fp8, out = tmp_path / "fp8", tmp_path / "speed.json"
    quantized(random_nano, "fp8", fp8)
    command = [sys.executable, "-m", "clefq.cli.main", "bench", "offline", str(fp8)]
    command += ["--engine", "vllm", "--lengths", "470,image-640", "--count", "2", "--alone", "2"]
    command += ["--runs", "1", "--threads", "1", "--max-length", "2048", "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(out.read_text())["rows"]
    assert (row["engine"], row["scheme"]) == ("vllm", "fp8")
    assert (row["arithmetic"], row["kernels"]) == ("w8a8", "real")
    text, image = row["speeds"]
    assert 460 * 2 < text["tokens"] <= 470 * 2
    assert image["tokens"] > 2 * 520
    assert (text["failed"], image["failed"], text["latency"]["count"]) == (0, 0, 2)
