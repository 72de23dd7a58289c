"""action.yml, executed: a good and a damaged checkpoint, the cache, the artifact."""

from __future__ import annotations

import json
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
import yaml

from clefq.nano import WEIGHTS
from tests.ci.actions import Runner
from tests.ci.conftest import ROOT

ACTION = ROOT / "action.yml"
# the environment that runs the tests, as the runner's python
BIN = Path(sys.executable).parent


@pytest.fixture(scope="module")
def runner(base: Path) -> Runner:
    return Runner(ACTION, base / "runner", BIN)


def call(runner: Runner, eval_set: Path, **inputs: str) -> object:
    given = {"python": "", "install": "none", "gates": "smoke", "engine": "transformers"}
    given |= {"baseline": str(WEIGHTS), "eval": str(eval_set)}
    return runner.run(**(given | inputs))


@pytest.fixture(scope="module")
def passed(runner: Runner, eval_set: Path, good: Path):  # type: ignore[no-untyped-def]
    return call(runner, eval_set, candidate=str(good))


def test_a_good_checkpoint_passes(passed) -> None:  # type: ignore[no-untyped-def]
    assert passed.code == 0, passed.log
    assert passed.outputs == {"verdict": "pass", "exit-code": "0"}
    assert passed.summary.startswith("# ✓ clefq gate: PASS")
    assert "sound: " in passed.summary
    assert "against its source" in passed.summary
    assert "## ✓ PASS: good against bf16 on few" in passed.summary
    assert "kernels: simulated" in passed.summary


def test_its_report_is_uploaded_and_can_be_judged_again(passed, runner: Runner) -> None:  # type: ignore[no-untyped-def]
    artifact = runner.artifacts / "clefq-gate"
    names = {path.relative_to(artifact).as_posix() for path in artifact.rglob("*")}
    assert {"ci.json", "junit.xml", "summary.md", "report/few/good/report.html"} <= names
    body = json.loads((artifact / "ci.json").read_text(encoding="utf-8"))
    assert (body["verdict"], body["exit_code"]) == ("pass", 0)
    assert [step["name"] for step in body["steps"]] == ["audit", "predict", "predict", "judge"]
    done = subprocess.run(
        [BIN / "clefq", "gate", artifact, "--json"], capture_output=True, text=True, check=False
    )
    again = json.loads(done.stdout)
    assert (done.returncode, again["verdict"]) == (0, "pass")
    assert again["reports"][0]["judged_from"] == "predictions"


def test_damage_that_the_audit_sees_fails_before_anything_is_predicted(
    passed,
    runner: Runner,
    eval_set: Path,
    damaged: Path,  # type: ignore[no-untyped-def]
) -> None:
    found = call(runner, eval_set, candidate=str(damaged), out="audited", artifact="audited")
    assert found.code == 1
    assert found.outputs == {"verdict": "fail", "exit-code": "1"}
    assert "clefq gate: FAIL" in found.summary
    assert "The audit found:" in found.summary
    assert "down\\_proj" in found.summary
    assert not (runner.workspace / "audited" / "predictions").exists()
    assert (runner.artifacts / "audited" / "summary.md").is_file()
    (suite,) = ET.parse(runner.artifacts / "audited" / "junit.xml").getroot()
    assert (suite.get("name"), suite.get("failures")) == ("clefq audit", "1")
    assert "down_proj" in (suite.findtext(".//failure") or "")


def test_damaged_answers_fail_and_the_baseline_comes_from_the_cache(
    passed,
    runner: Runner,
    eval_set: Path,
    damaged: Path,  # type: ignore[no-untyped-def]
) -> None:
    found = call(
        runner, eval_set, candidate=str(damaged), out="answers", audit="off", artifact="answers"
    )
    assert found.code == 1, found.log
    assert found.outputs["verdict"] == "fail"
    assert "## ✗ FAIL: damaged against bf16 on few" in found.summary
    assert "bf16 on few: from the cache" in found.summary
    actions = [name for name, _ in found.used]
    assert actions == ["actions/cache/restore", "actions/upload-artifact"]
    assert (runner.artifacts / "answers" / "report" / "few" / "damaged" / "parity.json").is_file()


def test_the_baseline_is_kept_though_the_gate_fails(passed, runner: Runner) -> None:  # type: ignore[no-untyped-def]
    save = next(
        step
        for step in runner.action["runs"]["steps"]
        if step.get("uses", "").startswith("actions/cache/save")
    )
    assert "always()" in save["if"]
    assert [name for name, _ in passed.used] == [
        "actions/cache/restore",
        "actions/cache/save",
        "actions/upload-artifact",
    ]
    (kept,) = runner.caches.iterdir()
    assert len(list(kept.glob("*.parquet"))) == 1


