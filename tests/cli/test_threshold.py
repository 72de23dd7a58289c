"""`clefq threshold` from the command line: the policy file, its exit codes and its faults."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

from clefq.cli.main import app
from clefq.errors import ClefqError
from clefq.store.predictions import write_predictions
from tests.parity.factory import META, single


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    rng = np.random.default_rng(1)
    logit = rng.normal(0.5, 2, 400)
    gold = ["true" if rng.random() < 1 / (1 + np.exp(-x)) else "false" for x in logit]
    sides = [1 / (1 + np.exp(-power * logit)) for power in (1.0, 0.5)]
    rows = [[[np.log(p), np.log1p(-p)] for p in side] for side in sides]
    return save(tmp_path, "bf16", rows[0], gold), save(tmp_path, "nvfp4", rows[1], gold)


def save(folder: Path, name: str, rows: list[list[float]], gold: list[str]) -> str:
    made = single(
        [[float(value) for value in row] for row in rows],
        question_id="ok",
        question_type="noul",
        option_ids=[["true", "false"]] * len(gold),
        gold=gold,
    )
    path = folder / f"{name}.parquet"
    write_predictions(path, made.frame, replace(META, variant=name))
    return str(path)


def test_a_policy_to_deploy(files: tuple[str, str], tmp_path: Path) -> None:
    out = tmp_path / "policy.yaml"
    words = ["threshold", *files, "--questions", "ok", "--at", "0.9", "--out", str(out), "--json"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    printed = json.loads(done.stdout)
    assert yaml.safe_load(out.read_text(encoding="utf-8")) == printed
    assert 0.6 < printed["candidate"]["threshold"] < 0.85
    assert printed["judged_on"]["candidate"]["acted"] > 0
    again = CliRunner().invoke(app, words)
    assert isinstance(again.exception, ClefqError) and "exists already" in str(again.exception)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--at", "1"], "--at is 1"),
        (["--at", "0.5", "--keep", "accuracy"], "--keep is 'accuracy'"),
        (["--at", "0.5", "--keep", "recall", "--precision", "0.9"], "is a target of"),
    ],
)
def test_faults_are_one_line(files: tuple[str, str], words: list[str], message: str) -> None:
    done = CliRunner().invoke(app, ["threshold", *files, "--questions", "ok", *words])
    assert isinstance(done.exception, ClefqError) and message in str(done.exception)


def test_exit_3_and_no_file_where_no_threshold_keeps_it(tmp_path: Path) -> None:
    gold = ["true", "false"] * 200
    sure = [[np.log(p), np.log1p(-p)] for p in (0.95, 0.1)] * 200
    blind = [[np.log(0.6), np.log(0.4)]] * 400
    files = [save(tmp_path, name, rows, gold) for name, rows in (("a", sure), ("b", blind))]
    out = tmp_path / "none.yaml"
    words = ["--questions", "ok", "--at", "0.9", "--out", str(out)]
    done = CliRunner().invoke(app, ["threshold", *files, *words])
    assert done.exit_code == 3 and not out.exists()
    assert "no threshold of b reaches" in " ".join(done.output.split())
