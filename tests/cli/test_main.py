"""The command line as a process: light to start, one line per error, the right exit code."""

import json
import subprocess
import sys

import pytest

from clefq.cli.main import COMMANDS, app, run


def clefq(*args: str, **options: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "clefq.cli.main", *args]
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


def test_help_imports_no_heavy_package() -> None:
    code = (
        "import sys, runpy; sys.argv = ['clefq', '--help']\n"
        "try: runpy.run_module('clefq.cli.main', run_name='__main__')\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'transformers', 'pandas', 'pyarrow', 'scipy', 'matplotlib', 'vllm'}\n"
        "print('HEAVY', sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "Quantize Clef decision models" in done.stdout
    assert "HEAVY []" in done.stdout


def test_every_command_has_help_and_fits_80_columns() -> None:
    import os

    env = {**os.environ, "COLUMNS": "80", "TERM": "dumb"}
    for name in COMMANDS:
        done = clefq(name, "--help", env=env)
        assert done.returncode == 0, done.stderr
        assert max(len(line) for line in done.stdout.splitlines()) <= 80


def test_registry_names_the_files_in_the_folder() -> None:
    from pathlib import Path

    import clefq.cli

    folder = Path(clefq.cli.__file__).parent
    entries = ("\ndef command(", "\ngroup = ")
    files = {p.stem for p in folder.glob("*.py") if any(e in p.read_text("utf-8") for e in entries)}
    assert set(COMMANDS.values()) == files


def test_every_command_has_one_place_in_the_help() -> None:
    from clefq.cli.main import PANELS

    names = [name for panel in PANELS.values() for name in panel]
    assert sorted(names) == sorted(COMMANDS)


def test_version() -> None:
    from clefq import __version__

    assert clefq("--version").stdout == f"clefq {__version__}\n"


def test_unknown_command_is_wrong_use() -> None:
    assert clefq("quantise").returncode == 2


def test_error_is_one_line_with_its_fix(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from clefq.errors import InputError

    def fail() -> None:
        raise InputError("x.json is empty.", fix="write something.", faults=["y.json too"])

    monkeypatch.setattr("clefq.cli.main.app", fail)
    monkeypatch.setattr(sys, "argv", ["clefq"])
    with pytest.raises(SystemExit) as stop:
        run()
    assert stop.value.code == 2
    assert (
        capsys.readouterr().err
        == "clefq: x.json is empty.\n  y.json too\n  fix: write something.\n"
    )

    monkeypatch.setattr(sys, "argv", ["clefq", "--json"])
    with pytest.raises(SystemExit):
        run()
    body = json.loads(capsys.readouterr().out)
    assert body == {
        "error": "x.json is empty.",
        "fix": "write something.",
        "faults": ["y.json too"],
    }


def test_ctrl_c_exits_130(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("clefq.cli.main.app", interrupted)
    with pytest.raises(SystemExit) as stop:
        run()
    assert stop.value.code == 130
    assert "nothing half-written" in capsys.readouterr().err
    assert app is not interrupted


def test_a_disk_error_nobody_expected_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full() -> None:
        raise OSError(28, "No space left on device", "/data/out")

    monkeypatch.setattr("clefq.cli.main.app", full)
    monkeypatch.setattr(sys, "argv", ["clefq", "build"])
    with pytest.raises(SystemExit) as stop:
        run()
    assert stop.value.code == 2
    assert "no space left while writing /data/out" in capsys.readouterr().err


def test_a_missing_package_names_the_extra_that_brings_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def lacking() -> None:
        raise ModuleNotFoundError("No module named 'llmcompressor'", name="llmcompressor.logger")

    monkeypatch.setattr("clefq.cli.main.app", lacking)
    monkeypatch.setattr(sys, "argv", ["clefq"])
    with pytest.raises(SystemExit) as stop:
        run()
    assert stop.value.code == 2
    assert "pip install '.[quantize]'" in capsys.readouterr().err

    def broken() -> None:
        raise ModuleNotFoundError("No module named 'clefq.absent'", name="clefq.absent")

    monkeypatch.setattr("clefq.cli.main.app", broken)
    with pytest.raises(SystemExit) as stop:
        run()
    assert stop.value.code == 70
