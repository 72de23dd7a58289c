"""Runs a composite action as GitHub's runner does, as far as `action.yml` needs it.

Every `run` script is executed by bash, in order, with the files and variables that the runner
gives. The four actions that it uses are stood in for: setup-python does nothing, the cache and
the artifacts are folders.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

EXPRESSION = re.compile(r"\$\{\{(.*?)\}\}")
_TOKEN = re.compile(r"'(?:[^']|'')*'|[A-Za-z_][\w.-]*(?:\(\))?|&&|\|\||[!=]=|!|[()]|\s+")


@dataclass
class Outcome:
    """What a run of the action left.

    Attributes:
        code: Exit code of the first step that failed, or 0.
        outputs: Outputs of the action.
        summary: The step summary.
        log: What the scripts printed.
        used: Actions that were called, in order, with their inputs.
        scripts: Names of the steps whose script ran.
    """

    code: int = 0
    outputs: dict[str, str] = field(default_factory=dict)
    summary: str = ""
    log: str = ""
    used: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    scripts: list[str] = field(default_factory=list)


class Runner:
    """A runner with a workspace, a cache and a place for artifacts.

    Args:
        action: The `action.yml`.
        home: Folder for all three.
        path: Folders in front of PATH.
    """

    def __init__(self, action: Path, home: Path, path: Path) -> None:
        self.action = yaml.safe_load(action.read_text(encoding="utf-8"))
        self.folder = action.parent
        self.workspace = home / "workspace"
        self.caches = home / "caches"
        self.artifacts = home / "artifacts"
        for each in (self.workspace, self.caches, self.artifacts):
            each.mkdir(parents=True, exist_ok=True)
        self.path = path

    def run(self, **given: str) -> Outcome:
        """Runs the action with inputs; underscores stand for hyphens."""
        return _Run(self, {name.replace("_", "-"): value for name, value in given.items()}).run()


class _Run:
    def __init__(self, runner: Runner, given: dict[str, str]) -> None:
        self.runner = runner
        declared = runner.action["inputs"]
        unknown = set(given) - set(declared)
        assert not unknown, f"unknown inputs: {unknown}"
        for name, about in declared.items():
            assert name in given or not about.get("required"), f"{name} is required"
        self.inputs = {name: str(about.get("default", "")) for name, about in declared.items()}
        self.inputs |= given
        self.steps: dict[str, dict[str, str]] = {}
        self.outcome = Outcome()
        self.summary = runner.workspace.parent / "summary"
        self.summary.write_text("", encoding="utf-8")

    def run(self) -> Outcome:
        for step in self.runner.action["runs"]["steps"]:
            if not self._wanted(step.get("if")):
                continue
            if "uses" in step:
                self._use(step)
            else:
                self._script(step)
        outputs = self.runner.action["outputs"]
        self.outcome.outputs = {name: self._text(each["value"]) for name, each in outputs.items()}
        self.outcome.summary = self.summary.read_text(encoding="utf-8")
        return self.outcome

    def _wanted(self, condition: str | None) -> bool:
        text = condition or "success()"
        if not re.search(r"\b(always|success|failure|cancelled)\(\)", text):
            text = f"success() && ({text})"
        return bool(self._value(text))

    def _text(self, text: str) -> str:
        return EXPRESSION.sub(lambda match: str(self._value(match[1])), text)

    def _value(self, expression: str) -> Any:
        """An expression of names, strings, ==, !=, &&, ||, ! and status functions."""
        tokens = _TOKEN.findall(expression)
        assert "".join(tokens) == expression, f"not understood: {expression}"
        words = {"&&": " and ", "||": " or ", "!": " not "}
        python = []
        for token in tokens:
            if token.startswith("'"):
                python.append(repr(token[1:-1].replace("''", "'")))
            elif token == "always()":
                python.append("True")
            elif token == "success()":
                python.append(repr(self.outcome.code == 0))
            elif re.match(r"[A-Za-z_]", token):
                python.append(repr(self._name(token)))
            else:
                python.append(words.get(token, token))
        return eval("".join(python).strip(), {"__builtins__": {}})

    def _name(self, name: str) -> str:
        kind, _, rest = name.partition(".")
        if kind == "inputs":
            return self.inputs[rest]
        assert kind == "steps", f"unknown context {name}"
        step, _, output = rest.partition(".outputs.")
        assert step in {each.get("id") for each in self.runner.action["runs"]["steps"]}, name
        return self.steps.get(step, {}).get(output, "")

    def _script(self, step: dict[str, Any]) -> None:
        assert step["shell"] == "bash"
        files = {name: self.runner.workspace.parent / name.lower() for name in ("OUTPUT", "ENV")}
        for path in files.values():
            path.write_text("", encoding="utf-8")
        environment = {
            "PATH": f"{self.runner.path}:{os.environ['PATH']}",
            "HOME": str(self.runner.workspace.parent),
            "CI": "true",
            "GITHUB_ACTIONS": "true",
            "GITHUB_WORKSPACE": str(self.runner.workspace),
            "GITHUB_ACTION_PATH": str(self.runner.folder),
            "GITHUB_STEP_SUMMARY": str(self.summary),
            "GITHUB_OUTPUT": str(files["OUTPUT"]),
            "GITHUB_ENV": str(files["ENV"]),
            "RUNNER_TEMP": str(self.runner.workspace.parent),
            "OMP_NUM_THREADS": "1",
            "OMP_WAIT_POLICY": "passive",
            **{name: self._text(str(value)) for name, value in step.get("env", {}).items()},
        }
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
            cwd=self.runner.workspace,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=200,
        )
        self.outcome.scripts.append(step["name"])
        self.outcome.log += done.stdout + done.stderr
        self.outcome.code = self.outcome.code or done.returncode
        if "id" in step:
            lines = files["OUTPUT"].read_text(encoding="utf-8").splitlines()
            self.steps[step["id"]] = dict(line.split("=", 1) for line in lines)

    def _use(self, step: dict[str, Any]) -> None:
        inputs = {name: self._text(str(value)) for name, value in step.get("with", {}).items()}
        name = step["uses"].partition("@")[0]
        self.outcome.used.append((name, inputs))
        kept = self.runner.caches / inputs.get("key", "none")
        if name == "actions/cache/restore":
            if kept.is_dir():
                shutil.copytree(kept, self.runner.workspace / inputs["path"], dirs_exist_ok=True)
            self.steps[step["id"]] = {"cache-hit": "true" if kept.is_dir() else ""}
        elif name == "actions/cache/save":
            if (self.runner.workspace / inputs["path"]).is_dir():
                shutil.copytree(self.runner.workspace / inputs["path"], kept)
        elif name == "actions/upload-artifact":
            self._upload(inputs)
        else:
            assert name == "actions/setup-python", name

    def _upload(self, inputs: dict[str, str]) -> None:
        """Copies the named paths, hidden files left out, below their common folder."""
        there = [self.runner.workspace / line for line in inputs["path"].split("\n") if line]
        there = [path for path in there if path.exists()]
        if not there:
            return
        target = self.runner.artifacts / inputs["name"]
        root = Path(os.path.commonpath([path.parent for path in there]))
        hidden = shutil.ignore_patterns(".*")
        for path in there:
            place = target / path.relative_to(root)
            place.parent.mkdir(parents=True, exist_ok=True)
            if path.is_dir():
                shutil.copytree(path, place, ignore=hidden)
            else:
                shutil.copyfile(path, place)
