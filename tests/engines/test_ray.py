"""Engines on a Ray cluster: what of it is values, and (with -m ray) a cluster of two nodes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import pytest

from clefq.console import Console
from clefq.engines import ray_copies, vllm_copies
from clefq.engines.base import EngineSpec
from clefq.engines.ray_copies import engines_that_fit, on_shared_cores, resources_of
from clefq.engines.select import open_engine, serve_python
from clefq.errors import InputError
from clefq.nano import SETS, WEIGHTS
from clefq.store.predictions import read_predictions
from clefq.store.sets import open_set
from tests.engines.conftest import build_set

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "more-machines.md"
# Ray leaves files and sockets to the garbage collector
pytestmark = pytest.mark.filterwarnings("ignore")
CPUS = {"CPU": 4.0, "node:10.0.0.1": 1.0, "node:10.0.0.2": 1.0, "node:__internal_head__": 1.0}


@pytest.mark.parametrize(
    ("cluster", "options", "engines", "each"),
    [
        (CPUS, {}, 2, {"num_gpus": 0, "num_cpus": 1}),
        (CPUS, {"threads": 2}, 2, {"num_gpus": 0, "num_cpus": 2}),
        ({**CPUS, "GPU": 8.0}, {}, 8, {"num_gpus": 1, "num_cpus": 1}),
        ({**CPUS, "GPU": 8.0}, {"tensor_parallel": 4}, 2, {"num_gpus": 4, "num_cpus": 1}),
        ({"GPU": 1.0}, {"tensor_parallel": 2}, 1, {"num_gpus": 2, "num_cpus": 1}),
    ],
)
def test_what_an_engine_takes(
    cluster: dict[str, float], options: dict[str, int], engines: int, each: dict[str, int]
) -> None:
    spec = EngineSpec(ray="auto", **options)  # type: ignore[arg-type]
    assert resources_of(cluster, spec) == each
    assert engines_that_fit(cluster, spec) == engines


@pytest.mark.parametrize(
    ("cluster", "count", "threads"),
    [
        (CPUS, 2, None),  # a node each
        (CPUS, 4, 1),
        ({"CPU": 16.0, "node:10.0.0.1": 1.0}, 3, 5),
        ({"CPU": 2.0, "node:10.0.0.1": 1.0}, 4, 1),
        ({**CPUS, "GPU": 8.0}, 8, None),
    ],
)
def test_engines_of_one_machine_share_its_cores(
    cluster: dict[str, float], count: int, threads: int | None
) -> None:
    spec = EngineSpec(ray="auto")
    assert on_shared_cores(cluster, count, spec).threads == threads
    assert on_shared_cores(cluster, count, replace(spec, threads=3)).threads == 3


def test_each_engine_of_a_machine_claims_cores_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_copies, "gettempdir", lambda: str(tmp_path))
    first, second, third = (ray_copies._claim(2) for _ in range(3))
    assert [number for number, _ in (first, second, third)] == [0, 1, 0]
    assert third[1] is None  # more than there are: shared
    first[1].close()
    assert ray_copies._claim(2)[0] == 0


def test_what_does_not_go_with_a_cluster() -> None:
    with pytest.raises(InputError, match="has none"):
        resources_of(CPUS, EngineSpec(ray="auto", tensor_parallel=2))
    with pytest.raises(InputError, match="--ray goes with the vllm engine"):
        open_engine("transformers", WEIGHTS, EngineSpec(ray="auto"), Console(quiet=True))


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two nodes on this machine, whose engines are stand-ins."""
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    environment = {
        "PYTHONPATH": str(ROOT),
        "CLEFQ_SERVE_PYTHON": sys.executable,
        "CUDA_VISIBLE_DEVICES": "",
        "RAY_DISABLE_MEMORY_MONITOR": "1",
    }
    before = dict(os.environ)
    os.environ.update(environment)
    found = Cluster(initialize_head=True, head_node_args={"num_cpus": 2})
    found.second = found.add_node(num_cpus=2)
    yield found
    found.shutdown()
    os.environ.clear()
    os.environ.update(before)


# the command of docs/more-machines.md, with stand-ins for engines
DRIVER = """
import sys
from clefq.engines import vllm_copies
vllm_copies.MODULE = "tests.engines.fake_copy"
from clefq.cli.main import run
sys.argv = ["clefq", *sys.argv[1:]]
run()
"""


def drive(out: Path, address: str, **environment: str) -> subprocess.Popen[str]:
    (line,) = re.findall(r"^clefq (predict .* --ray auto) ", PAGE.read_text("utf-8"), re.M)
    places = {"bf16": str(WEIGHTS), "my-set": str(SETS / "nano-eval"), "auto": address}
    words = [places.get(word, word) for word in line.split()]
    words += ["--dp", "2", "--threads", "1", "--out", str(out), "--json", "--quiet"]
    return subprocess.Popen(
        [sys.executable, "-c", DRIVER, *words],
        env={**os.environ, **environment},
        text=True,
        stdout=subprocess.PIPE,
    )


