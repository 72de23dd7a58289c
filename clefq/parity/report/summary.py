"""`summary.json`: all candidates of one set side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from clefq.clef.checkpoint import weight_bytes
from clefq.parity.gates.rows import broken_advisory, qualifiers
from clefq.parity.gates.verdict import EXIT_CODES, worst
from clefq.parity.report.documents import SUMMARY_SCHEMA
from clefq.parity.statistics.metric_facts import SUMMARY, load_facts

BYTES_PER_GB = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Sizes:
    """What is known of the models beyond their answers.

    Attributes:
        bytes: Variant → bytes on disk of its weights, the head included.
        throughput: Variant → `{"value", "unit", "source"}` where it was measured.
    """

    bytes: Mapping[str, int] = field(default_factory=dict)
    throughput: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def sizes_in(summary: Mapping[str, Any]) -> Sizes:
    """The sizes and speeds that a stored `summary.json` knows."""
    rows = {row["variant"]: row for row in (*summary["candidates"], summary["baseline"])}
    return Sizes(
        {n: row["size_bytes"] for n, row in rows.items() if row["size_bytes"] is not None},
        {n: row["throughput"] for n, row in rows.items() if row["throughput"] is not None},
    )


def sizes_of(folders: Mapping[str, Path]) -> Sizes:
    """Bytes of the checkpoints that lie here; what holds no weights has none.

    Args:
        folders: Variant → checkpoint folder.
    """
    counted = {variant: weight_bytes(folder) for variant, folder in folders.items()}
    return Sizes(bytes={variant: count for variant, count in counted.items() if count})


def summary_document(documents: Sequence[Mapping[str, Any]], sizes: Sizes) -> dict[str, Any]:
    """The JSON value of `summary.json`.

    Args:
        documents: `parity.json` values of all candidates on one set; at least one.
        sizes: Sizes and speeds of the models.
    """
    first = documents[0]
    word = worst([document["verdict"]["word"] for document in documents])
    measured: Mapping[str, Any] = next((doc["metrics"] for doc in documents if doc["metrics"]), {})
    base = first["baseline"]
    return {
        "schema": SUMMARY_SCHEMA,
        "verdict": word,
        "exit_code": int(EXIT_CODES[word]),
        "eval_set": first["eval_set"],
        "baseline": {
            "variant": base["variant"],
            "model_id": base["model_id"],
            "model_revision": base["model_revision"],
            "model_sha256": base["model_sha256"],
            "accuracy": measured.get("accuracy_baseline"),
            **_size(base["variant"], sizes),
        },
        "gate_file": {key: first["gate_file"][key] for key in ("name", "sha256", "bound")},
        "candidates": [_row(document, sizes) for document in documents],
        "provenance": {key: first["provenance"][key] for key in ("clefq_version", "created_at")},
    }


def _row(document: Mapping[str, Any], sizes: Sizes) -> dict[str, Any]:
    verdict, metrics, side = document["verdict"], document["metrics"], document["candidate"]
    variant = side["variant"]
    return {
        "variant": variant,
        "verdict": verdict["word"],
        **{key: verdict[key] for key in ("sentence", "next_step", "more_questions", "exit_code")},
        "qualifiers": list(qualifiers(document)),
        "reasons": list(verdict["reasons"]),
        "advisory": list(broken_advisory(document)),
        **{key: side[key] for key in ("scheme", "kernels", "arithmetic", "engine")},
        "accuracy": metrics.get("accuracy_candidate"),
        **{name: metrics.get(name) for name in _listed()},
        **_size(variant, sizes),
        "report": f"{variant}/report.html",
    }


def _listed() -> list[str]:
    """The metrics of a row: those of a candidate that could not be judged are null."""
    return [name for name, facts in load_facts().items() if SUMMARY in facts.shown]


def _size(variant: str, sizes: Sizes) -> dict[str, Any]:
    size = sizes.bytes.get(variant)
    return {
        "size_bytes": size,
        "size_gb": None if size is None else size / BYTES_PER_GB,
        "throughput": sizes.throughput.get(variant),
    }
