"""Only the published plugin, in an environment of its own, answers the card's request.

The environment sees the packages of the serving one, vLLM among them, and cannot import clefq.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import sysconfig
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from clefq.release.card import REQUEST, curl_command
from clefq.release.vendor import write_plugin

pytestmark = pytest.mark.serve
pytest.importorskip("vllm")

NAME = "clef-nano-fp8"
PATIENCE = 240  # seconds until it is loaded


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment where only the plugin is installed."""
    root = tmp_path_factory.mktemp("plugin")
    write_plugin(root / "vllm_plugin")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", root / "venv"], check=True)
    python = root / "venv" / "bin" / "python"
    site = Path(
        subprocess.run(
            [python, "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])"],
            check=True, capture_output=True, text=True,
        ).stdout.strip()
    )  # fmt: skip
    serving = Path(sysconfig.get_paths()["purelib"])
    # the packages themselves, and the hooks that make them work, but no editable installation
    (site / "0.pth").write_text(f"{serving}\n")
    for hook in serving.glob("*.pth"):
        if not hook.name.startswith(("_", "distutils")) and "editable" not in hook.name:
            (site / hook.name).write_text(hook.read_text())
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "-q"]
    # --no-index: all that it depends on must have come with vLLM
    offline = ["--no-index", "--no-build-isolation", "--disable-pip-version-check"]
    subprocess.run([*pip, *offline, root / "vllm_plugin"], check=True)
    return python


def run(python: Path, code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [python, "-c", code], check=False, capture_output=True, text=True, cwd=python.parent
    )


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundled miniature in FP8."""
    from clefq.nano import WEIGHTS
    from tests.serving.conftest import quantized

    return quantized(WEIGHTS, "fp8", tmp_path_factory.mktemp("models") / NAME)


@pytest.fixture(scope="module")
def server(
    python: Path, checkpoint: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[int]:
    """The port of a running `clef-systemone`."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    log = tmp_path_factory.mktemp("log") / "server.log"
    environment = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "OMP_NUM_THREADS": "1"}
    environment.pop("PYTHONPATH", None)
    command = [python.with_name("clef-systemone"), "--model", checkpoint, "--dp", "1"]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, "--host", "127.0.0.1", "--port", str(port), "--threads", "1"],
            stdout=output, stderr=output, env=environment, cwd=python.parent,
        )  # fmt: skip
    try:
        deadline = time.monotonic() + PATIENCE
        while not _healthy(port):
            assert process.poll() is None and time.monotonic() < deadline, log.read_text()[-3000:]
            time.sleep(0.5)
        yield port
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0, log.read_text()[-3000:]
    finally:
        process.kill()
        process.wait()


def _healthy(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def test_clefq_is_not_there(python: Path) -> None:
    # an editable installation leaves a folder of data files, which is no package of code
    done = run(python, "import clefq.errors")
    assert "No module named 'clefq" in done.stderr
    names = "ARCHITECTURE, TASK, schema_layout"
    done = run(python, f"from clef_systemone import {names}; print(ARCHITECTURE, TASK)")
    from clefq.serving import ARCHITECTURE, TASK

    assert done.stdout.split() == [ARCHITECTURE, TASK], done.stderr


@pytest.mark.timeout(PATIENCE + 120)
def test_the_cards_request_is_answered(server: int, checkpoint: Path) -> None:
    """As the card shows it, and as clefq itself answers it."""
    from clefq.serving import Clef, ServeSettings

    command = curl_command(NAME).replace(":8000/", f":{server}/")
    done = subprocess.run(
        ["bash", "-c", command], check=True, capture_output=True, text=True, timeout=60
    )
    body = json.loads(done.stdout)
    assert body["model"] == NAME
    assert body["answers"].keys() == REQUEST["questions"].keys()
    team = body["answers"]["team"]
    assert team["choice"] in REQUEST["questions"]["team"]["criteria"]
    assert sum(team["probabilities"].values()) == pytest.approx(1, abs=2e-4)
    assert 0 < body["answers"]["refund"]["noul"] < 1
    assert body["usage"]["input_tokens"] > 100
    settings = ServeSettings(max_length=2048, max_images=0, eager=True, cpu_threads=1)
    with Clef(checkpoint, settings) as clef:
        own = clef.systemone({**REQUEST, "model": NAME})["answers"]
    for name, probability in own["team"]["probabilities"].items():
        assert team["probabilities"][name] == pytest.approx(probability, abs=0.02)
    assert body["answers"]["refund"]["noul"] == pytest.approx(own["refund"]["noul"], abs=0.02)
