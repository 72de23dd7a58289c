"""The report files: what they say is what was computed, and hostile names stay text."""

import errno
import json
import math
import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from statistics import NormalDist

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from statsmodels.stats.multitest import multipletests

from clefq.errors import InputError
from clefq.parity.alarms import slice_alarms
from clefq.parity.cards import find_card, load_cards
from clefq.parity.compare import CandidateReport, JudgeSpec, judge_candidate
from clefq.parity.gate_files import LoadedGates, load_gates
from clefq.parity.gate_parsing import parse_gates
from clefq.parity.gate_schema import REPLICATE_METRICS, Gate, GateFile
from clefq.parity.metric import Metric
from clefq.parity.noise_floor import LEVELS
from clefq.parity.preregistration import GitEvidence
from clefq.parity.report_files import ReportSpec, write_reports
from clefq.parity.report_format import figure, interval
from clefq.parity.report_html import index_html, report_html
from clefq.parity.report_json import Provenance, check_document, parity_document
from clefq.parity.report_junit import junit_xml
from clefq.parity.report_markdown import report_markdown
from clefq.parity.report_summary import Sizes
from clefq.parity.svg import Axis, Interval, interval_bar, nice_step
from clefq.store.predictions import Predictions
from tests.parity.synthetic import Dial, World, make_world, predictions

NO_GIT = GitEvidence(None, "not asked")
PROVENANCE = Provenance("0.1.0", "2026-01-02T00:00:00+00:00", "predictions", {}, "clefq parity")
POLICY_GATES = b"""
schema: clefq.gates/1
name: policies
description: d
thresholds: [0.5, 0.9]
policies:
  - {name: auto, questions: "q*", option: "true", threshold: 0.9,
     cost_act_to_hold: 1, cost_hold_to_act: 5}
gates:
  - {name: excess, metric: tv, direction: at_most, margin: 0.5, reference: replicate}
  - {name: cost, metric: policy_cost@auto, direction: at_most, bound: 5000}
  - {name: gone, metric: agreement, direction: at_least, bound: 0.5, slice: {cohort: gone}}
"""


@pytest.fixture(scope="module")
def world() -> World:
    return make_world(260)


@pytest.fixture(scope="module")
def pair(world: World) -> tuple[Predictions, Predictions]:
    return predictions(world, "bf16"), predictions(world, "nvfp4", Dial(noise=0.4, swap=0.05))


@pytest.fixture(scope="module")
def report(world: World, pair: tuple[Predictions, Predictions]) -> CandidateReport:
    gates = parse_gates(POLICY_GATES, "p.yaml")
    loaded = LoadedGates(gates, POLICY_GATES.decode(), "c" * 64, Path("p.yaml"))
    replicate = predictions(world, "bf16", Dial(noise=0.01))
    return judge_candidate(*pair, JudgeSpec(loaded, NO_GIT, resamples=400), [replicate])


