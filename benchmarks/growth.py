"""Time and memory as the work grows: exponents, not only points.

    python benchmarks/growth.py [NAME ...] [--points] [--scale 0.25]

Each series doubles one size five times. A point is a process of its own (forked, so that libraries
are imported once): CPU seconds of the work (the least of three runs where they are short), and
its highest resident memory above what was resident before. The first point holds what does not
grow; it is taken off, in cost and in size, and the others are fitted: extra cost ∝ (extra size)^k,
with the standard error of k; "last" is k between the two largest. Expected of everything is k = 1,
but for the memory of `quantize`, which should not grow at all.
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from clefq.bench.growth import exponent
from clefq.bench.timing import peak_memory
from clefq.clef.encoding import Encoded, EncodedQuestion, EncodeSpec, PromptTokenizer, encode_record
from clefq.clef.records import Question, Record
from clefq.nano import WEIGHTS

WORDS = ("card", "payment", "transfer", "account", "balance", "pending", "refund", "withdrawal")
NO_LIMIT = EncodeSpec(1 << 40)
Work = Callable[[], object]


@dataclass(frozen=True)
class Series:
    """One size that grows.

    Attributes:
        prepare: Size → the work, set up; what it needs is not measured.
        sizes: What is doubled.
        memory_grows: Whether memory is expected to grow.
    """

    prepare: Callable[[int], Work]
    sizes: tuple[int, ...]
    memory_grows: bool = True


def doubling(first: int) -> tuple[int, ...]:
    return tuple(first << step for step in range(6))


def words(draw: random.Random, count: int) -> str:
    return " ".join(draw.choice(WORDS) for _ in range(count))


def encoding(records: Callable[[int], list[Record]]) -> Callable[[int], Work]:
    def prepare(size: int) -> Work:
        made = records(size)

        def work() -> object:
            tokenizer = PromptTokenizer.from_folder(WEIGHTS)
            return [encode_record(tokenizer, record, NO_LIMIT) for record in made]

        return work

    return prepare


def short_records(count: int) -> list[Record]:
    draw = random.Random(0)
    questions = (Question("a", "noul", "Is it late?"), Question("b", "score", None, ["1", "2"]))
    return [Record(f"r{i}", "c", words(draw, 300), questions) for i in range(count)]


def long_state(tokens: int) -> list[Record]:
    return [Record("r", "c", words(random.Random(0), tokens), (Question("a", "noul"),))]


def many_questions(count: int) -> list[Record]:
    draw = random.Random(0)
    questions = tuple(
        Question(f"q{i}", "choice", words(draw, 9), {f"{i}-{o}": words(draw, 4) for o in range(4)})
        for i in range(count)
    )
    return [Record("r", "c", "state", questions)]


def many_options(count: int) -> list[Record]:
    draw = random.Random(0)
    criteria = {f"option-{o}": words(draw, 6) for o in range(count)}
    return [Record("r", "c", "state", (Question("q", "choice", "Which?", criteria),))]


def head(prompts: Callable[[int], list[Encoded]]) -> Callable[[int], Work]:
    def prepare(size: int) -> Work:
        import torch

        from clefq.clef.head import HeadBatch, HeadConfig, JointHead

        torch.manual_seed(0)
        # half of the real head's width over a small hidden size: attention and memory dominate
        model = JointHead(HeadConfig(256, 256, 2, 4, 8, 1024)).eval()
        encoded = prompts(size)
        hidden = torch.randn(sum(len(one.token_ids) for one in encoded), 256)
        table = torch.randn(VOCABULARY, 256)

        def work() -> object:
            with torch.inference_mode():
                batch = HeadBatch.build(encoded, "cpu")
                return model(hidden, batch, table[batch.option_token_ids])

        return work

    return prepare


VOCABULARY = 1000


def prompt(length: int, options: list[int]) -> Encoded:
    """Random tokens with questions near the end, twelve tokens each piece."""
    draw = random.Random(length)
    tokens = tuple(draw.randrange(VOCABULARY) for _ in range(length))
    at = length - sum(12 * (1 + count) for count in options) - 4
    assert at > 0
    questions = []
    for number, count in enumerate(options):
        spans = tuple((at + 12 * (1 + m), at + 12 * (2 + m)) for m in range(count))
        ids = tuple(map(str, range(count)))
        questions.append(EncodedQuestion(f"q{number}", 1, (at, at + 12), ids, spans))
        at += 12 * (1 + count)
    return Encoded("r", tokens, tuple(questions))


def quantize_layers(layers: int) -> Work:
    """`clefq quantize --scheme fp8` of layers of one shape, streaming, with its audit."""
    import random_clef
    import torch

    from clefq.console import Console
    from clefq.quantize.run import QuantizeSpec, quantize

    folder = SCRATCH / f"layers-{layers}"
    options = argparse.Namespace(out=folder, like=WEIGHTS, shape="small", layers=layers)
    folder.mkdir()
    for path in WEIGHTS.iterdir():
        if path.is_file() and not path.name.startswith("model"):
            shutil.copy(path, folder / path.name)
    generator = torch.Generator("cpu").manual_seed(0)
    random_clef.SHARD_BYTES = 64 << 20
    random_clef.write_backbone(folder, random_clef.config_of(options), generator)
    random_clef.write_head(folder, random_clef.HEADS["small"], generator)
    out = folder / "out"

    def work() -> object:
        shutil.rmtree(out, ignore_errors=True)
        return quantize(QuantizeSpec(str(folder), "fp8"), out, Console(quiet=True))

    return work


def parity_records(records: int) -> Work:
    """`clefq parity` of two files, two questions a record, slices and reports included."""
    from dataclasses import replace

    from bootstrap import frame

    from clefq.console import Console
    from clefq.parity.comparison import SetJob, judge_set, load_spec
    from clefq.store.predictions import write_predictions
    from tests.parity.factory import META

    folder = SCRATCH / f"parity-{records}"
    folder.mkdir()
    for seed, variant in enumerate(("bf16", "nvfp4")):
        write_predictions(
            folder / f"{variant}.parquet", frame(2 * records, seed), replace(META, variant=variant)
        )
    job = SetJob(folder / "bf16.parquet", (folder / "nvfp4.parquet",), folder / "report")
    return lambda: judge_set(job, load_spec("release"), Console(quiet=True))


def build_records(records: int) -> Work:
    """`clefq build` of a user's table: read, search for duplicates, sample, write, count."""
    from clefq.console import Console
    from clefq.data.build import BuildSpec, build_set
    from clefq.data.definition import load_definition

    folder = SCRATCH / f"build-{records}"
    folder.mkdir()
    draw = random.Random(0)
    vocabulary = [f"w{number}" for number in range(5000)]
    with (folder / "rows.jsonl").open("w") as file:
        for number in range(records):
            text = " ".join(draw.choice(vocabulary) for _ in range(60))
            row = {"text": text, "team": draw.choice("abc"), "n": number}
            file.write(json.dumps(row) + "\n")
    (folder / "d.yaml").write_text(
        "schema_version: 1\nname: grown\nrole: eval\ndescription: Grown.\nseed: s\n"
        "sources:\n  - source: user\n    options:\n      file: rows.jsonl\n      state: text\n"
        "      questions: {team: {type: choice, instructions: Which, gold: team,\n"
        "        criteria: {a: null, b: null, c: null}}}\n"
    )
    definition = load_definition(folder / "d.yaml", "eval")

    def work() -> object:
        shutil.rmtree(folder / "set", ignore_errors=True)
        spec = BuildSpec(definition, folder, folder / "set", tokenizer=WEIGHTS)
        return build_set(spec, Console(quiet=True))

    return work


