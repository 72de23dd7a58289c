"""vLLM engines on a Ray cluster: the windows of one run, on as many nodes as there are.

An actor holds one engine, in a process of its own with the node's serving environment. Everything
else is that of several engines on one host (`clefq.engines.vllm_copies`): the driver cuts records
into windows, hands the next to whichever engine is free, and journals what comes back, so that a
driver that was killed resumes. A lost node or engine gives its window back and is replaced, a
bounded number of times, wherever the cluster has room.
"""

from __future__ import annotations

import fcntl
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import gettempdir
from typing import Any

from clefq.child import Child, ChildDied, error_from_json, error_to_json
from clefq.clef.checkpoint import checkpoint_sha256
from clefq.engines import vllm_copies
from clefq.engines.base import EngineSpec
from clefq.engines.select import python_for
from clefq.engines.vllm_engine import MAX_IMAGES, serve_settings
from clefq.errors import CheckpointError, ClefqError, InputError, MissingDependencyError
from clefq.serving.fleet.devices import engine_environments, visible_gpus
from clefq.serving.prompts import PromptMaker

LOCAL = "local"
_LOST = -9
# After so long a wait for an engine the user is told what is waited for.
_PATIENCE_SECONDS = 60


class RayCopies(vllm_copies.VllmCopies):
    """One checkpoint under several vLLM engines of a cluster.

    Args:
        folder: A checkpoint folder, at the same path on every node.
        spec: How to run it; `ray` is the cluster; `copies` engines, or as many as fit where 1.

    Raises:
        MissingDependencyError: Ray is not installed.
        InputError: The cluster cannot be reached, or has not the GPUs of one engine.
        CheckpointError: A node has another checkpoint at that path, or runs it otherwise.
    """

    def __init__(self, folder: Path, spec: EngineSpec) -> None:
        ray = connect(spec.ray or LOCAL)
        resources: Mapping[str, float] = ray.cluster_resources()
        count = spec.copies if spec.copies > 1 else engines_that_fit(resources, spec)
        spec = on_shared_cores(resources, count, spec)
        placed = resources_of(resources, spec)
        folder = folder.absolute()
        job = {"folder": str(folder), "spec": asdict(replace(spec, copies=1, ray=None))}
        place = _Place(ray, placed, vllm_copies.MODULE, checkpoint_sha256(folder))
        copies = []
        try:
            for number in range(count):
                copies.append(_RayCopy(number, place, job))
            self._begin(PromptMaker(folder, MAX_IMAGES), spec, copies)
        except BaseException:
            for copy in copies:
                copy.close()
            raise


def connect(address: str) -> Any:
    """Ray, connected to a cluster.

    Args:
        address: `local` for one on this machine alone, `auto` for the one this machine belongs
            to, or `HOST:PORT`.

    Raises:
        MissingDependencyError: Ray is not installed.
        InputError: There is no cluster there.
    """
    try:
        import ray
    except ImportError as error:
        raise MissingDependencyError("Ray", "pip install 'clefq[ray]'") from error
    if ray.is_initialized():
        return ray
    if address == LOCAL:
        # engines are this command's own work; Ray would run them behind everything else
        os.environ.setdefault("RAY_worker_niceness", "0")
    try:
        ray.init(
            address=address,
            log_to_driver=True,
            include_dashboard=False,
            configure_logging=False,
        )
    except (ConnectionError, OSError, RuntimeError, ValueError) as error:
        raise InputError(
            f"no Ray cluster at {address}: {str(error).splitlines()[0] if str(error) else error!r}",
            fix="start one (`ray start --head`), or give --ray local.",
        ) from error
    return ray


def resources_of(cluster: Mapping[str, float], spec: EngineSpec) -> dict[str, Any]:
    """What one engine takes of a node.

    Args:
        cluster: Resource to amount in the whole cluster.
        spec: How an engine is run.

    Raises:
        InputError: GPUs are needed that no cluster without any can have.
    """
    if cluster.get("GPU", 0):
        return {"num_gpus": spec.tensor_parallel, "num_cpus": 1}
    if spec.tensor_parallel > 1:
        raise InputError(
            f"--tp {spec.tensor_parallel} needs GPUs, this Ray cluster has none.",
            fix="leave --tp out, or start nodes with GPUs.",
        )
    return {"num_gpus": 0, "num_cpus": spec.threads or 1}


