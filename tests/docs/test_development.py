"""The map for developers names files that exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "development.md"


def test_every_file_on_the_map_exists() -> None:
    text = PAGE.read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:clefq|tools|tests|constraints)/[\w./-]*)`", text))
    assert len(named) > 40
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []


def test_every_package_is_on_the_map() -> None:
    text = PAGE.read_text(encoding="utf-8")
    packages = {path.parent.relative_to(ROOT) for path in (ROOT / "clefq").rglob("__init__.py")}
    missing = [str(name) for name in packages if name.parts != ("clefq",)]
    missing = [name for name in missing if f"`{name}/" not in text]
    assert sorted(set(missing) - {"clefq/data/sources"}) == []
