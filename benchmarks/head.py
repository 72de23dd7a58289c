"""The ragged joint head against the release's head, which runs record by record.

    python benchmarks/head.py [--shape nano|flash] [--records 32] [--threads 1] [--device cpu]

Random weights and hidden states; milliseconds per batch, index building apart, and the largest
difference of the logits. Both take turns five times; the median counts, of CPU seconds on a CPU
(which a busy machine distorts least) and of wall time on a GPU. The release's padded input is not
counted against it.
Needs clef-finetune.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch
from clef_finetune._vendor import joint_schema_model as release

from clefq.bench.timing import take_turns
from clefq.clef.encoding import Encoded, EncodedQuestion
from clefq.clef.head import HeadBatch, HeadConfig, JointHead

SHAPES = {
    "nano": HeadConfig(256, 128, 2, 2, 4, 256),
    "flash": HeadConfig(4096, 1024, 2, 4, 16, 4096),
}
VOCABULARY = 2000


def prompt(rng: random.Random, number: int, length: int, options: list[int]) -> Encoded:
    """A prompt of random tokens whose questions stand near its end, as in a real one."""
    tokens = tuple(rng.randrange(VOCABULARY) for _ in range(length))
    at = length - 20 - sum(20 + 12 * count for count in options)
    questions = []
    for index, count in enumerate(options):
        spans = tuple((at + 20 + 12 * m, at + 29 + 12 * m) for m in range(count))
        ids = tuple(map(str, range(count)))
        questions.append(EncodedQuestion(f"q{index}", index % 3, (at, at + 12), ids, spans))
        at += 20 + 12 * count
    return Encoded(f"r{number}", tokens, tuple(questions))


def batches(count: int) -> dict[str, list[Encoded]]:
    rng = random.Random(0)
    draw: dict[str, Callable[[int], Encoded]] = {
        "short, 1–4 questions": lambda i: prompt(
            rng, i, rng.randrange(300, 600), [2] * rng.choice((1, 2, 4))
        ),
        "77 options": lambda i: prompt(rng, i, rng.randrange(1100, 1200), [77]),
        "128 to 4,096 tokens": lambda i: prompt(rng, i, int(2 ** rng.uniform(7, 12)), [3]),
    }
    return {name: [one(i) for i in range(count)] for name, one in draw.items()}


def of_release(encoded: Encoded) -> Any:
    questions = tuple(
        release.EncodedQuestion(q.id, q.type_id, q.span, q.option_spans, q.option_ids)
        for q in encoded.questions
    )
    return release.EncodedRecord(encoded.token_ids, questions, encoded.record_id)


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", choices=SHAPES, default="nano")
    parser.add_argument("--records", type=int, default=32)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    device, config = torch.device(options.device), SHAPES[options.shape]
    reference = release.JointSchemaHead(**asdict(config)).to(device).eval()
    head = JointHead(config).to(device).eval()
    head.load_state_dict(reference.state_dict())
    embedding = torch.randn(VOCABULARY, config.hidden_size, device=device)
    print("| batch | tokens | release ms | index ms | clefq ms | ratio | difference |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    for name, encoded in batches(options.records).items():
        lengths = [len(one.token_ids) for one in encoded]
        hidden = torch.randn(sum(lengths), config.hidden_size, device=device)
        padded = torch.nn.utils.rnn.pad_sequence(list(hidden.split(lengths)), batch_first=True)
        batch = release.collate_records([of_release(one) for one in encoded], 0, device)
        inputs = (batch["input_ids"], batch["attention_mask"], batch["records"], embedding)
        ready = HeadBatch.build(encoded, device)
        turns = take_turns(
            {
                "release": lambda p=padded, i=inputs: reference(p, *i),
                "index": lambda e=encoded: HeadBatch.build(e, device),
                "clefq": lambda h=hidden, r=ready: head(h, r, embedding[r.option_token_ids]),
            },
            5,
            wait=torch.cuda.synchronize if device.type == "cuda" else int,
        )
        times = {n: t.median if device.type == "cuda" else t.median_cpu for n, t in turns.items()}
        slow, index, fast = (1e3 * times[name] for name in ("release", "index", "clefq"))
        expected, got = turns["release"].result, turns["clefq"].result
        flat = torch.cat([logits for one in expected for logits in one])
        print(
            f"| {name} | {sum(lengths):,} | {slow:.1f} | {index:.1f} | {fast:.1f} "
            f"| {slow / (index + fast):.2f} | {(got - flat).abs().max():.1e} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
