"""One engine on one GPU, measured: throughput, latency, start-up, the head's share, a profile.

    # one model per process, one GPU per process (CUDA_VISIBLE_DEVICES)
    python benchmarks/gpu_engine.py run MODEL --engine vllm --json row.json --profile
    python benchmarks/gpu_engine.py run MODEL --engine native --json row.json
    python benchmarks/gpu_engine.py run MODEL --engine transformers --json row.json
    python benchmarks/gpu_engine.py run MODEL --engine release --json row.json \
        --release-code joint_schema_model.py
    # the table, ratios against the first row
    python benchmarks/gpu_engine.py table row.json …
    # many rows, one GPU each, within a time limit; the same command goes on where it ended
    python benchmarks/gpu_engine.py sweep PLAN --out rows --gpus 0 1 --limit 560

A plan has one row a line: NAME MODEL ENGINE [OPTIONS of run]. Its first row is the anchor: every
call measures it anew on each of its GPUs (1,000 tokens only), and the table's ratios are against
the anchor of a row's own call and GPU.

`native` is vLLM's own Clef (0.33 and newer), `release` the release's code under transformers.

The engines answer the same records, made by `clefq.bench.workload` (kinds: about 500 and 1,000
tokens, 77 options, 16,000 tokens, a 640-pixel image; four questions each but for the 77 options).
Throughput is that of the fastest of three passes over records that were encoded beforehand.
"Without head" runs the same prompts with the joint head exchanged for zeros, in turns with the
real one. Steps of other sizes are the same engine with its scheduler held to fewer tokens.
Needs clefq importable, numpy, and the engine; no more.
"""

from __future__ import annotations

import argparse
import cProfile
import importlib.util
import json
import os
import pstats
import re
import shlex
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(REPOSITORY), str(REPOSITORY / "benchmarks")]

