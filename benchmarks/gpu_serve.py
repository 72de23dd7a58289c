"""Loads `clefq serve` in several layouts of engines: dp 1, dp 2, tp 2, and so on.

    python benchmarks/gpu_serve.py MODEL --layouts offline-dp1 dp1 offline-dp2 dp2 tp2 \
        --lengths 1000 [--kill] [-- OPTIONS]

For each layout a server is started as a user would, with OPTIONS added to `clefq serve`; it is
loaded with `clefq bench server` (closed loop), asked 16 fixed requests in full precision, whose
probabilities are compared with the first layout's, and ended with SIGTERM while requests are in
flight. With `--kill` and several engines the process that runs the first one's model is killed in
the middle of a second load: every request must be answered or refused with a status.

`offline-` layouts are what `clefq predict --engine vllm --dp N --tp N` runs, without a server (and
`offline-ray2` what it runs with `--ray local --dp 2`, held against `offline-dp2` at the end):
records per second of `--offline-count` records of the same lengths, start-up apart.

`--alone N` asks N records one after the other, in the layouts of one engine: through HTTP on one
connection, and in the offline layout without HTTP. The last lines hold the served rate against the
offline one, and a record alone through HTTP against one without:

    python benchmarks/gpu_serve.py MODEL --layouts offline-dp1 dp1 --lengths 1000 --alone 100
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPOSITORY))
CLEFQ = [sys.executable, "-m", "clefq.cli.main"]
FIXED = 16
WARM = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--layouts", nargs="+", default=["dp1", "dp2", "tp2"])
    parser.add_argument("--lengths", default="1000")
    parser.add_argument("--records", help="a set folder instead")
    parser.add_argument("--check", help="predictions of that set: answers must be these")
    parser.add_argument("--clients", default="64")
    parser.add_argument("--duration", default="20")
    parser.add_argument("--port", type=int, default=8123)
    parser.add_argument("--kill", action="store_true")
    parser.add_argument("--ready", type=float, default=300, help="seconds to be ready within")
    parser.add_argument("--offline-count", type=int, default=1024)
    parser.add_argument("--alone", type=int, default=0, help="records asked one by one")
    parser.add_argument("--offline-child", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path)
    split = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    options = parser.parse_args(sys.argv[1:split])
    options.serve = sys.argv[split + 1 :]  # options of clefq serve
    if options.offline_child:
        offline_child(options, *options.offline_child)
        return
    rows: list[dict] = []
    for layout in options.layouts:
        row = offline(options, layout) if layout.startswith("offline") else measure(options, layout)
        rows.append(row)
        if options.json:
            options.json.write_text(json.dumps(rows))
        served = [one for one in rows if "load" in one]
        print(line(row, served[0] if served else row), flush=True)
    for text in held_against_offline(rows):
        print(text, flush=True)


def measure(options: argparse.Namespace, layout: str) -> dict:
    started = time.perf_counter()
    flags = [f"--{layout[:2]}", layout[2:], "--port", str(options.port), "--no-access-log"]
    with tempfile.TemporaryFile("w+") as log:
        server = subprocess.Popen(
            [*CLEFQ, "serve", options.model, "--json", *flags, *options.serve],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env={**os.environ, "PYTHONPATH": path()},
        )
        row: dict[str, Any] = {"layout": layout}
        try:
            # a server that is not ready in time is ended, which ends its line too
            watchdog = threading.Timer(options.ready, server.kill)
            watchdog.start()
            facts = until_ready(server)
            wait_ready(options.port, server)
            watchdog.cancel()
            row |= {"started": time.perf_counter() - started, "facts": facts}
            row["load"] = bench(options)
            row["fixed"] = fixed(options)
            if options.alone:
                row["alone"], row["parts"] = alone_through_http(options)
            if options.kill and layout.startswith("dp") and layout != "dp1":
                row["kill"] = bench(options, kill=core_of(facts))
                row["metrics"] = engine_metrics(options.port)
            row |= end_under_load(options, server)
        except Exception as error:
            log.seek(0)
            row["error"] = f"{error!r}; server's log: {log.read()[-3000:]}"
        finally:
            if server.poll() is None:
                server.kill()
        return row


def until_ready(server: subprocess.Popen) -> dict:
    """The line of its log that says what runs; empty where it ends before that."""
    for line in server.stdout:
        facts = json.loads(line)
        if facts.get("event") == "ready":
            # nobody may fill the pipe: its log goes on
            threading.Thread(target=server.stdout.read, daemon=True).start()
            return facts
    return {}


def offline(options: argparse.Namespace, layout: str) -> dict:
    """In a process of its own, so that its memory is free again afterwards."""
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "offline.json"
        command = [sys.executable, __file__, options.model, "--lengths", options.lengths]
        command += ["--offline-count", str(options.offline_count), "--alone", str(options.alone)]
        command += ["--offline-child", layout.removeprefix("offline-"), str(out)]
        environment = {**os.environ, "PYTHONPATH": path()}
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        if not out.is_file():
            return {"layout": layout, "error": (done.stderr or done.stdout)[-3000:]}
        return {"layout": layout, **json.loads(out.read_text())}


def offline_child(options: argparse.Namespace, layout: str, out: str) -> None:
    from clefq.bench import workload
    from clefq.clef.tokenizer import PromptTokenizer
    from clefq.engines.base import EngineSpec
    from clefq.engines.vllm_engine import open_engine

    folder = model_folder(options.model)
    kind, count = layout[:-1], int(layout[-1])
    name = "tensor_parallel" if kind == "tp" else "copies"
    kinds = options.lengths.split(",")
    records = workload.records(PromptTokenizer.from_folder(folder), kinds, options.offline_count)
    started = time.perf_counter()
    spec = EngineSpec(**{name: count, "ray": "local" if kind == "ray" else None})
    engine = open_engine(folder, spec)
    loaded = time.perf_counter() - started
    for _ in engine.predict(records[:128]):
        pass
    started = time.perf_counter()
    results = [result for group in engine.predict(records) for result in group]
    seconds = time.perf_counter() - started
    failed = [result.record_id for result in results if result.errors]
    row: dict[str, Any] = {
        "started": loaded, "records": len(results), "failed": len(failed), "seconds": seconds,
    }  # fmt: skip
    if options.alone:
        row["alone"] = alone_without_http(engine, records[: options.alone])
    Path(out).write_text(json.dumps(row))
    engine.close()


def model_folder(model: str) -> Path:
    import clefq.nano

    folder = Path(model)
    return folder if folder.is_dir() else Path(clefq.nano.__file__).parent / "weights"


def path() -> str:
    return os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")])


def wait_ready(port: int, server: subprocess.Popen) -> None:
    import httpx

    while server.poll() is None:
        try:
            if httpx.get(f"http://127.0.0.1:{port}/health").status_code == 200:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.2)
    raise RuntimeError(f"the server ended with {server.returncode}")


def command(options: argparse.Namespace, out: Path, duration: str) -> list[str]:
    asked = ["--lengths", options.lengths, "--count", "64"]
    if options.records:
        asked = ["--records", options.records]
        asked += ["--check", options.check] if options.check else []
    url = f"http://127.0.0.1:{options.port}"
    times = ["--duration", duration, "--warmup", "3", "--clients", options.clients]
    return [*CLEFQ, "bench", "server", url, *asked, *times, "--quiet", "--json", "--out", str(out)]


def bench(options: argparse.Namespace, kill: int | None = None) -> dict:
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "load.json"
        load = subprocess.Popen(
            command(options, out, options.duration),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": path()},
        )
        if kill is not None:
            time.sleep(float(options.duration) / 2)
            os.kill(kill, signal.SIGKILL)
        _, errors = load.communicate()
        if not out.is_file():
            raise RuntimeError(f"bench server: {errors[-500:]}")
        return json.loads(out.read_text())


def core_of(facts: dict) -> int:
    """The process that runs the first engine's model: its largest child, or itself."""
    worker = facts["engines"][0]["pid"]
    children = Path(f"/proc/{worker}/task/{worker}/children").read_text().split()
    sizes = {pid: int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in children}
    return int(max(sizes, key=sizes.__getitem__)) if sizes else worker


