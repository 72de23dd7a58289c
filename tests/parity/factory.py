"""Synthetic predictions with controlled disagreement, for the tests and benchmarks of parity."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from clefq.store.predictions import Predictions, PredictionsMeta

META = PredictionsMeta(
    eval_set="synthetic",
    eval_set_sha256="ab" * 32,
    model_id="nano",
    model_revision=None,
    model_sha256=None,
    variant="bf16",
    scheme="bf16",
    engine="transformers",
    engine_version="5",
    kernels="real",
    arithmetic="bf16",
    dtype="bfloat16",
    device="cpu",
    clefq_version="0.1.0",
    created_at="2026-01-01T00:00:00+00:00",
    max_length=16384,
    truncate_state=False,
    probability_quantum=None,
)


@dataclass(frozen=True)
class Design:
    """How many of what."""

    records: int = 40
    questions: tuple[int, int] = (1, 4)
    noise: float = 0.3
    seed: int = 0
    gold: bool = True
    cohorts: tuple[str, ...] = ("alpha", "beta")
    most_options: int = 7


def log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max()
    result = shifted - np.log(np.exp(shifted).sum())
    return result - np.log(np.exp(result).sum())


def make_pair(design: Design) -> tuple[Predictions, Predictions]:
    """A baseline and a noisy candidate."""
    rng = np.random.default_rng(design.seed)
    rows, other = [], []
    for r in range(design.records):
        cohort = design.cohorts[r % len(design.cohorts)]
        tokens = int(rng.integers(10, 20_000))
        shared = rng.normal()
        for q in range(int(rng.integers(design.questions[0], design.questions[1] + 1))):
            kind = ("noul", "choice", "score")[int(rng.integers(3))]
            k = 2 if kind == "noul" else int(rng.integers(2, design.most_options + 1))
            options = {
                "noul": ["true", "false"],
                "choice": sorted(f"opt{i}" for i in range(k)),
                "score": [str(i) for i in range(k)],
            }[kind]
            logits = rng.normal(size=k) * 2
            moved = logits + design.noise * (rng.normal(size=k) + shared * rng.normal(size=k))
            gold = options[int(np.argmax(logits + rng.normal(size=k)))] if design.gold else None
            row = {
                "record_id": f"rec-{r}",
                "cohort": cohort,
                "question_id": f"q{q}",
                "question_type": kind,
                "option_ids": options,
                "logprobs": log_softmax(logits),
                "gold": gold,
                "input_tokens": tokens,
                "truncated_tokens": 0,
                "error": None,
            }
            rows.append(row)
            other.append({**row, "logprobs": log_softmax(moved)})
    return (
        Predictions(META, pd.DataFrame(rows)),
        Predictions(replace(META, variant="nvfp4", scheme="nvfp4"), pd.DataFrame(other)),
    )


def single(logprobs: list[list[float] | None], **columns: object) -> Predictions:
    """One choice question per record; None is a failed row."""
    n = len(logprobs)
    frame = pd.DataFrame(
        {
            "record_id": [f"r{i}" for i in range(n)],
            "cohort": ["c"] * n,
            "question_id": ["q"] * n,
            "question_type": ["choice"] * n,
            "option_ids": [[chr(97 + j) for j in range(len(p or [0, 0]))] for p in logprobs],
            "logprobs": [None if p is None else np.array(p, dtype=float) for p in logprobs],
            "gold": [None] * n,
            "input_tokens": [10] * n,
            "truncated_tokens": [0] * n,
            "error": [None if p is not None else "non-finite logits" for p in logprobs],
        }
    )
    for name, values in columns.items():
        frame[name] = values
    return Predictions(META, frame)
