"""A run folder on the bundled miniature: real checkpoints and set, drawn answers, real reports."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pandas as pd
import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")

from clefq.clef.checkpoint import checkpoint_sha256
from clefq.cli.main import run
from clefq.console import Console
from clefq.nano import SETS, WEIGHTS
from clefq.quantize.run import QuantizeSpec, quantize
from clefq.store.predictions import PredictionsMeta, write_predictions
from clefq.store.sets import SetFolder, open_set
from tests.parity.synthetic import log_softmax, meta

Clefq = Callable[..., int]
EVAL = "nano-eval"
RESAMPLES = 100  # of every report here, made or computed again


@dataclass(frozen=True)
class Drift:
    """How far a candidate's drawn answers lie from the baseline's."""

    noise: float = 0.0
    kernels: str = "real"
    arithmetic: str = "w8a8"
    changes: tuple[tuple[str, object], ...] = ()


def write_answers(root: Path, variant: str, drift: Drift = Drift(arithmetic="bf16")) -> Path:
    """A predictions file of a variant of the run folder, bound to its checkpoint and set."""
    found = open_set(root / "sets" / EVAL)
    info = meta(
        variant,
        eval_set=found.name,
        eval_set_sha256=found.sha256(),
        model_sha256=checkpoint_sha256(root / "models" / variant),
        kernels=drift.kernels,
        arithmetic=drift.arithmetic,
        **dict(drift.changes),
    )
    return _write(root, found, info, drift.noise)


def _write(root: Path, found: SetFolder, info: PredictionsMeta, noise: float) -> Path:
    base, moves = np.random.default_rng(5), np.random.default_rng(6)
    rows = []
    for record in found.records():
        tokens = int(base.integers(100, 3000))
        for question in record.questions:
            ids = list(question.option_ids)
            gold = (record.gold or {}).get(question.id)
            values = base.normal(size=len(ids))
            if gold is not None:
                values[ids.index(gold)] += 4.0
            moved = values + noise * moves.normal(size=len(ids))
            rows.append(
                {
                    "record_id": record.id,
                    "cohort": record.cohort,
                    "question_id": question.id,
                    "question_type": question.type,
                    "option_ids": ids,
                    "logprobs": log_softmax(moved).tolist(),
                    "gold": gold,
                    "input_tokens": tokens,
                    "truncated_tokens": 0,
                    "error": None,
                }
            )
    path = root / "predictions" / found.name / f"{info.variant}.parquet"
    write_predictions(path, pd.DataFrame(rows), replace(info))
    return path


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder with bf16, fp8 and nvfp4a16, answers, and the report by the release gates."""
    root = tmp_path_factory.mktemp("release") / "run"
    (root / "models").mkdir(parents=True)
    shutil.copytree(WEIGHTS, root / "models" / "bf16")
    shutil.copytree(SETS / EVAL, root / "sets" / EVAL)
    for scheme in ("fp8", "nvfp4a16"):
        spec = QuantizeSpec(str(root / "models" / "bf16"), scheme)
        quantize(spec, root / "models" / scheme, Console(quiet=True))
    write_answers(root, "bf16")
    write_answers(root, "fp8", Drift(noise=0.02))
    write_answers(root, "nvfp4a16", Drift(noise=1.2, kernels="simulated", arithmetic="w4a16"))
    assert call("parity", "--baseline", "bf16", "--run", root, "--quiet") in (0, 1, 3)
    return root


@pytest.fixture
def run_folder(finished: Path, tmp_path: Path) -> Path:
    """A copy of the run folder that a test may change."""
    shutil.copytree(finished, tmp_path / "run")
    return tmp_path / "run"


def call(*arguments: object) -> int:
    """Runs `clefq ARGUMENTS…` in this process, with few resamples; returns the exit code."""
    argv = ["clefq", *map(str, arguments)]
    with patch.object(sys, "argv", argv), patch("clefq.parity.comparison.RESAMPLES", RESAMPLES):
        try:
            run()
        except SystemExit as stopped:
            return int(stopped.code or 0)
    return 0


@pytest.fixture
def clefq() -> Clefq:
    """`call`."""
    return call
