"""`clefq parity` and `clefq gate` through the real command line: every exit code, every input."""

import json
import os
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from clefq.cli.parity_table import reason_lines
from clefq.parity.rejudge import rejudge
from clefq.parity.report.documents import check_document, load_schema
from clefq.parity.report.files import write_breakdown
from clefq.parity.report.parity_json import signed
from clefq.store.atomic import sole_writer
from tests.cli.parity.conftest import Clefq
from tests.parity.synthetic import (
    OTHER_SHA,
    Dial,
    World,
    meta,
    predictions,
    write,
)

FILES = {
    "index.html",
    "summary.json",
    "fp8/parity.json",
    "fp8/report.html",
    "fp8/report.md",
    "fp8/junit.xml",
    "fp8/flips.parquet",
    "fp8/breakdown.csv",
}


def add(folder: Path, world: World, name: str, dial: Dial, **changes: object) -> Path:
    path = folder / "predictions" / "synthetic" / f"{name}.parquet"
    return write(path, predictions(world, name, dial, **changes))


def parity_json(folder: Path, variant: str = "fp8") -> dict:
    path = folder / "report" / "synthetic" / variant / "parity.json"
    return json.loads(path.read_text("utf-8"))


def test_pass_exits_0_and_writes_every_file(clefq: Clefq, run_folder: Path) -> None:
    assert clefq("parity", "--baseline", "bf16") == 0
    report = run_folder / "report" / "synthetic"
    written = {p.relative_to(report).as_posix() for p in report.rglob("*") if p.is_file()}
    assert written == FILES
    document = parity_json(run_folder)
    assert document["verdict"]["word"] == "pass"
    assert document["verdict"]["exit_code"] == 0
    flips = pd.read_parquet(report / "fp8" / "flips.parquet")
    assert len(flips) == document["flips"]["count"]
    assert (flips.baseline_choice != flips.candidate_choice).all()


def test_fail_exits_1(clefq: Clefq, run_folder: Path, world: World) -> None:
    add(run_folder, world, "nvfp4", Dial(noise=0.5, swap=0.08))
    assert clefq("parity", "--baseline", "bf16", "--candidate", "nvfp4") == 1


