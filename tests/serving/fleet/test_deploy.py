"""The deployment files say what this version understands."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
from pathlib import Path
from typing import Any

import typer.main
import yaml

from clefq.cli.main import app
from clefq.serving.fleet.spec import Timeouts

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy"


def serve_options() -> set[str]:
    group: Any = typer.main.get_command(app)
    return {option for param in group.commands["serve"].params for option in param.opts}


def compose() -> dict[str, Any]:
    value: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    return value["services"]["clefq"]


def test_the_image_runs_the_server_without_root() -> None:
    text = (DEPLOY / "Dockerfile").read_text()
    entry = ast.literal_eval(re.findall(r"^ENTRYPOINT (.*)$", text, re.MULTILINE)[0])
    assert entry[:4] == ["clefq", "serve", "--host", "0.0.0.0"]
    assert {word for word in entry if word.startswith("--")} <= serve_options()
    assert re.findall(r"^USER (\S+)$", text, re.MULTILINE)[-1] == "clefq"
    assert "/health" in text
    assert re.search(r"^STOPSIGNAL SIGTERM$", text, re.MULTILINE)


def test_everything_that_the_image_copies_is_in_its_context() -> None:
    text = (DEPLOY / "Dockerfile").read_text()
    allowed = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    copied = [
        name
        for line in re.findall(r"^COPY (.*)$", text, re.MULTILINE)
        for name in line.split()[:-1]
    ]
    assert "clefq" in copied
    for name in copied:
        assert (ROOT / name).exists()
        assert f"!{name}" in allowed
    # what the wheel takes into the package must be there when it is built
    project = (ROOT / "pyproject.toml").read_text()
    included = re.findall(r'^"(\w+)" = "clefq/_data', project, re.MULTILINE)
    assert set(included) <= set(copied)


def test_the_compose_file() -> None:
    service = compose()
    flags = {word.partition("=")[0] for word in service["command"] if word.startswith("--")}
    assert flags <= serve_options()
    assert all(port.startswith("127.0.0.1:") for port in service["ports"])
    given = next(w for w in service["command"] if w.startswith("--request-timeout="))
    stop = float(service["stop_grace_period"].removesuffix("s"))
    # accepted requests are finished before the container is killed
    assert stop > float(given.partition("=")[2]) + Timeouts().stop / 2


def test_the_guide_lists_every_option() -> None:
    text = (ROOT / "docs" / "server.md").read_text()
    hidden = {"--run", "--quiet", "--access-log"}
    missing = [o for o in serve_options() - hidden if o.startswith("--") and o not in text]
    assert missing == []


def test_the_router_script_is_sound() -> None:
    script = DEPLOY / "vllm_router.sh"
    assert script.stat().st_mode & 0o111
    assert subprocess.run(["bash", "-n", script], check=False).returncode == 0
    without = subprocess.run([script], capture_output=True, text=True, check=False)
    assert without.returncode != 0
    assert "usage" in without.stderr


def test_the_ray_application_uses_what_there_is() -> None:
    tree = ast.parse((DEPLOY / "ray_serve.py").read_text())
    found = 0
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("clefq"):
            module = importlib.import_module(str(node.module))
            for alias in node.names:
                assert hasattr(module, alias.name), f"{node.module}.{alias.name}"
                found += 1
    assert found >= 5
