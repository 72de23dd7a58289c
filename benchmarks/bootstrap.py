"""Speed of the resampling, beside scipy.stats.bootstrap; memory and joining of a million rows.

    python benchmarks/bootstrap.py [--scipy]

prints the tables of docs/statistics.md. Each row runs in a process of its own, so that memory is
that row's. Times are wall seconds and, as other work may share the machine, processor seconds of
all threads; the best of three (one for the million).
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

RESAMPLES = 10_000


def timed(run: Callable[[], object], repeats: int = 3) -> tuple[float, float]:
    """Least wall and processor seconds."""
    found = []
    for _ in range(repeats):
        wall, cpu = time.perf_counter(), time.process_time()
        run()
        found.append((time.perf_counter() - wall, time.process_time() - cpu))
    return min(w for w, _ in found), min(c for _, c in found)


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def sample(records: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    d = rng.integers(1, 6, records).astype(float)
    return rng.binomial(d.astype(int), 0.96).astype(float), d


def resample(records: int, threads: int, metrics: int = 1) -> dict[str, float]:
    from clefq.parity.statistics.bootstrap import percentile_job, quantiles
    from clefq.parity.statistics.intervals import ratio
    from clefq.parity.statistics.resampling import run_jobs

    value = ratio(*sample(records))

    def run() -> None:
        jobs = [percentile_job([value]) for _ in range(metrics)]
        for values in run_jobs(jobs, 1, RESAMPLES, threads):
            quantiles(values[:, 0], 0.95)

    wall, cpu = timed(run, 3 if records < 10_000 else 1)
    return {"wall": wall, "cpu": cpu, "peak_mb": peak_mb()}


def studentized(records: int, threads: int) -> dict[str, float]:
    from clefq.parity.statistics.bootstrap import studentized_interval, studentized_job
    from clefq.parity.statistics.intervals import ratio
    from clefq.parity.statistics.resampling import run_jobs

    value = ratio(*sample(records))

    def run() -> None:
        samples = run_jobs([studentized_job(value)], 1, RESAMPLES, threads)[0]
        studentized_interval(value, samples[:, 1], 0.95)

    wall, cpu = timed(run)
    return {"wall": wall, "cpu": cpu, "peak_mb": peak_mb()}


def scipy_bootstrap(records: int, resamples: int) -> dict[str, float]:
    from scipy import stats

    n, d = sample(records)

    def run() -> None:
        stats.bootstrap(
            (n, d),
            lambda a, b, axis: a.sum(axis=axis) / b.sum(axis=axis),
            paired=True,
            method="percentile",
            n_resamples=resamples,
            batch=10,
            rng=np.random.default_rng(0),
        )

    wall, cpu = timed(run, 1)
    scale = RESAMPLES / resamples
    return {"wall": wall * scale, "cpu": cpu * scale, "peak_mb": peak_mb()}


def whole(questions: int, slices: int) -> dict[str, float]:
    from clefq.parity.statistics.pair_statistics import StatisticsSpec, compare
    from clefq.parity.statistics.pairs import PairedSet, join
    from clefq.store.predictions import Predictions, validate_frame
    from tests.parity.factory import META

    frames = [frame(questions, seed) for seed in (0, 1)]
    base = Predictions(META, frames[0])
    cand = Predictions(replace(META, variant="nvfp4"), frames[1])
    pairs: list[PairedSet] = []
    spec = StatisticsSpec(slices=bool(slices))
    steps = {
        "check": lambda: validate_frame(frames[0]),
        "join": lambda: pairs.append(join(base, cand)),
        "compare": lambda: compare(pairs[0], spec),
    }
    found = {name: timed(step, 1) for name, step in steps.items()}
    times = {
        f"{name}_{k}": t
        for name, pair in found.items()
        for k, t in zip(("wall", "cpu"), pair, strict=True)
    }
    return {**times, "peak_mb": peak_mb()}


def frame(questions: int, seed: int) -> pd.DataFrame:
    """Synthetic predictions, three options a question, two questions a record."""
    import pyarrow as pa

    rng = np.random.default_rng(7)
    logits = rng.normal(size=(questions, 3)) * 2
    gold = np.argmax(logits + rng.normal(size=logits.shape), axis=1)
    logits += seed * 0.3 * np.random.default_rng(seed).normal(size=logits.shape)
    logits -= np.log(np.exp(logits).sum(axis=1, keepdims=True))
    offsets = pa.array(np.arange(questions + 1) * 3, pa.int32())
    names = np.array(["a", "b", "c"], dtype=object)
    table = pa.table(
        {
            "record_id": [f"record-{i // 2}" for i in range(questions)],
            "cohort": names[np.arange(questions) // 2 % 3],
            "question_id": [f"q{i % 2}" for i in range(questions)],
            "question_type": ["choice"] * questions,
            "option_ids": pa.ListArray.from_arrays(offsets, pa.array(np.tile(names, questions))),
            "logprobs": pa.ListArray.from_arrays(offsets, pa.array(logits.ravel())),
            "gold": names[gold],
            "input_tokens": np.arange(questions) % 20_000,
            "truncated_tokens": np.zeros(questions, dtype=np.int64),
            "error": pa.nulls(questions, pa.string()),
        }
    )
    return table.to_pandas()


TASKS = {f.__name__: f for f in (resample, studentized, scipy_bootstrap, whole)}


def child(task: str, *args: int) -> dict[str, float]:
    command = [sys.executable, __file__, "--task", task, *map(str, args)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def show(name: str, threads: str, got: dict[str, float]) -> None:
    print(f"| {name} | {threads} | {got['wall']:.2f} | {got['cpu']:.2f} | {got['peak_mb']:,.0f} |")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scipy", action="store_true", help="time scipy too (slow)")
    parser.add_argument("--task", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.task:
        print(json.dumps(TASKS[options.task[0]](*map(int, options.task[1:]))))
        return
    print("| 10,000 resamples | threads | wall, s | processor, s | peak memory, MB |")
    print("|---|---:|---:|---:|---:|")
    for records in (26, 256, 1400, 8192, 1_000_000):
        for threads in (1, 2):
            got = child("resample", records, threads)
            show(f"percentile, {records:,} records", str(threads), got)
    show("percentile of 16 metrics, 1,400 records", "2", child("resample", 1400, 2, 16))
    show("studentized, 1,399 records", "2", child("studentized", 1399, 2))
    if options.scipy:
        name = "scipy.stats.bootstrap, percentile"
        show(f"{name}, 1,400 records", "", child("scipy_bootstrap", 1400, RESAMPLES))
        got = child("scipy_bootstrap", 1_000_000, 50)
        show(f"{name}, 1,000,000 records (times 200 from 50 resamples)", "", got)
    print(
        "\n| whole comparison, processor seconds | check | join | all metrics | peak memory, MB |"
    )
    print("|---|---:|---:|---:|---:|")
    for questions, slices in ((2800, 0), (2800, 1), (1_000_000, 0), (1_000_000, 1)):
        got = child("whole", questions, slices)
        scope = "with slices" if slices else "overall"
        print(
            f"| {questions:,} questions, {scope} | {got['check_cpu']:.2f} | {got['join_cpu']:.2f} "
            f"| {got['compare_cpu']:.2f} | {got['peak_mb']:,.0f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
