"""HTML, Markdown and JUnit: complete, self-contained, and hostile names stay text."""

import json
import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clefq.parity.gates.compare import JudgeSpec, judge_candidate
from clefq.parity.gates.files import load_gates
from clefq.parity.gates.formatting import figure, gigabytes, interval
from clefq.parity.gates.rows import gate_row, part_rows, qualifiers
from clefq.parity.gates.schema import Gate, GateFile
from clefq.parity.report.html_page import _gate_table, index_html, report_html
from clefq.parity.report.junit import junit_xml
from clefq.parity.report.markdown import report_markdown
from clefq.parity.report.parity_json import parity_document
from clefq.parity.report.summary import Sizes
from clefq.parity.report.svg import BAR_EDGE, BAR_WIDTH, Axis, Interval, interval_bar, nice_step
from clefq.store.predictions import Predictions
from tests.parity.gates.test_verdict import result
from tests.parity.report.cases import NO_GIT, PROVENANCE, read_page
from tests.parity.synthetic import World, predictions


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


AXIS = Axis(0.7, 1.0, "")
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


def test_figures_as_text() -> None:
    assert figure(0.98765) == "98.77%"
    assert figure(-0.0123, signed=True) == "−1.23 pt"
    assert figure(0.0123, "nats") == "0.0123"
    assert figure(12345.6, "cost") == "12,346"
    assert figure(542.264, "cost") == "542.3"
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
        look = ("inconclusive", better, "d")
        text = interval_bar(Interval(0.9, 0.8, 1.0), AXIS, 0.85, look, ("80%", "100%"))
        found = re.search(r'class="bad" x="([\d.]+)" y="2" width="([\d.]+)"', text)
        assert found is not None
        return float(found[1]), float(found[2])

    left, right = bad_zone("higher"), bad_zone("lower")
    assert left[0] == BAR_EDGE
    assert left[0] + left[1] == pytest.approx(right[0], abs=0.2)
    assert right[0] + right[1] == pytest.approx(BAR_WIDTH - BAR_EDGE, abs=0.2)
    neutral = interval_bar(Interval(0.9, 0.8, 1.0), AXIS, 0.85, ("", "", "d"), ("80%", "100%"))
    assert 'class="bad"' not in neutral


def test_bars_of_one_unit_share_their_axis_which_holds_every_bound() -> None:
    floors = [replace(result("pass", name), lower=low) for name, low in (("a", 0.6), ("b", 0.94))]
    loss = replace(result("pass", "c"), metric="accuracy_delta", margin=0.02, bound=None,
                   estimate=0.0, lower=-0.01, upper=0.03)  # fmt: skip
    bars = [str(item["bar"]) for item in _gate_table([gate_row(g) for g in (*floors, loss)])]
    ends = [re.findall(r'class="small"[^>]*>([^<]+)<', bar) for bar in bars]
    assert ends[0] == ends[1] != ends[2]
    assert all("pt" in end for end in ends[2])
    limits = [re.search(r'class="limit" x1="([\d.]+)"', bar)[1] for bar in bars]  # type: ignore[index]
    assert limits[0] == limits[1]
    lows = [float(re.findall(r'class="iv pass" x1="([\d.]+)"', bar)[0]) for bar in bars]
    assert BAR_EDGE < lows[0] < lows[1]


def test_index_names_the_tally(folder: Path) -> None:
    summary = json.loads((folder / "summary.json").read_text("utf-8"))
    two = {**summary, "candidates": summary["candidates"] * 2}
    assert "2 inconclusive" in index_html(two)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, {"on simulated kernels"}),
        ({"kernels": "real"}, set()),
        ({"status": "not_preregistered"}, {"by a template", "on simulated kernels"}),
        ({"kernels": "real", "set_read": False}, {"without the set"}),
        ({"kernels": "real", "judged_from": "stored bounds"}, {"from stored bounds"}),
        ({"kernels": "real", "arithmetic": "unknown"}, {"in unknown arithmetic"}),
        ({"kernels": "real", "word": "inconclusive", "gate": "inconclusive"},
         {"capped: every required figure meets its limit"}),
    ],
)  # fmt: skip
def test_the_verdicts_box_says_what_the_word_does_not(
    document: dict, change: dict[str, Any], words: set[str]
) -> None:
    found = json.loads(json.dumps(document))
    found["gate_file"]["preregistration"]["status"] = change.get("status", "preregistered")
    found["candidate"]["kernels"] = change.get("kernels", "simulated")
    found["candidate"]["arithmetic"] = change.get("arithmetic", "w4a4")
    found["coverage"]["set_read"] = change.get("set_read", True)
    found["provenance"]["judged_from"] = change.get("judged_from", "predictions")
    found["verdict"]["word"] = change.get("word", "pass")
    met = replace(result(change.get("gate", "pass")), lower=0.91)
    found["gates"] = [met.to_json()]
    assert set(qualifiers(found)) == words
    text = report_html(found, [])
    box = text[text.index('<div class="word">') : text.index('<p class="sentence">')]
    assert all(word in box for word in words)
    assert ('class="but"' in box) == bool(words)


