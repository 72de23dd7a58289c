"""`parity.json`: the canonical form of a report; every other file is a view of it.

Built from a `CandidateReport` as plain JSON values, held against its model (`documents`) before it
is written and after it is read.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from clefq.parity.gates.compare import CandidateReport
from clefq.parity.gates.files import LoadedGates
from clefq.parity.gates.operating import operating
from clefq.parity.report.documents import SCHEMA, Provenance, check_document
from clefq.parity.report.flips import flips_summary
from clefq.parity.statistics.details import describe
from clefq.parity.statistics.identity import identical_questions
from clefq.plain_files import compact_json, read_json, sha256_bytes
from clefq.store.predictions import PredictionsMeta


def parity_document(report: CandidateReport, provenance: Provenance) -> dict[str, Any]:
    """The JSON value of `parity.json`; infinities become null.

    Args:
        report: The judged candidate.
        provenance: How it was made.
    """
    statistics = report.statistics
    document = {
        "schema": SCHEMA,
        "verdict": report.verdict.to_json(),
        "eval_set": {
            "name": report.candidate.eval_set,
            "sha256": report.candidate.eval_set_sha256,
        },
        "baseline": _side(report.baseline, report.files.get("baseline")),
        "candidate": _side(report.candidate, report.files.get("candidate")),
        "coverage": report.coverage.to_json(),
        "metrics": {}
        if statistics is None
        else {name: metric.to_json() for name, metric in statistics.metrics.items()},
        "slices": {}
        if statistics is None
        else {
            name: {key: metric.to_json() for key, metric in metrics.items()}
            for name, metrics in statistics.slices.items()
        },
        "alarms": [alarm.to_json() for alarm in report.alarms],
        "gates": [result.to_json() for result in report.results],
        "gate_file": _gate_file(report),
        "flips": {} if statistics is None else flips_summary(statistics.pairs, statistics.values),
        "details": None
        if statistics is None
        else {
            **describe(statistics),
            "operating": operating(statistics, report.loaded.gates.at_each_look),
        },
        "noise_floor": _noise_floor(report),
        "policies": _policies(report),
        "provenance": asdict(provenance),
    }
    return signed(_finite(document))


def document_digest(document: Mapping[str, Any]) -> str:
    """SHA-256 over the document's compact JSON without its `provenance.digest`.

    It finds damage and edits that were not meant to deceive; whoever edits on purpose can compute
    it again. Against that, keep the predictions: `clefq gate` judges from them.
    """
    kept = {key: value for key, value in document["provenance"].items() if key != "digest"}
    text = compact_json({**document, "provenance": kept})
    return sha256_bytes(text.encode("utf-8"))


def signed(document: Mapping[str, Any]) -> dict[str, Any]:
    """The document with its digest in `provenance`."""
    digest = document_digest(document)
    return {**document, "provenance": {**document["provenance"], "digest": digest}}


def _side(meta: PredictionsMeta, file: Any) -> dict[str, Any]:
    return {**asdict(meta), "predictions": file}


def _noise_floor(report: CandidateReport) -> dict[str, Any] | None:
    if report.noise is None:
        return None
    files = report.files.get("replicates", [None] * len(report.replicates))
    return {
        "metrics": {name: metric.to_json() for name, metric in report.noise.metrics.items()},
        "replicates": [
            _side(meta, file) for meta, file in zip(report.replicates, files, strict=True)
        ],
        "identical": [identical_questions(pairs.whole) for pairs in report.noise.replicates],
        "valid": [
            int((~(pairs.whole.baseline.failed | pairs.whole.candidate.failed)).sum())
            for pairs in report.noise.replicates
        ],
    }


def _policies(report: CandidateReport) -> list[dict[str, Any]]:
    if report.statistics is None:
        return []
    return [
        {
            **asdict(policy),
            "metrics": {
                name.partition("@")[0]: metric.to_json()
                for name, metric in report.statistics.policies[policy.name].items()
            },
        }
        for policy in report.loaded.gates.policies
    ]


def _gate_file(report: CandidateReport) -> dict[str, Any]:
    old = report.superseded
    return {
        **_gate_identity(report.loaded),
        "preregistration": report.preregistration.to_json(),
        "looks": report.looks.to_json(),
        "superseded": None
        if old is None
        else {
            **_gate_identity(old.loaded),
            "verdict": old.verdict.to_json(),
            "gates": [result.to_json() for result in old.results],
        },
    }


def _gate_identity(loaded: LoadedGates) -> dict[str, Any]:
    return {
        "name": loaded.gates.name,
        "description": loaded.gates.description,
        "sha256": loaded.sha256,
        "bundled": loaded.bundled,
        "bound": loaded.gates.bound,
        "text": loaded.text,
    }


def _finite(value: Any) -> Any:
    """The value with every infinity and NaN as null: JSON has no word for them."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    return value


def read_parity(path: Path) -> dict[str, Any]:
    """Reads and checks a `parity.json`.

    Raises:
        InputError: Missing, not JSON, or not of the schema.
    """
    document: dict[str, Any] = read_json(path)
    check_document(document, "parity", str(path))
    return document