SERIES = {
    "encoding, records": Series(encoding(short_records), doubling(100)),
    "encoding, tokens": Series(encoding(long_state), doubling(16_000)),
    "encoding, questions": Series(encoding(many_questions), doubling(64)),
    "encoding, options": Series(encoding(many_options), doubling(256)),
    "head, records": Series(head(lambda n: [prompt(512, [4, 2])] * n), doubling(8)),
    "head, tokens": Series(head(lambda n: [prompt(n, [4, 2])]), doubling(4096)),
    "head, questions": Series(head(lambda n: [prompt(16_384, [3] * n)]), doubling(8)),
    "head, options": Series(head(lambda n: [prompt(16_384, [n])]), doubling(32)),
    "quantize, layers": Series(quantize_layers, doubling(4), memory_grows=False),
    "parity, records": Series(parity_records, doubling(1000)),
    "build, records": Series(build_records, doubling(1000)),
}
SCRATCH = Path()


def measure(series: Series, size: int) -> tuple[float, int]:
    """CPU seconds and bytes of one point, in a process of its own."""
    context = multiprocessing.get_context("fork")
    receive, send = context.Pipe(duplex=False)
    child = context.Process(target=_point, args=(series, size, send))
    child.start()
    found = receive.recv() if receive.poll(900) else None
    child.join()
    if child.exitcode or found is None:
        raise SystemExit(f"size {size} ended with exit code {child.exitcode}")
    return found


