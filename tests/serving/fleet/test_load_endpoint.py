"""The route inside vLLM's own server. Long, for `make test-serve` by hand: it loads a model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

pytestmark = pytest.mark.serve
pytest.importorskip("vllm")

import clefq.nano  # noqa: E402
from clefq.serving.fleet.vllm_command import vllm_command  # noqa: E402
from clefq.serving.settings import ServeSettings  # noqa: E402
from tests.serving.fleet.test_server import body, free_port  # noqa: E402

NANO = Path(clefq.nano.__file__).parent / "weights"


def test_vllms_own_server_answers_systemone(tmp_path: Path) -> None:
    port = free_port()
    settings = ServeSettings(max_length=2048, max_images=0, cpu_threads=1)
    variables, arguments = vllm_command(NANO, settings, cpu=True)
    # the CPU build's `vllm` script fails: it looks for a distribution of another name
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", *arguments]
    log = tmp_path / "log"
    with log.open("w") as file:
        process = subprocess.Popen(
            [*command, "--port", str(port), "--served-model-name", "nano", "--host", "127.0.0.1"],
            env={**os.environ, **variables},
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    url = f"http://127.0.0.1:{port}"
    try:
        wait_for(url, process, log)
        reply = httpx.post(f"{url}/v1/systemone", json=body(3))
        assert reply.status_code == 200, reply.text
        assert 0 < reply.json()["answers"]["late"]["noul"] < 1
        assert "engine;dur=" in reply.headers["server-timing"]
        wrong = httpx.post(f"{url}/v1/systemone", json={**body(), "questions": {}})
        assert wrong.status_code == 422
        assert (
            'clefq_requests_total{route="/v1/systemone",status="200"} 1.0'
            in httpx.get(f"{url}/metrics").text
        )
        assert "/v1/systemone" in json.loads(httpx.get(f"{url}/openapi.json").text)["paths"]
        # vLLM's own routes are still there
        assert httpx.get(f"{url}/v1/models").json()["data"][0]["owned_by"] == "vllm"
    finally:
        process.terminate()
        process.wait(60)


def wait_for(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + 250
    while time.monotonic() < end:
        assert process.poll() is None, log.read_text()[-3000:]
        try:
            if httpx.get(f"{url}/health").status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.5)
    raise AssertionError(log.read_text()[-3000:])