COUNTS = {"1000": 64, "500": 128, "options-77": 64, "16k": 4, "image-640": 16}
# Qwen3.5-9B: weights in matrix products per token, two operations each; bf16 rate as measured
FLOP_PER_TOKEN = 14e9
BF16_FLOPS = 790e12
# kernel name -> what it belongs to, first match; compiled kernels are named after all they fuse
CATEGORIES = {
    "quantize activations": r"^triton_.*scaled_mm|scaled_fp8_quant",
    "compiled elementwise": r"^triton_",
    "DeltaNet": r"chunk_|delta|l2norm|solve_tril|inverse_kernel|recompute_w_u|cumsum|post_conv",
    "head: products and attention in FP32": r"f32f32_|sgemm|fmha_cutlassF_f32",
    "attention": r"flash|fmha|attention|reshape_and_cache|rotary|mrope",
    "matrix products": r"gemm|nvjet|cutlass|matmul|marlin|wgmma|splitK|cublas",
    "convolution": r"conv1d",
    "copies and gathers": r"memcpy|memset|copy|gather|index|fill",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run")
    run.add_argument("model", type=Path)
    run.add_argument("--engine", default="vllm", choices=list(ENGINES))
    run.add_argument("--name", help="name of the row")
    run.add_argument("--json", type=Path, required=True)
    run.add_argument("--kinds", nargs="+", default=list(COUNTS), choices=list(COUNTS))
    run.add_argument("--fewer", type=int, default=1, help="divide the number of records by this")
    run.add_argument("--passes", type=int, default=3)
    run.add_argument("--single", type=int, default=30, help="records asked alone, for latency")
    run.add_argument("--step-tokens", type=int, default=8192)
    run.add_argument("--steps", nargs="*", type=int, default=[], help="smaller steps to compare")
    run.add_argument("--max-images", type=int, default=1)
    run.add_argument("--gdn", default="triton", choices=["auto", "triton", "flashinfer"])
    run.add_argument("--eager", action="store_true")
    run.add_argument("--four-bit", default="auto", help="how NVFP4 layers run; see ServeSettings")
    run.add_argument("--engine-args", type=json.loads, default={}, help="more of vLLM's, as JSON")
    run.add_argument("--variants", nargs="+", default=[], choices=list(VARIANTS))
    run.add_argument("--profile", action="store_true")
    run.add_argument("--profile-alone", action="store_true", help="where a single record's ms go")
    run.add_argument("--no-head", action="store_true", help="also without the head")
    run.add_argument("--answers", type=Path, help="write the logits of 32 records as JSON")
    run.add_argument("--release-code", type=Path)
    run.add_argument("--verbose", action="store_true")
    sweep_ = commands.add_parser("sweep")
    sweep_.add_argument("plan", type=Path)
    sweep_.add_argument("--out", type=Path, required=True)
    sweep_.add_argument("--gpus", nargs="+", default=["0"])
    sweep_.add_argument("--limit", type=float, default=560, help="seconds that this call may take")
    sweep_.add_argument("--least", type=float, default=90, help="seconds that a row needs")
    table = commands.add_parser("table")
    table.add_argument("rows", nargs="+", type=Path)
    options = parser.parse_args()
    if options.command == "table":
        print_table([json.loads(path.read_text()) for path in options.rows])
        return
    if options.command == "sweep":
        sweep(options)
        return
    row = measure(options)
    options.json.write_text(json.dumps(row, indent=1))
    print(json.dumps({key: value for key, value in row.items() if key != "profile"}))
    sys.stdout.flush()
    os._exit(0)  # an engine's threads need not be waited for


def sweep(options: argparse.Namespace) -> None:
    """Measures the rows of a plan that are not there yet, GPUs side by side."""
    ends = time.monotonic() + options.limit
    options.out.mkdir(parents=True, exist_ok=True)
    lines = [shlex.split(line, comments=True) for line in options.plan.read_text().splitlines()]
    rows = [words for words in lines if words]
    pending: SimpleQueue[list[str]] = SimpleQueue()
    for words in rows[1:]:
        if not (options.out / f"{words[0]}.json").is_file():
            pending.put(words)

    def lane(gpu: str) -> None:
        name, *rest = rows[0]
        anchor = run_row([f"{name}-anchor-{gpu}", *rest, "--kinds", "1000"], gpu, options, ends)
        if anchor is None:
            return
        while ends - time.monotonic() > options.least:
            try:
                words = pending.get_nowait()
            except Empty:
                return
            row = run_row(words, gpu, options, ends)
            if row is not None:
                row["anchor"] = anchor["kinds"]["1000"]
                (options.out / f"{words[0]}.json").write_text(json.dumps(row, indent=1))

    threads = [threading.Thread(target=lane, args=(gpu,)) for gpu in options.gpus]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    left = [w[0] for w in rows[1:] if not (options.out / f"{w[0]}.json").is_file()]
    print(f"left: {', '.join(left) or 'nothing'}", flush=True)


def run_row(words: list[str], gpu: str, options: argparse.Namespace, ends: float) -> dict | None:
    """One row in a process of its own; None where it failed or ran out of time."""
    name, model, engine, *more = words
    part, log = options.out / f"{name}.part", options.out / f"{name}.log"
    command = [sys.executable, __file__, "run", model, "--engine", engine, "--name", name]
    command += ["--json", str(part), *more]
    started = time.monotonic()
    with log.open("w") as output:
        child = subprocess.Popen(
            command,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "CUDA_VISIBLE_DEVICES": gpu},
        )
        try:
            code = child.wait(max(1.0, ends - time.monotonic()))
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
            code = -1
    took = time.monotonic() - started
    said = log.read_text().strip().splitlines()[-1:] if code else []
    print(f"{name}: {'done' if not code else 'FAILED'} in {took:.0f} s", *said, flush=True)
    if code or not part.is_file():
        return None
    row: dict = json.loads(part.read_text())
    part.unlink()
    return row


