"""From options to engines: names, places, warm-up prompts, and the command's own errors."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

import clefq.nano
from clefq.cli import serve
from clefq.cli.main import app
from clefq.errors import CheckpointError, InputError, MissingDependencyError
from clefq.serving.fleet import devices
from clefq.serving.fleet.assembly import Engines, plan_fleet
from clefq.serving.fleet.warmup import warmup_prompts
from clefq.serving.layout import parse_layout
from clefq.serving.settings import ServeSettings

NANO = Path(clefq.nano.__file__).parent / "weights"


def test_names() -> None:
    plan = plan_fleet(Engines(NANO, "nano", ("mine", "nano")), {"CUDA_VISIBLE_DEVICES": ""})
    names = plan.spec.card.names
    assert names[:2] == ("mine", "nano")
    assert {"clef", "jev-latest"} < set(names)
    # the folder is called otherwise, which is nobody's business
    assert "weights" not in names
    assert plan.scheme == "bf16"


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with four GPUs."""
    monkeypatch.setattr(devices, "_gpu_count", lambda: 4)


def test_places_on_gpus(gpus: None) -> None:
    settings = ServeSettings(tensor_parallel=2)
    environment = {"CUDA_VISIBLE_DEVICES": "3,1,0,2", "HOME": "/h"}
    plan = plan_fleet(Engines(NANO, "nano", settings=settings, copies=2), environment)
    assert plan.places == ("GPU 3,1", "GPU 0,2")
    assert plan.spec.first_alone
    first, second = plan.spec.launches
    assert first.environment["CUDA_VISIBLE_DEVICES"] == "3,1"
    assert second.environment["HOME"] == "/h"
    assert first.command[0] == sys.executable
    eager = ServeSettings(eager=True)
    assert not plan_fleet(Engines(NANO, "n", settings=eager), environment).spec.first_alone


@pytest.mark.parametrize("named", ["", "0"])
def test_places_on_cores(named: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "_gpu_count", lambda: 0)
    settings = ServeSettings(cpu_threads=1)
    plan = plan_fleet(Engines(NANO, "n", settings=settings), {"CUDA_VISIBLE_DEVICES": named})
    assert plan.places == (f"cores {min(os.sched_getaffinity(0))}",)


def test_what_is_wrong_shows_before_anything_starts(gpus: None, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"config\.json"):
        plan_fleet(Engines(tmp_path, "x"), {})
    with pytest.raises(InputError, match="--dp is 0"):
        Engines(NANO, "x", copies=0)
    with pytest.raises(InputError, match="needs 3 GPUs, this machine shows 2"):
        plan_fleet(Engines(NANO, "x", copies=3), {"CUDA_VISIBLE_DEVICES": "0,1"})


@pytest.mark.parametrize("cpu", [True, False])
def test_warm_up_covers_lengths_kinds_and_images(cpu: bool) -> None:
    settings = ServeSettings(max_length=3000, step_tokens=1000, max_images=2)
    groups = list(warmup_prompts(NANO, settings, cpu=cpu))
    asks = [ask for group in groups for ask in group]
    for ask in asks:
        assert ask.tokens <= 3000
        assert sum(parse_layout(ask.layout, ask.tokens).option_counts) == ask.options
    assert {len(ask.images) for ask in asks} == {0, 1, 2}
    assert max(ask.options for ask in asks) == 100
    # a GPU compiles per size: up to the longest, and one that takes several steps
    assert (max(ask.tokens for ask in asks) == 3000) == (not cpu)
    assert (max(len(group) for group in groups) > 16) == (not cpu)
    # those of one group run at the same time, so that their numbers must differ
    assert all(len({ask.number for ask in group}) == len(group) for group in groups)


def test_warm_up_within_a_short_limit() -> None:
    settings = ServeSettings(max_length=150, max_images=4)
    asks = [ask for group in warmup_prompts(NANO, settings, cpu=False) for ask in group]
    assert asks
    assert all(ask.tokens <= 150 for ask in asks)


