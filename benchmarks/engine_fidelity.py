"""How far the transformers engine's answers move: arithmetic, batching, and the release's code.

    python benchmarks/engine_fidelity.py CHECKPOINT --eval SET [--records 100] [--release]

Every row compares two ways to run the same checkpoint: largest difference of log-probabilities,
mean KL divergence (natural log) of the second from the first, and the share of questions with the
same decision. `--release` adds the release's own code in BF16 (needs clef-finetune and an
unquantized checkpoint).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from clefq.clef.records import Record, record_to_json
from clefq.engines.base import EngineSpec
from clefq.engines.transformers_engine import TransformersEngine
from clefq.store.sets import open_set

Answers = dict[tuple[str, str], np.ndarray]


def run(folder: Path, records: list[Record], root: Path, spec: EngineSpec) -> Answers:
    engine = TransformersEngine(folder, spec)
    return {
        (result.record_id, question): values
        for group in engine.predict(records, root)
        for result in group
        for question, values in result.logprobs.items()
    }


def release(folder: Path, records: list[Record]) -> Answers:
    import torch
    from clef_finetune.jsm import load_jsm
    from safetensors.torch import load_file
    from transformers import AutoTokenizer, Qwen3_5ForConditionalGeneration

    code = load_jsm()
    backbone = Qwen3_5ForConditionalGeneration.from_pretrained(folder, dtype=torch.bfloat16)
    head = code.JointSchemaHead(**json.loads((folder / "joint_head_config.json").read_text()))
    head.load_state_dict(load_file(folder / "joint_head.safetensors"))
    model = code.ClefModel(backbone, head.to(torch.bfloat16)).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    answers: Answers = {}
    with torch.inference_mode():
        for record in records:
            encoded = code.encode_record(tokenizer, record_to_json(record))
            batch = code.collate_records([encoded], 0, torch.device("cpu"))
            for question, logits in zip(encoded.questions, model(batch)[0], strict=True):
                values = torch.log_softmax(logits.double(), -1).numpy()
                answers[record.id, question.question_id] = values
    return answers


def row(name: str, first: Answers, second: Answers) -> str:
    pairs = [(first[key], second[key]) for key in first if key in second]
    worst = max(float(np.abs(a - b).max()) for a, b in pairs)
    kl = float(np.mean([(np.exp(a) * (a - b)).sum() for a, b in pairs]))
    same = float(np.mean([a.argmax() == b.argmax() for a, b in pairs]))
    return f"| {name} | {len(pairs)} | {worst:.2e} | {kl:.2e} | {same:.4f} |"


def rows(options: argparse.Namespace) -> Iterator[str]:
    records = [r for r in open_set(options.eval).records() if not r.images][: options.records]
    folder, root = options.checkpoint, options.eval
    usual = run(folder, records, root, EngineSpec())
    alone = run(folder, records, root, EngineSpec(batch_tokens=1))
    yield row("batched, then alone", usual, alone)
    yield row("batched, then 4,096-token batches", usual, run(
        folder, records, root, EngineSpec(batch_tokens=4096)
    ))  # fmt: skip
    exact = run(folder, records, root, EngineSpec(dtype="float32"))
    yield row("FP32 activations, then BF16", exact, usual)
    if options.release:
        theirs = release(folder, records)
        yield row("release code (BF16, head in BF16), then ours", theirs, usual)
        yield row("FP32, then release code", exact, theirs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--eval", required=True, type=Path)
    parser.add_argument("--records", type=int, default=100)
    parser.add_argument("--release", action="store_true")
    options = parser.parse_args()
    print(f"{options.checkpoint.name}\n")
    print("| compared | questions | largest |Δ log p| | mean KL | same decision |")
    print("|---|---:|---:|---:|---:|")
    for line in rows(options):
        print(line, flush=True)


if __name__ == "__main__":
    main()
