"""Predictions files with known truth: a candidate that drifts from its baseline by a dial.

Baseline logits favour the gold option; the candidate adds noise to them, and swaps the answers
of a share of the questions outright. The same seed gives the same files.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd

from clefq.clef.records import parse_record
from clefq.store.predictions import Predictions, PredictionsMeta, write_predictions
from clefq.store.sets import SetDraft, write_set

SET_SHA = "a" * 64
OTHER_SHA = "b" * 64
TYPES = ("noul", "choice", "score")
LENGTHS = (500, 900, 3000, 12000)
OPTION_COUNTS = {"noul": (2,), "choice": (3, 5, 12), "score": (5,)}


@dataclass(frozen=True)
class Dial:
    """How a candidate differs from its baseline.

    Attributes:
        noise: Standard deviation of what is added to the logits.
        swap: Share of the questions whose two best options are swapped.
        failed: Share of the questions without an answer.
    """

    noise: float = 0.0
    swap: float = 0.0
    failed: float = 0.0


@dataclass(frozen=True)
class World:
    """The questions and the baseline's logits.

    Attributes:
        frame: Columns of a predictions file without `logprobs` and `error`.
        logits: One array per question.
        sha256: Hash of the set that holds them.
    """

    frame: pd.DataFrame
    logits: list[np.ndarray]
    sha256: str = SET_SHA


def make_world(records: int = 400, seed: int = 1, cohorts: int = 3) -> World:
    """Draws questions (1 to 3 per record) and the baseline's logits."""
    rng = np.random.default_rng(seed)
    rows, logits = [], []
    for index in range(records):
        tokens = int(rng.choice(LENGTHS))
        for number in range(int(rng.integers(1, 4))):
            kind = str(rng.choice(TYPES))
            size = int(rng.choice(OPTION_COUNTS[kind]))
            options = ["true", "false"] if kind == "noul" else sorted(map(str, range(size)))
            gold = int(rng.integers(size))
            values = rng.normal(size=size)
            values[gold] += 4.0
            rows.append(
                {
                    "record_id": f"r{index:05d}",
                    "cohort": f"cohort-{index % cohorts}",
                    "question_id": f"q{number}",
                    "question_type": kind,
                    "option_ids": options,
                    "gold": options[gold],
                    "input_tokens": tokens,
                    "truncated_tokens": 0,
                }
            )
            logits.append(values)
    return World(pd.DataFrame(rows), logits)


def with_set(world: World, folder: Path, name: str = "synthetic") -> World:
    """Writes the set folder that holds the questions, and returns the world that names it."""
    draft = SetDraft("eval", name, {"made": "here"}, ())
    records = [
        parse_record(_record(str(name), rows), str(name))
        for name, rows in world.frame.groupby("record_id", sort=False)
    ]
    return replace(world, sha256=write_set(folder, records, {}, draft).sha256())


def _record(name: str, rows: pd.DataFrame) -> dict[str, object]:
    def question(row: pd.Series) -> dict[str, object]:
        asked: dict[str, object] = {"type": row.question_type, "instructions": "Which?"}
        if row.question_type == "choice":
            asked["criteria"] = dict.fromkeys(row.option_ids)
        elif row.question_type == "score":
            asked["criteria"] = [f"level {level}" for level in row.option_ids]
        return asked

    every = [row for _, row in rows.iterrows()]
    return {
        "id": name,
        "cohort": every[0].cohort,
        "state": f"what {name} is about",
        "questions": {row.question_id: question(row) for row in every},
        "gold": {row.question_id: row.gold for row in every},
    }


def meta(variant: str, **changes: object) -> PredictionsMeta:
    """Provenance of a synthetic file; scheme and arithmetic agree."""
    arithmetic = {"bf16": "bf16", "fp8": "w8a8", "nvfp4": "w4a4", "nvfp4a16": "w4a16"}
    scheme = variant if variant in arithmetic else "unknown"
    base = PredictionsMeta(
        eval_set="synthetic",
        eval_set_sha256=SET_SHA,
        model_id=f"models/{variant}",
        model_revision=None,
        model_sha256=(variant.encode().hex() + "0" * 64)[:64],
        variant=variant,
        scheme=scheme,
        engine="transformers",
        engine_version="5.17.0",
        kernels="real",
        arithmetic=arithmetic.get(scheme, "bf16"),  # type: ignore[arg-type]
        dtype="bfloat16",
        device="cpu",
        clefq_version="0.1.0",
        created_at="2026-01-02T03:04:05+00:00",
        max_length=16384,
        truncate_state=False,
        probability_quantum=None,
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def predictions(
    world: World, variant: str, dial: Dial | None = None, seed: int = 7, **changes: object
) -> Predictions:
    """One model's predictions on a world."""
    dial = dial or Dial()
    rng = np.random.default_rng(seed)
    logprobs: list[list[float] | None] = []
    errors: list[str | None] = []
    for values in world.logits:
        moved = values + dial.noise * rng.normal(size=len(values))
        if rng.random() < dial.swap:
            first, second = np.argsort(-moved)[:2]
            moved[[first, second]] = moved[[second, first]]
        failed = rng.random() < dial.failed
        logprobs.append(None if failed else log_softmax(moved).tolist())
        errors.append("non-finite logits" if failed else None)
    frame = world.frame.copy()
    frame["logprobs"] = pd.Series(logprobs, dtype=object)
    frame["error"] = pd.Series(errors, dtype=object)
    return Predictions(meta(variant, **{"eval_set_sha256": world.sha256, **changes}), frame)


def write(path: Path, found: Predictions) -> Path:
    """Writes a predictions file, whatever was there, and returns its path."""
    path.unlink(missing_ok=True)  # a test may go on with another set
    write_predictions(path, found.frame, found.meta)
    return path


def log_softmax(values: np.ndarray) -> np.ndarray:
    """Natural-log softmax whose probabilities sum to one within 1e-12."""
    shifted = values - values.max()
    result = shifted - np.log(np.exp(shifted).sum())
    return result - np.log(np.exp(result).sum())
