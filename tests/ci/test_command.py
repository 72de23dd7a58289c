"""`clefq ci` on predictions made elsewhere: every exit code, and the texts that CI systems show."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path

import pytest

from clefq.ci.quantizing import make_candidate
from clefq.ci.spec import CandidateSpec
from clefq.cli.main import run
from clefq.console import Console
from clefq.errors import InputError
from clefq.names.models import identify
from clefq.nano import SETS, WEIGHTS
from tests.ci.conftest import ROOT
from tests.parity.synthetic import Dial, make_world, predictions, write

Clefq = Callable[..., int]


@pytest.fixture
def clefq(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Clefq:
    """Runs `clefq ci ARGUMENTS...` in an empty folder and returns the exit code."""

    def call(*arguments: object) -> int:
        monkeypatch.setattr("sys.argv", ["clefq", "ci", *map(str, arguments)])
        try:
            run()
        except SystemExit as stopped:
            return int(stopped.code or 0)
        return 0

    monkeypatch.setattr("clefq.parity.comparison.RESAMPLES", 1000)
    monkeypatch.chdir(tmp_path)
    for name in ("GITHUB_STEP_SUMMARY", "GITHUB_OUTPUT"):
        monkeypatch.delenv(name, raising=False)
    return call


@pytest.fixture(autouse=True)
def set_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests judge predictions alone; that no gate passes so is tested on its own."""
    monkeypatch.setattr("clefq.parity.gates.verdict.set_caps", lambda gates, coverage: ())


def files(folder: Path, dial: Dial, records: int = 360) -> tuple[Path, Path]:
    world = make_world(records)
    write(folder / "a.parquet", predictions(world, "bf16"))
    write(folder / "b.parquet", predictions(world, "fp8", dial))
    return folder / "a.parquet", folder / "b.parquet"


GOOD, BAD = Dial(noise=0.02), Dial(swap=0.3)
UNANSWERED = Dial(failed=0.2)


@pytest.mark.parametrize(
    ("dial", "records", "code", "word"),
    [
        (GOOD, 360, 0, "pass"),
        (BAD, 360, 1, "fail"),
        (GOOD, 60, 3, "inconclusive"),
        (UNANSWERED, 360, 4, "invalid"),
    ],
)
def test_exits_with_the_verdict(
    clefq: Clefq, tmp_path: Path, dial: Dial, records: int, code: int, word: str
) -> None:
    base, candidate = files(tmp_path, dial, records)
    assert clefq("--baseline", base, "--candidate", candidate) == code
    body = json.loads((tmp_path / "clefq-ci" / "ci.json").read_text("utf-8"))
    assert (body["verdict"], body["exit_code"]) == (word, code)
    summary = (tmp_path / "clefq-ci" / "summary.md").read_text("utf-8")
    assert f"clefq gate: {word.upper()}" in summary.splitlines()[0]
    assert "none: the candidate is a predictions file" in summary
    suite = ET.parse(tmp_path / "clefq-ci" / "junit.xml").getroot()[-1]
    broken = {each.tag for case in suite for each in case} & {"failure", "error"}
    assert bool(broken) == (word != "pass")
    assert ("error" in broken) == (word == "invalid")


def test_an_inconclusive_verdict_may_be_let_through(clefq: Clefq, tmp_path: Path) -> None:
    base, candidate = files(tmp_path, GOOD, 60)
    assert clefq("--baseline", base, "--candidate", candidate, "--inconclusive-ok") == 0
    body = json.loads((tmp_path / "clefq-ci" / "ci.json").read_text("utf-8"))
    assert (body["verdict"], body["exit_code"]) == ("inconclusive", 0)
    suite = ET.parse(tmp_path / "clefq-ci" / "junit.xml").getroot()[-1]
    assert suite.find(".//failure") is None
    assert suite.find(".//skipped") is not None


def test_options_come_from_the_environment(
    clefq: Clefq, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, candidate = files(tmp_path, GOOD)
    monkeypatch.setenv("CLEFQ_CI_BASELINE", str(base))
    monkeypatch.setenv("CLEFQ_CI_CANDIDATE", str(candidate))
    monkeypatch.setenv("CLEFQ_CI_SCHEME", "")  # an input that was left out
    monkeypatch.setenv("CLEFQ_CI_INCONCLUSIVE_OK", "false")
    monkeypatch.setenv("CLEFQ_CI_OUT", "elsewhere")
    assert clefq() == 0
    assert (tmp_path / "elsewhere" / "report" / "synthetic" / "fp8" / "parity.json").is_file()


def test_github_is_told(clefq: Clefq, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base, candidate = files(tmp_path, BAD)
    summary, output = tmp_path / "summary", tmp_path / "output"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    monkeypatch.setenv("GITHUB_OUTPUT", str(output))
    assert clefq("--baseline", base, "--candidate", candidate) == 1
    assert output.read_text("utf-8") == "verdict=fail\nexit-code=1\n"
    assert summary.read_text("utf-8").count("FAIL") == 2
    assert clefq("--baseline", base, "--candidate", tmp_path / "gone.parquet") == 2
    assert output.read_text("utf-8").endswith("verdict=error\nexit-code=2\n")
    assert "no predictions file" in summary.read_text("utf-8")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "one candidate is needed"),
        (["--candidate", "b.parquet", "--scheme", "fp8"], "one candidate is needed"),
        (["--candidate", "b.parquet", "--calibration", "x"], "--calibration goes with"),
        (["--scheme", "fp8"], "nothing to quantize"),
        (["--candidate", "b.parquet", "--audit", "deep"], "unknown audit"),
        (["--candidate", "b.parquet", "--engine", "tgi"], "unknown engine"),
        (["--candidate", "b.parquet", "--gates", "none.yaml"], "none.yaml"),
        (["--candidate", str(WEIGHTS)], "no eval set is given"),
        (["--candidate", "b.parquet", "--eval", str(SETS / "nano-eval")], "on another set"),
        (["--candidate", "b.parquet", "--eval", str(SETS / "nano-calibration")], "calibration set"),
    ],
)
def test_wrong_use_is_one_line_with_its_fix(
    clefq: Clefq,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    words: str,
) -> None:
    files(tmp_path, GOOD, 60)
    audit = [] if "--audit" in arguments else ["--audit", "off"]
    assert clefq("--baseline", "a.parquet", *arguments, *audit) == 2
    error = capsys.readouterr().err
    assert words in error
    assert "fix:" in error