def measure(options: argparse.Namespace) -> dict:
    from clefq.bench import workload
    from clefq.clef.tokenizer import PromptTokenizer

    tokenizer = PromptTokenizer.from_folder(options.model)
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        sets = {}
        for kind in options.kinds:
            count = max(2, COUNTS[kind] // options.fewer)
            sets[kind] = workload.records(tokenizer, [kind], count)
            workload.write_images(sets[kind], root)
        started = time.perf_counter()
        engine = ENGINES[options.engine](options, root)
        row: dict[str, Any] = {
            "name": options.name or f"{options.engine} {options.model.name}",
            "engine": options.engine,
            "started": time.perf_counter() - started,
            "disk": sum(p.stat().st_size for p in options.model.glob("*.safetensors")),
            "kinds": {},
        }
        row |= engine.facts()
        save = lambda: options.json.write_text(json.dumps(row, indent=1))  # noqa: E731
        for kind, records in sets.items():
            row["kinds"][kind] = throughput(engine, records, options)
            save()
        if options.answers:
            options.answers.write_text(json.dumps(engine.answers(sets[options.kinds[0]][:32])))
        for kind in options.kinds[:2]:
            row["kinds"][kind]["alone"] = latency(engine, sets[kind][: options.single])
            save()
        for step in options.steps:
            engine.limit_step(step)
            row["kinds"][options.kinds[0]][f"step {step}"] = throughput(
                engine, sets[options.kinds[0]], options, head=False
            )
        if options.steps:
            engine.limit_step(options.step_tokens)
        if options.variants:
            row["variants"] = variants(engine, sets[options.kinds[0]], options)
            save()
        if options.profile and cuda():
            row["profile"] = profile(engine, engine.prepare(sets[options.kinds[0]]))
            save()
        if options.profile_alone and cuda():
            row["alone"] = {
                kind: profile_alone(engine, sets[kind][: options.single])
                for kind in options.kinds[:2]
            }
        return row


def throughput(engine: Any, records: list, options: argparse.Namespace, *, head=True) -> dict:
    from clefq.bench.timing import take_turns

    ready = engine.prepare(records)
    engine.run(ready)  # compiles what is not compiled yet
    works: dict[str, Callable[[], Any]] = {"run": lambda: engine.run(ready)}
    if head and options.no_head:
        works["no head"] = lambda: engine.without_head(ready)
    turns = take_turns(works, options.passes)
    tokens = turns["run"].result
    result = {
        "records": len(records),
        "tokens": tokens,
        "seconds": turns["run"].best,
        "all_seconds": turns["run"].seconds,
    }
    if "no head" in turns:
        result["without_head"] = turns["no head"].best
    return result


def latency(engine: Any, records: list) -> dict:
    from clefq.bench.timing import one_by_one, summary

    ready = [engine.prepare([record]) for record in records]
    seconds = summary(one_by_one(engine.run, ready))
    return {"count": seconds.count, "median": seconds.median, "p95": seconds.p95}


def variants(engine: Any, records: list, options: argparse.Namespace) -> dict:
    """The same engine with one kernel exchanged, in turns with the plain one.

    Seconds, latency, and how far the logits move.
    """
    from clefq.bench.timing import one_by_one, summary, take_turns

    ready = engine.prepare(records)
    single = [engine.prepare([record]) for record in records[: options.single]]

    def under(change: Callable[[Any], Any], work: Callable[[], Any]) -> Callable[[], Any]:
        def run() -> Any:
            with change(engine):
                return work()

        return run

    found: dict[str, Any] = {}
    plain = engine.flat(ready)
    again = engine.flat(ready[::-1])[::-1]
    found["plain"] = {"difference": largest(plain, again), "of": "itself, in another order"}
    works = {"plain": under(nullcontext, lambda: engine.run(ready))}
    for name in options.variants:
        try:
            other = under(VARIANTS[name], lambda: engine.flat(ready))()
        except Exception as error:
            found[name] = {"error": repr(error)[:500]}
            continue
        found[name] = {"difference": largest(plain, other), "mean": mean_shift(plain, other)}
        works[name] = under(VARIANTS[name], lambda: engine.run(ready))
    turns = take_turns(works, options.passes)
    for name, taken in turns.items():
        found[name] |= {"seconds": taken.best, "all_seconds": taken.seconds}
        change = VARIANTS.get(name, nullcontext)
        with change(engine):
            found[name]["alone"] = summary(one_by_one(engine.run, single)).median
    return found


def largest(left: list, right: list) -> float:
    return max(float(abs(a - b).max()) for a, b in zip(left, right, strict=True))


def mean_shift(left: list, right: list) -> float:
    return sum(float(abs(a - b).mean()) for a, b in zip(left, right, strict=True)) / len(left)


@contextmanager
def tril_precision(precision: str, engine: Any) -> Iterator[None]:
    """The 64 × 64 inverse of each DeltaNet chunk in TF32 products (vLLM's default: FP32)."""
    del engine
    modules = [m for name, m in sys.modules.items() if name.endswith(".ops.solve_tril")]
    before = [module.FLA_TRIL_PRECISION for module in modules]
    assert modules, "no solve_tril in this vLLM"
    for module in modules:
        module.FLA_TRIL_PRECISION = precision
    try:
        yield
    finally:
        for module, value in zip(modules, before, strict=True):
            module.FLA_TRIL_PRECISION = value


@contextmanager
def flashinfer_deltanet(engine: Any) -> Iterator[None]:
    """FlashInfer's DeltaNet prefill kernel instead of Triton's."""
    rules = engine.clef.runtime.apply_model(
        lambda model: [m for m in model.modules() if type(m).__name__ == "ChunkGatedDeltaRule"]
    )[0]
    before = [rule._forward_method for rule in rules]
    assert rules, "no ChunkGatedDeltaRule in this vLLM"
    for rule in rules:
        rule._forward_method = rule.forward_cuda
    try:
        yield
    finally:
        for rule, method in zip(rules, before, strict=True):
            rule._forward_method = method


VARIANTS: dict[str, Callable[[Any], Any]] = {
    "tril-tf32": partial(tril_precision, "tf32"),
    "tril-tf32x3": partial(tril_precision, "tf32x3"),
    "flashinfer": flashinfer_deltanet,
}


def profile_alone(engine: Any, records: list) -> dict:
    """A record at a time: milliseconds of wall time, of kernels, and of the host's functions."""
    import torch

    ready = [engine.prepare([record]) for record in records]
    engine.run(ready[0])
    gpu = profile(engine, ready[0])
    torch.cuda.synchronize()
    watch = cProfile.Profile()
    started = time.perf_counter()
    watch.enable()
    for one in ready:
        engine.run(one)
    watch.disable()
    seconds = time.perf_counter() - started
    functions = []
    for (file, line, name), (_, calls, own, total, _) in pstats.Stats(watch).stats.items():
        where = "/".join(file.split("/")[-2:])
        functions.append((total, own, calls, f"{where}:{line} {name}"))

    def rows(key: int) -> list:
        ordered = sorted(functions, key=lambda f: -f[key])[:70]
        n = len(ready)
        return [
            [round(f[0] / n * 1e3, 3), round(f[1] / n * 1e3, 3), f[2] / n, f[3]] for f in ordered
        ]

    return {
        "gpu": gpu,
        "watched_ms": seconds / len(ready) * 1e3,
        "by_total": rows(0),
        "by_own": rows(1),
        "columns": ["total ms", "own ms", "calls", "function"],
    }


def profile(engine: Any, ready: list) -> dict:
    """Where one pass spends the GPU's time, by kernel; the rest of the wall time it is idle."""
    import torch
    from torch.profiler import ProfilerActivity

    engine.run(ready)
    torch.cuda.synchronize()
    started = time.perf_counter()
    with torch.profiler.profile(activities=[ProfilerActivity.CUDA]) as taken:
        engine.run(ready)
        torch.cuda.synchronize()
        seconds = time.perf_counter() - started
    kernels: Counter[str] = Counter()
    calls: Counter[str] = Counter()
    spans = []
    for event in taken.events():
        if "cuda" in str(event.device_type).lower():
            kernels[event.name] += event.time_range.elapsed_us()
            calls[event.name] += 1
            spans.append((event.time_range.start, event.time_range.end))
    categories: Counter[str] = Counter()
    for name, spent in kernels.items():
        found = (c for c, pattern in CATEGORIES.items() if re.search(pattern, name, re.I))
        categories[next(found, "other")] += spent
    return {
        "seconds": seconds,
        "busy_seconds": sum(kernels.values()) / 1e6,
        "longest_gaps_ms": gaps(spans),
        "categories": {name: us / 1e6 for name, us in categories.most_common()},
        "kernels": [
            [name[:140], round(us / 1e3, 3), calls[name]] for name, us in kernels.most_common(60)
        ],
    }


def gaps(spans: list[tuple[float, float]]) -> dict:
    """Idle times of the GPU between kernels: their sum by length."""
    spans.sort()
    idle: Counter[str] = Counter()
    longest = []
    end = spans[0][1] if spans else 0.0
    for start, stop in spans:
        if start > end:
            gap = start - end
            longest.append(gap)
            idle["<10 us" if gap < 10 else "<100 us" if gap < 100 else ">=100 us"] += gap / 1e3
        end = max(end, stop)
    return {**idle, "longest": [round(gap / 1e3, 3) for gap in sorted(longest)[-8:]]}


def cuda() -> bool:
    import torch

    return bool(torch.cuda.is_available())


class Vllm:
    """Our plugin, or with `native` vLLM's own Clef, through the same offline engine."""

    def __init__(self, options: argparse.Namespace, root: Path) -> None:
        from clefq.serving import Clef, ServeSettings

        if options.engine == "native":
            from gpu_smoke import use_native_model

            use_native_model()
        self.root = root
        settings = ServeSettings(
            max_images=options.max_images,
            step_tokens=options.step_tokens,
            gdn_backend=options.gdn,
            eager=options.eager,
            four_bit=options.four_bit,
        )
        if options.engine_args:
            from clefq.serving import runtime

            arguments = runtime.engine_arguments
            runtime.engine_arguments = lambda *a, **k: arguments(*a, **k) | options.engine_args
        self.headless = no_native_head if options.engine == "native" else no_head
        self.clef = Clef(options.model, settings, quiet=not options.verbose)

    def facts(self) -> dict:
        from clefq.serving.arithmetic import executed

        ran = executed(self.clef.runtime)
        return {
            "version": f"vLLM {self.clef.runtime.version}",
            "arithmetic": ran.arithmetic,
            "kernels": ran.kernels,
            "layers": ran.detail,
            "device": self.clef.runtime.device,
            "weights": self.clef.runtime.apply_model(weight_bytes)[0],
        }

    def prepare(self, records: list) -> list:
        from clefq.clef.encoding import EncodeSpec

        spec = EncodeSpec(self.clef.settings.max_length)
        return [self.clef.prompt(r, self.clef.load_images(r, self.root), spec) for r in records]

    def run(self, prompts: list) -> int:
        scored = self.clef.runtime.score(prompts)
        if any(not one.flat.size for one in scored):
            raise SystemExit("a prompt was not answered")
        return sum(one.input_tokens for one in scored)

    def flat(self, prompts: list) -> list:
        """The logits of each prompt."""
        return [one.flat for one in self.clef.runtime.score(prompts)]

    def without_head(self, prompts: list) -> int:
        with self.headless():
            return self.run(prompts)

    def limit_step(self, tokens: int) -> None:
        core = self.clef.runtime._llm.llm_engine.engine_core.engine_core
        core.scheduler.max_num_scheduled_tokens = tokens

    def answers(self, records: list) -> dict:
        results = self.clef.answered(self.prepare(records))
        return {
            record.id: {name: values.tolist() for name, values in one.logits.items()}
            for record, one in zip(records, results, strict=True)
        }


@contextmanager
def no_head() -> Iterator[None]:
    """Zeros for our head's logits."""
    from clefq.serving.pooler import JointHeadPooler

    original = JointHeadPooler._run

    def zeros(self: Any, finished: Any, outputs: list) -> None:
        for one in finished:
            count = sum(len(q.option_spans) for q in one.encoded.questions)
            outputs[one.index] = one.hidden.new_zeros(count)

    JointHeadPooler._run = zeros
    try:
        yield
    finally:
        JointHeadPooler._run = original


@contextmanager
def no_native_head() -> Iterator[None]:
    """Zeros for the logits of vLLM's own head; it still prepares its indices."""
    head = sys.modules["vllm.model_executor.models.clef_joint_schema"].JointSchemaHead
    original = head.forward
    head.forward = lambda self, hidden, lexical, schema: hidden.new_zeros(lexical.shape[0])
    try:
        yield
    finally:
        head.forward = original


def weight_bytes(model: Any) -> int:
    seen = {p.data_ptr(): p.numel() * p.element_size() for p in model.parameters()}
    return sum(seen.values())


class Transformers:
    """Our engine on transformers, batched."""

    def __init__(self, options: argparse.Namespace, root: Path) -> None:
        from clefq.engines.base import EngineSpec
        from clefq.engines.transformers_engine import TransformersEngine

        self.root = root
        self.engine = TransformersEngine(options.model, EngineSpec())

    def facts(self) -> dict:
        info = self.engine.info
        return {
            "version": f"transformers {info.engine_version}",
            "arithmetic": info.arithmetic,
            "kernels": info.kernels,
            "device": info.device,
        }

    def prepare(self, records: list) -> list:
        return records

    def run(self, records: list) -> int:
        groups = self.engine.predict(records, self.root)
        return sum(result.input_tokens for group in groups for result in group)

    def answers(self, records: list) -> dict:
        results = [r for group in self.engine.predict(records, self.root) for r in group]
        return {
            r.record_id: {name: list(map(float, v)) for name, v in r.logprobs.items()}
            for r in results
        }


class Release:
    """The release's own code under transformers, one record at a time."""

    def __init__(self, options: argparse.Namespace, root: Path) -> None:
        spec = importlib.util.spec_from_file_location("joint_schema_model", options.release_code)
        self.code: Any = importlib.util.module_from_spec(spec)
        sys.modules["joint_schema_model"] = self.code
        spec.loader.exec_module(self.code)
        import torch

        device = "cuda" if torch.cuda.is_available() else "cpu"
        self.root = root
        self.model, self.processor = self.code.load_release_model(str(options.model), device=device)

    def facts(self) -> dict:
        import torch
        import transformers

        name = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
        return {
            "version": f"transformers {transformers.__version__}",
            "arithmetic": "bf16",
            "kernels": "real",
            "device": name,
        }

    def prepare(self, records: list) -> list:
        from clefq.clef.records import record_to_json

        bodies = []
        for record in records:
            body = record_to_json(record)
            images = [str(self.root / name) for name in record.images]
            bodies.append(
                {"model": "clef", "state": body["state"], "questions": body["questions"]}
                | ({"images": images} if images else {})
            )
        return bodies

    def run(self, bodies: list) -> int:
        answers = [self.code.systemone(self.model, self.processor, body) for body in bodies]
        return sum(answer["usage"]["input_tokens"] for answer in answers)


ENGINES: dict[str, Any] = {
    "vllm": Vllm,
    "native": Vllm,
    "transformers": Transformers,
    "release": Release,
}


def print_table(rows: list[dict]) -> None:
    print(
        "| engine | ran | start s | weights GB | disk GB | kind | rec/s | ratio | tok/s "
        "| of limit | head | alone ms (p95) |"
    )
    print("|---" * 12 + "|")
    base = rows[0]["kinds"]
    for row in rows:
        for kind, found in row["kinds"].items():
            rate = found["records"] / found["seconds"]
            tokens = found["tokens"] / found["seconds"]
            first = row.get("anchor") if kind == "1000" else None
            first = first or base.get(kind)
            ratio = rate / (first["records"] / first["seconds"]) if first else float("nan")
            rated = BF16_FLOPS * (2 if row.get("arithmetic") == "w8a8" else 1)
            head = "–"
            if "without_head" in found:
                head = f"{1 - found['without_head'] / found['seconds']:.1%}"
            alone = found.get("alone")
            alone = f"{alone['median'] * 1e3:.1f} ({alone['p95'] * 1e3:.1f})" if alone else "–"
            print(
                f"| {row['name']} ({row.get('version', '')}) | {row.get('arithmetic')} "
                f"| {row['started']:.0f} | {row.get('weights', 0) / 1e9:.1f} "
                f"| {row['disk'] / 1e9:.1f} | {kind} | {rate:.1f} | {ratio:.2f} "
                f"| {tokens / 1e3:.1f}k | {tokens * FLOP_PER_TOKEN / rated:.0%} | {head} "
                f"| {alone} |"
            )
            for step in (key for key in found if key.startswith("step ")):
                rate = found[step]["records"] / found[step]["seconds"]
                print(f"|  |  |  |  |  | {kind}, {step} | {rate:.1f} |")
        for part, seconds in row.get("profile", {}).get("categories", {}).items():
            share = seconds / row["profile"]["seconds"]
            print(f"    {row['name']}: {part} {seconds * 1e3:.0f} ms, {share:.1%} of the pass")
        if "profile" in row:
            taken = row["profile"]
            print(
                f"    {row['name']}: GPU busy {taken['busy_seconds']:.3f} of {taken['seconds']:.3f}"
                f" s, gaps ms {taken['longest_gaps_ms']}"
            )


if __name__ == "__main__":
    main()
