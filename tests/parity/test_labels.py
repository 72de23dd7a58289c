"""Labels without probabilities: agreement and accuracy are judged, nothing else is made up."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from clefq.cli.threshold import _check_probabilities
from clefq.errors import PredictionsError
from clefq.parity.comparison import FROM_PREDICTIONS, provenance
from clefq.parity.gates.compare import CandidateReport, JudgeSpec, judge_candidate
from clefq.parity.gates.files import load_gates
from clefq.parity.rejudge import rejudge
from clefq.parity.report.files import ReportSpec, write_reports
from clefq.parity.report.flips import flips_frame
from clefq.parity.report.summary import Sizes
from clefq.parity.statistics.metric_facts import LABELS, lacks_probabilities, load_facts
from clefq.store.predictions import Predictions, read_predictions, write_predictions
from tests.parity.factory import META, Design, make_pair
from tests.parity.report.cases import NO_GIT

KEPT = {
    "coverage",
    "agreement",
    "accuracy_baseline",
    "accuracy_candidate",
    "accuracy_delta",
    "record_exact_baseline",
    "record_exact_candidate",
    "record_exact_delta",
    "macro_f1_delta",
}


def labels(file: Predictions) -> Predictions:
    """The same choices, without their probabilities."""
    frame = file.frame.copy()
    frame["logprobs"] = [
        np.where(np.arange(len(row)) == np.argmax(row), 0.0, -np.inf) for row in frame["logprobs"]
    ]
    return Predictions(replace(file.meta, answers="labels"), frame)


PAIR = make_pair(Design(records=220, questions=(1, 2), noise=0.8))
BOTH = (labels(PAIR[0]), labels(PAIR[1]))


def judge(pair: tuple[Predictions, Predictions], gates: str = "release") -> CandidateReport:
    return judge_candidate(*pair, JudgeSpec(load_gates(gates), NO_GIT, resamples=200))


def test_only_choices_are_compared_and_alike_with_probabilities() -> None:
    found, full = judge(BOTH), judge(PAIR)
    assert found.statistics is not None and full.statistics is not None
    given = {name for name, m in found.statistics.metrics.items() if m.estimate is not None}
    assert given == KEPT
    for name in KEPT:
        assert found.statistics.metrics[name] == full.statistics.metrics[name]
    assert not any(name.startswith("margin=") for name in found.statistics.slices)
    assert found.coverage.identical == 0  # labels coincide honestly


def test_gates_on_probabilities_are_not_gated_and_say_why() -> None:
    report = judge(BOTH)
    by_name = {gate.name: gate for gate in report.results}
    for name in ("confident-agreement", "total-variation"):
        assert by_name[name].status == "not_gated"
        assert LABELS in by_name[name].reason
    assert by_name["accuracy"].status != "not_gated"
    assert report.verdict.word in ("inconclusive", "fail")
    assert sum(LABELS in banner for banner in report.verdict.banners) == 2
    if report.verdict.word == "inconclusive":
        assert "--gates labels" in report.verdict.next_step


def test_the_bundled_gates_for_labels_need_no_probability() -> None:
    same = (BOTH[0], replace(BOTH[0], meta=BOTH[1].meta))
    report = judge(same, "labels")
    assert {gate.status for gate in report.results} <= {"pass", "inconclusive"}
    assert "copy" not in " ".join(report.verdict.banners)


def test_a_baseline_with_probabilities_keeps_its_margins() -> None:
    report = judge((PAIR[0], BOTH[1]))
    assert report.statistics is not None
    full = judge(PAIR).statistics
    assert full is not None
    name = "confident_agreement"
    assert report.statistics.metrics[name] == full.metrics[name]
    assert report.statistics.metrics["tv"].estimate is None
    assert any(name.startswith("margin=") for name in report.statistics.slices)


def test_reports_are_written_and_judged_again_from_bounds(tmp_path: Path) -> None:
    report = judge(BOTH)
    write_reports(tmp_path, [report], ReportSpec(provenance(FROM_PREDICTIONS), Sizes()))
    again = rejudge(tmp_path / "nvfp4" / "parity.json")
    stored = {gate["name"]: gate["reason"] for gate in again.document["gates"]}
    assert again.judged_from == "stored bounds"
    assert stored == {gate.name: gate.reason for gate in report.results}
    page = (tmp_path / "nvfp4" / "report.html").read_text(encoding="utf-8")
    assert LABELS in page
    assert re.search(r"\bnan\b", page.lower()) is None


def test_every_gated_metric_says_what_it_needs() -> None:
    lacking = {name for name in load_facts() if lacks_probabilities(name, "labels", "labels")}
    # of variants, which this pair has none of
    flips = {f"coherence_flips_{side}@NAME" for side in ("baseline", "candidate", "delta")}
    assert set(load_facts()) - lacking == KEPT | flips


def test_files_hold_what_they_declare(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    write_predictions(path, BOTH[0].frame, BOTH[0].meta)
    assert read_predictions(path).meta.labels
    with pytest.raises(PredictionsError, match="labels are declared"):
        write_predictions(path, PAIR[0].frame, BOTH[0].meta)
    rounded = replace(BOTH[0].meta, probability_quantum=0.1)
    with pytest.raises(PredictionsError, match="probability_quantum must be null"):
        write_predictions(path, BOTH[0].frame, rounded)
    assert not META.labels


def test_no_threshold_on_labels() -> None:
    with pytest.raises(PredictionsError, match="no threshold"):
        _check_probabilities([PAIR[0], BOTH[1]])


def test_changed_answers_show_no_probability_of_one() -> None:
    statistics = judge(BOTH).statistics
    assert statistics is not None
    flips = flips_frame(statistics.pairs, statistics.values)
    assert len(flips)
    for role in ("baseline", "candidate"):
        assert flips[f"{role}_confidence"].isna().all()
        assert flips[f"{role}_choice"].notna().all()
