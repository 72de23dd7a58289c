"""Throughput of the transformers engine: tokens a second per checkpoint and batch size.

    python benchmarks/engine_speed.py CHECKPOINT [CHECKPOINT ...] --eval SET
        [--batch-tokens 1024 2048 4096 8192] [--threads 2] [--records 60]

Loading is not counted; the first batch is run once beforehand as warm-up.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from clefq.clef.records import Record
from clefq.engines.base import EngineSpec
from clefq.engines.transformers_engine import TransformersEngine
from clefq.store.sets import open_set


def measure(folder: Path, records: list[Record], root: Path, spec: EngineSpec) -> tuple[int, float]:
    engine = TransformersEngine(folder, spec)
    for _ in engine.predict(records[:4], root):
        pass
    started = time.perf_counter()
    tokens = sum(r.input_tokens for group in engine.predict(records, root) for r in group)
    return tokens, time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkpoints", nargs="+", type=Path)
    parser.add_argument("--eval", required=True, type=Path)
    parser.add_argument("--batch-tokens", nargs="+", type=int, default=[1024, 2048, 4096, 8192])
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--records", type=int, default=60)
    options = parser.parse_args()
    records = list(open_set(options.eval).records())[: options.records]
    print("| checkpoint | arithmetic | batch tokens | tokens | tokens/s |")
    print("|---|---|---:|---:|---:|")
    for folder in options.checkpoints:
        for batch in options.batch_tokens:
            spec = EngineSpec(batch_tokens=batch, threads=options.threads)
            engine_info = TransformersEngine(folder, spec).info
            tokens, seconds = measure(folder, records, options.eval, spec)
            row = (folder.name, engine_info.arithmetic, batch, f"{tokens:,}")
            print("|", " | ".join(map(str, row)), "|", f"{tokens / seconds:,.0f} |", flush=True)


if __name__ == "__main__":
    main()
