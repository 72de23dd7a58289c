"""`report.md`: a report for a CI step summary; short, and far below its limit of 1 MiB."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from clefq.parity.gates.formatting import MARKS, count, figure, short_hash
from clefq.parity.gates.formatting import markdown_cell as _cell
from clefq.parity.gates.formatting import markdown_prose as _prose
from clefq.parity.gates.rows import (
    alarm_line,
    alarm_text,
    figure_rows,
    gate_row,
    identical_text,
    qualifiers,
)
from clefq.parity.report.classes import moved
from clefq.parity.report.coherence import coherence_rows
from clefq.parity.statistics.metric_facts import REPORT

MAX_GATES = 60
MAX_WORST = 10


def report_markdown(document: Mapping[str, Any]) -> str:
    """The Markdown text of one report.

    Args:
        document: A `parity.json` value.
    """
    return "\n".join(_lines(document)) + "\n"


def _lines(document: Mapping[str, Any]) -> Iterator[str]:
    verdict = document["verdict"]
    candidate, baseline = document["candidate"], document["baseline"]
    yield (
        f"## {MARKS[verdict['word']]} {verdict['word'].upper()}: "
        f"{_cell(candidate['variant'])}"
        + (f" against {_cell(baseline['variant'])} on {_cell(document['eval_set']['name'])}")
        + _beside(document)
    )
    yield ""
    for banner in verdict["banners"]:
        yield f"> **{_prose(banner)}**"
        yield ""
    yield _prose(verdict["sentence"])
    yield ""
    for reason in verdict["reasons"][:MAX_GATES]:
        yield f"- {_prose(reason)}"
    if verdict["reasons"]:
        yield ""
    yield f"**Next:** {_prose(verdict['next_step'])}"
    yield ""
    yield from _gates(document)
    yield from _metrics(document)
    yield from _coherence(document)
    yield from _alarms(document)
    yield from _moved(document)
    yield from _worst(document)
    yield from _facts(document)


def _beside(document: Mapping[str, Any]) -> str:
    found = qualifiers(document)
    return f" ({', '.join(found)})" if found else ""


def _gates(document: Mapping[str, Any]) -> Iterator[str]:
    coverage = document["coverage"]
    yield "| | gate | figure | interval | needs | questions |"
    yield "|---|---|---:|---|---|---:|"
    yield (
        f"| {MARKS[coverage['status']]} | coverage | {figure(coverage['share'])} | "
        f"| ≥ {figure(coverage['minimum'])} | {count(coverage['expected'])} |"
    )
    for row in map(gate_row, document["gates"][:MAX_GATES]):
        yield (
            f"| {row.mark} | {_cell(row.label)} | {row.figure} | {row.interval} | {row.needs} "
            f"| {row.questions} |"
        )
    hidden = len(document["gates"]) - MAX_GATES
    if hidden > 0:
        yield f"\n{hidden} further gates are in parity.json."
    yield ""


def _metrics(document: Mapping[str, Any]) -> Iterator[str]:
    rows = figure_rows(REPORT, document)
    if not rows:
        return
    yield "| metric | figure | interval | questions |"
    yield "|---|---:|---|---:|"
    for row in rows:
        yield f"| {row.title} | {row.figure} | {row.interval} | {row.questions} |"
    yield ""


def _coherence(document: Mapping[str, Any]) -> Iterator[str]:
    rows = coherence_rows(document)
    if not rows:
        return
    yield "| asked in another form | baseline moves | candidate moves | difference | interval |"
    yield "|---|---:|---:|---:|---|"
    for row in rows:
        one, other, delta = row.tv
        yield (
            f"| {row.title} | {one.figure} | {other.figure} | {delta.figure} | {delta.interval} |"
        )
    yield ""


def _alarms(document: Mapping[str, Any]) -> Iterator[str]:
    if not document["metrics"]:
        return
    if not document["alarms"]:
        yield alarm_text(document)
        yield ""
        return
    yield "Slices where the candidate is worse for sure (Holm-corrected):"
    yield ""
    for alarm in document["alarms"][:MAX_WORST]:
        yield f"- {_cell(alarm['slice'])}: {alarm_line(alarm)}"
    yield ""


def _moved(document: Mapping[str, Any]) -> Iterator[str]:
    moves, hidden = moved(document, MAX_WORST)
    if not moves:
        return
    yield "| answers that moved | from | to | count | gained | lost |"
    yield "|---|---|---|---:|---:|---:|"
    for move in moves:
        names = " | ".join(_cell(move[key]) for key in ("question", "baseline", "candidate"))
        yield f"| {names} | {move['count']} | {move['gained']} | {move['lost']} |"
    if hidden:
        yield f"\n{count(hidden)} more changed answers, in rarer moves."
    yield ""


def _worst(document: Mapping[str, Any]) -> Iterator[str]:
    worst = document["flips"].get("worst", [])[:MAX_WORST]
    if not worst:
        return
    yield "| worst questions | baseline | candidate | TV |"
    yield "|---|---|---|---:|"
    for row in worst:
        yield (
            f"| {_cell(row['record_id'])} / {_cell(row['question_id'])} "
            f"| {_cell(row['baseline_choice'])} | {_cell(row['candidate_choice'])} "
            f"| {row['tv']:.3f} |"
        )
    yield ""


def _facts(document: Mapping[str, Any]) -> Iterator[str]:
    gate_file = document["gate_file"]
    candidate, baseline = document["candidate"], document["baseline"]
    yield (
        f"- Gates: {_cell(gate_file['name'])} `{short_hash(gate_file['sha256'])}`. "
        + (gate_file["preregistration"]["sentence"])
    )
    yield (
        f"- Set: {_cell(document['eval_set']['name'])} "
        f"`{short_hash(document['eval_set']['sha256'])}`"
    )
    for side in (baseline, candidate):
        yield (
            f"- {_cell(side['variant'])}: {_cell(side['model_id'])} "
            f"`{short_hash(side['model_sha256'])}`, {side['engine']} {side['engine_version']}, "
            f"{side['arithmetic']}, {side['kernels']} kernels, {_cell(side['device'])}"
        )
    identical = identical_text(document)
    if identical is not None:
        yield f"- Answers that are the baseline's to the last bit: {identical[0]} ({identical[1]})"
    yield f"- Judged from {document['provenance']['judged_from']} by clefq " + (
        f"{document['provenance']['clefq_version']}"
    )
