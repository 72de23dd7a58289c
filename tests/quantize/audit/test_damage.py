"""Every kind of damage that tools/damage_checkpoint.py makes: seen, or listed as not to be seen."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from clefq.quantize.audit import audit_checkpoint
from clefq.quantize.audit.report import AuditReport
from tests.quantize.conftest import Make

ROOT = Path(__file__).resolve().parents[3]


def load_tool() -> ModuleType:
    path = ROOT / "tools" / "damage_checkpoint.py"
    spec = importlib.util.spec_from_file_location("damage_checkpoint", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["damage_checkpoint"] = module
    spec.loader.exec_module(module)
    return module


tool = load_tool()
KINDS = list(tool.DAMAGES)
# what other formats than NVFP4 have otherwise
FP8 = [kind for kind in KINDS if "FP8" in kind or "weight scale" in kind or "channel" in kind]
UNSEEN = [kind for kind in KINDS if tool.DAMAGES[kind].unseen]


def word(base: Path, kind: str, folder: Path, source: Path | None) -> str:
    if not tool.damage(base, folder, kind, keep_manifest=False):
        pytest.skip("the checkpoint has nothing of the kind")
    before = set(audit_checkpoint(base).notes) | {tool._NO_MANIFEST}
    found: str = tool.seen(kind, folder, source, before)
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_nvfp4_without_a_source(made: Make, tmp_path: Path, kind: str) -> None:
    found = word(made("nvfp4").folder, kind, tmp_path / "copy", None)
    assert (
        found == "listed" if tool.DAMAGES[kind].unseen else found in ("breach", "note", "refused")
    )


@pytest.mark.parametrize("kind", FP8)
def test_fp8_without_a_source(made: Make, tmp_path: Path, kind: str) -> None:
    found = word(made("fp8").folder, kind, tmp_path / "copy", None)
    assert found == ("listed" if tool.DAMAGES[kind].unseen else "breach")


# what only the formats of integers have otherwise
INTEGERS = [
    "channel scales without a column",
    "KV cache scales",
    "rows of zero codes",
    "rest of a weight zero",
    "FP8 weight scales inverted",
]


@pytest.mark.parametrize("kind", INTEGERS)
@pytest.mark.parametrize("scheme", ["int8", "int4"])
def test_integers_without_a_source(made: Make, tmp_path: Path, scheme: str, kind: str) -> None:
    found = word(made(scheme, "stream").folder, kind, tmp_path / "copy", None)
    assert found == ("note" if "cache" in kind else "breach")


def test_our_own_formats_are_all_read(made: Make) -> None:
    for scheme in ("int8", "int4", "mixed", "nvfp4-mlp"):
        method = "stream" if scheme.startswith("int") else "oneshot"
        report = audit_checkpoint(made(scheme, method).folder)
        assert not any("does not read" in line for line in report.unproven), scheme


@pytest.mark.parametrize("kind", UNSEEN)
def test_what_is_listed_without_a_source_is_seen_with_one(
    made: Make, source: Path, tmp_path: Path, kind: str
) -> None:
    found = word(made("nvfp4").folder, kind, tmp_path / "copy", source)
    assert found == ("listed" if "times too small" in kind else "breach")


def test_recorded_hashes_see_what_is_listed_without_a_source(made: Make, tmp_path: Path) -> None:
    tool.damage(made("nvfp4").folder, tmp_path / "copy", "one code flipped")
    assert {breach.check for breach in audit_checkpoint(tmp_path / "copy").breaches} == {"manifest"}


def test_one_cause_is_one_line(made: Make, tmp_path: Path) -> None:
    """An ignore list that matches nothing once gave a line for every ignored tensor."""
    tool.damage(made("nvfp4").folder, tmp_path / "a", "ignore with .linear suffixes", False)
    (cause,) = audit_checkpoint(tmp_path / "a").causes()
    assert "lm_head.linear" in cause.message or ".linear" in cause.message
    report = AuditReport("x")
    report.breach("config", "a.weight", "is missing", "loading fails")
    report.breach("config", "b.weight", "is missing", "loading fails")
    report.breach("config", "config.json", "says mxfp4")
    first, second = report.causes()
    assert first.subject == "config.json"
    assert second.subject == "a.weight and 1 more"
    assert report.word == "broken"


def test_the_words(made: Make, source: Path) -> None:
    alone, proven = (audit_checkpoint(made("nvfp4").folder, s) for s in (None, source))
    assert (alone.word, proven.word) == ("consistent", "sound")
    assert alone.to_json()["verdict"] == "consistent"
    assert len(alone.unproven) > len(proven.unproven) > 0
    assert made("nvfp4").manifest.audit["verdict"] == "sound"
    assert made("nvfp4").manifest.audit["unproven"] == proven.unproven
