"""Other people's results through import and judgement, against the figures that they published.

Their files are not part of this tree: tests skip where `CLEFQ_DATA_DIR` does not hold them.
"""

from __future__ import annotations

import csv
import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from clefq.clef.records import Record
from clefq.importing.answers import import_answers
from clefq.importing.formats import ImportSpec, read_answers
from clefq.importing.new_set import write_new_set
from clefq.parity.gates.compare import CandidateReport, JudgeSpec, judge_candidate
from clefq.parity.gates.files import TEMPLATES, load_gates
from clefq.parity.statistics.intervals import mcnemar_exact
from clefq.store.predictions import Predictions, PredictionsMeta
from clefq.store.sets import open_set
from tests.parity.factory import META, single
from tests.parity.report.cases import NO_GIT


def data(*parts: str) -> Path:
    path = Path(os.environ.get("CLEFQ_DATA_DIR", "nowhere"), *parts)
    if not path.exists():
        pytest.skip(f"CLEFQ_DATA_DIR holds no {'/'.join(parts)}")
    return path


def meta(variant: str) -> PredictionsMeta:
    scheme = "nvfp4" if variant == "nvfp4" else "unknown"
    return replace(META, variant=variant, scheme=scheme, answers="labels", engine="import")


def judge(
    table: Path, folder: Path, baseline: str, candidate: str, gates: str = "labels"
) -> CandidateReport:
    first = read_answers(table, ImportSpec(choice=baseline))
    write_new_set(folder, first, table)
    records: list[Record] = list(open_set(folder).records())
    sides = [
        Predictions(meta(name), import_answers(records, answers, None)[0])
        for name, answers in (
            (baseline, first),
            (candidate, read_answers(table, ImportSpec(choice=candidate))),
        )
    ]
    return judge_candidate(*sides, JudgeSpec(load_gates(gates), NO_GIT, resamples=500))


@pytest.mark.parametrize(
    ("build", "right", "differ", "net"),
    [("nvfp4", 0.900, 28, -10), ("nvfp4-marlin", 0.910, 27, -7), ("w4a16-awq", 0.947, 26, 4)],
)
def test_tool_choice_of_four_builds(
    tmp_path: Path, build: str, right: float, differ: int, net: int
) -> None:
    """Rodder5/sm120-quant-bench at 6e27d838, MIT: 300 items, chosen tools, no probabilities."""
    report = judge(data("sm120_toolcall", "chosen.csv"), tmp_path / "set", "bf16", build)
    assert report.statistics is not None
    found = report.statistics.metrics
    assert found["accuracy_baseline"].estimate == pytest.approx(0.933, abs=5e-4)
    assert found["accuracy_candidate"].estimate == pytest.approx(right, abs=5e-4)
    assert round(300 * (1 - found["agreement"].estimate)) == differ
    assert round(300 * found["accuracy_delta"].estimate) == net
    for name in ("kl", "tv", "confident_agreement", "ece_delta"):
        assert found[name].estimate is None


def test_a_build_that_is_not_proven_worse_and_not_shown_equal(tmp_path: Path) -> None:
    report = judge(data("sm120_toolcall", "chosen.csv"), tmp_path / "set", "bf16", "nvfp4")
    assert report.statistics is not None
    delta = report.statistics.metrics["accuracy_delta"]
    assert (delta.lower, delta.upper) == pytest.approx((-0.071, 0.0015), abs=5e-4)
    by_name = {gate.name: gate for gate in report.results}
    assert by_name["accuracy"].status == "inconclusive"
    assert report.verdict.word == "inconclusive"


def test_sentiment_of_a_four_bit_build(tmp_path: Path) -> None:
    """djwhack03/qwen-nlu-quant-bench at 6a05c0c, no licence: read, never copied."""
    folder = data("qwen_nlu_quant_bench")
    names = ("FP16", "BNB-4bit")
    rows = {
        name: json.loads(
            (folder / f"sentiment_Qwen2-1_5B-{name}.json").read_text(encoding="utf-8")
        )["predictions"]
        for name in names
    }
    table = tmp_path / "sentiment.csv"
    with table.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "state", "options", "gold", *names])
        for at, (one, other) in enumerate(zip(*rows.values(), strict=True)):
            options = "negative|neutral|positive"
            writer.writerow([at, one["text"], options, one["gold"], one["pred"], other["pred"]])
    report = judge(table, tmp_path / "set", *names)
    assert report.statistics is not None
    found = report.statistics.metrics
    assert found["accuracy_baseline"].estimate == pytest.approx(0.726)
    assert found["macro_f1_delta"].estimate == pytest.approx(-0.087, abs=5e-4)
    assert report.verdict.word == "fail"


def right_and_wrong(both: int, first: int, second: int, neither: int) -> list[Predictions]:
    """Two models' answers to two-option questions, whose right option is `a`."""
    patterns = [(1, 1)] * both + [(1, 0)] * first + [(0, 1)] * second + [(0, 0)] * neither
    logs = [np.log([0.3, 0.7]), np.log([0.7, 0.3])]
    return [
        single([logs[right[side]].tolist() for right in patterns], gold=["a"] * len(patterns))
        for side in (0, 1)
    ]


def test_pairing_finds_what_an_unpaired_test_misses() -> None:
    """lm-evaluation-harness issue 3831: 220 items, unpaired z p = 0.080, McNemar p = 0.008."""
    both, first, second, neither = 109, 30, 12, 69
    n = both + first + second + neither
    shares = np.array([both + first, both + second]) / n
    error = np.sqrt((shares * (1 - shares) / n).sum())
    assert n == 220
    assert 2 * stats.norm.sf((shares[0] - shares[1]) / error) == pytest.approx(0.080, abs=5e-4)
    assert mcnemar_exact(second, first) == pytest.approx(0.008, abs=5e-4)
    sides = right_and_wrong(both, first, second, neither)
    report = judge_candidate(*sides, JudgeSpec(load_gates("release"), NO_GIT, resamples=200))
    assert report.statistics is not None
    delta = report.statistics.metrics["accuracy_delta"]
    assert delta.upper is not None and delta.upper < 0


def test_a_random_candidate_on_sixty_questions_never_passes() -> None:
    """llm-compressor PR 1260: its own standard error would have been tolerance enough."""
    rng = np.random.default_rng(1260)
    passed = []
    for _ in range(6):
        sides = right_and_wrong(*rng.multinomial(60, [0.3, 0.3, 0.2, 0.2]).tolist())
        for name in TEMPLATES:
            report = judge_candidate(*sides, JudgeSpec(load_gates(name), NO_GIT, resamples=100))
            passed += [name] if report.verdict.word == "pass" else []
    assert passed == []
