"""Which kernel runs the DeltaNet prefill where that is left to us.

On Hopper vLLM takes FlashInfer's kernel, which is the fastest, without asking whether it can run:
it is compiled at the first prompt, and where that fails the engine dies. Nor does vLLM ask whether
the model fits: the kernel accepts smaller heads than it was written for, and then reads and writes
beside their states.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

# The first toolkit whose headers have what the kernel uses (vLLM pull request 37507).
OLDEST_NVCC = (12, 6)
_DEFAULT_CUDA = Path("/usr/local/cuda")
# The head size that FlashInfer's kernel addresses its states with, whatever the model's.
FLASHINFER_HEAD = 128


def fits_flashinfer(config: Mapping[str, Any]) -> bool:
    """Whether the DeltaNet heads of a text model are of the size of FlashInfer's kernel."""
    names = ("linear_key_head_dim", "linear_value_head_dim")
    return all(config.get(name) == FLASHINFER_HEAD for name in names)


def chosen_backend() -> Literal["auto", "triton"]:
    """`auto`, which leaves the choice to vLLM, or `triton` where FlashInfer's kernel cannot run."""
    lacks = flashinfer_lacks(
        installed=find_spec("flashinfer") is not None,
        compiled=find_spec("flashinfer_jit_cache") is not None,
        nvcc=nvcc_version(os.environ),
    )
    return "auto" if lacks is None else "triton"


def flashinfer_lacks(
    *, installed: bool, compiled: bool, nvcc: tuple[int, int] | None
) -> str | None:
    """What FlashInfer's kernel lacks, or None where it can run.

    Args:
        installed: Whether the package flashinfer is there.
        compiled: Whether its package of compiled kernels (flashinfer-jit-cache) is there.
        nvcc: Version of CUDA's compiler, or None without one.
    """
    if not installed:
        return "flashinfer is not installed"
    if compiled:
        return None
    oldest = ".".join(map(str, OLDEST_NVCC))
    if nvcc is None:
        return f"no nvcc to compile it with ({oldest} or newer)"
    if nvcc < OLDEST_NVCC:
        return f"nvcc {nvcc[0]}.{nvcc[1]} cannot compile it ({oldest} or newer can)"
    return None


def nvcc_version(environment: Mapping[str, str]) -> tuple[int, int] | None:
    """Version of the nvcc that FlashInfer would call, looked for where it looks."""
    home = environment.get("CUDA_HOME") or environment.get("CUDA_PATH")
    on_path = None if home else shutil.which("nvcc", path=environment.get("PATH", ""))
    nvcc = Path(on_path) if on_path else Path(home or _DEFAULT_CUDA) / "bin" / "nvcc"
    try:
        said = subprocess.run([nvcc, "--version"], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r"release (\d+)\.(\d+)", said.stdout)
    return (int(found[1]), int(found[2])) if found else None
