"""Do these checkpoints run on this machine's vLLM, and with the right answers?

Runs every folder on the first records of a set, one fresh process per folder, and prints a table:
start-up, throughput, the head's share, agreement with a reference, and the largest difference of
a probability when 16 records are asked one by one ("alone") or all in reverse order ("order").

    # on a machine with transformers: the reference answers
    python benchmarks/gpu_smoke.py run/models/* --set run/sets/nano-eval \
        --engine transformers --out reference.json
    # on the GPU machine
    python benchmarks/gpu_smoke.py run/models/* --set run/sets/nano-eval \
        --against reference.json --gdn triton --eager --out answers.json
    # there, vLLM 0.33 or newer: its own Clef beside ours (it needs the index file in the folder)
    python benchmarks/gpu_smoke.py run/models/bf16 --set run/sets/nano-eval \
        --engine native --against answers.json

Needs clefq importable (installed, or the checkout in PYTHONPATH), vLLM or transformers, no more.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPOSITORY))


def main() -> None:
    options = parse()
    if options.one:
        run_one(options)
        return
    reference = json.loads(options.against.read_text()) if options.against else {}
    answers = {}
    rows = []
    for folder in options.folders:
        result = in_child(folder, options)
        if "error" in result:
            rows.append([folder.name, "FAILED", result["error"]])
            continue
        answers[folder.name] = result["answers"]
        rows.append(row_of(folder.name, result, reference, answers))
        print_table(rows)
        if options.out:
            options.out.write_text(json.dumps(answers))
    print_table(rows)
    sys.exit(1 if any(row[1] == "FAILED" for row in rows) else 0)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--set", required=True, type=Path, help="set folder (records.jsonl)")
    parser.add_argument("--records", type=int, default=50)
    parser.add_argument("--engine", choices=["vllm", "native", "transformers"], default="vllm")
    parser.add_argument("--against", type=Path, help="answers of another run (--out)")
    parser.add_argument("--out", type=Path, help="write the logits as JSON")
    parser.add_argument("--eager", action="store_true", help="no compilation: starts fast")
    parser.add_argument("--gdn", default="triton", choices=["auto", "triton", "flashinfer"])
    parser.add_argument("--step-tokens", type=int, default=8192)
    parser.add_argument("--max-length", type=int, default=16384)
    parser.add_argument("--max-images", type=int, default=1)
    parser.add_argument("--gpu-memory", type=float, default=0.9)
    parser.add_argument("--repeat", type=int, default=1, help="timed passes; the best counts")
    parser.add_argument("--verbose", action="store_true", help="show vLLM's own log")
    parser.add_argument("--one", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def in_child(folder: Path, options: argparse.Namespace) -> dict:
    """One engine per process: vLLM does not give all of a GPU's memory back."""
    with tempfile.TemporaryDirectory() as work:
        result = Path(work) / "result.json"
        command = [sys.executable, __file__, str(folder), "--one", str(result)]
        for name, value in vars(options).items():
            if name in ("folders", "one", "out", "against") or value is None or value is False:
                continue
            command += [f"--{name.replace('_', '-')}"] + ([] if value is True else [str(value)])
        path = os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")])
        child = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, check=False)
        if child.returncode or not result.is_file():
            return {"error": f"exit code {child.returncode}"}
        return json.loads(result.read_text())


def run_one(options: argparse.Namespace) -> None:
    from clefq.clef.records import iter_records

    records = []
    for record in iter_records(options.set / "records.jsonl"):
        if len(records) == options.records:
            break
        if len(record.images) <= options.max_images:
            records.append(record)
    if options.engine == "native":
        use_native_model()
    run = with_transformers if options.engine == "transformers" else with_vllm
    result = run(options.folders[0], records, options)
    options.one.write_text(json.dumps(result))


def with_vllm(folder: Path, records: list, options: argparse.Namespace) -> dict:
    from clefq.clef.encoding import EncodeSpec
    from clefq.serving import Clef, ServeSettings
    from clefq.serving.arithmetic import executed

    settings = ServeSettings(
        max_length=options.max_length,
        max_images=options.max_images,
        step_tokens=options.step_tokens,
        gdn_backend=options.gdn,
        gpu_memory=options.gpu_memory,
        eager=options.eager,
    )
    started = time.perf_counter()
    clef = Clef(folder, settings, quiet=not options.verbose)
    load = time.perf_counter() - started
    spec = EncodeSpec(options.max_length)
    prompts = [clef.prompt(r, clef.load_images(r, options.set), spec) for r in records]
    clef.runtime.score(prompts[:4])  # compile kernels before anything is timed
    head = time_head()
    best = None
    for _ in range(options.repeat):
        head[0] = 0.0
        started = time.perf_counter()
        results = list(clef.answered(prompts))
        seconds = time.perf_counter() - started
        if best is None or seconds < best[0]:
            best = (seconds, head[0])
    lost = [r.id for r, a in zip(records, results, strict=True) if isinstance(a, str)]
    if lost:
        raise SystemExit(f"no answer for {len(lost)} records, first {lost[0]}")
    few = prompts[:16]
    alone = [next(iter(clef.answered([prompt]))) for prompt in few]
    turned = list(clef.answered(prompts[::-1]))[::-1]
    ran = executed(clef.runtime)
    return {
        "answers": named(records, [a.logits for a in results]),
        "what": f"{ran.arithmetic}/{ran.kernels}",
        "detail": ran.detail,
        "version": clef.runtime.version,
        "load": load,
        "seconds": best[0],
        "head": best[1],
        "tokens": sum(a.input_tokens for a in results),
        "alone": max_difference(alone, results[: len(few)]),
        "order": max_difference(turned, results),
    }


