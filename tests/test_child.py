"""A step in another interpreter: results, errors, deaths, and an end with the parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from clefq.child import Child, ChildDied, run_child
from clefq.console import Console
from clefq.errors import ClefqError, ExitCode

PYTHON = Path(sys.executable)
WORKER = """
import os, sys, time
print("an import that talks")
from clefq.child import answer_parent
from clefq.errors import InputError
def work(job, console):
    print("a note", flush=True)
    if job == "refuse":
        raise InputError("no.", fix="another.", faults=["two"])
    if job == "die":
        os._exit(7)
    if job == "stay":
        time.sleep(60)
    return {"job": job, "quiet": console.quiet}
sys.exit(answer_parent(work))
"""


@pytest.fixture(autouse=True)
def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "some_worker.py").write_text(WORKER)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")


def test_a_result_comes_back_whatever_is_printed() -> None:
    found = run_child(PYTHON, "some_worker", [1, "ä"], Console(quiet=True), "work")
    assert found == {"job": [1, "ä"], "quiet": True}


def test_an_error_is_the_parents() -> None:
    with pytest.raises(ClefqError, match=r"no\.") as caught:
        run_child(PYTHON, "some_worker", "refuse", Console(), "work")
    assert (caught.value.fix, list(caught.value.faults)) == ("another.", ["two"])
    assert caught.value.exit_code == ExitCode.USAGE


def test_a_death_is_told_with_its_code_and_what_it_said() -> None:
    child = Child(PYTHON, "some_worker", "work", piped=True)
    said: list[str] = []
    child.send("die")
    child.said(said.append)
    with pytest.raises(ChildDied, match="work ended with exit code 7 and no result") as caught:
        child.receive()
    child.close()
    child.close()
    assert caught.value.code == 7
    assert said == ["a note\n"]


def test_a_child_does_not_outlive_a_killed_parent(tmp_path: Path) -> None:
    code = (
        "from clefq.child import Child; import sys, time\n"
        "child = Child(sys.executable, 'some_worker', 'work')\n"
        "child.send('stay'); print(child._process.pid, flush=True); time.sleep(60)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    time.sleep(1.0)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    for _ in range(200):
        state = Path(f"/proc/{pid}/stat")
        if not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z":
            return
        time.sleep(0.1)
    os.kill(pid, signal.SIGKILL)
    pytest.fail("the child is still there")
