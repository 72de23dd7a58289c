"""Says what a run needs in disk and memory, and refuses before an hour is lost."""

from __future__ import annotations

import math
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from clefq.clef.family import Widths
from clefq.errors import InputError

# what Python, torch and the libraries hold, and the working set of one worker, measured
BASE_MEMORY = 700_000_000
WORKER_MEMORY = 60_000_000
# what calibration holds beside weights and activations: one layer that is being compressed
CALIBRATION_MEMORY = 1_000_000_000
# a CUDA context; blocks and their intermediate numbers of one worker, sixteen times those on a CPU
GPU_BASE = 800_000_000
GPU_WORKER = 150_000_000
# Bytes per token and column of one layer at work, and of what waits for the next layer. Measured on
# a CPU with one record of up to 16,384 tokens: 26 kB a token on the miniature (256 columns of each
# kind), 216 kB with 4,096 DeltaNet columns, 105 kB with 8,192 columns of an MLP; 1.2 kB for a
# token that waits, at a width of 256.
_DELTANET, _MLP, _HIDDEN, _WAITING = 64, 16, 24, 5
# F32 matrices that GPTQ needs at once: moments with their factors, weights with their errors
_HESSIANS_AT_WORK, _WEIGHTS_AT_WORK = 3, 4
_SLACK = 1.02


@dataclass(frozen=True, slots=True)
class Needs:
    """What a run needs.

    Attributes:
        disk: Bytes beside the output folder, at the peak.
        memory: Bytes of memory.
        offload: Whether weights are kept on disk because memory does not hold them.
        gpu: Bytes of GPU memory, 0 where no GPU is used.
    """

    disk: int
    memory: int
    offload: bool = False
    gpu: int = 0


def needs_of_stream(output: int, workers: int, device: str = "cpu") -> Needs:
    """Streaming: the output, and a few blocks per worker.

    Args:
        output: Bytes of the output's tensors.
        workers: Units in flight.
        device: Where the arithmetic runs.
    """
    gpu = 0 if device == "cpu" else GPU_BASE + workers * GPU_WORKER
    return Needs(int(output * _SLACK), BASE_MEMORY + workers * WORKER_MEMORY, gpu=gpu)


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


@dataclass(frozen=True, slots=True)
class Prompts:
    """What calibration prompts need: the longest at work, all of them waiting for the next layer.

    Attributes:
        longest: Tokens of the longest prompt; 0 without calibration.
        tokens: Tokens of all prompts.
        widths: Columns of the model's activations.
    """

    longest: int
    tokens: int
    widths: Widths

    @property
    def at_work(self) -> int:
        """Bytes that the longest prompt takes inside a layer: no more than linear in its length."""
        widths = self.widths
        columns = _DELTANET * widths.deltanet + _MLP * widths.mlp + _HIDDEN * widths.hidden
        return self.longest * columns

    @property
    def waiting(self) -> int:
        """Bytes of all prompts between two layers."""
        return self.tokens * _WAITING * self.widths.hidden


def with_prompts(needs: Needs, prompts: Prompts) -> Needs:
    """Adds what calibration prompts take.

    Args:
        needs: What the run needs besides.
        prompts: The prompts; run one by one, so that one long prompt among short ones costs its
            own length, not that length for each of them.
    """
    memory = needs.memory + prompts.at_work + prompts.waiting
    gpu = needs.gpu + prompts.at_work if needs.gpu else 0
    return replace(needs, memory=memory, gpu=gpu)


def gpu_of_oneshot(largest: int) -> int:
    """Bytes of GPU memory that layer-by-layer calibration needs for the weights alone.

    Args:
        largest: Bytes of the largest decoder layer or embedding.
    """
    return GPU_BASE + 2 * largest


def with_hessians(needs: Needs, widths: Sequence[int], numbers: int) -> Needs:
    """Adds what GPTQ holds: the second moments of one layer's inputs, and one of them at work.

    Args:
        needs: What the run needs besides.
        widths: Columns of every Linear of the layer that has the widest ones.
        numbers: Weights of the largest Linear.
    """
    widest = max(widths, default=0)
    held = sum(width**2 for width in widths) + _HESSIANS_AT_WORK * widest**2
    size = 4 * (held + _WEIGHTS_AT_WORK * numbers)
    if needs.gpu:
        return replace(needs, gpu=needs.gpu + size)
    return replace(needs, memory=needs.memory + size)


def check(needs: Needs, out: Path, there: int = 0) -> None:
    """Refuses a run that this machine cannot finish.

    Args:
        needs: What it needs.
        out: Where it will write.
        there: Bytes that an interrupted run has written already.

    Raises:
        InputError: Not enough disk, memory or GPU memory; says how much is needed and where.
    """
    place = next(path for path in out.absolute().parents if path.exists())
    free = shutil.disk_usage(place).free + there
    if needs.disk > free:
        raise InputError(
            f"{place} has {short_of(free, needs.disk)}.",
            fix="free disk space, or choose another place with --out.",
        )
    available = available_memory()
    if needs.memory > available:
        raise InputError(
            f"this machine has {short_of(available, needs.memory, 'memory')}.",
            fix="close other programs, use a larger machine, or a data-free scheme (fp8, "
            "nvfp4a16), which needs less than 2 GB.",
        )
    gpu = free_gpu_memory() if needs.gpu else 0
    if needs.gpu > gpu:
        raise InputError(
            f"the GPU has {short_of(gpu, needs.gpu, 'memory')}.",
            fix="end what else runs on it, or hide it: CUDA_VISIBLE_DEVICES= clefq quantize …",
        )


def free_gpu_memory() -> int:
    """Bytes that are free on the GPU that torch would use."""
    import torch

    free, _ = torch.cuda.mem_get_info()
    return int(free)


def short_of(free: int, needed: int, what: str = "") -> str:
    """What is free and what is needed, in words and in a unit that tells them apart."""
    unit, size = next(((name, size) for name, size in _UNITS if needed >= size), ("bytes", 1))
    digits = 0 if size == 1 else 1
    # rounded away from each other: equal numbers would explain nothing
    have = math.floor(free / size * 10**digits) / 10**digits
    need = math.ceil(needed / size * 10**digits) / 10**digits
    of = f" of {what}" if what else ""
    return f"{have:,.{digits}f} {unit}{of} free, this run needs {need:,.{digits}f} {unit}"


_UNITS = (("GB", 10**9), ("MB", 10**6), ("kB", 10**3))


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
