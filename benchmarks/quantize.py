"""Time and memory of clefq's streaming method, llm-compressor's model_free_ptq and oneshot.

    python benchmarks/quantize.py [--layers 2] [--schemes fp8 nvfp4a16] [--folder DIR]

Every method quantizes the same random layers of clef-flash's dimensions (about 0.44 GB each),
in a process of its own, one after another. Time is that of the work, after the libraries are
imported (which takes each method a few seconds); memory is the process's highest resident size,
of which the imported libraries are about 0.5 GB.
Ratios belong to one run on one machine: compare within a table, not between tables.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

METHODS = ("clefq quantize", "of it: streaming", "model_free_ptq", "oneshot")
SCHEMES = {"fp8": "FP8_DYNAMIC", "nvfp4a16": "NVFP4A16"}
# model_free_ptq goes by tensor names: what is no Linear must be named as well
IGNORE = [
    "re:.*lm_head$",
    "re:.*visual.*",
    r"re:.*linear_attn\.in_proj_[ab]$",
    "re:.*conv1d$",
    "re:.*embed_tokens$",
    "re:.*norm$",
]
_WEIGHTS = "model.safetensors"


@dataclass(frozen=True)
class Measured:
    """One run: seconds, CPU seconds and bytes of memory, for bytes of source."""

    method: str
    scheme: str
    seconds: float
    cpu: float
    memory: int
    source: int


def build(folder: Path, layers: int) -> int:
    """Writes random layers in clef-flash's dimensions; returns the bytes of their tensors."""
    import torch
    from clef_finetune import tiny
    from clef_finetune.jsm import load_jsm
    from safetensors.torch import save_file
    from transformers import Qwen3_5ForConditionalGeneration

    tokenizer = tiny._tokenizer(512)
    config = tiny.tiny_config(tokenizer, 512)
    text = config.text_config
    text.hidden_size, text.intermediate_size, text.num_hidden_layers = 4096, 12288, layers
    text.num_attention_heads, text.num_key_value_heads, text.head_dim = 16, 4, 256
    text.linear_key_head_dim = text.linear_value_head_dim = 128
    text.linear_num_key_heads, text.linear_num_value_heads = 16, 32
    text.layer_types = ["linear_attention", "full_attention"] * (layers // 2)
    text.layer_types += ["linear_attention"] * (layers % 2)
    config.vision_config.out_hidden_size = 4096
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    model = Qwen3_5ForConditionalGeneration(config)
    model.save_pretrained(folder)
    head = dict(tiny.TINY_HEAD, hidden_size=4096)
    weights = load_jsm().JointSchemaHead(**head).state_dict()
    save_file({k: v.contiguous() for k, v in weights.items()}, folder / "joint_head.safetensors")
    (folder / "joint_head_config.json").write_text(json.dumps(head))
    tokenizer.save_pretrained(folder)
    # the audit asks for one where there is a vision tower
    processor = {"image_processor": {"image_processor_type": "Qwen2VLImageProcessor"}}
    (folder / "processor_config.json").write_text(json.dumps(processor))
    return sum(value.nbytes for value in model.state_dict().values())


def work(method: str, scheme: str, source: Path, out: Path) -> None:
    """Runs one method in this process."""
    if method == "clefq quantize":
        from clefq.console import Console
        from clefq.quantize.run import QuantizeSpec, quantize

        quantize(QuantizeSpec(str(source), scheme), out, Console(quiet=True))
    elif method == "of it: streaming":
        stream(scheme, source, out)
    elif method == "model_free_ptq":
        from llmcompressor import model_free_ptq

        # it takes the joint head for a shard: give it a folder without one
        bare = out.with_name("bare")
        bare.mkdir()
        for path in source.iterdir():
            if "joint_head" not in path.name:
                (bare / path.name).symlink_to(path.resolve())
        workers = len(os.sched_getaffinity(0))
        model_free_ptq(
            bare, out, scheme=SCHEMES[scheme], ignore=IGNORE, max_workers=workers, device="cpu"
        )
    else:
        from clefq.quantize.oneshot_worker import OneshotJob, run_job
        from clefq.quantize.recipes import bundled_recipe

        recipe = out.with_name("recipe.yaml")
        recipe.write_text(bundled_recipe(scheme, 2).text)
        run_job(OneshotJob(str(source), str(recipe), str(out)))


def stream(scheme: str, source: Path, out: Path) -> None:
    """The streaming step of `clefq quantize` alone, without the audit and the hashes."""
    from clefq.console import Console
    from clefq.quantize import run
    from clefq.quantize.layout import plan_shards, plan_units, write_shards
    from clefq.quantize.stream import one_thread_per_worker
    from clefq.quantize.workers import default_workers

    ready = run.prepare(run.QuantizeSpec(str(source), scheme), Console(quiet=True))
    outputs, write_unit = run._stream(ready)
    out.mkdir()
    with one_thread_per_worker():
        shards = plan_shards(plan_units(ready.tensors, outputs))
        write_shards(out, shards, write_unit, default_workers(), lambda count: None)


def measure(method: str, scheme: str, source: Path, size: int) -> Measured:
    """Runs one method in a process of its own and reads the kernel's account of it."""
    scratch = source.with_name("scratch")
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    command = [sys.executable, __file__, "--work", method, scheme, str(source), str(scratch / "o")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    output, errors = process.communicate()
    if process.returncode:
        raise SystemExit(f"{method} {scheme} failed:\n{errors.decode()[-3000:]}")
    seconds, cpu, memory = json.loads(output.splitlines()[-1])
    shutil.rmtree(scratch)
    return Measured(method, scheme, seconds, cpu, memory, size)


def timed(method: str, scheme: str, source: Path, out: Path) -> None:
    """Runs one method and prints seconds, CPU seconds and bytes as JSON."""
    import llmcompressor  # noqa: F401
    import transformers  # noqa: F401
    from llmcompressor.entrypoints.oneshot import oneshot  # noqa: F401

    started, cpu = time.monotonic(), time.process_time()
    work(method, scheme, source, out)
    seconds, cpu = time.monotonic() - started, time.process_time() - cpu
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print("\n" + json.dumps([seconds, cpu, memory]))


def table(rows: list[Measured]) -> str:
    """The measurements as a Markdown table, ratios against model_free_ptq."""
    lines = [
        "| scheme | method | s/GB | CPU s/GB | peak memory | time | CPU time | memory |",
        "|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    base = {row.scheme: row for row in rows if row.method == "model_free_ptq"}
    for row in rows:
        gigabytes = row.source / 1e9
        other = base[row.scheme]
        lines.append(
            f"| {row.scheme} | {row.method} | {row.seconds / gigabytes:.1f} "
            f"| {row.cpu / gigabytes:.1f} | {row.memory / 1e9:.2f} GB "
            f"| {row.seconds / other.seconds:.2f}× | {row.cpu / other.cpu:.2f}× "
            f"| {row.memory / other.memory:.2f}× |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--schemes", nargs="+", default=list(SCHEMES), choices=list(SCHEMES))
    parser.add_argument("--folder", type=Path, default=Path("build/bench-quantize"))
    parser.add_argument("--work", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        method, scheme, source, out = arguments.work
        timed(method, scheme, Path(source), Path(out))
        return
    source = arguments.folder / "source"
    shutil.rmtree(arguments.folder, ignore_errors=True)
    source.mkdir(parents=True)
    # in a process of its own: a child's peak memory begins with its parent's
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        size = pool.submit(build, source, arguments.layers).result()
    rows = []
    for scheme in arguments.schemes:
        for method in METHODS:
            rows.append(measure(method, scheme, source, size))
            print(f"{scheme} {method}: {rows[-1].cpu:.1f} CPU s", file=sys.stderr, flush=True)
    print(f"{size / 1e9:.2f} GB of BF16 tensors, {len(os.sched_getaffinity(0))} cores\n")
    print(table(rows))
    shutil.rmtree(arguments.folder)


if __name__ == "__main__":
    main()
