"""Imports point one way: cli, then the packages that do the work, then the model format."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import clefq

ROOT = Path(clefq.__file__).parent
# package -> which packages it may import, at the top of a file or inside a function
BELOW = {"clef", "store", "names"}
ALLOWED: dict[str, set[str]] = {
    "clef": set(),
    # sets hold records, predictions say which arithmetic ran
    "store": {"clef"},
    # the miniature is a model with a name
    "names": {"clef", "store", "nano"},
    "quantize": BELOW,
    "parity": BELOW,
    "serving": BELOW,
    # the vLLM engine is the serving layer, run offline
    "engines": BELOW | {"serving"},
    "nano": {"clef"},
    # the miniature's tasks are one source of data
    "data": BELOW | {"nano"},
    "importing": {"clef", "store"},
    # the steps of the loop as one job
    "ci": BELOW | {"quantize", "engines", "parity", "doctor"},
    # it quantizes blocks in memory, runs them and judges the answers as parity does
    "sensitivity": BELOW | {"quantize", "engines", "parity"},
    # it says what the others would need
    "doctor": BELOW | {"quantize", "engines", "serving"},
    "bench": BELOW | {"engines", "serving"},
    # what is published rests on what was made, judged and served
    "release": BELOW | {"quantize", "parity", "serving"},
    "cli": BELOW
    | {
        "data",
        "importing",
        "quantize",
        "engines",
        "serving",
        "sensitivity",
        "parity",
        "nano",
        "doctor",
        "bench",
        "release",
        "ci",
    },
}

# inside parity, which folders a file of one may import: what answers say, what is asked of that,
# what is written of both; files beside the folders may import all three
PARITY_FLOORS: dict[str, set[str]] = {
    "statistics": {"statistics"},
    "gates": {"statistics", "gates"},
    "report": {"statistics", "gates", "report"},
}


def imports(path: Path) -> Iterator[str]:
    """Subpackages of clefq that a file imports."""
    for module in modules(path):
        package = module.partition(".")[0]
        if (ROOT / package).is_dir():
            yield package


def modules(path: Path) -> Iterator[str]:
    """Modules of clefq that a file imports, without the `clefq.` before them."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            names = [node.module]
            if node.module == "clefq":
                names = [f"clefq.{alias.name}" for alias in node.names]
        for name in names:
            if name.startswith("clefq."):
                yield name.removeprefix("clefq.")


def test_every_package_has_its_place() -> None:
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    assert packages == set(ALLOWED)


def test_imports_point_down() -> None:
    wrong = [
        f"{path.relative_to(ROOT)} imports clefq.{other}"
        for package, allowed in ALLOWED.items()
        for path in sorted((ROOT / package).rglob("*.py"))
        for other in imports(path)
        if other != package and other not in allowed
    ]
    assert wrong == []


def test_the_floors_of_parity() -> None:
    wrong = [
        f"{path.relative_to(ROOT)} imports clefq.{module}"
        for folder, allowed in PARITY_FLOORS.items()
        for path in sorted((ROOT / "parity" / folder).rglob("*.py"))
        for module in modules(path)
        if module.startswith("parity.") and module.split(".")[1] not in allowed
    ]
    assert wrong == []
    assert {path.parent.name for path in (ROOT / "parity").glob("*/__init__.py")} == set(
        PARITY_FLOORS
    )


# a parent that imports, inside a function, the module that its child runs, and that imports it
CIRCLES = [
    {"engines.predict", "engines.worker"},
    {"engines.ray_copies", "engines.vllm_copies", "engines.vllm_engine"},
]


def _needed(path: Path, *, at_once: bool) -> Iterator[str]:
    """Modules of clefq that a file imports, for types alone left out.

    Args:
        path: The file.
        at_once: Only what runs when the file is imported, not inside functions.
    """
    waiting: list[ast.AST] = [ast.parse(path.read_text(encoding="utf-8"))]
    while waiting:
        for node in ast.iter_child_nodes(waiting.pop()):
            if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
                continue
            if at_once and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            waiting.append(node)
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                yield node.module
                yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _circles(*, at_once: bool) -> list[set[str]]:
    """Groups of modules that import each other."""
    paths = {
        ".".join(("clefq", *path.relative_to(ROOT).with_suffix("").parts)): path
        for path in ROOT.rglob("*.py")
        if path.name != "__init__.py"
    }
    needs = {
        name: set(_needed(path, at_once=at_once)) & paths.keys() for name, path in paths.items()
    }
    reach: dict[str, set[str]] = {}
    for name in needs:
        seen: set[str] = set()
        waiting = [name]
        while waiting:
            new = needs[waiting.pop()] - seen
            seen |= new
            waiting += new
        reach[name] = seen
    groups = (
        frozenset(other for other in reach[name] if name in reach[other])
        for name in reach
        if name in reach[name]
    )
    return [{name.removeprefix("clefq.") for name in group} for group in set(groups)]


def test_nothing_imports_in_a_circle() -> None:
    assert _circles(at_once=True) == []
    assert [circle for circle in _circles(at_once=False) if circle not in CIRCLES] == []


def test_only_their_packages_import_the_heavy_libraries() -> None:
    homes = {"llmcompressor": {"quantize"}, "vllm": {"serving"}}
    wrong = []
    for path in sorted(ROOT.rglob("*.py")):
        package = path.relative_to(ROOT).parts[0]
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            modules: list[str] = []
            if isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and not node.level:
                modules = [node.module or ""]
            for module in modules:
                home = homes.get(module.partition(".")[0])
                if home is not None and package not in home:
                    wrong.append(f"{path.relative_to(ROOT)} imports {module}")
    assert wrong == []


def test_a_name_has_one_meaning() -> None:
    """A public class stands in one file; `Options` is what each data source calls its own."""
    homes: dict[str, list[str]] = {}
    for path in sorted(ROOT.rglob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, []).append(str(path.relative_to(ROOT)))
    twice = {name: files for name, files in homes.items() if len(files) > 1}
    assert all(file.startswith("data/sources/") for file in twice.pop("Options"))
    assert twice == {}
