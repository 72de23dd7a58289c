"""`clefq import` through the real command line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from clefq.clef.records import parse_record
from clefq.parity.statistics.pairs import join
from clefq.store.predictions import read_predictions
from clefq.store.sets import SetDraft, SourceInfo, write_set


def clefq(*args: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "clefq.cli.main", *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def set_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    records = [
        parse_record(
            {
                "id": f"r{i}",
                "cohort": "mail",
                "state": f"message {i}",
                "questions": {"ok": {"type": "noul"}},
                "gold": {"ok": "true"},
            },
            "test",
        )
        for i in range(25)
    ]
    source = SourceInfo("test", "test", "generated", None, {}, "Apache-2.0", None)
    folder = tmp_path_factory.mktemp("sets") / "tiny"
    write_set(folder, records, {}, SetDraft("eval", "tiny", {}, (source,)))
    return folder


def csv_file(path: Path, decimals: int | None, rows: int = 25) -> Path:
    rng = np.random.default_rng(0)
    lines = ["record_id,question_id,option_id,probability"]
    for i in range(rows):
        p = float(rng.random()) if decimals is None else round(float(rng.random()), decimals)
        q = 1 - p if decimals is None else round(1 - p, decimals)
        lines += [f"r{i},ok,true,{p!r}", f"r{i},ok,false,{q!r}"]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_imports_and_joins(tmp_path: Path, set_folder: Path) -> None:
    source = csv_file(tmp_path / "a.csv", None, rows=24)
    out = tmp_path / "other.parquet"
    options = ("--eval", set_folder, "--variant", "other", "--arithmetic", "w4a4", "--out", out)
    done = clefq("import", source, *options, "--source", "tool 1.2", "--json")
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert summary == {
        "answered": 24,
        "answers": "probabilities",
        "failed": 0,
        "first_error": None,
        "missing": 1,
        "out": str(out),
        "questions": 25,
        "renormalised": 0,
    }
    got = read_predictions(out)
    assert (got.meta.engine, got.meta.engine_version) == ("import", "tool 1.2")
    assert (got.meta.arithmetic, got.meta.scheme) == ("w4a4", "unknown")
    assert join(got, got).candidate.failed.sum() == 1


def test_rounded_numbers_need_their_quantum(tmp_path: Path, set_folder: Path) -> None:
    source = csv_file(tmp_path / "a.csv", 4)
    run = tmp_path / "run"
    (run / "predictions").mkdir(parents=True)
    options = ("--eval", set_folder, "--variant", "other", "--arithmetic", "w4a4", "--run", run)
    refused = clefq("import", source, *options)
    assert refused.returncode == 2
    assert "--quantum 0.0001" in refused.stderr
    done = clefq("import", source, *options, "--quantum", "0.0001")
    assert done.returncode == 0, done.stderr
    got = read_predictions(run / "predictions" / "tiny" / "other.parquet")
    assert got.meta.probability_quantum == 1e-4
    assert "25 of 25 questions answered" in " ".join(done.stdout.split())


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        (("--arithmetic", "int8"), "arithmetic"),
        (("--quantum", "3"), "probability_quantum"),
        (("--eval", "nowhere"), "nowhere"),
        (("--kernels", "fake"), "kernels"),
    ],
)
def test_wrong_use_is_one_line(
    tmp_path: Path, set_folder: Path, changes: tuple[str, str], word: str
) -> None:
    source = csv_file(tmp_path / "a.csv", None)
    options = {
        "--eval": str(set_folder),
        "--variant": "other",
        "--arithmetic": "w4a4",
        "--out": str(tmp_path / "o.parquet"),
        changes[0]: changes[1],
    }
    done = clefq("import", source, *(part for pair in options.items() for part in pair))
    assert done.returncode == 2
    assert word in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "o.parquet").exists()


def test_answers_that_do_not_fit_leave_no_set_behind(tmp_path: Path) -> None:
    answers = {"a": {"type": "noul", "noul": "perhaps", "probabilities": {"perhaps": 1.0}}}
    line = {"request_id": "r1", "payload_sha256": "a1", "status": "ok", "dataset": "D"}
    source = tmp_path / "results.jsonl"
    source.write_text(json.dumps({**line, "response": {"answers": answers}}) + "\n")
    new = tmp_path / "set"
    there = tmp_path / "there.parquet"
    there.write_text("a file of the user's")
    options = ("--variant", "x", "--arithmetic", "w4a4", "--out", there, "--new-set", new)
    done = clefq("import", source, *options)
    assert done.returncode != 0, done.stderr
    assert not new.exists()
    assert there.read_text() == "a file of the user's"
