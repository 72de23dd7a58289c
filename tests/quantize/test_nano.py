"""Every bundled recipe on the bundled miniature, with a clean audit."""

from __future__ import annotations

from pathlib import Path

import pytest

import clefq.nano
from clefq.clef.formats import RECIPES
from clefq.console import Console
from clefq.quantize.audit import audit_checkpoint
from clefq.quantize.run import QuantizeSpec, quantize
from clefq.release.diff import diff_paths
from tests.quantize.conftest import in_this_process

NANO = Path(clefq.nano.__file__).parent / "weights"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scheme", "rounding"),
    [*((scheme, "nearest") for scheme in RECIPES), ("nvfp4", "search"), ("nvfp4a16", "gptq")],
)
def test_every_recipe_runs_on_nano(
    scheme: str, rounding: str, calibration_set: Path, tmp_path: Path
) -> None:
    streamed = rounding != "gptq" and scheme in ("fp8", "int8", "int4", "nvfp4a16")
    given = None if streamed else calibration_set
    spec = QuantizeSpec(str(NANO), scheme, calibration=given, rounding=rounding)
    with in_this_process():
        result = quantize(spec, tmp_path / "out", Console(quiet=True))
    report = audit_checkpoint(result.folder, NANO)
    assert report.passed
    assert len(report.facts["other_rounding"]) == (50 if rounding == "gptq" else 0)
    assert len(report.notes) == (rounding == "gptq")
    assert result.manifest.recipe["rounding"] == rounding
    assert sum(result.manifest.formats.values()) == (24 if scheme == "nvfp4-mlp" else 50)
    assert result.manifest.method == ("stream" if streamed else "oneshot")


def test_what_a_search_gains_shows_in_the_audit_and_in_diff(tmp_path: Path) -> None:
    """The same bytes, sound both, and every weight nearer to BF16."""
    quiet, folders = Console(quiet=True), {}
    for rounding in ("nearest", "search"):
        spec = QuantizeSpec(str(NANO), "nvfp4a16", rounding=rounding)
        result = quantize(spec, tmp_path / rounding, quiet)
        assert result.report.word == "sound"
        folders[rounding] = result
    plain, found = (diff_paths(folders[name].folder, NANO).tensors for name in folders)
    pairs = [(a.relative, b.relative) for a, b in zip(plain, found, strict=True) if a.relative]
    assert len(pairs) == 50
    assert all(b is not None and a is not None and b < 0.9 * a for a, b in pairs)
    sizes = {result.manifest.bytes["output"] for result in folders.values()}
    assert max(sizes) - min(sizes) < 1000  # the header's room