def test_a_fault_is_said_in_the_summary(runner: Runner, eval_set: Path) -> None:
    found = call(runner, eval_set / "gone", candidate=str(WEIGHTS), cache="false", artifact="")
    assert found.code == 2
    assert found.outputs == {"verdict": "error", "exit-code": "2"}
    assert "clefq could not judge" in found.summary
    assert "gone" in found.summary
    assert found.used == []


def test_what_fails_before_the_gate_is_an_error_too(runner: Runner, eval_set: Path) -> None:
    found = call(runner, eval_set / "gone", candidate=str(WEIGHTS), artifact="")
    assert "Quantize, audit, predict, judge" not in found.scripts
    assert found.code == 2
    assert found.outputs == {"verdict": "error", "exit-code": "2"}


def test_every_input_is_used_and_every_variable_is_an_option() -> None:
    import typer

    from clefq.cli.main import app

    text = ACTION.read_text(encoding="utf-8")
    action = yaml.safe_load(text)
    unused = [name for name in action["inputs"] if f"inputs.{name}" not in text]
    assert unused == []
    command = typer.main.get_command(app).commands["ci"]  # type: ignore[attr-defined]
    known = {parameter.envvar for parameter in command.params}
    steps = {step["name"]: set(step.get("env", ())) for step in action["runs"]["steps"]}
    named = {name for env in steps.values() for name in env if name.startswith("CLEFQ_CI_")}
    assert named <= known
    # what decides the key is given to both steps
    key = next(env for name, env in steps.items() if name.startswith("Key"))
    gate = next(env for name, env in steps.items() if name.startswith("Quantize"))
    assert key < gate


@pytest.mark.parametrize(
    ("schema", "file"),
    [
        ("github-actions", "action.yml"),
        ("github-workflows", ".github/workflows/ci.yml"),
        ("github-workflows", ".github/workflows/gate.yml"),
    ],
)
def test_files_follow_githubs_schemas(schema: str, file: str) -> None:
    done = subprocess.run(
        [BIN / "check-jsonschema", "--builtin-schema", f"vendor.{schema}", ROOT / file],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_workflow_calls_the_action_with_inputs_that_it_has() -> None:
    action = yaml.safe_load(ACTION.read_text(encoding="utf-8"))
    gate = yaml.safe_load((ROOT / ".github/workflows/gate.yml").read_text(encoding="utf-8"))
    calls = [
        step["with"]
        for job in gate["jobs"].values()
        for step in job["steps"]
        if step.get("uses") == "./"
    ]
    assert len(calls) == 2
    for given in calls:
        assert set(given) <= set(action["inputs"])
        for name in ("baseline", "eval", "calibration"):
            assert name not in given or (ROOT / given[name]).is_dir()


@pytest.mark.parametrize(
    ("inputs", "arguments"),
    [
        (
            {"EXTRAS": "quantize,hub"},
            ["-c", "/act ion/constraints/quantize.txt", "/act ion[quantize,hub]"],
        ),
        ({"EXTRAS": ""}, ["-c", "/act ion/constraints/quantize.txt", "/act ion"]),
        (
            {"EXTRAS": "quantize", "REQUIREMENT": "clefq[quantize]==0.1.0"},
            ["clefq[quantize]==0.1.0"],
        ),
        (
            {"REQUIREMENT": "clefq", "EXTRA_ARGS": "--pre --index-url https://x.invalid/a"},
            ["--pre", "--index-url", "https://x.invalid/a", "clefq"],
        ),
    ],
)
def test_what_is_installed(tmp_path: Path, inputs: dict[str, str], arguments: list[str]) -> None:
    action = yaml.safe_load(ACTION.read_text(encoding="utf-8"))
    step = next(each for each in action["runs"]["steps"] if each["name"] == "Install clefq")
    stub = tmp_path / "python"
    stub.write_text('#!/bin/sh\nfor word in "$@"; do echo "$word"; done\n', encoding="utf-8")
    stub.chmod(0o755)
    given = {name: "" for name in step["env"]}
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "GITHUB_ACTION_PATH": "/act ion"}
    done = subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
        env={**environment, **given, **inputs},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == ["-m", "pip", "install", "--quiet", *arguments]
