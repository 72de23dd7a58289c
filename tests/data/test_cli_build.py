"""`clefq build` through the real command line."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from clefq.store.atomic import sole_writer
from clefq.store.sets import open_set
from tests.data.conftest import FIXTURES

ENVIRONMENT = {**os.environ, "COLUMNS": "80", "NO_COLOR": "1"}
ENVIRONMENT.pop("CLEFQ_DATA_DIR", None)


ALL_ROWS = ("--allow-malformed", "1")  # the fixtures hold rows that no source takes


def clefq(*args: object, cwd: Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "clefq.cli.main", "build", *map(str, args), *ALL_ROWS]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=cwd, env=ENVIRONMENT
    )
    assert done.returncode == code, done.stderr
    return done


def test_prints_what_it_did_in_80_columns(tmp_path: Path) -> None:
    done = clefq("eval", "banking77-ten", "--data-dir", FIXTURES, cwd=tmp_path)
    assert max(map(len, done.stdout.splitlines())) <= 80
    text = " ".join(done.stdout.split())
    for part in (
        "set banking77-ten (eval) → sets/banking77-ten",
        "records 24; questions: 24 choice",
        "banking77 test (local, 57ec275d; CC-BY-4.0): 24 of 31 rows, 5 malformed, ",
        "removed 2 with another right answer for the same content; none of them is kept",
        "by nano's tokenizer; median",
        "next clefq predict MODEL --eval sets/banking77-ten",
    ):
        assert part in text
    assert open_set(tmp_path / "sets/banking77-ten").manifest.sha256 in text
    assert [path.name for path in (tmp_path / "sets").iterdir()] == ["banking77-ten"]


def test_json(tmp_path: Path) -> None:
    args = ("calibration", "seven-tasks", "--data-dir", FIXTURES, "--limit", 3, "--json", "--quiet")
    done = clefq(*args, "--out", "here", "--tokenizer", "none", cwd=tmp_path)
    value = json.loads(done.stdout)
    assert value["path"] == "here"
    assert value["records"] == 21
    assert value["token_lengths"] is None
    assert value["role"] == "calibration"
    assert len(value["sources"]) == 7


def test_a_users_own_definition(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/tickets.csv").write_text(
        "subject,queue\nPrinter jams on floor two,tech\nInvoice sent twice,billing\n"
        "Cannot log in since noon,tech\n"
    )
    (tmp_path / "mine/tickets.yaml").write_text(
        """
        name: tickets
        role: eval
        sources:
          - source: user
            options:
              file: tickets.csv
              state: subject
              questions:
                queue: {type: choice, instructions: "Which queue?", gold: queue}
        """
    )
    clefq("eval", "mine/tickets.yaml", cwd=tmp_path)
    records = list(open_set(tmp_path / "sets/tickets").records())
    assert [record.gold["queue"] for record in records] == ["tech", "billing", "tech"]


TICKETS = """
name: NAME
role: ROLE
sources:
  - source: user
    count: 20
    options:
      file: tickets.csv
      state: subject
      questions:
        queue: {type: choice, criteria: [tech, billing], gold: queue}
