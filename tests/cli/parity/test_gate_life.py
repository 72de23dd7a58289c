"""The life of a gate file: frozen, committed, judged, replaced."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from clefq.parity.gates.files import load_gates
from clefq.parity.rejudge import rejudge
from tests.cli.parity.conftest import Clefq
from tests.parity.synthetic import OTHER_SHA, Dial, World, meta, predictions, write

EARLY, LATE = "2026-01-01T00:00:00+00:00", "2026-02-01T00:00:00+00:00"
PREDICTED = "2026-01-15T00:00:00+00:00"


def git(folder: Path, *arguments: str, date: str = EARLY) -> None:
    environment = {
        **os.environ,
        "GIT_AUTHOR_DATE": date,
        "GIT_COMMITTER_DATE": date,
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_SYSTEM": os.devnull,
    }
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.invalid")
    subprocess.run(["git", "-C", folder, *identity, *arguments], check=True, env=environment)


def commit(folder: Path, date: str) -> None:
    git(folder, "add", "gates")
    git(folder, "commit", "-q", "-m", "gates", date=date)


@pytest.fixture
def bound_run(run_folder: Path, world: World) -> Path:
    """The run folder with predictions of a known time, and an empty git repository."""
    for name, dial in (("bf16", Dial()), ("fp8", Dial(noise=0.02))):
        made = predictions(world, name, dial, created_at=PREDICTED)
        write(run_folder / "predictions" / "synthetic" / f"{name}.parquet", made)
    git(run_folder, "init", "-q", "-b", "main")
    (run_folder / "gates").mkdir()
    return run_folder


def freeze(clefq: Clefq, template: str = "release", out: str = "gates/g.yaml", *more: str) -> int:
    return clefq(
        "gate",
        template,
        "--freeze",
        "--set",
        "synthetic",
        "--baseline",
        "bf16",
        "--out",
        out,
        *more,
    )


def judged(folder: Path) -> dict:
    path = folder / "report" / "synthetic" / "fp8" / "parity.json"
    return json.loads(path.read_text("utf-8"))


@pytest.mark.parametrize(
    ("date", "status"), [(EARLY, "preregistered"), (LATE, "after_results"), (None, "unproven")]
)
def test_frozen_gates_and_when_they_were_committed(
    clefq: Clefq, bound_run: Path, date: str | None, status: str
) -> None:
    assert freeze(clefq) == 0
    if date is not None:
        commit(bound_run, date)
    assert clefq("parity", "--baseline", "bf16", "--gates", "gates/g.yaml") == 0
    document = judged(bound_run)
    gate_file = document["gate_file"]
    assert gate_file["bound"] is True
    assert gate_file["preregistration"]["status"] == status
    assert gate_file["text"] == (bound_run / "gates" / "g.yaml").read_text("utf-8")
    late = any("committed after" in banner for banner in document["verdict"]["banners"])
    assert late == (status == "after_results")
    # judged again, with the predictions and without, no more and no less is claimed
    report = bound_run / "report" / "synthetic" / "fp8" / "parity.json"
    for _ in range(2):
        again = rejudge(report).document
        assert again["gate_file"]["preregistration"] == gate_file["preregistration"]
        assert late == any("committed after" in b for b in again["verdict"]["banners"])
        shutil.rmtree(bound_run / "predictions", ignore_errors=True)
    if status == "after_results":
        gate_file["preregistration"]["status"] = "preregistered"
        report.write_text(json.dumps(document), "utf-8")
        edited = rejudge(report).document["gate_file"]["preregistration"]
        assert edited["status"] == "after_results"


def test_bundled_templates_are_reported_as_not_preregistered(clefq: Clefq, bound_run: Path) -> None:
    assert clefq("parity", "--baseline", "bf16") == 0
    assert judged(bound_run)["gate_file"]["preregistration"]["status"] == "not_preregistered"


def test_freeze_binds_hashes_and_never_overwrites(
    clefq: Clefq, bound_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert freeze(clefq, "strict", "gates/s.yaml", "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    gates = load_gates("gates/s.yaml").gates
    assert gates.eval_set is not None and gates.baseline is not None
    assert gates.eval_set.sha256 == shown["eval_set"]["sha256"]
    assert gates.baseline.model_sha256 == meta("bf16").model_sha256
    assert gates.gates == load_gates("strict").gates.gates
    assert freeze(clefq, "strict", "gates/s.yaml") == 2
    assert "judge with --gates gates/s.yaml" in capsys.readouterr().err
    assert freeze(clefq, "release", "gates/s.yaml") == 2
    assert "--supersedes" in capsys.readouterr().err
    assert freeze(clefq, "gates/s.yaml", "gates/t.yaml") == 2  # bound already
    assert clefq("gate", "release", "--freeze", "--set", "gone", "--baseline", "bf16") == 2


def test_gates_bound_to_other_inputs_are_invalid(
    clefq: Clefq, bound_run: Path, world: World
) -> None:
    assert freeze(clefq) == 0
    folder = bound_run / "predictions" / "synthetic"
    found = predictions(world, "bf16", created_at=PREDICTED, model_sha256="d" * 64)
    write(folder / "bf16.parquet", found)
    assert clefq("parity", "--baseline", "bf16", "--gates", "gates/g.yaml") == 4
    assert "model_sha256" in judged(bound_run)["verdict"]["reasons"][0]


def test_superseding_gates_show_both_verdicts(clefq: Clefq, bound_run: Path) -> None:
    strict = bound_run / "hard.yaml"
    text = load_gates("release").text.replace("margin: 0.02", "margin: 0.0001")
    strict.write_text(text.replace("name: release", "name: hard"), "utf-8")
    assert freeze(clefq, "hard.yaml", "gates/old.yaml") == 0
    assert clefq("parity", "--baseline", "bf16", "--gates", "gates/old.yaml") == 3
    alone = judged(bound_run)["gates"]
    assert freeze(clefq, "release", "gates/new.yaml", "--supersedes", "gates/old.yaml") == 0
    assert clefq("parity", "--baseline", "bf16", "--gates", "gates/new.yaml") == 0
    document = judged(bound_run)
    old = document["gate_file"]["superseded"]
    assert (document["verdict"]["word"], old["verdict"]["word"]) == ("pass", "inconclusive")
    assert old["gates"] == alone  # with its own seed, to the bit
    assert any("gates changed after results" in b for b in document["verdict"]["banners"])
    page = (bound_run / "report" / "synthetic" / "fp8" / "report.html").read_text("utf-8")
    assert "gates changed after results" in page and "that these replace (hard" in page
    # the replaced file is gone: the verdict by the new one alone is refused
    (bound_run / "gates" / "old.yaml").unlink()
    assert clefq("parity", "--baseline", "bf16", "--gates", "gates/new.yaml") == 2
    # judged again, both verdicts stay
    assert clefq("gate", "report") == 0
    report = bound_run / "report" / "synthetic" / "fp8" / "parity.json"
    shutil.rmtree(bound_run / "predictions")
    assert rejudge(report).document["verdict"]["banners"][0] == document["verdict"]["banners"][0]
    document["gate_file"]["superseded"] = None
    report.write_text(json.dumps(document), "utf-8")
    assert clefq("gate", "report") == 2


def test_freezing_refuses_a_baseline_of_another_set(
    clefq: Clefq, bound_run: Path, world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    found = predictions(world, "bf16", eval_set_sha256=OTHER_SHA)
    other = write(bound_run / "other.parquet", found)
    code = clefq(
        "gate", "release", "--freeze", "--set", "synthetic", "--baseline", other, "--out", "x.yaml"
    )
    assert code == 2
    assert "not of synthetic" in capsys.readouterr().err
    assert not (bound_run / "x.yaml").exists()


def test_replaced_policies_keep_their_own_meaning(clefq: Clefq, bound_run: Path) -> None:
    """Both files call a policy `auto`; each verdict is by its own."""
    text = (
        "schema: clefq.gates/1\nname: auto\ndescription: d\npolicies:\n"
        "  - {name: auto, questions: 'q*', option: 'true', threshold: 0.5,"
        " cost_act_to_hold: COST, cost_hold_to_act: COST}\n"
        "gates:\n  - {name: cost, metric: policy_cost@auto, direction: at_most, bound: 9999,"
        " min_n: 50}\n"
    )
    for name, cost in (("cheap", "1"), ("dear", "1000000")):
        (bound_run / f"{name}.yaml").write_text(text.replace("COST", cost), "utf-8")
    assert freeze(clefq, "dear.yaml", "gates/dear.yaml") == 0
    assert freeze(clefq, "cheap.yaml", "gates/cheap.yaml", "--supersedes", "gates/dear.yaml") == 0
    clefq("parity", "--baseline", "bf16", "--gates", "gates/cheap.yaml")
    document = judged(bound_run)
    (new,), (old,) = document["gates"], document["gate_file"]["superseded"]["gates"]
    assert 0 < new["upper"] <= 10_000 < old["upper"]


def test_predictions_of_an_older_state_of_the_set_are_refused(
    clefq: Clefq, bound_run: Path, world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    stale = bound_run / "predictions" / "synthetic" / "fp8.parquet"
    write(stale, predictions(world, "fp8", eval_set_sha256=OTHER_SHA))
    assert clefq("parity", "--baseline", "bf16") == 2
    assert "made on another set" in capsys.readouterr().err
