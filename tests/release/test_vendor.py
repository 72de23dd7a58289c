"""The plugin of a published folder: whole, and nothing of clefq but what it carries."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from clefq.release.vendor import FORBIDDEN, PACKAGE, closure, rewrite, write_plugin


@pytest.fixture(scope="module")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plugin") / "vllm_plugin"
    files = write_plugin(folder)
    there = (p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())
    assert files == sorted(there)
    return folder


def sources(plugin: Path) -> dict[str, ast.Module]:
    """Module name → syntax tree, of every file of the package."""
    found = {}
    for path in sorted((plugin / PACKAGE).rglob("*.py")):
        parts = path.relative_to(plugin).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = ast.parse(path.read_text("utf-8"))
    return found


def imported(tree: ast.Module) -> list[str]:
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return names


def test_its_imports_are_in_it(plugin: Path) -> None:
    """An own walk over the written files: every module that one names is there."""
    trees = sources(plugin)
    assert f"{PACKAGE}.main" in trees and f"{PACKAGE}.serving.model" in trees
    for module, tree in trees.items():
        for name in imported(tree):
            root = name.split(".")[0]
            assert root != "clefq", f"{module} imports {name}"
            assert root not in FORBIDDEN, f"{module} imports {name}"
            if root == PACKAGE:
                parent = name.rpartition(".")[0]
                assert name in trees or parent in trees or name == PACKAGE, f"{module}: {name}"
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                head = node.value.split("\n")[0]
                assert not head.startswith(("clefq.serving", "clefq.clef", "clefq.store")), module


def test_what_it_imports_comes_with_vllm_or_is_declared(plugin: Path) -> None:
    project = tomllib.loads((plugin / "pyproject.toml").read_text())["project"]
    names = {"huggingface_hub", "prometheus_client", "PIL"}
    declared = {name.replace("-", "_") for name in project["dependencies"]} | names
    # the engine brings these
    declared |= {"torch", "transformers", "triton", "vllm", "starlette"}
    optional = {"backports"}  # where it is there, zstd bodies are read
    for module, tree in sources(plugin).items():
        roots = {name.split(".")[0] for name in imported(tree)} - {PACKAGE}
        foreign = {r for r in roots if r not in sys.stdlib_module_names} - optional
        assert foreign <= declared, module


def test_the_same_layout_without_clefq(plugin: Path) -> None:
    """In an interpreter that cannot import clefq: names, and a layout like clefq's own."""
    code = f"""
import json, sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "clefq":
            raise ImportError("clefq is blocked")
sys.meta_path.insert(0, Blocked())
sys.path.insert(0, {str(plugin)!r})
import clef_systemone as plugin
from clef_systemone.clef.encoding import EncodedQuestion, Encoded
print(json.dumps([plugin.ARCHITECTURE, plugin.TASK, plugin.__version__]))
print([m for m in sys.modules if m.split(".")[0] in ("torch", "vllm", "clefq")])
from clef_systemone.main import main
main(["--help"])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    names, heavy = done.stdout.splitlines()[:2]
    from clefq import __version__
    from clefq.serving import ARCHITECTURE, TASK

    assert json.loads(names) == [ARCHITECTURE, TASK, __version__], done.stderr
    assert heavy == "[]"
    for option in ("--model", "--dp", "--host", "--port"):
        assert option in done.stdout


def test_without_vllm_it_says_what_to_install(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from clefq.release import systemone

    monkeypatch.setattr(systemone, "find_spec", lambda name: None)
    assert systemone.main(["--model", str(tmp_path)]) == 2
    assert "vLLM is not installed" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("from clefq.errors import A\n", "from clef_systemone.errors import A\n"),
        ("from clefq import __version__\n", "from clef_systemone import __version__\n"),
        ("import clefq\n", "import clef_systemone as clefq\n"),
        ("    from clefq.clef import x\n", "    from clef_systemone.clef import x\n"),
        ('NAME = "clefq.serving.model:C"\n', 'NAME = "clef_systemone.serving.model:C"\n'),
        ('FILE = "clefq.json"\n', 'FILE = "clefq.json"\n'),
        ('getLogger("clefq.server")\n', 'getLogger("clefq.server")\n'),
        ("from clefquery import x\n", "from clefquery import x\n"),
    ],
)
def test_rewriting(old: str, new: str) -> None:
    assert rewrite(old) == new


def test_the_server_is_small() -> None:
    modules = closure()
    assert not {m for m in modules if m.split(".")[1] in ("quantize", "parity", "data", "cli")}
    assert "clefq.store.predictions" not in modules
