"""Predictions in the layout of the Decision Index's results."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from clefq.data.index_results import write_results
from clefq.errors import PredictionsError
from clefq.store.predictions import Predictions
from clefq.store.sets import SetFolder
from tests.data.conftest import Build
from tests.parity.factory import META


def predictions(folder: SetFolder, failing: str | None = None) -> Predictions:
    rng = np.random.default_rng(3)
    rows: list[dict[str, Any]] = []
    for record in folder.records():
        for question in record.questions:
            p = rng.dirichlet(np.ones(len(question.option_ids)))
            failed = record.id == failing
            rows.append(
                {
                    "record_id": record.id,
                    "cohort": record.cohort,
                    "question_id": question.id,
                    "question_type": question.type,
                    "option_ids": list(question.option_ids),
                    "logprobs": None if failed else np.log(p),
                    "gold": record.gold.get(question.id),
                    "input_tokens": 123,
                    "truncated_tokens": 0,
                    "error": "non-finite logits" if failed else None,
                }
            )
    meta = replace(META, eval_set=folder.name, eval_set_sha256=folder.manifest.sha256)
    return Predictions(meta=meta, frame=pd.DataFrame(rows))


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


USE = {"source": "hellaswag", "split": "val", "keys": "opaque", "order": "shuffled",
       "layout": "decision-index"}  # fmt: skip


def test_one_line_per_record(build: Build, tmp_path: Path) -> None:
    folder = build({"sources": [USE]}).folder
    records = list(folder.records())
    failing = records[2].id
    made = predictions(folder, failing)
    assert write_results(tmp_path / "results.jsonl", made, folder) == len(records)
    found = lines(tmp_path / "results.jsonl")
    assert [line["run_id"] for line in found] == [record.id for record in records]
    for record, line in zip(records, found, strict=True):
        assert line["payload"]["state"] == ""
        assert set(line["payload"]["questions"]) == {"q1"}
        if record.id == failing:
            assert line["status"] == "error"
            assert line["error"] == "non-finite logits"
            assert "response" not in line
            continue
        assert line["status"] == "ok"
        answer = line["response"]["answers"]["q1"]
        criteria = line["payload"]["questions"]["q1"]["criteria"]
        assert set(answer["probabilities"]) == set(criteria) == {f"option_{i}" for i in range(4)}
        assert abs(sum(answer["probabilities"].values()) - 1) < 1e-9
        best = max(answer["probabilities"], key=answer["probabilities"].__getitem__)
        assert answer["choice"] == best
        assert line["response"]["usage"]["input_tokens"] == 123


def test_every_question_type(build: Build, tmp_path: Path) -> None:
    use = {"source": "anli", "split": "test_r1", "options": {"questions": "three"}}
    folder = build({"sources": [use]}).folder
    write_results(tmp_path / "results.jsonl", predictions(folder), folder)
    answers = lines(tmp_path / "results.jsonl")[0]["response"]["answers"]
    assert {answer["type"] for answer in answers.values()} == {"choice", "noul", "score"}


def test_what_does_not_belong_together(build: Build, tmp_path: Path) -> None:
    folder = build({"sources": [USE]}).folder
    made = predictions(folder)
    with pytest.raises(PredictionsError, match="made on another set"):
        other = replace(made, meta=replace(made.meta, eval_set_sha256="0" * 64))
        write_results(tmp_path / "r.jsonl", other, folder)
    with pytest.raises(PredictionsError, match="lacks record"):
        write_results(tmp_path / "r.jsonl", replace(made, frame=made.frame.iloc[1:]), folder)
    assert not (tmp_path / "r.jsonl").exists()
