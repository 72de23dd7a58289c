"""Rows of a card's tables, from the evidence."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from clefq.parity.gates.formatting import count, markdown_cell
from clefq.parity.gates.rows import figure_rows, gate_row
from clefq.parity.statistics.metric_facts import MODEL_CARD
from clefq.plain_files import sha256_file
from clefq.release.evidence import Evidence, SetEvidence
from clefq.release.speed import BenchRow, SpeedFigure

MAX_GATES = 40
_TITLES = {
    "accuracy_baseline": "Accuracy, BF16",
    "accuracy_candidate": "Accuracy, this checkpoint",
}
_APACHE = ("Apache License", "Version 2.0")


def duration(seconds: float) -> str:
    """Seconds as people say them."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def size_row(found: Evidence) -> dict[str, Any]:
    """`{"bytes", "baseline", "share"}`: of all weights; baseline and share None where unknown."""
    known = [
        item.baseline["size_bytes"]
        for item in found.sets
        if item.baseline is not None and item.baseline["size_bytes"] is not None
    ]
    base = known[0] if known else None
    return {
        "bytes": found.nbytes,
        "baseline": base,
        "share": None if base is None else found.nbytes / base,
    }


def stored_as(found: Evidence) -> list[str]:
    """How each part of the model is stored: `MLP: 24 × w4a4`; parts of one dtype share a line."""
    mixed: list[str] = []
    plain: dict[str, list[str]] = {}
    for part, kinds in found.parts.items():
        quantized = {kind: n for kind, n in kinds.items() if kind in found.formats}
        if quantized:
            rest = {kind: n for kind, n in kinds.items() if kind not in quantized}
            words = [f"{count(n)} × {kind}" for kind, n in sorted({**quantized, **rest}.items())]
            mixed.append(f"{part}: {', '.join(words)}")
        else:
            plain.setdefault("/".join(sorted(kinds)), []).append(part)
    return [*mixed, *(f"{', '.join(parts)}: {kind}" for kind, parts in plain.items())]


def parity_rows(item: SetEvidence) -> Iterator[dict[str, str]]:
    """The parity table of one set: `{"title", "figure", "interval", "questions", "note"}`."""
    for row in figure_rows(MODEL_CARD, item.document):
        yield {
            "title": _TITLES.get(row.name) or row.title,
            "figure": row.figure,
            "interval": row.interval,
            "questions": row.questions,
            "level": row.level,
        }


def gate_rows(item: SetEvidence) -> list[dict[str, str]]:
    """The gates of one set that were judged, required ones first, in the file's order."""
    gates = [gate for gate in item.document["gates"] if gate["status"] != "not_gated"]
    gates.sort(key=lambda gate: not gate["required"])
    return [_gate_row(gate) for gate in gates[:MAX_GATES]]


def _gate_row(gate: Mapping[str, Any]) -> dict[str, str]:
    row = gate_row(gate)
    return {
        "mark": row.mark,
        "name": markdown_cell(row.label),
        "figure": row.figure,
        "interval": row.interval,
        "limit": row.needs,
        "status": row.status,
        "questions": row.questions,
    }


def history(item: SetEvidence) -> list[str]:
    """What is known of a gate file's past, one sentence each."""
    gate_file = item.document["gate_file"]
    record = gate_file["preregistration"]
    lines = [str(record["sentence"])]
    if record["commit"] is not None:
        lines.append(f"Commit `{record['commit'][:12]}` of {record['committed_at']}.")
    old = gate_file["superseded"]
    if old is not None:
        lines.append(
            f"It replaces {markdown_cell(old['name'])} `{old['sha256'][:12]}`, by which the "
            f"verdict is {old['verdict']['word'].upper()}."
        )
    return lines


