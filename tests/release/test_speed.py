"""Throughput on a card, from bench files."""

from __future__ import annotations

from pathlib import Path

from clefq.names.run_folder import find_place
from clefq.release.evidence import gather
from clefq.release.speed import throughput
from clefq.store.atomic import write_json
from tests.release.conftest import Clefq


def bench(path: Path, nbytes: int, kernels: str = "real") -> Path:
    """A file as `clefq bench offline --out` writes it."""
    rows = [
        {
            "name": name,
            "engine": "vllm",
            "engine_version": "0.33.0",
            "scheme": name,
            "kernels": kernels,
            "arithmetic": arithmetic,
            "device": "NVIDIA H200",
            "start_seconds": 60.0,
            "disk_bytes": size,
            "peak_bytes": 1,
            "device_peak_bytes": None,
            "weight_bytes": None,
            "speeds": [{"records": "500 tokens", "latency": {"median": 0.0514, "p95": 0.06}}],
            "warnings": [],
        }
        for name, arithmetic, size in (("bf16", "bf16", 2), ("fp8", "w8a8", nbytes))
    ]
    cells = [
        {"name": n, "records": "500 tokens", "records_per_second": r, "tokens_per_second": t,
         "ratio": x, "cpu_ratio": x}
        for n, r, t, x in (("bf16", 34.3, 17_150.0, 1.0), ("fp8", 43.91, 21_955.0, 1.28))
    ]  # fmt: skip
    write_json(path, {"rows": rows, "cells": cells, "runs": 3, "warnings": ["a shared machine"]})
    return path


def test_one_speed_of_each_checkpoint_for_the_report(tmp_path: Path) -> None:
    (tmp_path / "bench").mkdir()
    bench(tmp_path / "bench" / "h200.json", 7)
    write_json(tmp_path / "bench" / "server.json", {"steps": []})  # names no checkpoint
    found = throughput(tmp_path, {"bf16": 2, "fp8": 7, "nvfp4": 3})
    assert {name: speed["value"] for name, speed in found.items()} == {
        "bf16": 17_150.0, "fp8": 21_955.0,
    }  # fmt: skip
    assert found["fp8"]["source"] == "bench/h200.json, 500 tokens"
    assert throughput(tmp_path, {"fp8": 8}) == throughput(None, {"fp8": 7}) == {}
    bench(tmp_path / "bench" / "h200.json", 7, "simulated")
    assert throughput(tmp_path, {"fp8": 7}) == {}


def test_throughput_from_a_bench_file(run_folder: Path, clefq: Clefq, tmp_path: Path) -> None:
    size = gather(find_place(run_folder, "fp8")).nbytes
    arguments = ("card", run_folder, "--variant", "fp8", "--quiet")
    assert clefq(*arguments, "--bench", bench(tmp_path / "h200.json", size)) == 0
    text = (run_folder / "models" / "fp8" / "README.md").read_text("utf-8")
    row = next(line for line in text.splitlines() if "NVIDIA H200" in line)
    assert "43.91 records/s, 21,955 tokens/s, 1.28× bf16; one alone 51.4 ms" in row
    assert "NVIDIA H200, vllm 0.33.0, w8a8 | bench/h200.json" in row
    assert "34.3" not in text and "Note: a shared machine." in text
    assert clefq(*arguments, "--check") == 0
    bench(run_folder / "bench" / "h200.json", size + 1)  # of another checkpoint
    assert clefq(*arguments, "--check") == 1
    assert clefq(*arguments) == 0
    text = (run_folder / "models" / "fp8" / "README.md").read_text("utf-8")
    assert "43.91" not in text and "Not measured." in text
    assert "is of another fp8" in text
    bench(run_folder / "bench" / "h200.json", size, "simulated")
    assert clefq(*arguments) == 0
    text = (run_folder / "models" / "fp8" / "README.md").read_text("utf-8")
    assert "Not measured on real kernels." in text and "43.91" not in text
    write_json(tmp_path / "server.json", {"url": "http://x", "rows": [{"load": "8 clients"}]})
    assert clefq(*arguments, "--bench", tmp_path / "server.json") == 2
