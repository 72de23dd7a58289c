"""Seeded records that reach into the corners of the format."""

from __future__ import annotations

import random
from typing import Any

SPECIAL = (
    "<|im_start|>", "<|im_end|>", "<|endoftext|>", "<think>", "</think>", "<|vision_start|>",
    "<|image_pad|>", "<|video_pad|>", "<|vision_end|>", "<|im_", "JOINT SCHEMA DECISIONS:",
)  # fmt: skip
WORDS = (
    "refund", "Ticket", "naïve", "Straße", "Łódź", "مرحبا", "שלום", "नमस्ते", "ไทย", "日本語", "汉字",
    "한국어", "😀", "👩‍👩‍👧‍👦", "🏳️‍🌈", "e\u0301", "\u200f", "\u202e", "\ufeff", "\u2028", "\x00",
    "\x7f",
    "\t", "\n", "\r\n", "   ", "\n\n", "don't", "it's", "1234567890", "3.14", "-0", "{", "}", "\\",
    '"', "'", "/", "<b>", "&amp;", "OPTION 1: ", "END FIELD\n", "a\u0300\u0316", "ﬁ", "Ω", "Å",
    "\U0001f468\U0001f3fd", "\U00020000", "\u00ad", "camelCase", "snake_case", "ALLCAPS", "...",
)  # fmt: skip
NUMBER_IDS = ("0", "1", "2", "10", "02", "-1", "1.5", "1e3", "٣", "true", "false", "null", "None")


def text(rng: random.Random, words: int) -> str:
    parts = [
        rng.choice(SPECIAL) if rng.random() < 0.05 else rng.choice(WORDS) for _ in range(words)
    ]
    return rng.choice(["", " ", "-"]).join(parts)


def value(rng: random.Random, depth: int = 3) -> Any:
    """Any JSON value, empty ones included."""
    kind = rng.randrange(9 if depth else 7)
    if kind == 7:
        return [value(rng, depth - 1) for _ in range(rng.randrange(4))]
    if kind == 8:
        return {text(rng, 1): value(rng, depth - 1) for _ in range(rng.randrange(4))}
    plain = (None, True, False, rng.randrange(-(10**20), 10**20), rng.uniform(-1e9, 1e-9), "")
    return plain[kind] if kind < len(plain) else text(rng, rng.randrange(1, 8))


def description(rng: random.Random) -> Any:
    kind = rng.randrange(5)
    return (None, text(rng, 3), {"when": value(rng, 1), "a": text(rng, 1)}, value(rng, 2), "")[kind]


def instructions(rng: random.Random) -> Any:
    kind = rng.randrange(6)
    return (None, "", text(rng, 6), {"ask": text(rng, 2), "if": [1, None]}, value(rng, 2), 0)[kind]


def option_ids(rng: random.Random, count: int) -> list[str]:
    ids: dict[str, None] = {}
    style = rng.randrange(3)
    while len(ids) < count:
        name = (
            rng.choice(NUMBER_IDS) if rng.random() < 0.2 else str(rng.randrange(4 * count)),
            text(rng, 1) + str(rng.randrange(10_000)),
            f"intent_{rng.randrange(10_000)}",
        )[style]
        ids[name] = None
    return list(ids)


def question(rng: random.Random, count: int) -> dict[str, Any]:
    """A question with `count` options where its type allows."""
    body: dict[str, Any] = {"type": rng.choice(("noul", "choice", "score"))}
    if count > 2:
        body["type"] = rng.choice(("choice", "score"))
    if rng.random() < 0.8:
        body["instructions"] = instructions(rng)
    if body["type"] == "noul":
        override = rng.randrange(5)
        if override:
            body["criteria"] = (
                None,
                {},
                {"true": description(rng)},
                {"false": None, "true": None},
            )[override - 1]
    elif body["type"] == "choice":
        body["criteria"] = {name: description(rng) for name in option_ids(rng, count)}
    else:
        body["criteria"] = [description(rng) for _ in range(count)]
    return body


def record(seed: int) -> dict[str, Any]:
    """Record number `seed`: every 50th has 64 questions, every 40th 255 options, and so on."""
    rng = random.Random(seed)
    asked = 64 if seed % 50 == 0 else rng.choice((1, 1, 1, 2, 3, 5, 9))
    questions = {}
    while len(questions) < asked:
        name = rng.choice((f"q{len(questions)}", text(rng, 2) or "q", str(len(questions))))
        count = 255 if seed % 40 == 1 and not questions else rng.choice((2, 2, 3, 4, 7, 20))
        questions[name] = question(rng, count if asked < 64 else 2)
    state = value(rng, 4)
    if seed % 25 == 2:
        state = text(rng, rng.randrange(1000, 6000))
    elif seed % 25 == 3:
        state = rng.choice(("", {}, [], None, [[]], {"": ""}, 0, False))
    return {"id": f"r{seed}", "cohort": "generated", "state": state, "questions": questions}