def fixed(options: argparse.Namespace) -> list[dict]:
    """Probabilities of 16 fixed requests, in full precision."""
    import httpx

    from clefq.bench import workload
    from clefq.clef.records import record_to_json
    from clefq.clef.tokenizer import PromptTokenizer

    folder = model_folder(options.model)
    records = workload.records(PromptTokenizer.from_folder(folder), ["500"], FIXED, seed=7)
    url = f"http://127.0.0.1:{options.port}"
    found = []
    with httpx.Client(timeout=120, headers={"x-clefq-precision": "full"}) as client:
        name = client.get(f"{url}/v1/models").json()["data"][0]["id"]
        for record in records:
            body = record_to_json(record)
            body = {"model": name, "state": body["state"], "questions": body["questions"]}
            reply = client.post(f"{url}/v1/systemone", json=body)
            reply.raise_for_status()
            found.append(reply.json()["answers"])
    return found


def alone_through_http(options: argparse.Namespace) -> tuple[list[float], dict[str, float]]:
    """Seconds of records asked one after the other on one connection; the first few warm it.

    Beside them the median milliseconds of each part that the server states.
    """
    from http.client import HTTPConnection  # a general client costs a millisecond a request

    from clefq.bench import workload
    from clefq.clef.records import record_to_json
    from clefq.clef.tokenizer import PromptTokenizer

    folder = model_folder(options.model)
    kinds = options.lengths.split(",")
    records = workload.records(PromptTokenizer.from_folder(folder), kinds, options.alone)
    took = []
    parts: dict[str, list[float]] = {}
    client = HTTPConnection("127.0.0.1", options.port, timeout=120)
    for record in [*records[:WARM], *records]:
        value = record_to_json(record)
        body = json.dumps({"state": value["state"], "questions": value["questions"]}).encode()
        started = time.perf_counter()
        client.request("POST", "/v1/systemone", body, {"content-type": "application/json"})
        reply = client.getresponse()
        text = reply.read()
        took.append(time.perf_counter() - started)
        if reply.status != 200:
            raise RuntimeError(f"status {reply.status}: {text[:300]!r}")
        stated = reply.headers["server-timing"]
        for name, value in re.findall(r"(\w+);dur=([\d.]+)", stated):
            parts.setdefault(name, []).append(float(value))
    client.close()
    medians = {name: statistics.median(values[WARM:]) for name, values in parts.items()}
    return took[WARM:], medians