def test_wrong_use_and_input_exit_2(
    clefq: Clefq, run_folder: Path, world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    other = run_folder / "other.parquet"
    write(other, predictions(world, "fp8", eval_set="else", eval_set_sha256=OTHER_SHA))
    base = "predictions/synthetic/bf16.parquet"
    assert clefq("parity", "--baseline", base, "--candidate", other) == 2
    assert "made on another set" in capsys.readouterr().err
    os.chdir(run_folder.parent)  # without the set, the files are still of different ones
    assert clefq("parity", "--baseline", f"run/{base}", "--candidate", other) == 2
    assert "different sets" in capsys.readouterr().err
    os.chdir(run_folder)
    assert not (run_folder / "report").exists()
    assert clefq("parity") == 2
    assert clefq("parity", "--baseline", "bf16", "--gates", "none.yaml") == 2
    assert clefq("parity", "--baseline", "bf16", "--candidate", "gone") == 2
    write(run_folder.parent / "alone.parquet", predictions(world, "bf16"))
    os.chdir(run_folder.parent)  # no run folder: nothing to compare with
    assert clefq("parity", "--baseline", "alone.parquet") == 2
    os.chdir(run_folder)
    junk = run_folder / "junk.parquet"
    junk.write_bytes(b"PAR1")
    assert clefq("parity", "--baseline", "bf16", "--candidate", junk) == 2
    gates = run_folder / "g.yaml"
    gates.write_text("schema: clefq.gates/1\nname: g\ndescription: d\ngates: [{name: a}]\n")
    assert clefq("parity", "--baseline", "bf16", "--gates", gates) == 2
    assert "gates.0.metric is missing" in capsys.readouterr().err
    for odd in (
        ("--pick",),
        ("--out", run_folder / "x"),
        ("--gates", "release"),
        ("--inconclusive-ok",),
        ("--replicate", junk),
    ):
        given = ("--baseline", "bf16", "--candidate", "fp8", "--reproduce", gates, *odd)
        assert clefq("parity", *given) == 2
        assert "leave out --gates, --replicate" in capsys.readouterr().err
    assert clefq("gate", run_folder / "report") == 2
    assert clefq("gate", run_folder / "gone") == 2
    assert "gone is not there" in capsys.readouterr().err


def test_reproduce_exits_by_whether_a_published_report_comes_out_again(
    clefq: Clefq, run_folder: Path, world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    assert clefq("parity", "--baseline", "bf16", "--candidate", "fp8") == 0
    published = run_folder / "report" / "synthetic" / "fp8" / "parity.json"
    before = published.read_bytes()
    shutil.copytree(run_folder, run_folder.parent / "elsewhere")
    here = run_folder.parent / "elsewhere" / "predictions" / "synthetic"
    write(here / "bf16.parquet", predictions(world, "bf16", Dial(noise=0.01), seed=9))
    ask = ("parity", "--baseline", "bf16", "--candidate", "fp8", "--reproduce", published)
    ask = (*ask, "--run", run_folder.parent / "elsewhere")
    for dial, code, word in ((Dial(noise=0.03), 0, "pass"), (Dial(swap=0.2), 1, "fail")):
        write(here / "fp8.parquet", predictions(world, "fp8", dial, seed=11))
        capsys.readouterr()
        assert clefq(*ask, "--json") == code
        found = json.loads(capsys.readouterr().out)
        assert (found["word"], found["published"], found["here"]) == (word, "pass", word)
        assert {check["name"] for check in found["checks"]} >= {"set", "candidate against itself"}
    write(here / "fp8.parquet", predictions(world, "fp8", model_sha256="e" * 64))
    assert clefq(*ask) == 4
    assert published.read_bytes() == before


def test_inconclusive_exits_3_and_says_how_much_is_missing(
    clefq: Clefq, small_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    code = clefq("parity", "--baseline", "bf16", "--out", out, "--json")
    assert code == 3
    shown = json.loads(capsys.readouterr().out)
    (row,) = shown["sets"][0]["candidates"]
    assert row["verdict"] == "inconclusive"
    assert row["more_questions"] is None or row["more_questions"] > 0
    assert (out / "fp8" / "report.html").is_file()


def test_invalid_exits_4(clefq: Clefq, run_folder: Path, world: World) -> None:
    add(run_folder, world, "broken", Dial(failed=0.02))
    assert clefq("parity", "--baseline", "bf16", "--candidate", "broken") == 4
    document = parity_json(run_folder, "broken")
    assert document["coverage"]["status"] == "invalid"
    assert document["coverage"]["candidate_failed"] > 0


def test_contradicting_predictions_are_invalid_and_still_reported(
    clefq: Clefq, run_folder: Path, world: World
) -> None:
    twisted = predictions(world, "twisted", Dial())
    frame = twisted.frame.copy()
    frame["gold"] = [options[0] for options in frame["option_ids"]]
    path = run_folder / "predictions" / "synthetic" / "twisted.parquet"
    write(path, type(twisted)(twisted.meta, frame))
    assert clefq("parity", "--baseline", "bf16") == 4
    document = parity_json(run_folder, "twisted")
    assert (document["verdict"]["word"], document["metrics"]) == ("invalid", {})
    (reason,) = document["verdict"]["reasons"]
    assert reason.startswith("the candidate differs from the set in gold: ")
    # the good candidate beside it keeps its own verdict
    assert parity_json(run_folder, "fp8")["verdict"]["word"] == "pass"


def test_the_worst_candidate_decides(clefq: Clefq, run_folder: Path, world: World) -> None:
    add(run_folder, world, "nvfp4", Dial(noise=0.5, swap=0.08))
    assert clefq("parity", "--baseline", "bf16") == 1
    summary = json.loads((run_folder / "report" / "synthetic" / "summary.json").read_text())
    check_document(summary, "summary", "summary.json")
    assert [row["variant"] for row in summary["candidates"]] == ["fp8", "nvfp4"]
    assert [row["verdict"] for row in summary["candidates"]] == ["pass", "fail"]
    assert (summary["verdict"], summary["exit_code"]) == ("fail", 1)


def test_as_a_process_at_80_columns(run_folder: Path, world: World) -> None:
    add(run_folder, world, "nvfp4", Dial(noise=0.5, swap=0.08), kernels="simulated")
    command = [sys.executable, "-m", "clefq.cli.main", "parity", "--baseline", "bf16"]
    environment = {**os.environ, "COLUMNS": "80", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=run_folder, env=environment
    )
    assert done.returncode == 1, done.stderr
    lines = done.stdout.splitlines()
    assert lines[1].split() == ["candidate", "accuracy", "Δ", "agreement", "KL", "TV", "verdict"]
    assert lines[2].startswith("fp8 ") and lines[2].rstrip().endswith("PASS")
    assert lines[3].startswith("nvfp4 ") and lines[3].rstrip().endswith("FAIL")
    assert all(len(line) <= 80 for line in lines if not line.startswith("report "))
    assert any(line.startswith("report ") and "index.html" in line for line in lines)


def test_arithmetic_and_kernels_cap_the_verdict(
    clefq: Clefq, run_folder: Path, world: World
) -> None:
    add(run_folder, world, "nvfp4", Dial(noise=0.01), arithmetic="w4a16")
    assert clefq("parity", "--baseline", "bf16", "--candidate", "nvfp4") == 3
    document = parity_json(run_folder, "nvfp4")
    assert "w4a16" in document["verdict"]["reasons"][0]
    assert {g["status"] for g in document["gates"] if g["required"]} == {"inconclusive"}


def test_a_folder_that_is_no_report_is_never_replaced(clefq: Clefq, run_folder: Path) -> None:
    precious = run_folder / "precious"
    precious.mkdir()
    (precious / "notes.txt").write_text("keep")
    assert clefq("parity", "--baseline", "bf16", "--out", precious) == 2
    assert (precious / "notes.txt").read_text() == "keep"
    assert clefq("parity", "--baseline", "bf16") == 0
    assert clefq("parity", "--baseline", "bf16") == 0  # an older report is
    assert not list((run_folder / "report").glob(".*"))


def test_reports_of_others_stay_while_their_inputs_do(
    clefq: Clefq, run_folder: Path, world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    add(run_folder, world, "nvfp4", Dial(noise=0.5, swap=0.2))
    assert clefq("parity", "--baseline", "bf16") == 1
    report = run_folder / "report" / "synthetic"
    before = {path: path.read_bytes() for path in (report / "nvfp4").iterdir()}
    only = ("parity", "--baseline", "bf16", "--candidate", "fp8")
    assert clefq(*only) == 0  # the exit code is of what is judged now
    summary = json.loads((report / "summary.json").read_text("utf-8"))
    assert {row["variant"] for row in summary["candidates"]} == {"fp8", "nvfp4"}
    assert summary["verdict"] == "fail"
    assert {path: path.read_bytes() for path in (report / "nvfp4").iterdir()} == before
    assert 'href="nvfp4/report.html"' in (report / "index.html").read_text("utf-8")
    capsys.readouterr()
    assert clefq(*only, "--json") == 0
    found = json.loads(capsys.readouterr().out)["sets"][0]
    assert (found["kept"], found["removed"]) == (["nvfp4"], {})
    assert [row["variant"] for row in found["candidates"]] == ["fp8"]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("candidate", "its predictions were changed since"),
        ("gone", "its predictions are not here any more"),
        ("baseline", "it was judged against other answers of the baseline"),
        ("gates", "it was judged by other gates"),
        ("edited", "it is not as it was written"),
        ("torn", "its parity.json cannot be read by this version"),
    ],
)
def test_a_report_whose_inputs_changed_goes_by_name(
    change: str, why: str, clefq: Clefq, run_folder: Path, world: World,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    add(run_folder, world, "nvfp4", Dial(noise=0.01))
    clefq("parity", "--baseline", "bf16")
    capsys.readouterr()
    answers = run_folder / "predictions" / "synthetic"
    stored = run_folder / "report" / "synthetic" / "nvfp4" / "parity.json"
    arguments = ["parity", "--baseline", "bf16", "--candidate", "fp8"]
    if change == "candidate":
        add(run_folder, world, "nvfp4", Dial(noise=0.02))
    elif change == "gone":
        (answers / "nvfp4.parquet").unlink()
    elif change == "baseline":
        write(answers / "bf16.parquet", predictions(world, "bf16", Dial(noise=0.001)))
    elif change == "gates":
        arguments += ["--gates", "smoke"]
    elif change == "edited":
        document = json.loads(stored.read_text("utf-8"))
        document["flips"]["lost"] += 1
        stored.write_text(json.dumps(document), "utf-8")
    else:
        stored.write_text("{", "utf-8")
    clefq(*arguments, "--quiet")
    text = " ".join(capsys.readouterr().out.split())
    assert f"removed from the report: nvfp4, because {why}; judge it again" in text
    assert not stored.parent.exists()


def test_judging_the_same_again_changes_no_report(
    clefq: Clefq, run_folder: Path, world: World
) -> None:
    """A card names its report by digest; nothing but the time would be another."""
    report = run_folder / "report" / "synthetic" / "fp8" / "parity.json"
    clefq("parity", "--baseline", "bf16")
    first = report.read_bytes()
    doctored = json.loads(first)
    doctored["provenance"]["created_at"] = "2026-01-01T00:00:00+00:00"
    report.write_text(json.dumps(signed(doctored)))
    clefq("parity", "--baseline", "bf16", "--candidate", "fp8")
    assert json.loads(report.read_bytes()) == signed(doctored)
    doctored["verdict"]["sentence"] = "All is well."
    report.write_text(json.dumps(signed(doctored)))
    clefq("parity", "--baseline", "bf16")
    again = json.loads(report.read_bytes())
    assert again["verdict"] == json.loads(first)["verdict"]
    assert again["provenance"]["created_at"] > "2026-01-01"
    add(run_folder, world, "fp8", Dial(noise=0.05))
    clefq("parity", "--baseline", "bf16")
    assert json.loads(report.read_bytes())["metrics"] != again["metrics"]


def test_same_inputs_give_the_same_report(clefq: Clefq, run_folder: Path) -> None:
    assert clefq("parity", "--baseline", "bf16") == 0
    first = parity_json(run_folder)
    assert clefq("parity", "--baseline", "bf16") == 0
    second = parity_json(run_folder)
    for document in (first, second):
        del document["provenance"]["created_at"], document["provenance"]["digest"]
    assert first == second


# ---- clefq gate ----


def test_gate_judges_again_from_predictions_then_from_bounds(
    clefq: Clefq, run_folder: Path, world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    add(run_folder, world, "nvfp4", Dial(noise=0.5, swap=0.08))
    assert clefq("parity", "--baseline", "bf16") == 1
    capsys.readouterr()
    assert clefq("gate", run_folder / "report", "--json") == 1
    full = json.loads(capsys.readouterr().out)["reports"]
    assert {item["judged_from"] for item in full} == {"predictions"}
    for name in ("bf16", "fp8", "nvfp4"):
        (run_folder / "predictions" / "synthetic" / f"{name}.parquet").unlink()
    assert clefq("gate", run_folder / "report", "--json") == 1
    stored = json.loads(capsys.readouterr().out)["reports"]
    assert {item["judged_from"] for item in stored} == {"stored bounds"}
    for before, after in zip(full, stored, strict=True):
        assert before["verdict"]["word"] == after["verdict"]["word"]
        assert before["gates"] == after["gates"]
        assert any("stored bounds" in banner for banner in after["verdict"]["banners"])


def test_gate_sees_through_a_doctored_verdict(clefq: Clefq, run_folder: Path, world: World) -> None:
    add(run_folder, world, "nvfp4", Dial(noise=0.5, swap=0.08))
    assert clefq("parity", "--baseline", "bf16", "--candidate", "nvfp4") == 1
    path = run_folder / "report" / "synthetic" / "nvfp4" / "parity.json"
    document = json.loads(path.read_text("utf-8"))
    document["verdict"] |= {"word": "pass", "exit_code": 0}
    for gate in document["gates"]:
        gate["status"] = "pass"
    path.write_text(json.dumps(document), "utf-8")
    assert clefq("gate", path) == 4
    assert "its digest does not match" in rejudge(path).document["verdict"]["reasons"][0]
    # a digest that fits does not help where the predictions are
    path.write_text(json.dumps(signed(document)), "utf-8")
    assert clefq("gate", path) == 1
    document["gate_file"]["text"] += "# softened\n"
    path.write_text(json.dumps(document), "utf-8")
    assert clefq("gate", path) == 2


def test_any_edit_of_a_report_without_predictions_is_noticed(
    clefq: Clefq, run_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert clefq("parity", "--baseline", "bf16") == 0
    shutil.rmtree(run_folder / "predictions")
    path = run_folder / "report" / "synthetic" / "fp8" / "parity.json"
    assert clefq("gate", path) == 0
    whole = path.read_text("utf-8")
    document = json.loads(whole)
    assert rejudge(path).document["provenance"]["digest"] != document["provenance"]["digest"]
    # laid out otherwise it is the same document
    path.write_text(json.dumps(document), "utf-8")
    assert clefq("gate", path) == 0
    for place in ("metrics", "slices", "coverage", "flips", "details", "provenance"):
        edited = json.loads(whole)
        number = _first_number(edited[place]) if place != "provenance" else None
        if number is None:
            edited["provenance"]["command"] += " "
        else:
            holder, key = number
            holder[key] = holder[key] * 1.0000001 + 1e-9
        path.write_text(json.dumps(edited), "utf-8")
        assert clefq("gate", path) == 4, place
    del document["provenance"]["digest"]
    path.write_text(json.dumps(document), "utf-8")
    assert clefq("gate", path) == 2


def _first_number(value: Any) -> tuple[Any, Any] | None:
    """The container and key of the first float of a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, entry in items if isinstance(value, dict | list) else ():
        if isinstance(entry, float):
            return value, key
        found = _first_number(entry) if isinstance(entry, dict | list) else None
        if found is not None:
            return found
    return None


def test_a_report_of_predictions_that_were_changed_is_invalid(
    clefq: Clefq, run_folder: Path, world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    assert clefq("parity", "--baseline", "bf16") == 0
    changed = add(run_folder, world, "fp8", Dial(noise=0.03))
    # whether or not the baseline's are here too
    for _ in range(2):
        capsys.readouterr()
        assert clefq("gate", run_folder / "report", "--json") == 4
        (item,) = json.loads(capsys.readouterr().out)["reports"]
        assert item["verdict"]["reasons"] == ["the predictions were changed after the report"]
        changed.with_name("bf16.parquet").unlink(missing_ok=True)


def test_the_baseline_is_no_candidate(
    clefq: Clefq, run_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = run_folder / "predictions" / "synthetic" / "bf16.parquet"
    for first, second in ((file, file), ("bf16", "bf16"), ("bf16", file)):
        assert clefq("parity", "--baseline", first, "--candidate", second) == 2
        assert "is the baseline itself" in capsys.readouterr().err


def test_bounds_near_a_limit_are_judged_again_as_they_were(
    clefq: Clefq, run_folder: Path, world: World
) -> None:
    """A gate near its limit rests on more resamples than one on the same metric that does not."""
    add(run_folder, world, "nvfp4", Dial(noise=0.25))
    gates = run_folder / "g.yaml"
    form = "schema: clefq.gates/1\nname: g\ndescription: d\ngates:\n"
    row = "  - {{name: {0}, metric: brier_delta, direction: at_most, margin: {1}, min_n: 50}}\n"
    command = ("parity", "--baseline", "bf16", "--candidate", "nvfp4", "--gates", gates)
    gates.write_text(form + row.format("wide", 0.5), "utf-8")
    assert clefq(*command) == 0
    upper = parity_json(run_folder, "nvfp4")["gates"][0]["upper"]
    gates.write_text(form + row.format("wide", 0.5) + row.format("near", upper), "utf-8")
    clefq(*command)
    before = parity_json(run_folder, "nvfp4")
    assert before["gates"][0]["upper"] != before["gates"][1]["upper"]
    for path in (run_folder / "predictions" / "synthetic").iterdir():
        path.unlink()
    after = rejudge(run_folder / "report" / "synthetic" / "nvfp4" / "parity.json")
    assert after.judged_from == "stored bounds"
    assert after.document["gates"] == before["gates"]


def test_gate_writes_junit_and_step_summary(
    clefq: Clefq, small_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_folder = small_run
    assert clefq("parity", "--baseline", "bf16") == 3
    summary = run_folder / "summary.md"
    summary.write_text("before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    assert clefq("gate", run_folder / "report", "--junit", run_folder / "j.xml") == 3
    assert summary.read_text("utf-8").startswith("before\n## ? INCONCLUSIVE: fp8 against bf16")
    suite = ET.parse(run_folder / "j.xml").getroot().find("testsuite")
    assert suite is not None and int(suite.get("failures", 0)) > 0
    lenient = run_folder / "k.xml"
    assert clefq("gate", run_folder / "report", "--junit", lenient, "--inconclusive-ok") == 3
    suite = ET.parse(lenient).getroot().find("testsuite")
    assert suite is not None and suite.get("failures") == "0"
    assert int(suite.get("skipped", 0)) > 0


def test_gate_refuses_options_that_do_not_apply(clefq: Clefq, run_folder: Path) -> None:
    assert clefq("gate", ".", "--set", "x") == 2
    assert clefq("gate", "release", "--freeze") == 2
    assert clefq("gate", "release", "--freeze", "--junit", "x.xml") == 2


def test_parity_schema_refuses_unknown_keys(clefq: Clefq, run_folder: Path) -> None:
    assert clefq("parity", "--baseline", "bf16") == 0
    document = parity_json(run_folder)
    check_document(document, "parity", "parity.json")
    contract = (
        "schema verdict eval_set baseline candidate coverage metrics slices gates gate_file "
        "flips noise_floor policies provenance"
    )
    assert set(contract.split()) <= set(document) == set(load_schema("parity")["required"])
    path = run_folder / "report" / "synthetic" / "fp8" / "parity.json"
    path.write_text(json.dumps(document | {"extra": 1}), "utf-8")
    assert clefq("gate", path) == 2


def test_meta_of_the_report_is_that_of_the_predictions(
    clefq: Clefq, run_folder: Path, world: World
) -> None:
    assert clefq("parity", "--baseline", "bf16") == 0
    side = parity_json(run_folder)["candidate"]
    stored = side.pop("predictions")
    assert stored["path"] == "../../../predictions/synthetic/fp8.parquet"
    from dataclasses import asdict

    assert side == asdict(meta("fp8", eval_set_sha256=world.sha256))


def test_a_candidate_whose_report_is_gone_is_no_pass(
    clefq: Clefq, run_folder: Path, world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    add(run_folder, world, "nvfp4", Dial(noise=0.5, swap=0.08))
    assert clefq("parity", "--baseline", "bf16", "--quiet") == 1
    shutil.rmtree(run_folder / "report" / "synthetic" / "nvfp4")
    capsys.readouterr()
    assert clefq("gate", run_folder / "report", "--quiet") == 2
    said = capsys.readouterr().err
    assert "nvfp4" in said and "FAIL" in said
    # nor where the list of candidates went with it, or no longer has it
    summary = run_folder / "report" / "synthetic" / "summary.json"
    listed = json.loads(summary.read_text("utf-8"))
    summary.unlink()
    assert clefq("gate", run_folder / "report", "--quiet") == 2
    assert "cannot be told" in " ".join(capsys.readouterr().err.split())
    good = run_folder / "report" / "synthetic" / "fp8"
    assert clefq("gate", good, "--quiet") == clefq("gate", good / "parity.json", "--quiet") == 0
    listed["candidates"] = listed["candidates"][1:]
    summary.write_text(json.dumps(listed), "utf-8")
    assert clefq("gate", run_folder / "report", "--quiet") == 2


@pytest.mark.parametrize("scheme", ["NVFP4", "fp88"])
def test_a_scheme_that_nobody_knows_is_refused(
    clefq: Clefq, run_folder: Path, world: World, capsys: pytest.CaptureFixture[str], scheme: str
) -> None:
    add(run_folder, world, "odd", Dial(noise=0.01), scheme=scheme, arithmetic="w4a16")
    assert clefq("parity", "--baseline", "bf16", "--candidate", "odd") == 2
    assert scheme in capsys.readouterr().err


def test_two_runs_cannot_write_one_report(
    clefq: Clefq, run_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with sole_writer(run_folder / "report" / "synthetic"):
        assert clefq("parity", "--baseline", "bf16") == 2
    assert "another clefq is writing" in capsys.readouterr().err
    assert clefq("parity", "--baseline", "bf16", "--quiet") == 0
    left = [path.name for path in (run_folder / "report").iterdir()]
    assert left == ["synthetic"]


def test_names_are_no_formulas_for_a_spreadsheet(tmp_path: Path) -> None:
    metric = {
        "estimate": 1.0, "lower": None, "upper": None, "confidence": 0.95, "method": "none",
        "bootstrap": None, "n_questions": 1, "n_records": 1, "n_infinite": 0, "unit": "share",
    }  # fmt: skip
    write_breakdown(
        tmp_path / "b.csv", {"metrics": {}, "slices": {"cohort==1+1": {"agreement": metric}}}
    )
    assert "cohort,'=1+1,agreement" in (tmp_path / "b.csv").read_text("utf-8")


def candidate_row(word: str, **more: object) -> dict:
    return {"variant": "nvfp4", "verdict": word, "sentence": "nvfp4 breaks 1 of 3 required gates.",
            "next_step": "Do not ship it.", "qualifiers": (), "reasons": (), "advisory": (),
            **more}  # fmt: skip


def test_the_terminal_names_the_reason_and_what_a_word_leaves_out() -> None:
    def lines(*rows: dict) -> list[str]:
        return [text.plain for text in reason_lines(rows)]

    failed = candidate_row(
        "fail", reasons=[f"gate {n}: −5.00 pt, needs ≥ −2.00 pt" for n in "abcd"]
    )
    found = lines(failed)
    assert found[0].startswith("✗ nvfp4: nvfp4 breaks")
    assert "gate a: −5.00 pt" in found[1] and "and 1 more" in found[4]
    assert found[-1].strip() == "next: Do not ship it."
    assert lines(candidate_row("pass")) == []
    late = candidate_row("pass", qualifiers=("by gates that came after the results",))
    assert lines(late) == ["the verdict is by gates that came after the results"]
    broken = candidate_row("pass", advisory=["agreement-by-cohort[x]: 80.00%, needs ≥ 90.00%"])
    assert lines(broken)[1].strip().startswith("advisory, broken: agreement-by-cohort[x]: 80.00%")
    # what all share is said once; what only one has stands beside it
    both = lines({**late, "variant": "fp8"}, candidate_row("pass", qualifiers=(
        "by gates that came after the results", "on simulated kernels")))  # fmt: skip
    assert both[0].startswith("✓ nvfp4 (on simulated kernels): ")
    assert both[1] == "all verdicts are by gates that came after the results" and len(both) == 2


def test_the_terminal_is_80_columns_wide_and_breaks_no_path(
    clefq: Clefq, small_run: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setenv("COLUMNS", "80")
    out = small_run / "a-folder-with-a-rather-long-name-for-reports" / ("x" * 60)
    assert clefq("parity", "--baseline", "bf16", "--out", out) == 3
    text = capsys.readouterr().out
    path = str(out.relative_to(small_run) / "index.html")
    assert path in text
    assert all(len(line) <= 80 for line in text.splitlines() if path not in line)
    assert "needs ≥ −2.00 pt" in text and "next: Add about" in text
    document = json.loads((out / "summary.json").read_text("utf-8"))["candidates"][0]
    assert document["reasons"] and document["qualifiers"] == ["by a template"]


def test_pick_recommends_and_changes_no_verdict(
    clefq: Clefq, run_folder: Path, world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    add(run_folder, world, "nvfp4", Dial(noise=0.5, swap=0.2))
    assert clefq("parity", "--baseline", "bf16", "--pick") == 1
    assert "choice: fp8: it alone passes" in capsys.readouterr().out
    report = run_folder / "report" / "synthetic"
    summary = json.loads((report / "summary.json").read_text("utf-8"))
    check_document(summary, "summary", "summary.json")
    assert summary["choice"]["recommended"] == "fp8" and len(summary["choice"]["pairs"]) == 1
    assert "Which to take: fp8" in (report / "index.html").read_text("utf-8")
