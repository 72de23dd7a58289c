"""`clefq serve` at saturation against the offline engine: what HTTP costs.

    python benchmarks/server.py [--model nano] [--records SET] [--clients 32] [--rounds 3]

Starts the server and, beside it, the offline engine (`clefq.serving.Clef`) in the serving
environment; both hold the same checkpoint, and take turns on the same records: the other one
idles. Reported are records a second and CPU seconds per 1,000 records of each, over all processes
of each, and their ratios. On two cores the load generator shares them with the server (its own
part is printed); on a GPU machine neither matters.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import httpx

from clefq.bench.load import Load, LoadSpec, Target, run_load
from clefq.bench.load_report import LoadRow, row_of
from clefq.bench.replies import ReplyChecker
from clefq.bench.source import RecordSource, opened
from clefq.bench.wire import ServerAddress
from clefq.engines.http_engine import request_body
from clefq.engines.select import python_for
from clefq.nano import SETS, WEIGHTS
from clefq.store.sets import open_set

REPOSITORY = Path(__file__).resolve().parent.parent
PORT = 8492


def offline(model: Path, root: Path, threads: int | None) -> None:
    """The offline engine: a pass over the records for every line on stdin."""
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    from clefq.serving import Clef, ServeSettings

    records = [record for record in open_set(root).records() if not record.videos]
    settings = ServeSettings(max_length=4096, max_images=4, cpu_threads=threads)
    with Clef(model, settings) as clef:
        clef.probabilities(records[:8], root)
        print(json.dumps({"records": len(records)}), file=answer, flush=True)
        for _ in sys.stdin:
            started, cpu = time.perf_counter(), time.process_time()
            clef.probabilities(records, root)
            found = {"wall": time.perf_counter() - started, "cpu": time.process_time() - cpu}
            print(json.dumps(found), file=answer, flush=True)


def tree_cpu(pid: int) -> float:
    """CPU seconds of a process and all of its descendants that are alive."""
    parents: dict[int, int] = {}
    used: dict[int, float] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        process = int(path.parent.name)
        parents[process] = int(fields[1])
        used[process] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    total = 0.0
    for process in used:
        above = process
        while above not in (pid, 0) and above in parents:
            above = parents[above]
        total += used[process] if above == pid else 0.0
    return total


def start(arguments: list[str], **options: Any) -> subprocess.Popen[str]:
    command = [str(python_for("vllm")), *arguments]
    return subprocess.Popen(command, text=True, cwd=REPOSITORY, **options)


def wait_ready(server: subprocess.Popen[str], seconds: float = 600.0) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and server.poll() is None:
        try:
            if httpx.get(f"http://127.0.0.1:{PORT}/health", timeout=5).status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(1)
    raise SystemExit("the server did not become ready")


def target_of(root: Path) -> Target:
    address = ServerAddress.parse(f"http://127.0.0.1:{PORT}")
    with opened(RecordSource(root, (), None, WEIGHTS)) as loaded:
        records = [record for record in loaded.records if not record.videos]
        bodies = [json.dumps(request_body(record, "clef", root)).encode() for record in records]
    return Target(address, bodies, ReplyChecker(records))


def rounds(options: argparse.Namespace) -> list[dict[str, float]]:
    threads = ["--threads", str(options.threads)] if options.threads else []
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    engine = start(
        [__file__, "--offline", "--model", str(options.model), "--records", str(options.records),
         *threads],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    server = start(
        ["-m", "clefq.cli.main", "serve", str(options.model), "--port", str(PORT),
         "--max-length", "4096", "--no-access-log", *threads], **quiet,
    )  # fmt: skip
    try:
        assert engine.stdin and engine.stdout
        count = json.loads(engine.stdout.readline())["records"]
        wait_ready(server)
        target = target_of(options.records)
        found = []
        for number in range(options.rounds + 1):
            engine.stdin.write("go\n")
            engine.stdin.flush()
            alone = json.loads(engine.stdout.readline())
            cpu = tree_cpu(server.pid)
            spec = LoadSpec(duration=max(5.0, alone["wall"]), warmup=2.0)
            run = run_load(target, Load(clients=options.clients), spec)
            row: LoadRow = row_of(run)
            cpu = tree_cpu(server.pid) - cpu
            if row.failed or row.refused or row.wrong:
                raise SystemExit(f"{row.failed} failed, {row.refused} refused, {row.wrong} wrong")
            answered = sum(sample.outcome == "200" for sample in run.samples)
            if number:  # the first round warms both
                found.append(
                    {
                        "offline": count / alone["wall"],
                        "server": row.requests_per_second,
                        "offline_cpu": alone["cpu"] / count * 1e3,
                        "server_cpu": cpu / answered * 1e3,
                        "generator_cpu": run.cpu / answered * 1e3,
                    }
                )
        return found
    finally:
        server.terminate()
        engine.terminate()
        server.wait(60)
        engine.wait(60)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, default=WEIGHTS)
    parser.add_argument("--records", type=Path, default=SETS / "nano-eval")
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, help="CPU threads of each engine")
    parser.add_argument("--offline", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.offline:
        offline(options.model, options.records, options.threads)
        return
    found = rounds(options)
    middle = {key: median(one[key] for one in found) for key in found[0]}
    ratios = [one["server"] / one["offline"] for one in found]
    costs = [one["server_cpu"] / one["offline_cpu"] for one in found]
    print(f"{options.clients} clients, medians of {len(found)} rounds\n")
    print("| | records/s | CPU s per 1,000 records |")
    print("|---|---:|---:|")
    print(f"| offline engine | {middle['offline']:.1f} | {middle['offline_cpu']:.1f} |")
    print(f"| server, all processes | {middle['server']:.1f} | {middle['server_cpu']:.1f} |")
    print(
        f"| server / offline | {median(ratios):.2f} ({min(ratios):.2f}–{max(ratios):.2f}) "
        f"| {median(costs):.2f} ({min(costs):.2f}–{max(costs):.2f}) |"
    )
    print(f"| load generator | – | {middle['generator_cpu']:.2f} |")


if __name__ == "__main__":
    main()
