"""Every scheme of `clefq quantize` on a GPU machine: time, peak memory, audit.

    python benchmarks/gpu_quantize.py SOURCE --out DIR [--calibration SET] [--schemes fp8 …]
        [--gpus 2] [--oneshot]

Each scheme runs in a process of its own; with several GPUs, schemes run beside each other, one
per GPU, and share the processor's cores. Peak memory is the process's highest resident size
(children apart), peak GPU memory what the driver saw in use, sampled five times a second. The
audit against the source is part of `clefq quantize`; here it runs once more, timed alone, on the
GPU and on the CPU. `quantize` is also timed by its parts: writing, audit, hashes.
`--oneshot` also makes the data-free schemes by oneshot and compares the quantized tensors bit by
bit with those that were streamed. `nvfp4+search` is `--scheme nvfp4 --rounding search`;
a rounding by `gptq` takes the calibration set, whatever the scheme.

Needs clefq importable and llm-compressor, no more.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPOSITORY))
CALIBRATED = ("nvfp4", "nvfp4-mlp", "mixed")
DEFAULT = ["nvfp4", "mixed", "nvfp4a16", "fp8", "int8", "int4"]


def calibrated(scheme: str) -> bool:
    name, _, rounding = scheme.partition("+")
    return name in CALIBRATED or rounding == "gptq"


def folder_of(scheme: str, method: str) -> str:
    name = scheme.replace("+", "-")
    return name if method == "auto" else f"{name}-{method}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--calibration", type=Path)
    parser.add_argument("--schemes", nargs="+", default=DEFAULT)
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--first-gpu", type=int, default=0)
    parser.add_argument("--oneshot", action="store_true")
    parser.add_argument("--json", type=Path, help="write the rows as JSON")
    parser.add_argument("--work", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work(options, *options.work)
        return
    options.out.mkdir(parents=True, exist_ok=True)
    gpus: Queue[int] = Queue()
    for gpu in range(options.gpus):
        gpus.put(options.first_gpu + gpu)
    jobs = [(scheme, "auto") for scheme in options.schemes]
    if options.oneshot:
        jobs += [(s, "oneshot") for s in options.schemes if not calibrated(s)]

    def lane(job: tuple[str, str]) -> dict:
        gpu = gpus.get()
        try:
            row = in_child(options, *job, gpu)
        finally:
            gpus.put(gpu)
        print(json.dumps(row), flush=True)
        return row

    with ThreadPoolExecutor(options.gpus) as pool:
        rows = list(pool.map(lane, jobs))
    if options.json:
        options.json.write_text(json.dumps(rows))
    print(table(rows))
    for scheme in options.schemes if options.oneshot else ():
        if not calibrated(scheme):
            pair = (options.out / folder_of(scheme, method) for method in ("auto", "oneshot"))
            print(scheme, same_bits(*pair))
    sys.exit(1 if any("error" in row for row in rows) else 0)


def in_child(options: argparse.Namespace, scheme: str, method: str, gpu: int) -> dict:
    """Runs one scheme on one GPU and watches it."""
    with tempfile.TemporaryDirectory() as scratch:
        result = Path(scratch) / "result.json"
        command = [sys.executable, __file__, str(options.source), "--out", str(options.out)]
        if options.calibration:
            command += ["--calibration", str(options.calibration)]
        command += ["--json", str(result), "--work", scheme, method]
        path = os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")])
        environment = {**os.environ, "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": str(gpu)}
        with GpuMemory(gpu) as memory:
            child = subprocess.run(command, env=environment, capture_output=True, text=True)
        row = {"scheme": scheme, "method": method}
        if child.returncode or not result.is_file():
            return row | {"error": (child.stdout + child.stderr)[-2000:]}
        return row | json.loads(result.read_text()) | {"gpu_peak": memory.peak}


class GpuMemory:
    """Samples a GPU's memory in use while the block runs; `peak` in bytes, 0 without a GPU."""

    def __init__(self, gpu: int) -> None:
        self.peak = 0
        self._gpu = gpu
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> GpuMemory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        try:
            import pynvml

            pynvml.nvmlInit()
            handle = pynvml.nvmlDeviceGetHandleByIndex(self._gpu)
        except Exception:  # no NVIDIA driver here: a rehearsal
            return
        while not self._stop.wait(0.2):
            self.peak = max(self.peak, pynvml.nvmlDeviceGetMemoryInfo(handle).used)


