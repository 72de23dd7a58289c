"""A candidate that is there already is taken over where it comes from the same inputs."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import clefq.nano
from clefq.ci.quantizing import _check_same, make_candidate
from clefq.ci.spec import CandidateSpec
from clefq.clef.checkpoint import open_checkpoint
from clefq.clef.family import layer_types
from clefq.cli.ci import _candidate
from clefq.console import Console
from clefq.errors import InputError
from clefq.names.models import identify
from clefq.quantize.finish import hash_files, identity
from clefq.quantize.manifest import read_build_manifest
from clefq.quantize.recipes import bundled_recipe
from clefq.store.sets import open_set

NANO = Path(clefq.nano.__file__).parent
CALIBRATION = NANO / "sets" / "nano-calibration"
LAYERS = len(layer_types(open_checkpoint(NANO / "weights").text_config))


def manifest(*, calibrated: bool, scheme: str = "int4", rounding: str | None = None) -> Any:
    recipe = bundled_recipe(scheme, LAYERS, calibrated=calibrated, rounding=rounding)
    return SimpleNamespace(
        recipe={"sha256": recipe.sha256},
        calibration={"sha256": open_set(CALIBRATION).sha256()} if calibrated else None,
        source={"sha256": identity(hash_files(NANO / "weights"))},
    )


@pytest.mark.parametrize("made", [False, True])
@pytest.mark.parametrize("asked", [False, True])
def test_a_scheme_that_can_do_without_a_set_is_another_recipe_with_one(
    made: bool, asked: bool, tmp_path: Path
) -> None:
    recipe = CandidateSpec("int4", None, CALIBRATION if asked else None)
    if made == asked:
        _check_same(manifest(calibrated=made), recipe, NANO / "weights", tmp_path)
    else:
        with pytest.raises(InputError, match="another source, recipe or calibration set"):
            _check_same(manifest(calibrated=made), recipe, NANO / "weights", tmp_path)


@pytest.mark.parametrize("made", [None, "search"])
@pytest.mark.parametrize("asked", [None, "search"])
def test_another_rounding_is_another_recipe(
    made: str | None, asked: str | None, tmp_path: Path
) -> None:
    recipe = CandidateSpec("nvfp4a16", rounding=asked)
    there = manifest(calibrated=False, scheme="nvfp4a16", rounding=made)
    if made == asked:
        _check_same(there, recipe, NANO / "weights", tmp_path)
    else:
        with pytest.raises(InputError, match="another source, recipe or calibration set"):
            _check_same(there, recipe, NANO / "weights", tmp_path)


def test_the_rounding_asked_for_is_the_one_made(tmp_path: Path) -> None:
    baseline = identify(str(NANO / "weights"), "bf16")
    out = tmp_path / "made"
    recipe = CandidateSpec("nvfp4a16", rounding="search")
    assert make_candidate(recipe, baseline, out, Console(quiet=True))[1] is False
    assert read_build_manifest(out).recipe["rounding"] == "search"
    assert read_build_manifest(out).audit["passed"]
    assert make_candidate(recipe, baseline, out, Console(quiet=True))[1] is True


@pytest.mark.parametrize("given", ["checkpoint", None])
def test_a_rounding_goes_with_a_scheme(given: str | None) -> None:
    recipe = CandidateSpec(None, None if given else Path("x.yaml"), rounding="search")
    with pytest.raises(InputError, match="--rounding goes with --scheme"):
        _candidate(given, recipe)