def test_without_vllm_the_serving_environment_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process itself becomes the other interpreter: same id, its arguments kept."""
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho "$$ $CLEFQ_SERVE_HANDED_OVER $*"\n')
    python.chmod(0o755)
    script = (
        "import sys, clefq.engines.select as s; s.runs_here = lambda name: False; "
        "from clefq.cli.main import run; sys.argv[0] = 'clefq'; run()"
    )
    environment = {**os.environ, "CLEFQ_SERVE_PYTHON": str(python)}
    child = subprocess.Popen(
        [sys.executable, "-c", script, "serve", "nano", "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    output, errors = child.communicate(timeout=30)
    assert output == f"{child.pid} 1 -m clefq.cli.main serve nano --port 0\n"
    assert f"serving with {python}" in errors.replace("\n", "")


def test_a_serving_environment_without_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    from clefq.console import Console
    from clefq.engines import select

    monkeypatch.setattr(select, "runs_here", lambda name: False)
    monkeypatch.setenv("CLEFQ_SERVE_HANDED_OVER", "1")
    with pytest.raises(MissingDependencyError, match="vLLM"):
        serve.hand_over(Console(quiet=True))


def test_options_are_checked_before_anything_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "hand_over", lambda console: None)

    def fault(*options: str) -> Any:
        return CliRunner().invoke(app, ["serve", "nano", *options]).exception

    assert "gdn_backend" in str(fault("--gdn-backend", "magic"))
    assert "dialect" in str(fault("--dialect", "latin"))
    assert "tensor_parallel" in str(fault("--tp", "0"))
    assert "--dp is 0" in str(fault("--dp", "0"))
    assert "--max-queue is 0" in str(fault("--max-queue", "0"))
    assert "--max-connections is 0" in str(fault("--max-connections", "0"))
    assert "more than --max-images 2" in str(fault("--max-images", "2", "--limit", "max_images=3"))
    cores = len(os.sched_getaffinity(0))
    monkeypatch.setattr("clefq.serving.fleet.assembly.visible_gpus", lambda environment: ())
    assert "needs as many cores" in str(fault("--dp", str(cores + 1)))
    assert "--max-restarts is -1" in str(fault("--max-restarts", "-1"))
    assert "--log-format" in str(fault("--log-format", "xml"))
    assert "belong together" in str(fault("--ssl-certfile", "x"))
    assert "cannot listen" in str(fault("--port", "70000"))
    assert ".." not in str(fault("--port", "70000"))
    assert "timeouts" in str(fault("--request-timeout", "0"))


def test_the_vllm_command_drops_no_option() -> None:
    options = ["--port", "9000", "--token", "x", "--no-access-log"]
    result = CliRunner().invoke(app, ["serve", "nano", "--vllm-command", *options])
    assert "--port, --token, --access-log" in str(result.exception)
    assert "x" not in result.output
    assert CliRunner().invoke(app, ["serve", "nano", "--vllm-command"]).exit_code == 0


def test_warm_cache_says_how_long_it_took_and_ends(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def run_server(plan: Any, server: Any, door: Any, ready: Any, log: Any) -> int:
        door.listener.close()
        times = SimpleNamespace(load_seconds=41.6, warm_seconds=3.2)
        ready(SimpleNamespace(engines=[(0, 1, times), (1, None, None)]), "http://x")
        return 0

    killed: list[tuple[int, int]] = []
    monkeypatch.setattr("clefq.serving.fleet.front.run_server", run_server)
    monkeypatch.setattr(serve, "hand_over", lambda console: None)
    monkeypatch.setattr(os, "kill", lambda pid, signum: killed.append((pid, signum)))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr("clefq.serving.fleet.server.leave", lambda code: None)
    done = CliRunner().invoke(app, ["serve", "nano", "--port", "0", "--warm-cache"])
    assert done.exit_code == 0, done.output
    assert killed == [(os.getpid(), signal.SIGTERM)]
    assert "loaded and compiled in 42 s, 3 s of prompts" in " ".join(done.output.split())
    assert "ready" not in done.output
