"""Says what a run needs in disk and memory, and refuses before an hour is lost."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from clefq.errors import InputError

# what Python, torch and the libraries hold, and the working set of one worker, measured
BASE_MEMORY = 700_000_000
WORKER_MEMORY = 60_000_000
# what calibration keeps beside the weights: activations of one layer, one prompt at a time
CALIBRATION_MEMORY = 2_000_000_000
_SLACK = 1.02


@dataclass(frozen=True, slots=True)
class Needs:
    """What a run needs.

    Attributes:
        disk: Bytes beside the output folder, at the peak.
        memory: Bytes of memory.
        offload: Whether weights are kept on disk because memory does not hold them.
    """

    disk: int
    memory: int
    offload: bool = False


def needs_of_stream(output: int, workers: int) -> Needs:
    """Streaming: the output, and a few blocks per worker.

    Args:
        output: Bytes of the output's tensors.
        workers: Units in flight.
    """
    return Needs(int(output * _SLACK), BASE_MEMORY + workers * WORKER_MEMORY)


def needs_of_oneshot(source: int, output: int, largest: int, available: int) -> Needs:
    """oneshot: the model in memory, and its output twice for a moment.

    Args:
        source: Bytes of the BF16 tensors.
        output: Bytes of the output's tensors.
        largest: Bytes of the largest decoder layer or embedding.
        available: Bytes of memory that are free.
    """
    twice = int(2 * output * _SLACK)
    whole = int(source * 1.1) + BASE_MEMORY + CALIBRATION_MEMORY
    if whole <= available:
        return Needs(twice, whole)
    # the layer at work, once more with its quantized form, and the embeddings
    return Needs(twice + source, 4 * largest + BASE_MEMORY + CALIBRATION_MEMORY, offload=True)


def check(needs: Needs, out: Path, there: int = 0) -> None:
    """Refuses a run that this machine cannot finish.

    Args:
        needs: What it needs.
        out: Where it will write.
        there: Bytes that an interrupted run has written already.

    Raises:
        InputError: Not enough disk or memory; says how much is needed and where.
    """
    place = next(path for path in out.absolute().parents if path.exists())
    free = shutil.disk_usage(place).free + there
    if needs.disk > free:
        raise InputError(
            f"{place} has {_gb(free)} free, this run needs {_gb(needs.disk)}.",
            fix="free disk space, or choose another place with --out.",
        )
    available = available_memory()
    if needs.memory > available:
        raise InputError(
            f"{_gb(available)} of memory are free, this run needs {_gb(needs.memory)}.",
            fix="close other programs, use a larger machine, or a data-free scheme (fp8, "
            "nvfp4a16), which needs less than 2 GB.",
        )


def available_memory() -> int:
    """Bytes of memory that this process can take without swapping."""
    found = [_meminfo(), _cgroup()]
    known = [value for value in found if value is not None]
    return min(known) if known else 1 << 62


def _meminfo() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    line = next((line for line in lines if line.startswith("MemAvailable:")), None)
    return None if line is None else int(line.split()[1]) * 1024


def _cgroup() -> int | None:
    folder = Path("/sys/fs/cgroup")
    try:
        limit = (folder / "memory.max").read_text(encoding="ascii").strip()
        used = int((folder / "memory.current").read_text(encoding="ascii"))
        stat = (folder / "memory.stat").read_text(encoding="ascii")
    except (OSError, ValueError):
        return None
    if limit == "max":
        return None
    # pages of files that can be dropped count as used, but are not
    cached = next(
        (int(line.split()[1]) for line in stat.splitlines() if line.startswith("inactive_file")), 0
    )
    return max(0, int(limit) - used + cached)


def _gb(count: int) -> str:
    return f"{count / 1e9:.1f} GB"
