"""The host's share of serving: requests a second that cores parse, encode and answer.

    python benchmarks/host_work.py [--model CHECKPOINT] [--processes 2] [--seconds 4]

Between the socket and the engine a server parses a body, encodes the prompt, lays out its spans,
and turns logits into an answer's bytes: here with the functions of `clefq serve`, over and over,
in so many processes, without sockets and engine. Needs torch (as the release's softmax does).
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import os
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np

from clefq.bench import workload
from clefq.clef.encoding import EncodeSpec, PromptTokenizer
from clefq.clef.records import Record, record_to_json
from clefq.nano import WEIGHTS

KINDS = ("500", "960", "options-77", "16k")
ROUND = 50  # different requests of a kind; schemas recur, states do not
STAGES = ("parse", "encode", "answer")


def bodies(folder: Path, kind: str) -> list[bytes]:
    tokenizer = PromptTokenizer.from_folder(folder)
    made: list[Record] = workload.records(tokenizer, [kind], ROUND)
    return [
        json.dumps({"model": "clef", "state": r.state, "questions": record_to_json(r)["questions"]})
        .encode()
        for r in made
    ]  # fmt: skip


def host_work(folder: Path, asked: list[bytes], seconds: float) -> dict[str, Any]:
    """Requests, tokens, wall and CPU seconds, and CPU seconds of each stage."""
    from clefq.serving.http.answers import Style, TokenUsage, encode_json, response_body
    from clefq.serving.http.request import parse_ask
    from clefq.serving.http.settings import Limits
    from clefq.serving.layout import schema_layout, split_flat
    from clefq.serving.prompts import PromptMaker

    prompts, limits, spec = PromptMaker(folder, 0), Limits(), EncodeSpec()
    logits = np.random.default_rng(0).normal(size=256).astype(np.float32)
    stages = dict.fromkeys(STAGES, 0.0)
    count = tokens = 0

    def one(raw: bytes) -> int:
        started = time.process_time()
        ask = parse_ask(raw, "release", limits)
        parsed = time.process_time()
        prompt = prompts.prompt(ask.record, (), spec)
        schema_layout(prompt.encoded)
        encoded = time.process_time()
        options = sum(len(q.option_ids) for q in prompt.encoded.questions)
        slices = split_flat(logits[:options].tolist(), prompt.encoded)
        parts = {name: np.asarray(part, dtype=np.float32) for name, part in slices.items()}
        length = len(prompt.encoded.token_ids)
        encode_json(
            response_body("clef", ask.record.questions, parts, TokenUsage(length), Style("release"))
        )
        done = time.process_time()
        for stage, took in zip(
            STAGES, (parsed - started, encoded - parsed, done - encoded), strict=True
        ):
            stages[stage] += took
        return length

    for raw in asked:  # caches and imports
        one(raw)
    stages.update(dict.fromkeys(STAGES, 0.0))
    gc.collect()
    wall, cpu = time.perf_counter(), time.process_time()
    while time.perf_counter() - wall < seconds:
        for raw in asked:
            tokens += one(raw)
        count += len(asked)
    return {
        "count": count,
        "tokens": tokens,
        "wall": time.perf_counter() - wall,
        "cpu": time.process_time() - cpu,
        "stages": stages,
    }


def child(job: tuple[Path, list[bytes], float]) -> dict[str, Any]:
    return host_work(*job)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, default=WEIGHTS, help="a folder with a tokenizer")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=4.0)
    options = parser.parse_args()
    print(f"| requests | tokens | {options.processes} processes, requests/s ", end="")
    print("| requests per CPU second | parse ms | encode ms | answer ms |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    context = multiprocessing.get_context("spawn")
    for kind in KINDS:
        asked = bodies(options.model, kind)
        with context.Pool(options.processes) as pool:
            jobs = [(options.model, asked, options.seconds)] * options.processes
            found = pool.map(child, jobs, chunksize=1)
        count = sum(one["count"] for one in found)
        stage = {s: sum(one["stages"][s] for one in found) / count * 1e3 for s in STAGES}
        rate = sum(one["count"] / one["wall"] for one in found)
        print(
            f"| {kind} | {sum(one['tokens'] for one in found) / count:,.0f} | {rate:,.0f} "
            f"| {count / sum(one['cpu'] for one in found):,.0f} | "
            + " | ".join(f"{stage[s]:.2f}" for s in STAGES)
            + " |",
            flush=True,
        )


if __name__ == "__main__":
    main()
