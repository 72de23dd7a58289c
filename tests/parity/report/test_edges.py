"""Reports of unusual comparisons: without gold, without answers, one record, a full disk."""

import errno
import re
from pathlib import Path

import pandas as pd
import pytest

from clefq.errors import InputError
from clefq.parity.gates.compare import CandidateReport, JudgeSpec, judge_candidate
from clefq.parity.gates.files import load_gates
from clefq.parity.gates.formatting import markdown_prose
from clefq.parity.gates.schema import parse_gates
from clefq.parity.report.documents import check_document
from clefq.parity.report.files import ReportSpec, write_reports
from clefq.parity.report.html_page import report_html
from clefq.parity.report.markdown import report_markdown
from clefq.parity.report.summary import Sizes
from tests.parity.report.cases import (
    NO_GIT,
    PROVENANCE,
    changed,
    judged,
    read_page,
)
from tests.parity.synthetic import Dial, World, make_world, predictions


def test_reports_without_gold_render_and_are_not_gated_on_accuracy(world: World) -> None:
    base, other = (changed(predictions(world, name), gold=None) for name in ("bf16", "fp8"))
    document = judged(base, other)
    check_document(document, "parity", "x")
    assert document["metrics"]["accuracy_delta"]["estimate"] is None
    assert document["gates"][0]["status"] == "not_gated"
    assert document["verdict"]["word"] == "inconclusive"
    read_page(report_html(document, []))
    assert "accuracy" in report_markdown(document)


def test_reports_of_failures_only_render(world: World) -> None:
    base = predictions(world, "bf16")
    document = judged(base, predictions(world, "fp8", Dial(failed=1.0)))
    check_document(document, "parity", "x")
    assert document["verdict"]["word"] == "invalid"
    assert document["coverage"]["valid"] == 0
    read_page(report_html(document, []))


def test_questions_in_neither_file_count_as_missing(world: World) -> None:
    base, other = predictions(world, "bf16"), predictions(world, "fp8", Dial(noise=0.01))
    n = len(base.frame)
    for expected, word in ((n, "pass"), (n - 5, "pass"), (n + 5, "invalid")):
        spec = JudgeSpec(load_gates("smoke"), NO_GIT, resamples=200, expected=expected)
        found = judge_candidate(base, other, spec)
        assert found.verdict.word == word
    assert (found.coverage.expected, found.coverage.valid) == (n + 5, n)
    assert "5 questions of the set are in neither" in found.coverage.examples[0]


def test_one_record_is_inconclusive_and_never_a_crash() -> None:
    tiny = make_world(1)
    base, other = predictions(tiny, "bf16"), predictions(tiny, "fp8", Dial(noise=0.1))
    for gates in ("release", "strict", "smoke"):
        document = judged(base, other, gates)
        check_document(document, "parity", "x")
        assert document["verdict"]["word"] == "inconclusive"
        read_page(report_html(document, []))


def test_cut_states_and_other_limits_put_up_banners(world: World) -> None:
    base = predictions(world, "bf16")
    cut = changed(
        predictions(world, "fp8", max_length=4096, truncate_state=True), truncated_tokens=9
    )
    banners = " ".join(judged(base, cut)["verdict"]["banners"])
    assert "states were cut" in banners and "prompts may differ" in banners
    engines = judged(base, predictions(world, "fp8", engine="vllm"))["verdict"]["banners"]
    assert any("engines differ" in banner for banner in engines)
    assert judged(base, predictions(world, "fp8"))["verdict"]["banners"] == []


@pytest.mark.parametrize(
    ("fault", "seen"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), InputError),
        (KeyboardInterrupt(), KeyboardInterrupt),
    ],
)
def test_a_full_disk_or_an_interrupt_leaves_the_old_report(
    folder: Path,
    report: CandidateReport,
    monkeypatch: pytest.MonkeyPatch,
    fault: BaseException,
    seen: type[BaseException],
) -> None:
    before = (folder / "summary.json").read_bytes()

    def stop(*arguments: object, **options: object) -> None:
        raise fault

    monkeypatch.setattr(pd.DataFrame, "to_parquet", stop)
    with pytest.raises(seen):
        write_reports(folder, [report], ReportSpec(PROVENANCE, Sizes()))
    assert (folder / "summary.json").read_bytes() == before
    assert not [path for path in folder.parent.iterdir() if path.name.startswith(".")]


def test_the_gate_file_in_the_docs_is_a_gate_file() -> None:
    text = Path(__file__).parents[3].joinpath("docs", "parity.md").read_text("utf-8")
    block = re.search(r"```yaml\n(.*?)```", text, re.DOTALL)
    assert block is not None
    gates = parse_gates(block[1].encode(), "docs/parity.md")
    assert {gate.metric for gate in gates.gates} >= {"accuracy_delta", "policy_cost@auto-approve"}


def test_commands_in_our_sentences_stay_code() -> None:
    said = markdown_prose("run `clefq doctor --json`; a|b *now*")
    assert said == "run `clefq doctor --json`; a\\|b \\*now\\*"
    assert markdown_prose("a stray ` <b>") == "a stray \\` \\<b\\>"