def evidence_rows(found: Evidence) -> Iterator[tuple[str, str, str]]:
    """What each file of the evidence is, its name and its SHA-256."""
    yield "checkpoint", "all that is served", found.sha256
    manifest = found.manifest
    if manifest is not None:
        yield "source", markdown_cell(manifest.source["model_id"]), manifest.source["sha256"]
        yield "recipe", "recipe.yaml", manifest.recipe["sha256"]
        if manifest.calibration is not None:
            name = markdown_cell(manifest.calibration["set"])
            yield "calibration set", name, manifest.calibration["sha256"]
    for item in found.sets:
        document, name = item.document, markdown_cell(item.name)
        yield "eval set", name, document["eval_set"]["sha256"]
        yield "gates", markdown_cell(document["gate_file"]["name"]), document["gate_file"]["sha256"]
        for role in ("baseline", "candidate"):
            stored = document[role]["predictions"]
            if stored is not None:
                yield f"predictions, {role}", f"on {name}", stored["sha256"]
        yield "report", f"parity.json on {name}", sha256_file(item.path)
    for path in dict.fromkeys(bench.path for bench in _of_this(found)):
        yield "throughput", f"bench/{markdown_cell(path.name)}", sha256_file(path)


# What a card says of a rounding.
_ROUNDINGS = {
    "nearest": "to the nearest, under scales from the largest weight that shares them",
    "search": "to the nearest, group scales of NVFP4 searched for the least squared error",
    "gptq": "GPTQ: errors made up for in later columns, on the calibration set",
}


def rounding_text(name: str) -> str:
    """How weights are rounded, in words.

    Args:
        name: As `clefq.json` records it.
    """
    return f"{name}: {_ROUNDINGS[name]}" if name in _ROUNDINGS else markdown_cell(name)


def breaches(found: Evidence) -> list[str]:
    """The audit's breaches, one line each; empty where it passed or was not run here."""
    if found.audit is None:
        return []
    return [
        f"{breach['check']}: {breach['subject']} {breach['message']}"
        for breach in found.audit["breaches"]
    ]


def speeds(found: Evidence) -> list[SpeedFigure]:
    """Everything measured of its speed, on real kernels."""
    rows = [row for bench in _of_this(found) if not bench.simulated for row in bench.speeds()]
    listed = {row.source for row in rows}
    return [row for row in _summary_speeds(found) if row.source.split(",")[0] not in listed] + rows


def _of_this(found: Evidence) -> list[BenchRow]:
    """Bench rows of a checkpoint of this name and size; another size is another checkpoint."""
    return [bench for bench in found.benches if bench.row["disk_bytes"] == found.nbytes]


def speed_notes(found: Evidence) -> list[str]:
    """What the reader of the throughput must know, each once."""
    benches = _of_this(found)
    notes = [w for bench in benches if not bench.simulated for w in bench.warnings]
    notes += [
        f"bench/{bench.path.name} is of another {bench.row['name']} "
        f"({count(bench.row['disk_bytes'])} bytes) and is left out"
        for bench in found.benches
        if bench not in benches
    ]
    if any(bench.simulated for bench in benches):
        notes.append(
            "simulated kernels were timed as well; their speed says nothing and is left out"
        )
    return list(dict.fromkeys(notes))


def _summary_speeds(found: Evidence) -> Iterator[SpeedFigure]:
    for item in found.sets:
        measured = None if item.row is None else item.row["throughput"]
        side = item.document["candidate"]
        if measured is not None and side["kernels"] == "real":
            yield SpeedFigure(
                f"predicting {item.name}",
                f"{measured['value']:.4g} {measured['unit']}",
                f"{side['device']}, {side['engine']} {side['engine_version']}",
                str(measured["source"]),
            )


def licence(folder: Path) -> str | None:
    """The hub's word for the licence file: `apache-2.0`, `other`, or None where there is none."""
    path = folder / "LICENSE"
    if not path.is_file():
        return None
    text = path.read_text(encoding="utf-8", errors="replace")[:2000]
    apache = all(word in text for word in _APACHE) or text.strip().lower() == "apache-2.0"
    return "apache-2.0" if apache else "other"