@pytest.fixture(scope="module")
def folder(report: CandidateReport, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("reports") / "r"
    sizes = Sizes({"bf16": 18_800_000_000, "nvfp4": 12_000_000_000})
    write_reports(path, [report], ReportSpec(PROVENANCE, sizes))
    return path


@pytest.fixture(scope="module")
def document(folder: Path) -> dict:
    return json.loads((folder / "nvfp4" / "parity.json").read_text("utf-8"))


# ---- parity.json and its neighbours ----


def test_flips_are_those_of_the_frames(
    document: dict, folder: Path, pair: tuple[Predictions, Predictions]
) -> None:
    def chosen(side: Predictions) -> pd.Series:
        return pd.Series(
            [
                o[int(np.argmax(p))]
                for o, p in zip(side.frame.option_ids, side.frame.logprobs, strict=True)
            ]
        )

    before, after, gold = chosen(pair[0]), chosen(pair[1]), pair[0].frame.gold
    flips = document["flips"]
    assert flips["count"] == int((before != after).sum()) > 0
    assert flips["gained"] == int(((before != gold) & (after == gold)).sum())
    assert flips["lost"] == int(((before == gold) & (after != gold)).sum()) > 0
    table = pd.read_parquet(folder / "nvfp4" / "flips.parquet")
    assert len(table) == flips["count"]
    assert table.tv.is_monotonic_decreasing
    assert [row["tv"] for row in flips["worst"]] == sorted(
        (row["tv"] for row in flips["worst"]), reverse=True
    )
    assert len(flips["worst"]) == 20


def test_breakdown_holds_every_metric_of_every_slice(document: dict, folder: Path) -> None:
    table = pd.read_csv(folder / "nvfp4" / "breakdown.csv", dtype={"slice": str})
    scopes = {"overall=": document["metrics"], **document["slices"]}
    assert len(table) == sum(len(metrics) for metrics in scopes.values())
    assert set(table.slice_key) == {"overall", "cohort", "type", "options", "length", "margin"}
    row = table[(table.slice == "cohort-1") & (table.metric == "agreement")].iloc[0]
    expected = document["slices"]["cohort=cohort-1"]["agreement"]
    assert row.estimate == expected["estimate"]
    assert row.bootstrap_lower == expected["bootstrap"]["lower"]


def test_noise_floor_and_policies_are_in_the_document(document: dict) -> None:
    floor, own = document["noise_floor"]["metrics"]["tv"], document["metrics"]["tv"]
    excess, cost, gone = document["gates"]
    assert 0 < floor["estimate"] < own["estimate"]
    assert excess["estimate"] == pytest.approx(own["estimate"] - floor["estimate"], abs=1e-9)
    assert (excess["reference"], excess["margin"]) == ("replicate", 0.5)
    (policy,) = document["policies"]
    assert policy["metrics"]["policy_cost"]["estimate"] == pytest.approx(cost["estimate"])
    changes = policy["metrics"]
    assert changes["policy_changes"]["estimate"] == pytest.approx(
        changes["policy_act_to_hold"]["estimate"] + changes["policy_hold_to_act"]["estimate"]
    )
    assert (gone["status"], document["verdict"]["word"]) == ("not_gated", "inconclusive")
    assert {"threshold_flips@0.5", "threshold_flips@0.9"} <= set(document["metrics"])


def test_replicate_gate_without_a_replicate_is_not_gated(
    pair: tuple[Predictions, Predictions], report: CandidateReport
) -> None:
    bare = judge_candidate(*pair, JudgeSpec(report.loaded, NO_GIT, resamples=200))
    assert bare.results[0].status == "not_gated"
    assert "--replicate" in bare.results[0].reason


def test_infinite_kl_is_null_and_counted(world: World) -> None:
    base, other = predictions(world, "bf16"), predictions(world, "fp8")
    frame = other.frame.copy()
    values = np.full(len(frame.logprobs.iloc[0]), -math.inf)
    values[0] = 0.0
    frame.at[0, "logprobs"] = values.tolist()
    spec = JudgeSpec(load_gates("release"), NO_GIT, resamples=200)
    found = judge_candidate(base, Predictions(other.meta, frame), spec)
    document = parity_document(found, PROVENANCE)
    check_document(document, "parity", "x")
    kl = document["metrics"]["kl"]
    assert (kl["estimate"], kl["n_infinite"]) == (None, 1)
    assert "NaN" not in json.dumps(document, allow_nan=False)


def test_identical_predictions_are_exactly_equal(world: World) -> None:
    base = predictions(world, "bf16")
    spec = JudgeSpec(load_gates("strict"), NO_GIT, resamples=200)
    found = judge_candidate(base, replace(base, meta=replace(base.meta, variant="copy")), spec)
    assert found.statistics is not None
    metrics = found.statistics.metrics
    assert (metrics["agreement"].estimate, metrics["tv"].estimate) == (1.0, 0.0)
    assert metrics["accuracy_delta"].estimate == 0.0
    assert not found.alarms
    assert "fail" not in {result.status for result in found.results}


def test_cards_are_those_of_the_statistics(report: CandidateReport) -> None:
    assert report.statistics is not None
    names = set(report.statistics.metrics)
    for metrics in report.statistics.policies.values():
        names |= set(metrics)
    stems = {re.sub(r"@.*", "", name) for name in names}
    assert stems == {re.sub(r"@.*", "", name) for name in load_cards()}
    assert all(find_card(name) is not None for name in names)
    assert set(REPLICATE_METRICS) == set(LEVELS) - {"coverage"}


def test_units_of_the_cards_match_the_figures(report: CandidateReport) -> None:
    assert report.statistics is not None
    for name, metric in report.statistics.metrics.items():
        card = find_card(name)
        assert card is not None
        natural = {"share": "fraction", "difference": "fraction", "≥ nats": "nats"}
        assert natural.get(metric.unit, metric.unit) == card.unit, name


def test_summary_holds_sizes_and_the_contract_columns(folder: Path) -> None:
    summary = json.loads((folder / "summary.json").read_text("utf-8"))
    (row,) = summary["candidates"]
    assert row["size_gb"] == 12.0 and summary["baseline"]["size_gb"] == 18.8
    assert row["throughput"] is None
    for name in ("accuracy", "accuracy_delta", "agreement", "kl", "tv"):
        assert row[name]["estimate"] is not None


def test_schema_lists_every_fault(document: dict) -> None:
    broken = {**document, "verdict": {**document["verdict"], "word": "fine"}, "more": 1}
    with pytest.raises(InputError) as caught:
        check_document(broken, "parity", "p.json")
    assert len(caught.value.faults) == 2


# ---- HTML ----


class Page(HTMLParser):
    """Collects tags and text, and checks that tags are balanced."""

    VOID = frozenset({"meta", "link", "br", "img", "input", "hr"})

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def read_page(text: str) -> Page:
    page = Page()
    page.feed(text)
    page.close()
    assert page.open == []
    return page


def test_html_is_self_contained_and_accessible(folder: Path) -> None:
    for path in (folder / "nvfp4" / "report.html", folder / "index.html"):
        text = path.read_text("utf-8")
        page = read_page(text)
        names = [tag for tag, _ in page.tags]
        assert not {"script", "link", "img", "iframe", "object"} & set(names)
        remote = re.findall(r"(?:https?:)?//[^\s\"'<]+", text)
        assert set(remote) <= {"http://www.w3.org/2000/svg"}
        assert "url(" not in text and "@import" not in text
        assert ("html", {"lang": "en"}) in page.tags
        pictures = [attributes for tag, attributes in page.tags if tag == "svg"]
        assert all(attributes["role"] == "img" for attributes in pictures)
        assert names.count("title") == len(pictures) + 1
        assert len(text) < 1_000_000


def test_html_top_says_verdict_reason_and_next_step(folder: Path, document: dict) -> None:
    text = (folder / "nvfp4" / "report.html").read_text("utf-8")
    page = read_page(text)
    words = " ".join(" ".join(page.text).split())
    head = words[words.index("nvfp4 against bf16") :][:900]
    assert "INCONCLUSIVE" in head
    assert document["verdict"]["sentence"] in head
    assert document["verdict"]["next_step"].split(":")[0] in head
    assert "real" in words and "coverage" in words and "Noise floor" in words
    for heading in (
        "Where do answers flip?",
        "Does it hold for every length and cohort?",
        "How far do distributions move? (total variation)",
        "Which true/false decisions change?",
        "Do stated confidences still hold?",
        "What does abstaining buy?",
        "The 20 questions that moved most",
        "Decision policies",
    ):
        assert heading in words, heading


HOSTILE = '<img src=x onerror="alert(1)">|`*_[a](b)\n# x'


def test_hostile_names_stay_text(document: dict) -> None:
    bad = json.loads(json.dumps(document))
    bad["eval_set"]["name"] = bad["candidate"]["model_id"] = HOSTILE
    bad["flips"]["worst"][0]["record_id"] = HOSTILE
    bad["verdict"]["reasons"] = [HOSTILE]
    bad["gates"][0]["name"] = HOSTILE
    page = read_page(report_html(bad, []))
    assert not any(tag == "img" for tag, _ in page.tags)
    text = report_markdown(bad)
    rows = [line for line in text.splitlines() if "onerror" in line]
    assert rows and all(r"\<img" in line for line in rows)
    assert "<img" not in text.replace(r"\<img", "")
    assert not any(line.startswith("# x") for line in text.splitlines())
    assert ET.fromstring(junit_xml([bad])) is not None


def test_control_characters_do_not_break_junit(document: dict) -> None:
    bad = json.loads(json.dumps(document))
    bad["verdict"]["reasons"] = ["a\x00b\x1bc\ufffe\ud800d"]
    assert ET.fromstring(junit_xml([bad]).encode("utf-8")) is not None


def test_reports_without_figures_render(world: World) -> None:
    base, other = predictions(world, "bf16"), predictions(world, "fp8")
    frame = other.frame.copy()
    frame["cohort"] = "elsewhere"
    spec = JudgeSpec(load_gates("release"), NO_GIT)
    found = judge_candidate(base, Predictions(other.meta, frame), spec)
    document = parity_document(found, PROVENANCE)
    assert document["verdict"]["word"] == "invalid"
    read_page(report_html(document, []))
    assert "INVALID" in report_markdown(document)


def judged(base: Predictions, other: Predictions, gates: str = "release") -> dict:
    spec = JudgeSpec(load_gates(gates), NO_GIT, resamples=200)
    return parity_document(judge_candidate(base, other, spec), PROVENANCE)


def changed(found: Predictions, **columns: object) -> Predictions:
    return Predictions(found.meta, found.frame.assign(**columns))


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


def test_a_full_disk_leaves_the_old_report(
    folder: Path, report: CandidateReport, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = (folder / "summary.json").read_bytes()

    def full(*arguments: object, **options: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(pd.DataFrame, "to_parquet", full)
    with pytest.raises(InputError, match="no space left"):
        write_reports(folder, [report], ReportSpec(PROVENANCE, Sizes()))
    assert (folder / "summary.json").read_bytes() == before
    assert not [path for path in folder.parent.iterdir() if path.name.startswith(".")]


def test_the_gate_file_in_the_docs_is_a_gate_file() -> None:
    text = Path(__file__).parents[2].joinpath("docs", "parity.md").read_text("utf-8")
    block = re.search(r"```yaml\n(.*?)```", text, re.DOTALL)
    assert block is not None
    gates = parse_gates(block[1].encode(), "docs/parity.md")
    assert {gate.metric for gate in gates.gates} >= {"accuracy_delta", "policy_cost@auto-approve"}


# ---- Markdown and JUnit ----


def test_markdown_stays_small(document: dict) -> None:
    many = {**document, "gates": document["gates"] * 4000}
    assert len(report_markdown(many).encode()) < 100_000


def statuses(document: dict, **changes: str) -> dict:
    base = {"required": True, **document["gates"][0]}
    gates = [{**base, "name": name, "status": status} for name, status in changes.items()]
    return {**document, "gates": gates, "verdict": {**document["verdict"], "word": "pass"}}


def test_junit_outcomes(document: dict) -> None:
    mixed = statuses(document, a="pass", b="fail", c="inconclusive", d="not_gated")
    suite = ET.fromstring(junit_xml([mixed])).find("testsuite")
    assert suite is not None
    assert {k: suite.get(k) for k in ("tests", "failures", "errors", "skipped")} == {
        "tests": "6",
        "failures": "2",
        "errors": "0",
        "skipped": "1",
    }
    lenient = ET.fromstring(junit_xml([mixed], inconclusive_fails=False)).find("testsuite")
    assert lenient is not None and lenient.get("failures") == "1"
    invalid = {**mixed, "coverage": {**mixed["coverage"], "status": "invalid"}}
    broken = ET.fromstring(junit_xml([invalid])).find("testsuite")
    assert broken is not None and broken.get("errors") == "1"


# ---- alarms ----


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.floats(-0.2, 0.1), st.floats(0.005, 0.05)), min_size=1, max_size=12),
    st.sampled_from([0.9, 0.95, 0.99]),
)
def test_alarms_are_holms(values: list[tuple[float, float]], confidence: float) -> None:
    normal = NormalDist()
    names = [f"cohort=c{k}" for k in range(len(values))]

    def metric(estimate: float, upper: float) -> Metric:
        return Metric(estimate, -1, upper, 0.95, "t", None, 500, 100, 0, "difference")

    def at(name: str, level: float) -> Metric:
        estimate, error = values[names.index(name)]
        return metric(estimate, estimate + normal.inv_cdf((1 + level) / 2) * error)

    slices = {name: {"accuracy_delta": at(name, 0.95)} for name in names}
    raised = {alarm.slice for alarm in slice_alarms(slices, at, confidence)}
    p = np.array([normal.cdf(estimate / error) for estimate, error in values])
    if np.any(np.abs(p[:, None] * np.arange(1, len(p) + 1) - (1 - confidence)) < 1e-9):
        return  # on the very edge rounding may go either way
    expected = multipletests(p, alpha=1 - confidence, method="holm")[0]
    assert raised == {name for name, hit in zip(names, expected, strict=True) if hit}


