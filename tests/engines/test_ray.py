"""Engines on a Ray cluster: what of it is values, and (with -m ray) a cluster of two nodes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clefq.console import Console
from clefq.engines import vllm_copies
from clefq.engines.base import EngineSpec
from clefq.engines.ray_copies import engines_that_fit, resources_of
from clefq.engines.select import open_engine
from clefq.errors import InputError
from clefq.nano import SETS, WEIGHTS
from clefq.store.predictions import read_predictions

ROOT = Path(__file__).parents[2]
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


DRIVER = """
import sys
from pathlib import Path
from clefq.engines import vllm_copies
vllm_copies.MODULE = "tests.engines.fake_copy"
from clefq.console import Console
from clefq.engines.base import EngineSpec
from clefq.engines.predict import PredictJob, predict_set
from clefq.names.models import find_model
job = PredictJob(find_model({model!r}, None), Path({eval_set!r}), Path(sys.argv[1]), "vllm",
                 EngineSpec(ray=sys.argv[2], copies=2, threads=1))
print(predict_set(job, Console(quiet=True)).resumed)
"""


def drive(out: Path, address: str, **environment: str) -> subprocess.Popen[str]:
    code = DRIVER.format(model=str(WEIGHTS), eval_set=str(SETS / "nano-eval"))
    command = [sys.executable, "-c", code, str(out), address]
    return subprocess.Popen(
        command, env={**os.environ, **environment}, text=True, stdout=subprocess.PIPE
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
    limit = time.monotonic() + 120
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
    assert again.returncode == 0 and int(said.split()[-1]) >= 16
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
