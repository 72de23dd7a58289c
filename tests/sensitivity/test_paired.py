"""Paired differences between two variants of one baseline."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from click.testing import Result
from rich.console import Console
from typer.testing import CliRunner

from clefq.cli.main import app
from clefq.cli.sensitivity import _was_searched
from clefq.errors import InputError, PredictionsError
from clefq.sensitivity.paired import paired_difference
from clefq.sensitivity.report_text import paired_text, signed
from clefq.store.predictions import Predictions, PredictionsMeta, write_predictions
from clefq.store.sets import open_set

RECORDS, EACH = 80, 3


def predictions(variant: str, noise: float, seed: int) -> Predictions:
    """Three options; every variant is the same model plus noise of its own."""
    logits = np.random.default_rng(0).normal(0, 2, (RECORDS * EACH, 3))
    rng = np.random.default_rng(seed)
    # noise of a record is shared by its questions in part: they are not independent
    shared = np.repeat(rng.normal(0, noise, (RECORDS, 3)), EACH, axis=0)
    logits = logits + shared + rng.normal(0, noise, logits.shape)
    logprobs = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    gold = np.random.default_rng(1).integers(0, 3, len(logits))
    frame = pd.DataFrame(
        {
            "record_id": [f"r{i // EACH}" for i in range(len(logits))],
            "cohort": "c",
            "question_id": [f"q{i % EACH}" for i in range(len(logits))],
            "question_type": "choice",
            "option_ids": [["a", "b", "c"]] * len(logits),
            "logprobs": logprobs.tolist(),
            "gold": [["a", "b", "c"][g] for g in gold],
            "input_tokens": 10,
            "truncated_tokens": 0,
            "error": pd.Series([None] * len(logits), dtype=object),
        }
    )
    return Predictions(meta(variant), frame)


def meta(variant: str, sha: str = "a" * 64) -> PredictionsMeta:
    return PredictionsMeta(
        eval_set="s", eval_set_sha256=sha, model_id=variant, model_revision=None,
        model_sha256="b" * 64, variant=variant, scheme="bf16", engine="transformers",
        engine_version="1", kernels="simulated", arithmetic="w4a4", dtype="bfloat16",
        device="cpu", clefq_version="0.1.0", created_at="2026-01-01T00:00:00+00:00",
        max_length=100, truncate_state=False, probability_quantum=None,
    )  # fmt: skip


BASE, GOOD, BAD = (
    predictions("bf16", 0.0, 2),
    predictions("good", 0.2, 3),
    predictions("bad", 0.3, 4),
)


def kl_of(other: Predictions) -> np.ndarray:
    p, q = (np.array(x.frame["logprobs"].tolist()) for x in (BASE, other))
    return (np.exp(p) * (p - q)).sum(1)


def top(side: Predictions) -> np.ndarray:
    return np.array(side.frame["logprobs"].tolist()).argmax(1)


def test_estimates_are_differences_question_by_question() -> None:
    found = paired_difference(BASE, GOOD, BAD)
    assert found.kl.estimate == pytest.approx((kl_of(GOOD) - kl_of(BAD)).mean(), abs=1e-9)
    kept = (top(GOOD) == top(BASE)).astype(int) - (top(BAD) == top(BASE)).astype(int)
    assert found.agreement.estimate == pytest.approx(kept.mean(), abs=1e-12)
    gold = np.array([{"a": 0, "b": 1, "c": 2}[g] for g in BASE.frame["gold"]])
    right = (top(GOOD) == gold).astype(int) - (top(BAD) == gold).astype(int)
    assert found.accuracy.estimate == pytest.approx(right.mean(), abs=1e-12)
    assert found.kl.upper is not None
    assert found.kl.upper < 0
    assert found.kl.n_records == RECORDS


def test_exchanging_the_two_exchanges_the_bounds() -> None:
    there, back = paired_difference(BASE, GOOD, BAD), paired_difference(BASE, BAD, GOOD)
    for name in ("kl", "tv", "agreement", "accuracy"):
        a, b = getattr(there, name), getattr(back, name)
        assert (a.estimate, a.lower, a.upper) == pytest.approx((-b.estimate, -b.upper, -b.lower))


def test_a_variant_against_itself_differs_in_nothing() -> None:
    found = paired_difference(BASE, GOOD, GOOD)
    assert (found.kl.estimate, found.kl.lower, found.kl.upper) == (0.0, 0.0, 0.0)
    assert found.agreement.lower is not None
    assert found.agreement.lower < 0 < (found.agreement.upper or 0)  # no flip seen proves little


def test_the_interval_agrees_with_a_plain_cluster_bootstrap() -> None:
    difference = (kl_of(GOOD) - kl_of(BAD)).reshape(RECORDS, EACH)
    rng = np.random.default_rng(5)
    means = [difference[rng.integers(0, RECORDS, RECORDS)].mean() for _ in range(4000)]
    found = paired_difference(BASE, GOOD, BAD).kl
    assert found.bootstrap is not None
    low, high = np.quantile(means, [0.025, 0.975])
    assert found.bootstrap.lower == pytest.approx(low, rel=0.05)
    assert found.bootstrap.upper == pytest.approx(high, rel=0.05)


def test_other_sets_are_refused() -> None:
    other = Predictions(meta("good", "c" * 64), GOOD.frame)
    with pytest.raises(PredictionsError, match="different sets"):
        paired_difference(BASE, GOOD, other)


def test_questions_that_the_baseline_lacks_are_not_taken_for_each_other() -> None:
    """Each variant answers one that the other lacks: as many, but not the same."""
    base = Predictions(BASE.meta, BASE.frame[2:])
    good = Predictions(GOOD.meta, GOOD.frame.drop(index=0))
    bad = Predictions(BAD.meta, BAD.frame.drop(index=1))
    with pytest.raises(PredictionsError, match="the baseline lacks questions"):
        paired_difference(base, good, bad)


def call(root: Path, set_path: Path, sha: str) -> Result:
    for side in (BASE, GOOD, BAD):
        path = root / "predictions" / "tiny" / f"{side.meta.variant}.parquet"
        write_predictions(path, side.frame, replace(side.meta, eval_set_sha256=sha))
    options = ["--eval", str(set_path), "--compare", "bad", "--run", str(root)]
    return CliRunner().invoke(app, ["sensitivity", "good", *options])


def test_predictions_of_another_state_of_the_set_are_refused(
    tmp_path: Path, set_path: Path
) -> None:
    done = call(tmp_path, set_path, "c" * 64)
    assert isinstance(done.exception, InputError)
    assert "made on another set" in done.exception.message


def test_the_command_reads_the_run_folder(tmp_path: Path, set_path: Path) -> None:
    sha = open_set(set_path).sha256()
    done = call(tmp_path, set_path, sha)
    assert done.exit_code == 0, done.output
    assert "good minus each other, 240 questions" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80
    sides = (
        replace(side, meta=replace(side.meta, eval_set_sha256=sha)) for side in (BASE, GOOD, BAD)
    )
    assert signed(paired_difference(*sides).kl, 1000, 3) in done.stdout
    assert "searched on" not in done.stdout


def test_a_variant_that_was_searched_on_the_set_is_said_to_be() -> None:
    found = paired_difference(BASE, GOOD, BAD)
    console = Console(width=80, file=StringIO())
    console.print(paired_text([replace(found, searched=("good",))]))
    assert "good was searched on this very set" in console.file.getvalue()  # type: ignore[attr-defined]


def test_a_recipe_says_on_which_set_it_was_searched(tmp_path: Path) -> None:
    sha = "d" * 64
    assert not _was_searched(tmp_path, sha)
    (tmp_path / "recipe.yaml").write_text(f"# eval set  tiny, {sha}, 10 records\n")
    assert _was_searched(tmp_path, sha)
    assert not _was_searched(tmp_path, "e" * 64)
