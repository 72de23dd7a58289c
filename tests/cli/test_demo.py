"""`clefq demo` killed at random moments, on one scheme and a few records of its eval set."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from clefq.nano import SETS
from clefq.plain_files import sha256_file
from clefq.store.predictions import read_predictions
from clefq.store.sets import SetDraft, open_set, write_set

# the real command on less work; the scheme that calibrates is the slow one
SCRIPT = """
import sys
from pathlib import Path
from clefq.cli import demo
import clefq.nano
demo.SCHEMES = {"transformers": ("fp8",)}
clefq.nano.SETS = Path(sys.argv[1])
from clefq.cli.main import run
sys.argv = ["clefq", "demo", "--quiet", "--out", sys.argv[2]]
run()
"""
# what says when and how long
VOLATILE = ("clefq.json", ".parquet", "report")


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sets")
    for name in ("nano-calibration", "nano-eval"):
        whole = open_set(SETS / name)
        records = [record for record in whole.records() if not record.images][::40]
        manifest = whole.manifest
        draft = SetDraft(manifest.role, name, manifest.definition, manifest.sources)
        write_set(folder / name, records, {}, draft)
    return folder


def start(sets: Path, out: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(sets), str(out)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def finish(sets: Path, out: Path) -> None:
    process = start(sets, out)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors[-3000:]


@pytest.mark.slow
def test_a_demo_that_is_killed_completes_with_the_same_bytes(sets: Path, tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    begun = time.monotonic()
    finish(sets, whole)
    lasted = time.monotonic() - begun
    rng = random.Random(int.from_bytes(os.urandom(4), "big"))
    delays = [rng.uniform(0.2, 1.0) * lasted for _ in range(2)]
    for delay in delays:
        process = start(sets, killed)
        time.sleep(delay)
        process.kill()
        process.communicate()
    finish(sets, killed)
    assert not list(killed.rglob(".*.partial")), delays
    assert not list(killed.rglob(".*.lock")), delays
    assert files(whole) == files(killed), delays
    name = Path("predictions") / "nano-eval" / "fp8.parquet"
    ours, theirs = read_predictions(killed / name), read_predictions(whole / name)
    assert ours.frame.equals(theirs.frame), delays
    assert verdicts(killed) == verdicts(whole)


def test_an_engine_that_cannot_be_compared_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from clefq.cli.main import run as main
    from clefq.names.run_folder import RunFolder
    from tests.parity.factory import single
    from tests.parity.synthetic import write

    def demo(*arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["clefq", "demo", "--out", str(tmp_path), *arguments])
        with pytest.raises(SystemExit) as stopped:
            main()
        assert stopped.value.code == 2
        return capsys.readouterr().err

    assert "has no engine 'http'" in demo("--engine", "http")
    # where there is no vLLM, nothing is quantized first
    monkeypatch.setattr("clefq.engines.select.runs_here", lambda name: False)
    monkeypatch.setattr("clefq.engines.select.serve_python", lambda: None)
    assert "make setup-serve" in demo("--engine", "vllm")
    assert not list(tmp_path.iterdir())
    monkeypatch.undo()
    path = RunFolder(tmp_path).predictions("nano-eval", "bf16")
    found = single([np.log([0.25, 0.75]).tolist()])
    write(path, replace(found, meta=replace(found.meta, engine="vllm")))
    assert "holds answers of vllm" in demo()


def files(run: Path) -> dict[str, str]:
    names = (p.relative_to(run).as_posix() for p in run.rglob("*") if p.is_file())
    return {
        name: "" if any(part in name for part in VOLATILE) else sha256_file(run / name)
        for name in names
    }


def verdicts(run: Path) -> object:
    body = json.loads((run / "report" / "nano-eval" / "fp8" / "parity.json").read_text())
    return body["verdict"], body["metrics"], body["gates"]