def work(options: argparse.Namespace, scheme: str, method: str) -> None:
    from clefq.console import Console
    from clefq.quantize.audit import audit_checkpoint
    from clefq.quantize.run import QuantizeSpec, quantize
    from clefq.quantize.stream import default_device

    out = options.out / folder_of(scheme, method)
    name, _, rounding = scheme.partition("+")
    spec = QuantizeSpec(
        str(options.source),
        name,
        calibration=options.calibration if calibrated(scheme) else None,
        method=method,
        rounding=rounding or None,
    )
    parts = timed_parts()
    started = time.perf_counter()
    result = quantize(spec, out, Console(quiet=True))
    seconds = time.perf_counter() - started
    audits = {}
    for device in (default_device(), "cpu"):
        started = time.perf_counter()
        report = audit_checkpoint(out, options.source, device=device)
        audits[device] = time.perf_counter() - started
    row = {
        "made_by": result.manifest.method,
        "seconds": seconds,
        "parts": parts,
        "audit_seconds": audits,
        "breaches": len(report.breaches),
        "notes": report.notes,
        "looked_at": report.counts,
        "source_bytes": result.manifest.bytes["source"],
        "bytes": result.manifest.bytes["output"],
        "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "child_memory": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024,
        "calibration": result.manifest.calibration,
        "versions": result.manifest.versions,
    }
    options.json.write_text(json.dumps(row))


def timed_parts() -> dict[str, float]:
    """Seconds of the steps of `quantize`, filled while it runs."""
    from clefq.quantize import run

    parts: dict[str, float] = {}

    def timed(name: str, step: Callable) -> Callable:
        def work(*arguments: object) -> object:
            started = time.perf_counter()
            try:
                return step(*arguments)
            finally:
                parts[name] = time.perf_counter() - started

        return work

    steps = {"writing": "_write", "audit": "_verify", "hashes": "_manifest"}
    for name, step in steps.items():
        setattr(run, step, timed(name, getattr(run, step)))
    return parts


def same_bits(left: Path, right: Path) -> str:
    """Whether two checkpoints hold the same tensors."""
    from clefq.clef.weight_files import open_tensors
    from clefq.quantize.workers import in_threads

    ours, theirs = open_tensors(left), open_tensors(right)
    if ours.keys() != theirs.keys():
        return f"other tensors: {sorted(ours.keys() ^ theirs.keys())[:3]}"

    def equal(name: str) -> bool:
        pairs = zip(ours[name].pieces(1 << 26), theirs[name].pieces(1 << 26), strict=True)
        return all(bytes(a[1]) == bytes(b[1]) for a, b in pairs)

    names = sorted(ours)
    wrong = [name for name, same in zip(names, in_threads(equal, names), strict=True) if not same]
    return f"{len(names) - len(wrong)} of {len(names)} tensors bit-identical; other: {wrong[:3]}"


def listed(seconds: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.0f}" for name, value in seconds.items())


def table(rows: list[dict]) -> str:
    lines = [
        "| scheme | method | seconds | parts | audit alone | memory | of it oneshot | GPU memory "
        "| GB | audit |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        if "error" in row:
            lines.append(f"| {row['scheme']} | {row['method']} | FAILED: {row['error']} |")
            continue
        lines.append(
            f"| {row['scheme']} | {row['made_by']} | {row['seconds']:.0f} "
            f"| {listed(row['parts'])} | {listed(row['audit_seconds'])} "
            f"| {row['memory'] / 1e9:.1f} GB "
            f"| {row['child_memory'] / 1e9:.1f} GB | {row['gpu_peak'] / 1e9:.1f} GB "
            f"| {row['bytes'] / 1e9:.2f} "
            f"| {'clean' if not row['breaches'] else str(row['breaches']) + ' breaches'} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