def use_native_model() -> None:
    """Lets vLLM choose its own Clef model, and speaks to it in its own layout."""
    from clefq.serving import runtime
    from clefq.serving.layout import LAYOUT_KEY

    ours, arguments = runtime.schema_layout, runtime.engine_arguments

    def native_layout(encoded):
        body = ours(encoded)[LAYOUT_KEY]
        pairs = {
            name: list(zip(body[name][::2], body[name][1::2], strict=True))
            for name in ("question_spans", "option_spans")
        }
        native = {"question_types": body["types"], "option_counts": body["option_counts"], **pairs}
        return {"joint_schema": native}

    def native_arguments(*args, **options):
        chosen = arguments(*args, **options)
        del chosen["hf_overrides"]
        return chosen

    runtime.schema_layout = native_layout
    runtime.engine_arguments = native_arguments


def with_transformers(folder: Path, records: list, options: argparse.Namespace) -> dict:
    from clefq.engines.base import EngineSpec
    from clefq.engines.transformers_engine import TransformersEngine

    started = time.perf_counter()
    engine = TransformersEngine(folder, EngineSpec(max_length=options.max_length))
    load = time.perf_counter() - started
    started = time.perf_counter()
    results = [r for group in engine.predict(records, options.set) for r in group]
    seconds = time.perf_counter() - started
    by_id = {result.record_id: result for result in results}
    ordered = [by_id[record.id] for record in records]
    return {
        "answers": named(records, [r.logprobs for r in ordered]),
        "what": f"{engine.info.arithmetic}/{engine.info.kernels}",
        "detail": "",
        "version": engine.info.engine_version,
        "load": load,
        "seconds": seconds,
        "head": 0.0,
        "tokens": sum(result.input_tokens for result in results),
        "alone": 0.0,
        "order": 0.0,
    }


def time_head() -> list[float]:
    """Adds up the head's time; only where the engine runs in this process."""
    import torch

    from clefq.serving.pooler import JointHeadPooler

    spent = [0.0]
    original = JointHeadPooler._run
    wait = torch.cuda.synchronize if torch.cuda.is_available() else (lambda: None)

    def timed(self, finished, outputs):
        wait()
        started = time.perf_counter()
        original(self, finished, outputs)
        wait()
        spent[0] += time.perf_counter() - started

    JointHeadPooler._run = timed
    return spent


def named(records: list, logits: list) -> dict:
    return {
        record.id: {name: np.asarray(values, float).tolist() for name, values in one.items()}
        for record, one in zip(records, logits, strict=True)
    }


def max_difference(left: list, right: list) -> float:
    """Largest difference of a probability."""
    return max(
        float(np.abs(probabilities(a.logits[name]) - probabilities(b.logits[name])).max())
        for a, b in zip(left, right, strict=True)
        for name in a.logits
    )


def probabilities(logits: np.ndarray) -> np.ndarray:
    return np.exp(log_softmax(logits))


def compare(answers: dict, reference: dict) -> tuple[float, float, float]:
    """Agreement of the top options, mean KL(reference‖answers) and largest log-prob difference."""
    agreed, divergence, largest = [], [], 0.0
    for record, questions in answers.items():
        for name, logits in questions.items():
            if record not in reference:
                continue
            ours, theirs = log_softmax(logits), log_softmax(reference[record][name])
            agreed.append(np.argmax(ours) == np.argmax(theirs))
            divergence.append(float(np.sum(np.exp(theirs) * (theirs - ours))))
            largest = max(largest, float(np.abs(ours - theirs).max()))
    return float(np.mean(agreed)), float(np.mean(divergence)), largest


def log_softmax(values: list | np.ndarray) -> np.ndarray:
    shifted = np.asarray(values, float) - np.max(values)
    return shifted - np.log(np.exp(shifted).sum())


def row_of(name: str, result: dict, reference: dict, answers: dict) -> list[str]:
    records = len(result["answers"])
    row = [
        name,
        result["what"],
        f"{result['load']:.1f}",
        f"{records / result['seconds']:.1f}",
        f"{result['tokens'] / result['seconds'] / 1000:.1f}k",
        f"{result['head'] / result['seconds']:.1%}",
        f"{result['alone']:.4f}",
        f"{result['order']:.4f}",
    ]
    same = reference.get(name)
    row += "{:.1%} {:.1e} {:.3f}".format(*compare(result["answers"], same)).split() if same else []
    row += ["-"] * (11 - len(row))
    base = next((answers[key] for key in answers if key in ("bf16", "nano")), None)
    base = base or next(iter(answers.values()))
    row += "{:.1%} {:.1e}".format(*compare(result["answers"], base)[:2]).split()
    return row


HEADER = [
    "checkpoint",
    "ran",
    "load_s",
    "rec/s",
    "tok/s",
    "head",
    "alone",
    "order",
    "agree",
    "KL",
    "max|dlogp|",
    "vs_bf16",
    "KL_bf16",
]


def print_table(rows: list[list[str]]) -> None:
    full = [HEADER, *[row for row in rows if row[1] != "FAILED"]]
    widths = [max(len(row[column]) for row in full) for column in range(len(HEADER))]
    for row in full:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)))
    for row in rows:
        if row[1] == "FAILED":
            print(*row)
    print(flush=True)


if __name__ == "__main__":
    main()