def rows(path: Path) -> Any:
    frame = read_predictions(path).frame
    # the stand-in's process id stands in the token count
    return frame.drop(columns=["input_tokens"]).map(str)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory, cluster: Any) -> Any:
    """What a run without a fault writes."""
    out = tmp_path_factory.mktemp("alone") / "a.parquet"
    assert drive(out, cluster.address).wait(180) == 0
    return rows(out)


def journal_lines(out: Path) -> int:
    path = out.parent / f".{out.name}.journal"
    return len(path.read_bytes().splitlines()) if path.exists() else 0


def wait_for(out: Path, lines: int) -> None:
    limit = time.monotonic() + 240
    while journal_lines(out) < lines:
        assert time.monotonic() < limit
        time.sleep(0.02)


@pytest.mark.ray
@pytest.mark.timeout(400)
def test_a_driver_that_is_killed_resumes(cluster: Any, alone: Any, tmp_path: Path) -> None:
    out = tmp_path / "a.parquet"
    driver = drive(out, cluster.address)
    wait_for(out, 5)
    driver.send_signal(signal.SIGKILL)
    driver.wait(30)
    assert not out.exists()
    again = drive(out, cluster.address)
    said, _ = again.communicate(timeout=180)
    assert again.returncode == 0 and json.loads(said)["resumed"] >= 16
    assert rows(out).equals(alone)


@pytest.mark.ray
@pytest.mark.timeout(400)
def test_an_engine_that_dies(cluster: Any, alone: Any, tmp_path: Path) -> None:
    """Its window is run by another; nothing is lost, nothing twice."""
    out = tmp_path / "a.parquet"
    driver = drive(out, cluster.address)
    wait_for(out, 4)
    engines = subprocess.run(
        ["pgrep", "-f", "python.* -m tests.engines.fake_copy"], capture_output=True, text=True
    ).stdout.split()
    os.kill(int(engines[0]), signal.SIGKILL)
    assert driver.wait(180) == 0
    assert rows(out).equals(alone)


@pytest.mark.ray
@pytest.mark.timeout(400)
def test_a_node_that_is_lost(cluster: Any, alone: Any, tmp_path: Path) -> None:
    out = tmp_path / "a.parquet"
    driver = drive(out, cluster.address)
    wait_for(out, 4)
    cluster.remove_node(cluster.second, allow_graceful=False)
    assert driver.wait(240) == 0
    assert rows(out).equals(alone)
    assert vllm_copies.RESTARTS == 3


def clefq_predict(
    out: Path, eval_set: Path, *options: str, stderr: IO[str] | None = None
) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "clefq.cli.main", "predict", "nano", "--eval", str(eval_set)]
    command += ["--engine", "vllm", "--dp", "2", "--threads", "1", "--out", str(out), "--json"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.Popen(
        [*command, *options], text=True, stdout=subprocess.PIPE, stderr=stderr, env=environment
    )


@pytest.mark.ray
@pytest.mark.timeout(1500)
def test_real_engines(tmp_path: Path) -> None:
    """vLLM itself on this machine's cores: as `--dp 2` answers, and one engine may be killed."""
    pytest.importorskip("ray")
    if serve_python() is None:
        pytest.skip("needs the serving environment: make setup-serve")
    records = [record for record in open_set(SETS / "nano-eval").records() if not record.images]
    chosen = build_set(tmp_path / "set", records[::3])
    # twice each in turn: the machine may be busy for a while
    seconds: dict[str, float] = {"dp": 0.0, "ray": 0.0}
    frames = []
    for number in range(2):
        for name, options in (("dp", ()), ("ray", ("--ray", "local"))):
            out = tmp_path / f"{name}-{number}.parquet"
            said, _ = clefq_predict(out, chosen, *options).communicate(timeout=400)
            summary = json.loads(said)
            assert summary["errors"] == 0 and summary["arithmetic"] == "bf16"
            seconds[name] += summary["seconds"]
            frames.append(read_predictions(out).frame)
    assert all(frame.map(str).equals(frames[0].map(str)) for frame in frames[1:])
    print(f"\n--ray local: {seconds['dp'] / seconds['ray']:.3f} of --dp 2's records/s")
    out = tmp_path / "killed.parquet"
    said = tmp_path / "said"
    with said.open("w") as stderr:
        run = clefq_predict(out, chosen, "--ray", "local", stderr=stderr)
    wait_for(out, 2)  # of four windows; each engine has one
    engines = subprocess.run(
        ["pgrep", "-f", "python.* -m clefq.engines.vllm_copy"], capture_output=True, text=True
    ).stdout.split()
    assert {os.getpriority(os.PRIO_PROCESS, int(pid)) for pid in engines} == {0}
    places = [Path(f"/proc/{pid}/environ").read_text().split("\0") for pid in engines]
    bound = [[x for x in place if x.startswith("VLLM_CPU_OMP_THREADS_BIND")] for place in places]
    assert len(bound) == 2 and bound[0] != bound[1]  # cores of its own each
    os.kill(int(engines[0]), signal.SIGKILL)
    assert run.wait(400) == 0
    assert "It is started again (1 of 3)" in said.read_text()
    assert read_predictions(out).frame.map(str).equals(frames[0].map(str))
