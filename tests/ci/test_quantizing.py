"""A candidate that is there already is taken over where it comes from the same inputs."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import clefq.nano
from clefq.ci.quantizing import _check_same
from clefq.ci.spec import CandidateSpec
from clefq.clef.checkpoint import open_checkpoint
from clefq.clef.family import layer_types
from clefq.errors import InputError
from clefq.quantize.finish import hash_files, identity
from clefq.quantize.recipes import bundled_recipe
from clefq.store.sets import open_set

NANO = Path(clefq.nano.__file__).parent
CALIBRATION = NANO / "sets" / "nano-calibration"
LAYERS = len(layer_types(open_checkpoint(NANO / "weights").text_config))


def manifest(*, calibrated: bool) -> Any:
    return SimpleNamespace(
        recipe={"sha256": bundled_recipe("int4", LAYERS, calibrated=calibrated).sha256},
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