"""


def write_tickets(folder: Path, rows: list[str], role: str, name: str) -> str:
    (folder / "tickets.csv").write_text("subject,queue\n" + "".join(row + "\n" for row in rows))
    text = TICKETS.replace("ROLE", role).replace("NAME", name)
    (folder / f"{name}.yaml").write_text(text)
    return f"{name}.yaml"


def test_calibration_apart_from_eval(tmp_path: Path) -> None:
    """One table, two definitions: without --against both sets are the same records."""
    rows = [f"{i * 7919} {i * 104729} {i * 1299709},tech" for i in range(30)]
    clefq("eval", write_tickets(tmp_path, rows, "eval", "tickets"), cwd=tmp_path)
    mine = write_tickets(tmp_path, rows, "calibration", "mine")
    note = "not compared with any eval set: --against SET does"
    done = clefq("calibration", mine, "--out", "same", cwd=tmp_path)
    assert done.stderr.splitlines() == [note]
    done = clefq("calibration", mine, "--against", "sets/tickets", cwd=tmp_path)
    assert done.stderr.splitlines() == ["user: 10 records instead of 20"]
    evaluated, same, apart = (
        {record.id for record in open_set(tmp_path / path).records()}
        for path in ("sets/tickets", "same", "sets/mine")
    )
    assert same == evaluated
    assert len(apart) == 10
    assert not apart & evaluated


def test_a_definition_of_the_other_role(tmp_path: Path) -> None:
    file = write_tickets(tmp_path, ["a,tech"], "eval", "tickets")
    done = clefq("calibration", file, cwd=tmp_path, code=2)
    assert "role is eval, but `clefq build calibration` was asked for" in done.stderr
    assert (
        "fix: copy it with `role: calibration` and a name of its own, and build the copy "
        "`--against` the eval set."
    ) in done.stderr


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        (("", "", "tech"), "1 of 3 rows, 2 malformed: queue is empty (malformed.jsonl)"),
        (
            ("", "Sales", "", "tech"),
            "1 of 4 rows, 3 malformed, 2 of them: queue is empty (malformed.jsonl)",
        ),
        (
            ("x" * 200, "tech"),
            f"1 malformed: queue is '{'x' * 89}… (malformed.jsonl)",
        ),
    ],
)
def test_why_rows_were_refused(answers: tuple[str, ...], said: str, tmp_path: Path) -> None:
    rows = [f"Case {i},{answer}" for i, answer in enumerate(answers)]
    done = clefq("eval", write_tickets(tmp_path, rows, "eval", "tickets"), cwd=tmp_path)
    lines = [line.removeprefix("source").strip() for line in done.stdout.splitlines()]
    assert said.replace(" ", "") in "".join(lines).replace(" ", "")
    assert "user (user; the user's own)" in " ".join(lines)


@pytest.mark.parametrize(
    ("args", "message", "fix"),
    [
        (("train", "banking77"), "'train' is no role", "say `build calibration`"),
        (("eval", "bank"), "no eval definition 'bank'", "name a .yaml file or one of: anli"),
        (("calibration", "evals.yaml"), "no definition evals.yaml", None),
        (("eval", __file__), "is no definition (.yaml)", "write one that names the file as its"),
        (("eval", "nano-eval", "--against", "gone"), "--against gone: no such set or file", None),
        (("eval", "emobank"), "EmoBank is not on the hub", "give the folder that holds emobank/"),
        (("eval", "boolq", "--data-dir", "."), "has no folder boolq/", "put the original files"),
        (("eval", "boolq", "--data-dir", FIXTURES, "--tokenizer", "gone"), "gone", None),
    ],
)
def test_wrong_use(args: tuple[object, ...], message: str, fix: str | None, tmp_path: Path) -> None:
    done = clefq(*args, cwd=tmp_path, code=2)
    assert message in done.stderr
    assert done.stderr.startswith("clefq: ")
    if fix is not None:
        assert f"fix: {fix}" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_interrupted_build_resumes(tmp_path: Path) -> None:
    """Ctrl-C while a long source is read: no set, exit 130; the same command goes on."""
    rows = "".join(f"Word{i} of row number {i * 7919},{'ab'[i % 2]}\n" for i in range(30_000))
    (tmp_path / "big.csv").write_text("text,label\n" + rows)
    (tmp_path / "big.yaml").write_text(
        """
        name: big
        role: eval
        decontaminate: {near: false}
        sources:
          - source: game_agent
            split: eval
            count: 20
          - source: user
            count: 50
            options:
              file: big.csv
              state: text
              questions: {label: {type: choice, gold: label}}
        """
    )
    command = [sys.executable, "-m", "clefq.cli.main", "build", "eval", "big.yaml"]
    running = subprocess.Popen(
        command, cwd=tmp_path, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True
    )
    first = tmp_path / "sets/.big.work/source-00/state.json"
    while not first.exists() and running.poll() is None:
        time.sleep(0.005)
    running.send_signal(signal.SIGINT)
    running.communicate(timeout=60)
    assert running.returncode == 130
    assert not (tmp_path / "sets/big").exists()
    done = clefq("eval", "big.yaml", cwd=tmp_path)
    assert "game_agent eval: 20 records read earlier" in done.stderr
    assert open_set(tmp_path / "sets/big").manifest.records == 70
    assert [path.name for path in (tmp_path / "sets").iterdir()] == ["big"]


@pytest.mark.slow
def test_a_build_that_is_killed_makes_the_same_bytes(tmp_path: Path) -> None:
    """SIGKILL at random moments; the same command then makes what an undisturbed one makes."""
    args = ["eval", "six-tasks", "--data-dir", str(FIXTURES), "--quiet", "--out"]
    # a set goes by its folder's name
    clefq(*args, "whole/six", cwd=tmp_path)
    rng = random.Random(int.from_bytes(os.urandom(4), "big"))
    delays = [rng.uniform(0.1, 1.5) for _ in range(2)]
    command = [sys.executable, "-m", "clefq.cli.main", "build", *ALL_ROWS, *args, "killed/six"]
    for delay in delays:
        running = subprocess.Popen(
            command,
            cwd=tmp_path,
            env=ENVIRONMENT,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        time.sleep(delay)
        running.kill()
        running.wait()
        if (tmp_path / "killed" / "six").exists():
            break  # it was complete: killed on its way out, or not at all
    if not (tmp_path / "killed" / "six").exists():
        clefq(*args, "killed/six", cwd=tmp_path)
    made = {
        name: {
            path.relative_to(tmp_path / name / "six"): path.read_bytes()
            for path in (tmp_path / name / "six").rglob("*")
            if path.is_file()
        }
        for name in ("whole", "killed")
    }
    assert made["whole"] == made["killed"], delays
    assert sorted(path.name for path in tmp_path.iterdir()) == ["killed", "whole"]


def test_two_builds_do_not_write_one_folder(tmp_path: Path) -> None:
    args = ("eval", "boolq", "--data-dir", FIXTURES, "--tokenizer", "none", "--out", "out")
    with sole_writer(tmp_path / "out"):
        done = clefq(*args, cwd=tmp_path, code=2)
    assert done.stderr.startswith("clefq: another clefq is writing out.\n  fix: wait for it")
    clefq(*args, cwd=tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["seven-tasks", "mixed-27b"])
def test_machine_and_environment_change_no_byte(tmp_path: Path, name: str) -> None:
    """Another place of the files, hash seed, locale, time zone, working folder and file order."""
    made = []
    for seed, locale, zone in (("0", "C", "UTC"), ("4242", "tr_TR.UTF-8", "Asia/Tokyo")):
        home = tmp_path / f"home {seed}"
        names = sorted(path.name for path in FIXTURES.iterdir() if path.is_dir())
        for folder in names if seed == "0" else reversed(names):
            shutil.copytree(FIXTURES / folder, home / "data" / folder)
        environment = {**ENVIRONMENT, "PYTHONHASHSEED": seed, "LC_ALL": locale, "TZ": zone}
        environment |= {"LANG": locale, "PYTHONUTF8": "0"}
        command = [sys.executable, "-m", "clefq.cli.main", "build", "calibration", name, *ALL_ROWS]
        command += ["--data-dir", "data", "--limit", "7", "--out", "out", "--quiet"]
        subprocess.run(command, cwd=home, env=environment, capture_output=True, check=True)
        out = home / "out"
        made.append({p.relative_to(out): p.read_bytes() for p in out.rglob("*") if p.is_file()})
    assert made[0] == made[1]
    assert len(made[0]) >= 4
