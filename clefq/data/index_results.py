"""Predictions as `results.jsonl` in the layout of the Decision Index's kit.

One line per record: identification, payload, status, and the answers in SystemOne form with
unrounded probabilities. The layout only: records of `index-format` are not the index's own, and
the kit refuses them as such, which is right.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from clefq.clef.answers import answer
from clefq.clef.records import Record, record_to_json
from clefq.errors import PredictionsError
from clefq.store.atomic import atomic_file
from clefq.store.predictions import Predictions
from clefq.store.sets import SetFolder

Row = Mapping[str, Any]


def write_results(path: Path, predictions: Predictions, folder: SetFolder) -> int:
    """Writes one line per record of the set, in the set's order, atomically.

    Returns:
        Number of lines.

    Raises:
        PredictionsError: The predictions were made on another set, lack one of its records, or
            are labels.
    """
    if predictions.meta.eval_set_sha256 != folder.manifest.sha256:
        raise PredictionsError(
            f"{predictions.path} was made on another set than {folder.path}.",
            fix="name the set that the predictions were made on.",
        )
    if predictions.meta.labels:
        raise PredictionsError(
            f"{predictions.path} holds labels; this layout holds probabilities.",
            fix="give predictions with probabilities.",
        )
    count = 0
    with atomic_file(path) as partial, partial.open("w", encoding="utf-8", newline="\n") as file:
        for line in result_lines(predictions, folder):
            file.write(json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n")
            count += 1
    return count


def result_lines(predictions: Predictions, folder: SetFolder) -> Iterator[dict[str, Any]]:
    """The lines as objects."""
    rows: dict[str, dict[str, Row]] = {}
    for plain in predictions.frame.to_dict("records"):
        row = {str(column): value for column, value in plain.items()}
        rows.setdefault(row["record_id"], {})[row["question_id"]] = row
    for record in folder.records():
        if record.id not in rows:
            raise PredictionsError(f"{predictions.path} lacks record {record.id!r}.")
        yield _line(record, rows[record.id], predictions, folder.name)


def _line(
    record: Record, rows: Mapping[str, Row], predictions: Predictions, name: str
) -> dict[str, Any]:
    body = record_to_json(record)
    payload = {"state": body["state"], "questions": body["questions"]}
    receipt = json.dumps(payload, ensure_ascii=False, separators=(",", ":"))
    meta = predictions.meta
    line: dict[str, Any] = {
        "run_id": record.id,
        "catalog_id": None,
        "dataset": record.cohort,
        "group_id": record.id,
        "track": record.cohort,
        "source_path": name,
        "request_sha256": hashlib.sha256(receipt.encode()).hexdigest(),
        "benchmark_origin": "clefq",
        "payload": payload,
        "engine": f"{meta.engine} {meta.engine_version}",
    }
    missing = [question.id for question in record.questions if question.id not in rows]
    if missing:
        raise PredictionsError(f"{predictions.path} lacks {record.id}/{missing[0]}.")
    errors = [str(row["error"]) for row in rows.values() if isinstance(row["error"], str)]
    if errors:
        return {**line, "status": "error", "error": errors[0], "completed_utc": meta.created_at}
    answers = {
        question.id: answer(question, _probabilities(rows[question.id]), digits=None)
        for question in record.questions
    }
    usage = {"input_tokens": int(next(iter(rows.values()))["input_tokens"]), "output_tokens": 0}
    response = {"model": meta.model_id, "answers": answers, "usage": usage}
    return {**line, "status": "ok", "response": response, "completed_utc": meta.created_at}


def _probabilities(row: Row) -> dict[str, float]:
    values = np.exp(np.asarray(row["logprobs"], dtype=np.float64))
    return dict(zip(row["option_ids"], values.tolist(), strict=True))
