"""The command line on vLLM: predict and judge inside a run folder, as a user would."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.serve
pytest.importorskip("vllm")

from clefq.names.run_folder import RunFolder  # noqa: E402
from clefq.store.predictions import read_predictions  # noqa: E402
from tests.engines.conftest import build_set  # noqa: E402
from tests.serving.conftest import make_record, quantized  # noqa: E402


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, random_nano: Path) -> RunFolder:
    folder = RunFolder(tmp_path_factory.mktemp("run"))
    shutil.copytree(random_nano, folder.model("bf16"))
    quantized(random_nano, "fp8", folder.model("fp8"))
    quantized(random_nano, "nvfp4", folder.model("nvfp4"))
    rng = random.Random(4)
    records = [make_record(rng, number, words=rng.choice([10, 60])) for number in range(12)]
    build_set(folder.set_folder("tiny"), records)
    return folder


def clefq(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "clefq.cli.main", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=280)


def test_parity_predicts_and_judges_with_vllm(run: RunFolder) -> None:
    done = clefq("parity", "--run", str(run.root), "--baseline", "bf16", "--engine", "vllm")
    # twelve records decide nothing: the verdict may be anything but a usage error
    assert done.returncode in (0, 1, 3, 4), done.stderr
    assert "Traceback" not in done.stderr
    expected = {
        "bf16": ("bf16", "real"),
        "fp8": ("w8a8", "real"),
        "nvfp4": ("w4a4", "simulated"),
    }
    for variant, (arithmetic, kernels) in expected.items():
        predictions = read_predictions(run.predictions("tiny", variant))
        meta = predictions.meta
        assert (meta.engine, meta.arithmetic, meta.kernels) == ("vllm", arithmetic, kernels)
        assert predictions.frame["error"].isna().all()
    for variant in ("fp8", "nvfp4"):
        report = json.loads((run.report("tiny") / variant / "parity.json").read_text())
        assert report["metrics"]["kl"]["estimate"] > 0


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
