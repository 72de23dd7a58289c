"""Fixtures: synthetic rows in the original layouts, and the public sets where they are."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from clefq.console import Console
from clefq.data.build import BuildResult, BuildSpec, build_set
from clefq.data.definition import Definition
from clefq.data.loading import SplitPass
from clefq.data.sources import SOURCES
from clefq.nano import WEIGHTS
from clefq.store.reading import read_value

FIXTURES = Path(__file__).parent / "fixtures"


@pytest.fixture(autouse=True)
def no_data_dir(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    if request.node.get_closest_marker("data") is None:
        monkeypatch.delenv("CLEFQ_DATA_DIR", raising=False)


@pytest.fixture
def public_data() -> Path:
    folder = os.environ.get("CLEFQ_DATA_DIR")
    if not folder:
        pytest.skip("needs CLEFQ_DATA_DIR, the public data sets in their original layouts")
    return Path(folder)


def define(value: dict[str, Any]) -> Definition:
    value = {"name": "made", "role": "eval", **value}
    faults: list[str] = []
    definition = read_value(Definition, value, faults)
    assert definition is not None, faults
    return definition


Build = Callable[..., BuildResult]


@pytest.fixture
def build(tmp_path: Path) -> Build:
    """Builds a definition, given as a mapping, from the fixtures."""
    made = iter(range(100))

    def run(
        value: dict[str, Any],
        *,
        against: tuple[Path, ...] = (),
        tokenizer: Path | None = WEIGHTS,
        base: Path = tmp_path,
        data_dir: Path | None = FIXTURES,
        allow_malformed: float = 1.0,
    ) -> BuildResult:
        definition = define(value)
        out = tmp_path / f"built{next(made)}" / definition.name
        spec = BuildSpec(definition, base, out, data_dir, against, tokenizer, allow_malformed)
        return build_set(spec, Console(quiet=True))

    return run


def load(source: str, split: str, place: Path | None = None, **options: Any) -> SplitPass:
    kind = SOURCES[source]
    folder = place or FIXTURES / (options.get("folder") or source)
    return SplitPass(kind, split, kind.options(**options), folder, seed="s", count=20)