def _point(series: Series, size: int, send: Any) -> None:
    work = series.prepare(size)
    gc.collect()
    # the kernel forgets the peak of the preparation
    Path("/proc/self/clear_refs").write_text("5")
    before = peak_memory()
    first = _cpu(work)
    peak = peak_memory() - before
    rest = [_cpu(work) for _ in range(2)] if first < 2 else []
    send.send((min([first, *rest]), max(peak, 1)))


def _cpu(work: Work) -> float:
    started = time.process_time()
    kept = work()
    seconds = time.process_time() - started
    del kept
    gc.collect()
    return seconds


@contextmanager
def scratch() -> Iterator[None]:
    global SCRATCH
    with tempfile.TemporaryDirectory(prefix="clefq-growth-") as folder:
        SCRATCH = Path(folder)
        yield


def import_libraries() -> None:
    """Once, before the first fork: imports are no part of any point."""
    import pandas  # noqa: F401
    import scipy.stats  # noqa: F401
    import torch
    import transformers  # noqa: F401

    import clefq.parity.comparison
    import clefq.quantize.run  # noqa: F401

    torch.set_num_threads(1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="; ".join(SERIES))
    parser.add_argument("--points", action="store_true", help="print every point")
    parser.add_argument("--scale", type=float, default=1.0, help="all sizes times this")
    options = parser.parse_args()
    names = [name for name in SERIES if not options.names or name in options.names]
    if unknown := set(options.names) - set(SERIES):
        parser.error(f"unknown: {', '.join(unknown)}")
    import_libraries()
    print("| work | sizes | CPU s | time ∝ | last | memory, MB | memory ∝ | last |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    for name in names:
        series = SERIES[name]
        sizes = [max(1, round(options.scale * size)) for size in series.sizes]
        with scratch():
            points = [measure(series, size) for size in sizes]
        if options.points:
            for size, (cpu, peak) in zip(sizes, points, strict=True):
                print(f"  {name}: {size:,}: {cpu:.3f} s, {peak / 1e6:.1f} MB", file=sys.stderr)
        seconds, peaks = [p[0] for p in points], [p[1] / 1e6 for p in points]
        grown = fitted(sizes, peaks) if series.memory_grows else "does not grow | "
        print(
            f"| {name} | {sizes[0]:,}–{sizes[-1]:,} | {seconds[0]:.2f}–{seconds[-1]:.2f} "
            f"| {fitted(sizes, seconds)} | {peaks[0]:.0f}–{peaks[-1]:.0f} | {grown} |",
            flush=True,
        )
        if not series.memory_grows and peaks[-1] > 1.2 * peaks[0]:
            raise SystemExit(f"{name}: memory grew from {peaks[0]:.0f} to {peaks[-1]:.0f} MB")


def fitted(sizes: list[int], costs: list[float]) -> str:
    """Exponent and last exponent of what came on top of the first point."""
    extra = [(size - sizes[0], cost - costs[0]) for size, cost in zip(sizes, costs, strict=True)]
    grown = [(size, cost) for size, cost in extra[1:] if cost > 0]
    if len(grown) < 3:
        return "within noise |"
    found = exponent(*zip(*grown, strict=True))
    return f"{found.value:.2f} ± {found.error:.2f} | {found.last:.2f}"


if __name__ == "__main__":
    main()
