"""Figures of coherence as any others: gated, planned, judged again, shown."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from clefq.parity.comparison import SetJob, judge_set, load_spec
from clefq.parity.gates.compare import StatisticsSource
from clefq.parity.gates.files import load_gates
from clefq.parity.gates.judging import judge_gate
from clefq.parity.plan_gates import plan_from_report
from clefq.parity.rejudge import rejudge
from clefq.parity.report.coherence import coherence_rows
from clefq.parity.report.files import REPORT_FILE
from clefq.parity.statistics.metric_facts import find_facts
from clefq.store.predictions import write_predictions
from clefq.store.sets import SetDraft, write_set
from clefq.store.variant_links import ALL, TRANSFORMS
from tests.parity.coherent import (
    blind,
    coherent,
    figures,
    first_option,
    predictions,
    records,
)
from tests.parity.report.cases import read_page

GATES = """
schema: clefq.gates/1
name: coherent
description: d
gates:
  - {name: any, metric: coherence_flips_delta@all, direction: at_most, margin: 0.30, min_n: 20}
  - {name: order, metric: coherence_flips_delta@order, direction: at_most, margin: 0.02, min_n: 20}
  - {name: ratings, metric: coherence_tv_candidate@alone, direction: at_most, bound: 0.2,
     min_n: 20, slice: {type: score}}
  - {name: state, metric: state_use_delta, direction: at_least, margin: 0.05, min_n: 20}
"""
ANSWERED = [name for name, facts in TRANSFORMS.items() if facts.asks != "without the state"]
EVERY = [
    f"coherence_{what}_{form}@{name}"
    for what in ("tv", "flips")
    for form in ("candidate", "delta")
    for name in (ALL, *ANSWERED)
] + ["state_use_candidate", "state_use_delta"]


def every_figure() -> str:
    """A gate on each figure that coherence has, none of them required."""
    rows = []
    for metric in EVERY:
        facts = find_facts(metric)
        assert facts is not None and facts.gate, metric
        limit = "margin: 0.05" if facts.kind == "difference" else "bound: 0.25"
        way = "at_least" if facts.direction == "higher" else "at_most"
        rows.append(
            f"  - {{name: {metric.replace('@', '-')}, metric: {metric}, direction: {way}, "
            f"{limit}, min_n: 20, required: false}}"
        )
    return GATES + "\n".join(rows) + "\n"


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from clefq.console import Console

    folder = tmp_path_factory.mktemp("coherent")
    (folder / "gates.yaml").write_text(every_figure())
    # a set most of whose questions have no gold, held against both files
    made = write_set(folder / "forms", records(), {}, SetDraft("eval", "forms", {}, ()))
    files = []
    for model, variant in ((coherent, "bf16"), (first_option, "biased")):
        found = predictions(model, variant)
        files.append(folder / f"{variant}.parquet")
        meta = replace(found.meta, eval_set_sha256=made.manifest.sha256)
        write_predictions(files[-1], found.frame, meta)
    job = SetJob(files[0], (files[1],), folder / "report", set_path=made.path)
    judge_set(job, load_spec(str(folder / "gates.yaml")), Console(quiet=True))
    return folder / "report" / "biased"


def test_gates_read_them_and_are_judged_again_from_either(report: Path) -> None:
    again = rejudge(report / REPORT_FILE)
    assert again.judged_from == "predictions"
    found = {gate["name"]: gate for gate in again.document["gates"]}
    assert {name: gate["status"] for name, gate in found.items() if gate["required"]} == {
        "any": "inconclusive", "order": "fail", "ratings": "pass", "state": "inconclusive",
    }  # fmt: skip
    places = [
        file.rename(file.with_suffix(".away")) for file in report.parents[1].glob("*.parquet")
    ]
    try:
        stored = rejudge(report / REPORT_FILE)
    finally:
        for file in places:
            file.rename(file.with_suffix(".parquet"))
    assert stored.judged_from == "stored bounds"
    for one, other in zip(stored.document["gates"], again.document["gates"], strict=True):
        assert one == {**other, "reason": one["reason"]}
    plan = {row.gate: row for row in plan_from_report(
        load_gates(str(report.parents[1] / "gates.yaml")).gates, again.document, 0.8
    )}  # fmt: skip
    for metric in EVERY:  # each is gated by its own figure, planned, and judged again above
        name = metric.replace("@", "-")
        assert found[name]["status"] in ("pass", "fail", "inconclusive"), metric
        assert found[name]["estimate"] == again.document["metrics"][metric]["estimate"]
        assert plan[name].have == found[name]["n_questions"] >= 20
        assert plan[name].needed is not None or found[name]["status"] == "inconclusive", metric
    assert plan["order"].decided
    assert not plan["any"].decided


def test_the_page_has_the_section(report: Path) -> None:
    document = rejudge(report / REPORT_FILE).document
    rows = {row.title: row for row in coherence_rows(document)}
    assert rows["options in another order"].tv[0].figure == "0.00%"
    assert rows["no state (more is better)"].flips is None
    text = " ".join(read_page((report / "report.html").read_text("utf-8")).text)
    assert "options in another order" in text
    assert "How far do a model's own answers move?" in text
    assert "| options in another order | 0.00% |" in (report / "report.md").read_text("utf-8")


def test_the_template_stops_a_build_that_leans_on_the_order() -> None:
    """And one that does not read the state, and no build that is as steady."""
    gates = load_gates("coherence").gates
    biased = StatisticsSource(figures(first_option), None)
    found = {
        gate.name: [result.status for result in judge_gate(replace(gate, min_n=20), biased)]
        for gate in gates.gates
    }
    assert found["order"] == found["steady"] == ["fail"]
    same = StatisticsSource(figures(coherent), None)
    for gate in gates.gates:
        if gate.metric.startswith(("coherence_", "state_use_")):
            # sixty records of which none moves show no more than six points
            (result,) = judge_gate(replace(gate, min_n=20, margin=0.065), same)
            assert result.status == "pass", gate.name
    blinded = next(gate for gate in gates.gates if gate.metric == "state_use_delta")
    (result,) = judge_gate(replace(blinded, min_n=20), StatisticsSource(figures(blind), None))
    assert result.status == "fail"


def test_without_variants_such_a_gate_stays_open(tmp_path: Path) -> None:
    from tests.parity.factory import Design, make_pair
    from tests.parity.report.cases import judged

    (tmp_path / "gates.yaml").write_text(GATES)
    document = judged(*make_pair(Design()), str(tmp_path / "gates.yaml"))
    assert document["verdict"]["word"] == "inconclusive"
    assert {gate["status"] for gate in document["gates"]} == {"not_gated"}
    assert "clefq build eval SET --variants" in document["gates"][0]["reason"]
    assert coherence_rows(document) == []
