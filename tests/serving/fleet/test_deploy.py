"""The deployment files say what this version understands."""

from __future__ import annotations

import ast
import asyncio
import importlib
import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
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


def exported() -> set[str]:
    """Names of all metrics of a server, as they are asked for."""
    from tests.serving.fleet.test_fleet import gauge_names

    source = (ROOT / "clefq/serving/http/metrics.py").read_text()
    names = set(re.findall(r'"(clefq_[a-z_]+)"', source))
    names |= {f"clefq_{name}" for name in gauge_names()}
    endings = ("", "_total", "_bucket", "_sum", "_count")
    return {name + ending for name in names for ending in endings}


def test_alerts_and_board_ask_for_metrics_that_there_are() -> None:
    rules = yaml.safe_load((DEPLOY / "alerts.yaml").read_text())["groups"][0]["rules"]
    board = json.loads((DEPLOY / "grafana.json").read_text())
    asked = [rule["expr"] for rule in rules]
    asked += [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    assert len(asked) > 20
    for expression in asked:
        names = re.findall(r"clefq_[a-z_]+", expression)
        assert set(names) <= exported(), expression
    assert all({"alert", "expr", "labels", "annotations"} <= set(rule) for rule in rules)


def test_the_kubernetes_manifest() -> None:
    documents = list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text()))
    (workload,) = [one for one in documents if one["kind"] == "StatefulSet"]
    pod = workload["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    flags = {word.partition("=")[0] for word in container["args"] if word.startswith("--")}
    assert flags <= serve_options()
    probes = {name: container[f"{name}Probe"]["httpGet"]["path"]
              for name in ("startup", "readiness", "liveness")}  # fmt: skip
    assert probes == {"startup": "/readyz", "readiness": "/readyz", "liveness": "/livez"}
    given = dict(word.split("=") for word in container["args"] if "=" in word)
    waits = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pod["terminationGracePeriodSeconds"] > int(given["--request-timeout"]) + waits
    mounted = {one["name"] for one in container["volumeMounts"]}
    claimed = {one["metadata"]["name"] for one in workload["spec"]["volumeClaimTemplates"]}
    assert mounted == {one["name"] for one in pod["volumes"]} | claimed


def test_a_token_cannot_be_committed_by_mistake() -> None:
    file = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["secrets"]["clefq_token"]["file"]
    assert f"/deploy/{Path(file).name}" in (ROOT / ".gitignore").read_text().splitlines()


@pytest.fixture
def ray_app(monkeypatch: pytest.MonkeyPatch) -> Any:
    """`deploy/ray_serve.py` with a Ray that does nothing."""
    context = SimpleNamespace(_get_serve_request_context=lambda: SimpleNamespace(request_id="ray"))
    deployment = SimpleNamespace(bind=lambda: None)
    stub = SimpleNamespace(
        context=context,
        ingress=lambda build: lambda: None,
        deployment=lambda *given, **options: deployment,
    )
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(serve=stub))
    spec = importlib.util.spec_from_file_location("ray_serve", DEPLOY / "ray_serve.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_ray_replica_takes_its_settings_from_the_environment(
    ray_app: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("SERVE_TOKEN", "s"), ("DIALECT", "typesafe"), ("LIMITS", "max_levels=3"),
                        ("REQUEST_TIMEOUT", "7"), ("MAX_IMAGES", "2")):  # fmt: skip
        monkeypatch.setenv(f"CLEFQ_{name}", value)
    settings = ray_app.server_settings()
    assert [token.secret for token in settings.tokens] == ["s"]
    assert (settings.dialect, settings.answer_seconds) == ("typesafe", 7.0)
    assert (settings.limits.max_levels, settings.limits.max_images) == (3, 2)


@pytest.mark.parametrize(("given", "seen"), [([], b"ray"), ([(b"x-request-id", b"mine")], b"mine")])
def test_a_ray_replica_states_no_id_twice(ray_app: Any, given: Any, seen: bytes) -> None:
    sent: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert dict(scope["headers"])[b"x-request-id"] == seen
        await send({"type": "http.response.start", "headers": [(b"x-request-id", seen),
                                                               (b"a", b"b")]})  # fmt: skip

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "headers": given}
    asyncio.run(ray_app.OneRequestId(app)(scope, None, send))
    assert sent[0]["headers"] == [(b"a", b"b")]


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
