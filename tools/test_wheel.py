"""Installs a wheel into a fresh environment without torch and uses it as a reviewer would.

    python tools/test_wheel.py WHEEL FOLDER [PIP_ARGUMENT ...]

FOLDER gets the environment and a workplace; it is kept, so that a second call is quick. Checked:
that nothing of a checkout is needed, that the data files are in the wheel, and that the core
commands (build, import, parity, gate, plan, ci) work where torch is not installed.
"""

from __future__ import annotations

import json
import math
import os
import random
import shutil
import subprocess
import sys
import venv
from pathlib import Path

LOGITS_APART = 4.0  # the right option leads by this much before noise


class Wheel:
    """The environment, and a folder to work in.

    Args:
        folder: For both.
    """

    def __init__(self, folder: Path) -> None:
        self.environment = (folder / "env").absolute()
        self.work = (folder / "work").absolute()
        self.bin = self.environment / "bin"

    def install(self, wheel: Path, pip_arguments: list[str]) -> None:
        """Makes the environment and installs the wheel with its core dependencies only."""
        if not self.bin.is_dir():
            venv.create(self.environment, with_pip=True)
        pip = [str(self.bin / "python"), "-m", "pip", "install", "-qq", *pip_arguments]
        subprocess.run([*pip, str(wheel)], check=True)
        subprocess.run([*pip, "--force-reinstall", "--no-deps", str(wheel)], check=True)
        shutil.rmtree(self.work, ignore_errors=True)
        self.work.mkdir(parents=True)

    def python(self, code: str) -> str:
        """What a snippet prints."""
        return self._run([str(self.bin / "python"), "-c", code], 0)

    def clefq(self, *arguments: object, exits: int = 0) -> str:
        """What a command prints on stdout; another exit code than `exits` ends the test."""
        return self._run([str(self.bin / "clefq"), *map(str, arguments)], exits)

    def _run(self, command: list[str], exits: int) -> str:
        # nothing of the caller's environment or checkout may help
        kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        done = subprocess.run(
            command, cwd=self.work, env=kept, capture_output=True, text=True, check=False
        )
        if done.returncode != exits:
            shown = " ".join(command[:6])
            raise SystemExit(
                f"{shown}: exit code {done.returncode}, expected {exits}\n"
                f"{done.stdout}{done.stderr}"
            )
        return done.stdout


def check_core(wheel: Wheel) -> None:
    """The core is there, torch is not, and the data files came with the wheel."""
    wheel.python(CORE)
    weights = wheel.python("from clefq.nano import WEIGHTS; print(WEIGHTS)").strip()
    wheel.clefq("build", "eval", "nano-eval", "--out", "sets/nano-eval", "--quiet")
    bound = ("--set", "sets/nano-eval", "--baseline", weights, "--out", "gates.yaml")
    wheel.clefq("gate", "release", "--freeze", *bound)
    text = wheel.clefq(
        "predict", weights, *["--eval", "sets/nano-eval", "--json", "--out", "x"], exits=2
    )
    assert ".[quantize]" in text, text


CORE = """
import importlib.util, json
import clefq
from clefq.store.data_files import data_folder
from clefq.cli.main import app
import typer

heavy = ("torch", "transformers", "llmcompressor", "vllm")
assert not [name for name in heavy if importlib.util.find_spec(name)]
assert "site-packages" in clefq.__file__, clefq.__file__
for name, least in (("recipes", 5), ("calibration", 3), ("evals", 20), ("metrics", 4)):
    files = [p for p in data_folder(name).rglob("*") if p.is_file()]
    assert len(files) >= least, (name, files)
typer.main.get_command(app)  # every command's module imports
"""


def check_parity(wheel: Wheel) -> None:
    """From answers to a verdict, and again in CI."""
    records = wheel.work / "sets" / "nano-eval" / "records.jsonl"
    for variant, noise in (("bf16", 0.0), ("good", 0.05), ("bad", 3.0)):
        answers = wheel.work / f"{variant}.jsonl"
        answers.write_text("".join(_answers(records, variant, noise)), encoding="utf-8")
        told = ("--variant", variant, "--arithmetic", "bf16", "--scheme", "bf16")
        out = f"{variant}.parquet"
        wheel.clefq("import", answers, "--eval", "sets/nano-eval", *told, "--out", out)
    base = ("--baseline", "bf16.parquet", "--eval", "sets/nano-eval")
    wheel.clefq("parity", *base, "--candidate", "good.parquet", "--out", "good")
    wheel.clefq("parity", *base, "--candidate", "bad.parquet", "--out", "bad", exits=1)
    wheel.clefq("gate", "good")
    wheel.clefq("gate", "bad", exits=1)
    wheel.clefq("plan", "good/good")
    wheel.clefq("ci", *base, "--candidate", "good.parquet", "--out", "ci-good")
    wheel.clefq("ci", *base, "--candidate", "bad.parquet", "--out", "ci-bad", exits=1)


def _answers(records: Path, variant: str, noise: float) -> list[str]:
    """Made-up answers: the right option leads, and noise moves all of them."""
    source = random.Random(variant)
    lines = []
    for line in records.read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        for name, question in record["questions"].items():
            options = _options(question)
            gold = str(record.get("gold", {}).get(name))
            logits = [LOGITS_APART * (o == gold) + source.gauss(0, noise or 0.01) for o in options]
            total = math.log(sum(math.exp(value) for value in logits))
            values = {o: value - total for o, value in zip(options, logits, strict=True)}
            row = {"record_id": record["id"], "question_id": name, "logprobs": values}
            lines.append(json.dumps(row) + "\n")
    return lines


def _options(question: dict[str, object]) -> list[str]:
    criteria = question.get("criteria")
    if question["type"] == "noul":
        return ["true", "false"]
    if isinstance(criteria, list):
        return [str(level) for level in range(len(criteria))]
    assert isinstance(criteria, dict)
    return list(criteria)


if __name__ == "__main__":
    if len(sys.argv) < 3:
        raise SystemExit("use: python tools/test_wheel.py WHEEL FOLDER [PIP_ARGUMENT ...]")
    installed = Wheel(Path(sys.argv[2]))
    installed.install(Path(sys.argv[1]).absolute(), sys.argv[3:])
    check_core(installed)
    check_parity(installed)
    print("the wheel works without torch")
