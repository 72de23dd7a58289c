"""A running server against the release's own `systemone()`, on records of a set.

    python -m tests.serving.http.against_release --url http://127.0.0.1:8000 --model FOLDER \
        --set SET [--count 200]

Asks both about every record, the server in the release dialect, and prints the largest and mean
difference of a probability and how many decisions differ. Exits 1 if a probability differs by more
than 0.02, or a decision where the release's margin is above 0.05. The release in float32 is the
measure: in BF16 its head rounds logits to steps of up to 0.06, which moves its own answers by more
than any engine does (`--dtype bfloat16` shows it).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np

from clefq.clef.records import record_to_json
from clefq.store.sets import open_set

TOLERANCE = 0.02
MARGIN = 0.05


def release_model(folder: Path, dtype: Any) -> tuple[Any, Any]:
    """The release's model, and a processor of its tokenizer (text needs no more)."""
    from clef_finetune._vendor import joint_schema_model as release
    from safetensors.torch import load_file
    from transformers import AutoTokenizer, Qwen3_5ForConditionalGeneration

    backbone = Qwen3_5ForConditionalGeneration.from_pretrained(folder, dtype=dtype)
    backbone.config.use_cache = False
    head = release.JointSchemaHead(**json.loads((folder / "joint_head_config.json").read_text()))
    head.load_state_dict(load_file(folder / "joint_head.safetensors"), strict=True)
    model = release.ClefModel(backbone, head.to(dtype)).eval()
    return model, SimpleNamespace(tokenizer=AutoTokenizer.from_pretrained(folder))


def requests(folder: Path, count: int) -> Iterator[dict[str, Any]]:
    """Requests of a set's records without images, shortest first."""
    records = [record for record in open_set(folder).records() if not record.images]
    records.sort(key=lambda record: len(json.dumps(record_to_json(record))))
    for record in records[:count]:
        value = record_to_json(record)
        yield {"model": "clef", "state": value["state"], "questions": value["questions"]}


def shares(answer: Mapping[str, Any]) -> np.ndarray:
    """An answer's probabilities, in the order of its options."""
    if answer["type"] == "noul":
        return np.array([answer["noul"], 1 - answer["noul"]])
    return np.array(list(answer["probabilities"].values()))


def main() -> None:
    """Compares and prints one line of figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--set", type=Path, required=True)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--dtype", default="float32", help="of the release: or bfloat16")
    options = parser.parse_args()
    import torch
    from clef_finetune._vendor import joint_schema_model as release

    model, processor = release_model(options.model, getattr(torch, options.dtype))
    gaps, apart, close, asked = [], 0, 0, 0
    with httpx.Client(base_url=options.url, timeout=300) as client:
        for body in requests(options.set, options.count):
            asked += 1
            expected = release.systemone(model, processor, body)
            reply = client.post("/v1/systemone", json=body, headers={"x-clefq-dialect": "release"})
            given = reply.json()
            assert list(given) == list(expected), given
            assert given["usage"] == expected["usage"]
            assert list(given["answers"]) == list(expected["answers"])
            for name, wanted in expected["answers"].items():
                answer = given["answers"][name]
                assert list(answer) == list(wanted)
                ours, theirs = shares(answer), shares(wanted)
                gaps.append(float(np.abs(ours - theirs).max()))
                if ours.argmax() != theirs.argmax():
                    top = np.sort(theirs)
                    apart += top[-1] - top[-2] > MARGIN
                    close += top[-1] - top[-2] <= MARGIN
    print(f"{asked} requests, {len(gaps)} questions, release in {options.dtype}:")
    print(f"largest difference of a probability {max(gaps):.4f}, mean {np.mean(gaps):.5f},")
    print(f"99% of questions below {np.quantile(gaps, 0.99):.4f};")
    print(
        f"decisions that differ: {apart} with a margin above {MARGIN}, {close} with a smaller one"
    )
    raise SystemExit(max(gaps) > TOLERANCE or apart > 0)


if __name__ == "__main__":
    main()
