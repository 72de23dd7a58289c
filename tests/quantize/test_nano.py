"""Every bundled recipe on the bundled miniature, with a clean audit."""

from __future__ import annotations

from pathlib import Path

import pytest

import clefq.nano
from clefq.clef.formats import RECIPES
from clefq.console import Console
from clefq.quantize.audit import audit_checkpoint
from clefq.quantize.run import QuantizeSpec, quantize
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
