"""Which GPUs or cores each engine gets, decided before any engine starts.

Nothing here imports torch or touches a GPU: the front process must not hold a CUDA context.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from clefq.errors import InputError
from clefq.serving.settings import ServeSettings, bind_cores, engine_environment

_VISIBLE = "CUDA_VISIBLE_DEVICES"


def visible_gpus(environment: Mapping[str, str]) -> tuple[str, ...]:
    """GPUs that a process with this environment may use, as `CUDA_VISIBLE_DEVICES` names them.

    Empty on a machine without any, whatever the variable says, or where it hides them all.
    """
    named = environment.get(_VISIBLE)
    if named is not None:
        # CUDA stops reading at the first name that is none
        names = [name.strip() for name in named.split(",")]
        end = next((i for i, name in enumerate(names) if name in ("", "-1")), len(names))
        return tuple(names[:end]) if end and _gpu_count() else ()
    return tuple(str(number) for number in range(_gpu_count()))


def _gpu_count() -> int:
    if shutil.which("nvidia-smi") is not None:
        command = ["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"]
        # a driver in trouble may hang; the device files say enough then
        with suppress(OSError, subprocess.SubprocessError):
            done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
            return len(done.stdout.split())
    return sum(path.name[6:].isdigit() for path in Path("/dev").glob("nvidia[0-9]*"))


def engine_environments(
    settings: ServeSettings, copies: int, environment: Mapping[str, str], gpus: Sequence[str]
) -> list[dict[str, str]]:
    """The environment of each engine: its own GPUs, or its own cores on a machine without.

    Args:
        settings: Of every engine; `tensor_parallel` GPUs go to each.
        copies: Engines.
        environment: Of this process; what the user has set in it stays.
        gpus: From `visible_gpus`.

    Raises:
        InputError: More GPUs are asked for than there are.
    """
    if not gpus:
        return _on_cores(settings, copies, environment)
    each = settings.tensor_parallel
    if copies * each > len(gpus):
        here = f"{len(gpus)} GPU" + ("" if len(gpus) == 1 else "s")
        raise InputError(
            f"--dp {copies} × --tp {each} needs {copies * each} GPUs, this machine shows {here}.",
            fix=f"lower them, or check {_VISIBLE}.",
        )
    common = {**engine_environment(settings), **environment}
    return [
        {**common, _VISIBLE: ",".join(gpus[number * each : (number + 1) * each])}
        for number in range(copies)
    ]


def check_cores(copies: int) -> None:
    """Refuses engines that would have to share a core, on a machine without a GPU.

    Raises:
        InputError: There are more of them than cores.
    """
    cores = len(os.sched_getaffinity(0))
    if copies > cores:
        raise InputError(
            f"--dp {copies} needs as many cores, this machine shows {cores} and no GPU.",
            fix=f"use at most --dp {cores}, or check {_VISIBLE}.",
        )


def _on_cores(
    settings: ServeSettings, copies: int, environment: Mapping[str, str]
) -> list[dict[str, str]]:
    cores = sorted(os.sched_getaffinity(0))
    threads = settings.cpu_threads or max(1, len(cores) // copies)
    environments = []
    for number in range(copies):
        own = [cores[(number * threads + index) % len(cores)] for index in range(threads)]
        variables = engine_environment(replace(settings, cpu_threads=threads))
        bound = bind_cores(sorted(set(own)), settings.tensor_parallel)
        variables["VLLM_CPU_OMP_THREADS_BIND"] = bound
        environments.append({**variables, **environment})
    return environments
