"""A random nano-shaped checkpoint, records over it, and one engine per checkpoint and session."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from clefq.clef.records import Record, parse_record

WORDS = [
    *("account", "card", "refund", "transfer", "late", "fee", "approve", "please", "why", "when"),
    *("how", "limit", "travel", "top", "pin", "failed", "pending", "exchange", "rate", "42"),
    *("blå", "雨", "🙂"),
]


@pytest.fixture(scope="session")
def random_nano(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from clefq.nano.build import build_random

    return build_random(tmp_path_factory.mktemp("random") / "bf16", seed=3)


def make_record(rng: random.Random, number: int, *, words: int, options: int = 0) -> Record:
    """A record of random words: one to four questions of all types."""
    questions: dict[str, object] = {}
    for index in range(rng.randint(1, 4)):
        kind = "choice" if options and index == 0 else rng.choice(["noul", "choice", "score"])
        body: dict[str, object] = {"type": kind, "instructions": phrase(rng, 6)}
        if kind == "choice":
            count = options if options and index == 0 else rng.randint(2, 6)
            body["criteria"] = {
                f"{rng.choice(WORDS)}-{option}": rng.choice([None, phrase(rng, 4)])
                for option in range(count)
            }
        if kind == "score":
            body["criteria"] = ["bad", "fair", "good"]
        questions[f"q{index}"] = body
    value = {
        "id": f"r{number}",
        "cohort": "words",
        "state": {"text": phrase(rng, words)},
        "questions": questions,
    }
    return parse_record(value, f"record {number}")


def phrase(rng: random.Random, count: int) -> str:
    return " ".join(rng.choices(WORDS, k=count))


@pytest.fixture(scope="session")
def mixed_records() -> list[Record]:
    """Short and long prompts, several of them longer than one engine step, one with 77 options."""
    rng = random.Random(7)
    sizes = [8, 400, 30, 150, 8, 30, 900, 60]
    records = [make_record(rng, number, words=size) for number, size in enumerate(sizes)]
    return [*records, make_record(rng, len(records), words=40, options=77)]