def alone_without_http(engine: Any, records: list[Any]) -> list[float]:
    """Seconds of the same records through the offline engine, one at a time."""
    took = []
    for record in [*records[:WARM], *records]:
        started = time.perf_counter()
        for _ in engine.predict([record]):
            pass
        took.append(time.perf_counter() - started)
    return took[WARM:]


def held_against_offline(rows: list[dict]) -> list[str]:
    """What HTTP is allowed to cost, and what Ray is, per layout that has both sides."""
    found = []
    by_layout = {row["layout"]: row for row in rows if "error" not in row}
    rates = {
        layout: row["records"] / row["seconds"]
        for layout, row in by_layout.items()
        if layout.startswith("offline")
    }
    for layout, rate in rates.items():
        other = rates.get(layout.replace("ray", "dp"))
        if "ray" in layout and other is not None:
            found.append(f"{layout}: {rate:.1f} records/s, --dp {other:.1f}: {rate / other:.1%}")
    for layout, row in by_layout.items():
        offline = by_layout.get(f"offline-{layout}")
        if offline is None or "load" not in row:
            continue
        rate = offline["records"] / offline["seconds"]
        served = row["load"]["rows"][0]["requests_per_second"]
        found.append(f"{layout}: served {served:.1f}/s, offline {rate:.1f}/s: {served / rate:.1%}")
        if row.get("alone") and offline.get("alone"):
            here, there = (1e3 * statistics.median(one["alone"]) for one in (row, offline))
            found.append(
                f"{layout}: a record alone {here:.1f} ms through HTTP, {there:.1f} ms without: "
                f"{here - there:+.1f} ms; of it, as the server states, {row['parts']}"
            )
    return found


def largest_difference(left: Any, right: Any) -> float:
    if isinstance(left, dict):
        return max((largest_difference(left[key], right[key]) for key in left), default=0.0)
    if isinstance(left, list):
        return max(map(largest_difference, left, right), default=0.0)
    if isinstance(left, float):
        return abs(left - right)
    return 0.0


def engine_metrics(port: int) -> list[str]:
    import httpx

    text = httpx.get(f"http://127.0.0.1:{port}/metrics").text
    words = ("restart", "retr", "alive", "engines")
    lines = [one for one in text.splitlines() if not one.startswith("#")]
    return [one for one in lines if any(word in one for word in words)]


def end_under_load(options: argparse.Namespace, server: subprocess.Popen) -> dict:
    """SIGTERM in the middle of a load: seconds until the server is gone, and its exit code."""
    with tempfile.TemporaryDirectory() as scratch:
        load = subprocess.Popen(
            command(options, Path(scratch) / "load.json", "8"),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": path()},
        )
        time.sleep(6)
        asked = time.perf_counter()
        server.send_signal(signal.SIGTERM)
        code = server.wait(timeout=60)
        seconds = time.perf_counter() - asked
        load.kill()
        load.wait()
        return {"ended": seconds, "exit_code": code}


def line(row: dict, first: dict) -> str:
    if "error" in row:
        return f"{row['layout']}: FAILED: {row['error']}"
    if "seconds" in row:
        rate = row["records"] / row["seconds"]
        return (
            f"{row['layout']}: ready in {row['started']:.0f} s, {rate:.1f} records/s "
            f"({row['records']} records, {row['failed']} failed)"
        )
    load = row["load"]["rows"][0]
    base = first["load"]["rows"][0]["requests_per_second"] if "load" in first else float("nan")
    text = (
        f"{row['layout']}: ready in {row['started']:.0f} s, "
        f"{load['requests_per_second']:.1f} requests/s ({load['requests_per_second'] / base:.2f}×),"
        f" p50 {load['latency']['median'] * 1e3:.0f} ms, p95 {load['latency']['p95'] * 1e3:.0f} ms"
        f"; SIGTERM: exit {row['exit_code']} after {row['ended']:.1f} s"
    )
    if "fixed" in first:
        text += (
            f"; max |Δp| to {first['layout']} {largest_difference(row['fixed'], first['fixed'])}"
        )
    text += f"\n  load: {load}"
    if "kill" in row:
        text += f"\n  killed: {row['kill']['rows'][0]}\n  {row['metrics']}"
    return text


if __name__ == "__main__":
    main()
