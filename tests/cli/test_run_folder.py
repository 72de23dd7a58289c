"""Inside a run folder, commands need no names; `init` makes one."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from clefq.cli.main import run as main
from clefq.names.models import find_model, origin_of, record_origin
from clefq.names.run_folder import RunFolder
from clefq.nano import SETS, WEIGHTS
from clefq.quantize import run as quantizing
from clefq.store.sets import open_set

Call = Callable[..., int]


@pytest.fixture
def clefq(monkeypatch: pytest.MonkeyPatch) -> Call:
    def call(*arguments: object) -> int:
        monkeypatch.setattr(sys, "argv", ["clefq", *map(str, arguments)])
        with pytest.raises(SystemExit) as stopped:
            main()
        return int(stopped.value.code or 0)

    return call


@pytest.fixture
def here(clefq: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    """A run folder that `init` made of the miniature; the current folder."""
    monkeypatch.chdir(tmp_path)
    assert clefq("init", "nano", "--out", "r", "--quiet") == 0
    monkeypatch.chdir(tmp_path / "r")
    return RunFolder(tmp_path / "r")


def test_python_m_clefq_is_the_command() -> None:
    import subprocess

    command = [sys.executable, "-m", "clefq", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("clefq ")


def test_init_makes_a_run_folder_and_completes_it(here: RunFolder, clefq: Call) -> None:
    assert here.variants() == ["bf16"]
    assert here.sets() == ["nano-calibration", "nano-eval"]
    for name in here.sets():
        assert open_set(here.set_folder(name)).sha256() == open_set(SETS / name).sha256()
    config = here.model("bf16") / "config.json"
    assert not config.samefile(WEIGHTS / "config.json")  # edited here, the original stays
    config.write_text(config.read_text() + "\n")
    (here.set_folder("nano-eval") / "manifest.json").unlink()
    for path in sorted(here.set_folder("nano-eval").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    here.set_folder("nano-eval").rmdir()
    assert clefq("init", "nano", "--out", here.root) == 0
    assert config.read_text().endswith("\n\n") or config.read_text().endswith("}\n")
    assert here.sets() == ["nano-calibration", "nano-eval"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nano", "--eval", "no-such"), "no eval definition 'no-such'"),
        (("nano", "--eval", str(SETS / "nano-calibration")), "is a set for calibration"),
        (("./nothing",), "neither a checkpoint folder nor a hub id"),
    ],
)
def test_init_refuses_what_it_cannot_make(
    clefq: Call,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert clefq("init", *arguments, "--out", "r") == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_a_copy_of_a_hub_model_knows_what_it_is_of(here: RunFolder) -> None:
    folder = here.model("bf16")
    assert origin_of(folder) == (None, None)
    record_origin(folder, "org/clef", "c" * 40)
    found = find_model("bf16", here)
    assert (found.model_id, found.revision, found.variant) == ("org/clef", "c" * 40, "bf16")


def test_quantize_takes_its_names_from_the_run_folder(
    here: RunFolder,
    clefq: Call,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked = {}

    def load_calibration(folder: Path, model: Path, _: int) -> None:
        asked.update(calibration=folder, model=model)
        raise quantizing.InputError("far enough")

    monkeypatch.setattr(quantizing, "load_calibration", load_calibration)
    assert clefq("quantize", "--scheme", "nvfp4") == 2
    assert asked == {
        "calibration": here.set_folder("nano-calibration"),
        "model": here.model("bf16"),
    }
    said = " ".join(capsys.readouterr().err.split())
    assert "bf16 → " in said
    assert "models/nvfp4" in said
    assert "nano-calibration, the only one of the run folder" in said


def test_quantize_refuses_a_choice_that_is_the_user_s(
    here: RunFolder, clefq: Call, capsys: pytest.CaptureFixture[str]
) -> None:
    import shutil

    second = here.set_folder("second")
    shutil.copytree(here.set_folder("nano-calibration"), second)
    assert clefq("quantize", "--scheme", "nvfp4") == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "has several calibration sets: nano-calibration, second." in said
    assert "fix: choose one: --calibration nano-calibration" in said


@pytest.mark.parametrize("missing", ["run folder", "bf16"])
def test_quantize_without_a_model_says_what_is_missing(
    clefq: Call,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    missing: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    if missing == "bf16":
        (tmp_path / "models" / "other").mkdir(parents=True)
    assert clefq("quantize", "--scheme", "fp8") == 2
    said = " ".join(capsys.readouterr().err.split())
    assert (
        "has no model bf16 (there: other)" if missing == "bf16" else "no MODEL is given"
    ) in said
    assert "clefq init" in said


def test_commands_know_the_variants(
    here: RunFolder, clefq: Call, capsys: pytest.CaptureFixture[str]
) -> None:
    # a folder of that name here does not hide the variant
    (here.root / "bf16").mkdir()
    assert clefq("diff", "bf16", "bf16", "--json") == 0
    assert json.loads(capsys.readouterr().out)
    assert clefq("audit", "bf16", "--source", "bf16", "--json") in (0, 1, 2)
    assert "not quantized" in capsys.readouterr().out


def test_audit_takes_a_hub_id(
    clefq: Call,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("clefq.names.models.resolve_model", lambda _: WEIGHTS)
    seen = []
    monkeypatch.setattr(
        "clefq.quantize.audit.audit_checkpoint",
        lambda folder, source, **_: seen.append((folder, source)) or SimpleNamespace(),
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["clefq", "audit", "org/clef-nvfp4"])
    with pytest.raises(SystemExit) as stop:  # the stand-in for a report has nothing to print
        main()
    assert stop.value.code == 70
    assert seen == [(WEIGHTS, None)]


def test_card_takes_a_variant(
    here: RunFolder, clefq: Call, capsys: pytest.CaptureFixture[str]
) -> None:
    assert clefq("card", "bf16") == 2
    assert "has no report about bf16" in " ".join(capsys.readouterr().err.split())
    assert clefq("card", "--report", "x") == 2
    assert "--report goes with --model only" in capsys.readouterr().err
