"""Which engine, and in which environment.

vLLM cannot share an environment with llm-compressor, so that an engine may have to run in the
serving environment's interpreter. This module imports no engine; it finds them.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from clefq.engines.base import Engine, EngineName, EngineSpec
from clefq.errors import InputError, MissingDependencyError, missing_extra
from clefq.serving.fleet.devices import visible_gpus

if TYPE_CHECKING:
    from clefq.console import Console

# Engine -> module with `open_engine(folder, spec)`; http has a loader of its own.
ENGINE_MODULES: dict[EngineName, str] = {
    "transformers": "clefq.engines.transformers_engine",
    "vllm": "clefq.engines.vllm_engine",
}
ENGINE_NAMES: tuple[EngineName, ...] = ("transformers", "vllm", "http")
# What an engine needs to run in this interpreter.
_PACKAGE: dict[EngineName, str] = {"transformers": "transformers", "vllm": "vllm"}
_CHECKOUT = Path(__file__).resolve().parent.parent.parent


def parse_engine(name: str) -> EngineName:
    """Checks an engine's name.

    Raises:
        InputError: There is no such engine.
    """
    for known in ENGINE_NAMES:
        if name == known:
            return known
    raise InputError(f"unknown engine {name!r}.", fix=f"use one of {', '.join(ENGINE_NAMES)}.")


def runs_here(name: EngineName) -> bool:
    """Whether this interpreter has what the engine needs."""
    package = _PACKAGE.get(name)
    return package is None or find_spec(package) is not None


def serve_python() -> Path | None:
    """The serving environment's interpreter: `CLEFQ_SERVE_PYTHON`, or `.venv-serve` here.

    Raises:
        InputError: The variable names no file.
    """
    named = os.environ.get("CLEFQ_SERVE_PYTHON")
    if named:
        path = Path(named)
        if not path.is_file():
            raise InputError(f"CLEFQ_SERVE_PYTHON is {named}, which is no file.")
        return path
    path = _CHECKOUT / ".venv-serve" / "bin" / "python"
    return path if path.is_file() else None


def python_for(name: EngineName) -> Path:
    """The interpreter that runs an engine.

    Raises:
        MissingDependencyError: No environment here has it.
    """
    if runs_here(name):
        return Path(sys.executable)
    if name == "vllm":
        python = serve_python()
        if python is not None:
            return python
        raise MissingDependencyError("the serving environment (vLLM)", "make setup-serve")
    raise missing_extra("transformers", "quantize")


def fastest_engine() -> EngineName:
    """The engine that `parity` predicts with by default: vLLM on a GPU, else transformers.

    Without a GPU, vLLM's CPU build is meant for tests, and its quantized kernels are emulated.
    """
    if visible_gpus(os.environ) and (runs_here("vllm") or serve_python() is not None):
        return "vllm"
    return "transformers"


def open_engine(name: EngineName, folder: Path, spec: EngineSpec, console: Console) -> Engine:
    """Loads a checkpoint into an engine of this interpreter.

    Args:
        name: `transformers` or `vllm`.
        folder: The checkpoint.
        spec: How to run it.
        console: For the engine's warnings.

    Raises:
        CheckpointError: The engine cannot run this checkpoint.
        InputError: Several devices for an engine that runs on one.
    """
    if name != "vllm" and spec.ray is not None:
        raise InputError("--ray goes with the vllm engine.", fix="add --engine vllm.")
    if name != "vllm" and (spec.copies > 1 or spec.tensor_parallel > 1):
        raise InputError(
            f"the {name} engine runs on one device.", fix="leave --dp and --tp out, or use vllm."
        )
    if name != "vllm" and spec.four_bit != "auto":
        raise InputError(
            f"--four-bit is an option of the vllm engine, not of {name}.",
            fix="leave it out: transformers simulates four bits by itself.",
        )
    engine: Engine = import_module(ENGINE_MODULES[name]).open_engine(folder, spec)
    for warning in getattr(engine, "warnings", ()):
        console.note(f"warning: {warning}")
    return engine