def test_a_baseline_of_predictions_has_no_key(
    clefq: Clefq, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, candidate = files(tmp_path, GOOD, 60)
    output = tmp_path / "output"
    monkeypatch.setenv("GITHUB_OUTPUT", str(output))
    assert clefq("--baseline", base, "--candidate", candidate, "--cache-key") == 0
    assert output.read_text("utf-8") == "cache-key=\n"
    assert not (tmp_path / "clefq-ci").exists()


def test_the_key_covers_all_sets_and_comes_from_the_environment_too(
    clefq: Clefq,
    eval_set: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def key(*sets: Path) -> str:
        options = [word for each in sets for word in ("--eval", each)]
        assert clefq("--baseline", WEIGHTS, "--scheme", "fp8", "--cache-key", *options) == 0
        return capsys.readouterr().out.strip()

    both = key(eval_set, SETS / "nano-eval")
    assert len({key(eval_set), key(SETS / "nano-eval"), both}) == 3
    monkeypatch.setenv("CLEFQ_CI_EVAL", f"{eval_set} {SETS / 'nano-eval'}")
    assert key() == both


def test_what_would_fail_later_fails_before_quantizing(
    clefq: Clefq,
    eval_set: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    arguments = ("--baseline", WEIGHTS, "--scheme", "fp8", "--eval", eval_set)
    assert clefq(*arguments, "--name", "bf16") == 2
    assert "both called bf16" in capsys.readouterr().err
    assert clefq(*arguments[:4]) == 2
    assert "no eval set is given" in capsys.readouterr().err
    monkeypatch.setattr("clefq.engines.select.runs_here", lambda name: False)
    assert clefq(*arguments, "--engine", "transformers") == 2
    assert "transformers is not installed" in capsys.readouterr().err
    assert clefq(*arguments, "--gates", "gone.yaml") == 2
    assert not (tmp_path / "clefq-ci").exists()


def test_a_candidate_made_before_is_taken_over_if_it_is_the_same(good: Path) -> None:
    baseline = identify(str(WEIGHTS), "bf16")
    text, kept = make_candidate(CandidateSpec("nvfp4a16"), baseline, good, Console(quiet=True))
    assert kept
    assert text.startswith("nvfp4a16 by stream, 1.82× smaller (6.45 MB); audited")
    with pytest.raises(InputError, match="another source, recipe or calibration set"):
        make_candidate(CandidateSpec("fp8"), baseline, good, Console(quiet=True))


def test_a_candidate_that_was_changed_since_its_audit_is_not_taken_over(
    good: Path, tmp_path: Path
) -> None:
    baseline = identify(str(WEIGHTS), "bf16")
    out = Path(shutil.copytree(good, tmp_path / "nvfp4a16"))
    damage = [sys.executable, str(ROOT / "tools" / "damage_checkpoint.py"), str(good)]
    subprocess.run([*damage, str(tmp_path / "damaged")], check=True)
    for file in out.glob("*.safetensors"):
        shutil.copyfile(tmp_path / "damaged" / file.name, file)
    with pytest.raises(InputError, match="is not what was audited"):
        make_candidate(CandidateSpec("nvfp4a16"), baseline, out, Console(quiet=True))


def test_a_job_that_stops_leaves_no_verdict_of_an_earlier_one(clefq: Clefq, tmp_path: Path) -> None:
    base, candidate = files(tmp_path, GOOD)
    assert clefq("--baseline", base, "--candidate", candidate) == 0
    results = [tmp_path / "clefq-ci" / name for name in ("ci.json", "junit.xml", "summary.md")]
    assert all(path.is_file() for path in results)
    assert clefq("--baseline", base, "--candidate", tmp_path / "gone.parquet") == 2
    assert not any(path.exists() for path in results)


def test_the_baseline_itself_is_no_candidate(
    clefq: Clefq, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("--baseline", WEIGHTS, "--candidate", WEIGHTS, "--audit", "off")
    assert clefq(*arguments, "--eval", SETS / "nano-eval") == 2
    assert "is the baseline itself" in capsys.readouterr().err