def engines_that_fit(cluster: Mapping[str, float], spec: EngineSpec) -> int:
    """How many engines the cluster has room for now; at least one.

    Args:
        cluster: Resource to amount in the whole cluster.
        spec: How an engine is run.
    """
    each = resources_of(cluster, spec)
    if each["num_gpus"]:
        return max(1, int(cluster["GPU"] // each["num_gpus"]))
    return _nodes(cluster)  # one engine takes all cores of a machine


def _nodes(cluster: Mapping[str, float]) -> int:
    return max(1, sum(name.startswith("node:") and "internal" not in name for name in cluster))


def on_shared_cores(cluster: Mapping[str, float], count: int, spec: EngineSpec) -> EngineSpec:
    """How an engine is run where several share a machine without GPUs: on a part of its cores.

    Args:
        cluster: Resource to amount in the whole cluster.
        count: Engines.
        spec: How an engine is run; threads that were asked for stay.
    """
    each = -(-count // _nodes(cluster))
    if cluster.get("GPU", 0) or each == 1 or spec.threads is not None:
        return spec
    return replace(spec, threads=max(1, int(cluster.get("CPU", 1) // _nodes(cluster) // each)))


class _Place:
    """Where engines go and what they must find there."""

    def __init__(self, ray: Any, resources: Mapping[str, Any], module: str, sha256: str) -> None:
        self.ray = ray
        self.sha256 = sha256
        self._module = module
        self._host = ray.remote(max_restarts=0, scheduling_strategy="SPREAD", **resources)(Host)

    def actor(self) -> Any:
        return self._host.remote(self._module)


class Host:
    """An actor: one engine's process on its node.

    Args:
        module: What the process runs.
    """

    def __init__(self, module: str) -> None:
        self._module = module
        self._child: Child | None = None
        self._sha256 = ""
        self._claim: Any = None

    def ask(self, job: Any) -> dict[str, Any]:
        """Hands the engine a job and waits for its answer; the first one starts it.

        Returns:
            `{"result", "sha256"}`, `{"died": code}`, or an error as `error_to_json` has it.
        """
        try:
            if self._child is None:
                self._child = self._start(job)
            self._child.send(job)
            return {"result": self._child.receive(), "sha256": self._sha256}
        except ChildDied as death:
            return {"died": death.code}
        except ClefqError as error:
            return error_to_json(error)

    def _start(self, job: Any) -> Child:
        self._sha256 = checkpoint_sha256(Path(job["folder"]))
        settings = serve_settings(EngineSpec(**job["spec"]))
        gpus = visible_gpus(os.environ)
        cores = len(os.sched_getaffinity(0))
        places = 1 if gpus else max(1, cores // (settings.cpu_threads or cores))
        number, self._claim = _claim(places)
        environment = engine_environments(settings, places, os.environ, gpus)[number]
        return Child(python_for("vllm"), self._module, "vllm engine", environment)


def _claim(places: int) -> tuple[int, Any]:
    """The first part of this machine's cores that no other engine has, and what holds it.

    Actors do not know of each other; a lock ends with its process, however that ends.
    """
    for number in range(places):
        held = (Path(gettempdir()) / f"clefq-{os.getuid()}-cores-{number}.lock").open("a")
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            held.close()
        else:
            return number, held
    return 0, None


class _RemoteChild:
    """What `Child` is to a process here, to one on another node."""

    def __init__(self, what: str, place: _Place) -> None:
        self._what = what
        self._place = place
        self._actor = place.actor()
        self._asked: Any = None

    def send(self, value: Any) -> None:
        self._asked = self._actor.ask.remote(value)

    def receive(self) -> Any:
        ray = self._place.ray
        try:
            while not ray.wait([self._asked], timeout=_PATIENCE_SECONDS)[0]:
                if not self._is_placed():
                    _say(f"{self._what} waits for a node with room for it")
            reply = ray.get(self._asked)
        except ray.exceptions.RayError as error:
            raise ChildDied(f"{self._what} (its node or actor is lost)", _LOST) from error
        if "died" in reply:
            raise ChildDied(self._what, reply["died"])
        if "error" in reply:
            raise error_from_json(reply)
        if reply["sha256"] != self._place.sha256:
            raise CheckpointError(
                f"{self._what}: its node has another checkpoint ({reply['sha256'][:12]}, here "
                f"{self._place.sha256[:12]}).",
                fix="give a folder that every node sees as the same, on shared storage.",
            )
        return reply["result"]

    def _is_placed(self) -> bool:
        from ray.util.state import get_actor

        try:
            found = get_actor(self._actor._actor_id.hex())
        except Exception:  # the state service may be busy; it is about a message alone
            return True
        return found is None or found.state != "PENDING_CREATION"

    def close(self, seconds: float = 0) -> None:
        self._place.ray.kill(self._actor)


class _RayCopy(vllm_copies._Copy):
    """One engine of the cluster, and its successors."""

    def __init__(self, number: int, place: _Place, job: Any) -> None:
        self._place = place
        super().__init__(number, {}, job)

    def _new_child(self) -> Any:
        return _RemoteChild(self._what, self._place)


def _say(text: str) -> None:
    print(f"clefq: {text}", file=sys.stderr, flush=True)
