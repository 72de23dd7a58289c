"""`report.md`: a report for a CI step summary; short, and far below its limit of 1 MiB."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from clefq.parity.gates.cards import find_card
from clefq.parity.gates.formatting import MARKS, count, figure, interval, limit_text, short_hash
from clefq.parity.gates.formatting import markdown_cell as _cell
from clefq.parity.gates.formatting import markdown_prose as _prose
from clefq.parity.gates.judging import title_of

MAX_GATES = 60
MAX_WORST = 10
SHOWN = (
    "accuracy_baseline",
    "accuracy_candidate",
    "accuracy_delta",
    "record_exact_baseline",
    "record_exact_candidate",
    "record_exact_delta",
    "agreement",
    "confident_agreement",
    "tv",
    "kl",
    "js",
    "brier_delta",
    "nll_delta",
    "score_mae",
    "macro_f1_delta",
    "ece_delta",
    "aurc_delta",
)


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
        f"## {MARKS[verdict['word']]} {verdict['word'].upper()}: {_cell(candidate['variant'])}"
        + (f" against {_cell(baseline['variant'])} on {_cell(document['eval_set']['name'])}")
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
    yield from _alarms(document)
    yield from _worst(document)
    yield from _facts(document)


def _gates(document: Mapping[str, Any]) -> Iterator[str]:
    coverage = document["coverage"]
    yield "| | gate | figure | interval | needs | questions |"
    yield "|---|---|---:|---|---|---:|"
    yield (
        f"| {MARKS[coverage['status']]} | coverage | {figure(coverage['share'])} | "
        f"| ≥ {figure(coverage['minimum'])} | {count(coverage['expected'])} |"
    )
    for gate in document["gates"][:MAX_GATES]:
        card = find_card(gate["metric"])
        unit = card.unit if card else ""
        signed = (card is not None and card.kind == "difference") or gate["margin"] is not None
        name = _cell(gate["name"]) + ("" if gate["required"] else " (advisory)")
        yield (
            f"| {MARKS[gate['status']]} | {name} | {figure(gate['estimate'], unit, signed=signed)} "
            f"| {interval(gate['lower'], gate['upper'], unit, signed=signed)} "
            f"| {limit_text(gate, unit, signed=signed)} | {count(gate['n_questions'])} |"
        )
    hidden = len(document["gates"]) - MAX_GATES
    if hidden > 0:
        yield f"\n{hidden} further gates are in parity.json."
    yield ""


def shown_metrics(metrics: Mapping[str, Any]) -> list[str]:
    """The metrics that a page's table lists, in its order.

    Exact records stand there only where a record has several questions with gold: elsewhere they
    are the accuracy once more.
    """
    names = [name for name in SHOWN if name in metrics]
    names += [name for name in metrics if "@" in name]
    exact, asked = metrics.get("record_exact_delta"), metrics.get("accuracy_delta")
    if exact is None or asked is None or exact["n_questions"] == asked["n_questions"]:
        names = [name for name in names if not name.startswith("record_exact_")]
    return names


def _metrics(document: Mapping[str, Any]) -> Iterator[str]:
    metrics = document["metrics"]
    if not metrics:
        return
    yield "| metric | figure | interval | bootstrap | questions |"
    yield "|---|---:|---|---|---:|"
    for name in shown_metrics(metrics):
        metric, card = metrics[name], find_card(name)
        unit = card.unit if card else ""
        signed = card is not None and card.kind == "difference"
        boot = metric["bootstrap"] or {"lower": None, "upper": None}
        yield (
            f"| {title_of(name)} | {figure(metric['estimate'], unit, signed=signed)} "
            f"| {interval(metric['lower'], metric['upper'], unit, signed=signed)} "
            f"| {interval(boot['lower'], boot['upper'], unit, signed=signed)} "
            f"| {count(metric['n_questions'])} |"
        )
    yield ""


def _alarms(document: Mapping[str, Any]) -> Iterator[str]:
    if not document["alarms"]:
        return
    yield "Slices where accuracy is worse (Holm-corrected):"
    yield ""
    for alarm in document["alarms"][:MAX_WORST]:
        yield (
            f"- {_cell(alarm['slice'])}: {figure(alarm['estimate'], signed=True)} "
            f"on {count(alarm['n_questions'])} questions"
        )
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
    yield f"- Judged from {document['provenance']['judged_from']} by clefq " + (
        f"{document['provenance']['clefq_version']}"
    )