def test_advisory_gates_are_folded_unless_one_is_broken(document: dict) -> None:
    found = json.loads(json.dumps(document))
    base = found["gates"][0]
    found["gates"] = [base, {**base, "name": "aside", "required": False, "status": "pass"}]
    shown = report_html(found, [])
    assert "<details><summary>1 advisory gate, deciding nothing: 1 pass<" in shown
    found["gates"][1]["status"] = "fail"
    assert "<details open><summary>1 advisory gate" in report_html(found, [])


def test_parts_show_difference_recovery_flips_and_net(document: dict) -> None:
    rows = part_rows(document, "cohort")
    assert len(rows) == sum(name.startswith("cohort=") for name in document["slices"])
    differences = [float(row.difference.split()[0].replace("−", "-")) for row in rows]
    assert differences == sorted(differences)
    metrics = document["slices"][f"cohort={rows[0].name}"]
    ratio = metrics["accuracy_candidate"]["estimate"] / metrics["accuracy_baseline"]["estimate"]
    assert rows[0].recovery == f"{100 * ratio:.2f}%"
    net = metrics["accuracy_delta"]["estimate"] * metrics["accuracy_delta"]["n_questions"]
    assert int(rows[0].net.replace("−", "-")) == round(net) < 0 < int(rows[0].flips)


def test_alarms_are_said_where_there_are_none(document: dict) -> None:
    found = json.loads(json.dumps(document))
    found["alarms"] = []
    assert "There is no slice alarm" in report_html(found, [])
    assert "There is no slice alarm" in report_markdown(found)
    for metric in (found["metrics"]["accuracy_delta"],):
        metric["estimate"] = metric["lower"] = metric["upper"] = None
    assert "has no right answers" in report_html(found, [])


def test_size_and_speed_stand_on_the_candidates_page(document: dict) -> None:
    speed = {"value": 200.0, "unit": "tokens/s", "source": "bench/a.json, 500 tokens"}
    sizes = Sizes({"bf16": 20_000_000_000, "nvfp4": 12_000_000_000},
                  {"bf16": {**speed, "value": 100.0}, "nvfp4": speed})  # fmt: skip
    text = report_html(document, [], sizes)
    assert "<b>12 GB</b><span>bf16 20 GB, 60% of it</span>" in text
    assert "<b>200 tokens/s</b><span>bf16 100: 2.00×</span>" in text
    assert "<span>size</span>" not in report_html(document, [])


def test_the_index_says_how_many_questions(folder: Path) -> None:
    summary = json.loads((folder / "summary.json").read_text("utf-8"))
    metric = summary["candidates"][0]["agreement"]
    assert f"{metric['n_questions']} questions in {metric['n_records']} records" in index_html(
        summary
    )


def test_gate_results_name_what_a_gate_file_asks() -> None:
    gate = Gate("g", "tv", "at_most", None, 0.05)
    assert GateFile("t", "d", (gate,)).bound is False


def test_commands_in_the_next_step_are_set_as_code_and_the_rest_is_escaped() -> None:
    from clefq.parity.report.html_page import _prose

    assert str(_prose("Run `clefq plan` <now>.")) == "Run <code>clefq plan</code> &lt;now&gt;."
    assert str(_prose(None)) == ""
    sizes = [gigabytes(count) for count in (None, 18_040_000_000, 100_000_000, 11_700_000)]
    assert sizes == ["–", "18 GB", "0.1 GB", "11.7 MB"]
