"""The command line on vLLM: predict and judge inside a run folder, as a user would."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.serve
pytest.importorskip("vllm")

from clefq.names.run_folder import RunFolder  # noqa: E402
from clefq.nano import SETS, WEIGHTS  # noqa: E402
from clefq.store.predictions import read_predictions  # noqa: E402
from clefq.store.sets import open_set  # noqa: E402
from tests.engines.conftest import build_set  # noqa: E402
from tests.serving.conftest import quantize_miniature, quantized  # noqa: E402


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """The trained miniature, its integer builds by `clefq quantize`, and some of its eval set."""
    folder = RunFolder(tmp_path_factory.mktemp("run"))
    shutil.copytree(WEIGHTS, folder.model("bf16"))
    for scheme in ("int8", "int4"):
        quantize_miniature(scheme, folder.model(scheme))
    quantized(WEIGHTS, "fp8", folder.model("fp8"))
    quantized(WEIGHTS, "nvfp4", folder.model("nvfp4"))
    records = [record for record in open_set(SETS / "nano-eval").records() if not record.images]
    build_set(folder.set_folder("tiny"), records[::30])
    return folder


def clefq(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "clefq.cli.main", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=280)


@pytest.mark.timeout(600)
def test_the_whole_loop_with_vllm(run: RunFolder) -> None:
    """INT8 and FP8 in vLLM's real kernels: judged, and said so on the card."""
    done = clefq("parity", "--run", str(run.root), "--baseline", "bf16", "--engine", "vllm")
    # a dozen records decide nothing: the verdict may be anything but a usage error
    assert done.returncode in (0, 1, 3, 4), done.stderr
    assert "Traceback" not in done.stderr
    expected = {
        "bf16": ("bf16", "real"),
        "fp8": ("w8a8", "real"),
        "int8": ("w8a8-int8", "real"),
        "int4": ("w4a16-int4", "real" if has_int4_kernel() else "simulated"),
        "nvfp4": ("w4a4", "simulated"),
    }
    for variant, (arithmetic, kernels) in expected.items():
        predictions = read_predictions(run.predictions("tiny", variant))
        meta = predictions.meta
        assert (meta.engine, meta.arithmetic, meta.kernels) == ("vllm", arithmetic, kernels)
        assert predictions.frame["error"].isna().all()
    for variant in expected.keys() - {"bf16"}:
        report = json.loads((run.report("tiny") / variant / "parity.json").read_text())
        assert report["candidate"]["kernels"] == expected[variant][1]
        assert report["metrics"]["kl"]["estimate"] > 0
    for variant in ("int8", "int4"):
        # made as a user would: the trained miniature survives it but for single questions
        report = json.loads((run.report("tiny") / variant / "parity.json").read_text())
        assert report["metrics"]["kl"]["estimate"] < 0.05
        done = clefq("card", str(run.root), "--variant", variant)
        assert done.returncode == 0, done.stderr
        text = (run.model(variant) / "README.md").read_text(encoding="utf-8")
        arithmetic, kernels = expected[variant]
        assert arithmetic in text and ("Simulated kernels" in text) == (kernels == "simulated")
        assert clefq("card", str(run.root), "--variant", variant, "--check").returncode == 0


def has_int4_kernel() -> bool:
    """Whether vLLM's build for this CPU holds its kernel for INT4 weights (AVX-512)."""
    import torch
    from vllm import _custom_ops  # noqa: F401

    return hasattr(torch.ops._C, "cpu_gemm_wna16")


def test_a_folder_that_vllm_cannot_run_is_one_line(run: RunFolder, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(run.model("fp8"), broken)
    config = json.loads((broken / "config.json").read_text())
    config["quantization_config"]["quant_method"] = "unheard-of"
    (broken / "config.json").write_text(json.dumps(config))
    out = tmp_path / "out.parquet"
    sets = str(run.set_folder("tiny"))
    done = clefq("predict", str(broken), "--eval", sets, "--engine", "vllm", "--out", str(out))
    assert done.returncode == 2
    assert "could not load" in done.stderr
    assert "Traceback" not in done.stderr
    assert not out.exists()
