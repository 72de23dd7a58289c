"""Prompt encoding against the release's `encode_record`: milliseconds per record, same ids.

    python benchmarks/encoding.py [--model CHECKPOINT] [--records 200]

Four kinds of records: one 77-option schema that all share, four small questions that all share, a
20-option schema that never repeats, and a state of about 25k tokens. Both sides take turns five
times; the median of the CPU seconds counts, which a busy machine distorts least. Ours starts every
run with empty caches. Needs clef-finetune.
"""

from __future__ import annotations

import argparse
import os
import random
from pathlib import Path
from typing import Any

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

from clef_finetune._vendor import joint_schema_model as release
from transformers import PreTrainedTokenizerFast

import clefq
from clefq.bench.timing import take_turns
from clefq.clef.encoding import EncodeSpec, PromptTokenizer, encode_record
from clefq.clef.records import parse_record

WORDS = ("card", "payment", "transfer", "account", "balance", "pending", "refund", "withdrawal")
NANO = Path(clefq.__file__).parent / "nano" / "weights"
LIMIT = 1_000_000


def words(rng: random.Random, count: int) -> str:
    return " ".join(rng.choice(WORDS) for _ in range(count))


def shared_schema(rng: random.Random, number: int) -> dict[str, Any]:
    same = random.Random(0)
    criteria = {f"intent_{option}": words(same, 6) for option in range(77)}
    question = {"type": "choice", "instructions": "Which intent?", "criteria": criteria}
    return {"state": words(rng, 12), "questions": {"intent": question}}


def small_questions(rng: random.Random, number: int) -> dict[str, Any]:
    questions = {
        "refund": {"type": "noul", "instructions": "Does the customer ask for a refund?"},
        "team": {"type": "choice", "criteria": {"cards": "Cards", "loans": "Loans", "other": None}},
        "urgency": {"type": "score", "criteria": ["low", "medium", "high"]},
        "angry": {"type": "noul"},
    }
    return {"state": {"messages": [words(rng, 60) for _ in range(8)]}, "questions": questions}


def fresh_schema(rng: random.Random, number: int) -> dict[str, Any]:
    criteria = {f"option {number} {option}": words(rng, 4) for option in range(20)}
    return {"state": words(rng, 100), "questions": {"q": {"type": "choice", "criteria": criteria}}}


def long_state(rng: random.Random, number: int) -> dict[str, Any]:
    text = " ".join(f"{rng.choice(WORDS)} {rng.randrange(10_000)}" for _ in range(5000))
    return {"state": text, "questions": {"q": {"type": "noul"}}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, default=NANO, help="a folder with a tokenizer.json")
    parser.add_argument("--records", type=int, default=200)
    options = parser.parse_args()
    theirs = PreTrainedTokenizerFast(tokenizer_file=str(options.model / "tokenizer.json"))
    print("| records | tokens per record | release ms | clefq ms | ratio | clefq tokens/s |")
    print("|---|---:|---:|---:|---:|---:|")
    for kind in (shared_schema, small_questions, fresh_schema, long_state):
        rng = random.Random(1)
        count = max(1, options.records // 10) if kind is long_state else options.records
        raw = [{"id": f"r{i}", "cohort": "c", **kind(rng, i)} for i in range(count)]
        parsed = [parse_record(one, "benchmark") for one in raw]

        def ours(parsed: list[Any] = parsed) -> list[Any]:
            tokenizer = PromptTokenizer.from_folder(options.model)
            return [encode_record(tokenizer, one, EncodeSpec(LIMIT)) for one in parsed]

        def reference(raw: list[Any] = raw) -> list[Any]:
            return [release.encode_record(theirs, one, max_length=LIMIT) for one in raw]

        def loading() -> PromptTokenizer:
            return PromptTokenizer.from_folder(options.model)

        turns = take_turns({"release": reference, "clefq": ours, "loading": loading}, 5)
        expected, got = turns["release"].result, turns["clefq"].result
        slow = turns["release"].median_cpu
        fast = turns["clefq"].median_cpu - turns["loading"].median_cpu
        assert [e.input_ids for e in expected] == [g.token_ids for g in got]
        tokens = sum(len(one.token_ids) for one in got)
        name = kind.__name__.replace("_", " ")
        print(
            f"| {name} | {tokens / count:,.0f} | {1e3 * slow / count:.3f} "
            f"| {1e3 * fast / count:.3f} | {slow / fast:.1f} | {tokens / fast:,.0f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