def test_alarms_skip_margin_bands_and_small_slices() -> None:
    bad = Metric(-0.5, -0.6, -0.4, 0.95, "t", None, 500, 100, 0, "difference")
    slices = {
        "margin=<0.2": {"accuracy_delta": bad},
        "cohort=a": {"accuracy_delta": replace(bad, n_records=9)},
        "cohort=b": {"accuracy_delta": bad},
        "type=noul": {},
    }
    found = slice_alarms(slices, lambda name, level: bad, 0.95)
    assert [alarm.slice for alarm in found] == ["cohort=b"]


# ---- small pieces ----


def test_figures_as_text() -> None:
    assert figure(0.98765) == "98.77%"
    assert figure(-0.0123, signed=True) == "−1.23 pt"
    assert figure(0.0123, "nats") == "0.0123"
    assert figure(1159.35, "cost") == "1159"
    assert figure(None) == "–"
    assert interval(-0.0123, 0.01, signed=True) == "[−1.23, +1.00]"
    assert interval(None, 0.1) == "no interval"


@given(st.floats(1e-6, 1e6))
def test_axis_ticks_lie_on_the_axis(span: float) -> None:
    axis = Axis(0, span, "x")
    ticks = axis.ticks()
    assert 2 <= len(ticks) <= 12
    assert all(-1e-9 * span <= value <= span * (1 + 1e-9) for value, _ in ticks)
    assert nice_step(span) > 0


def test_interval_bar_shades_the_bad_side() -> None:
    def bad_zone(better: str) -> tuple[float, float]:
        text = interval_bar(Interval(0.9, 0.8, 1.0), 0.85, "inconclusive", better, "d")
        found = re.search(r'class="bad" x="([\d.]+)" y="4" width="([\d.]+)"', text)
        assert found is not None
        return float(found[1]), float(found[2])

    left, right = bad_zone("higher"), bad_zone("lower")
    assert left[0] == 4.0
    assert left[0] + left[1] == pytest.approx(right[0], abs=0.2)
    assert right[0] + right[1] == pytest.approx(236, abs=0.2)


def test_index_names_the_tally(folder: Path) -> None:
    summary = json.loads((folder / "summary.json").read_text("utf-8"))
    two = {**summary, "candidates": summary["candidates"] * 2}
    assert "2 inconclusive" in index_html(two)


def test_gate_results_name_what_a_gate_file_asks() -> None:
    gate = Gate("g", "tv", "at_most", None, 0.05)
    assert GateFile("t", "d", (gate,)).bound is False
