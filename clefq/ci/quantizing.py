"""The candidate that the job makes itself: quantized once, taken over where nothing changed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from clefq.ci.spec import CandidateSpec
from clefq.console import size_text
from clefq.errors import InputError
from clefq.names.models import ComparedModel

if TYPE_CHECKING:
    from clefq.console import Console
    from clefq.quantize.manifest import Manifest


def make_candidate(
    recipe: CandidateSpec, baseline: ComparedModel, out: Path, console: Console
) -> tuple[str, bool]:
    """Quantizes the baseline; the result is audited against it.

    Args:
        recipe: How.
        baseline: The BF16 checkpoint.
        out: The folder to make; one that is there already must come from the same inputs.
        console: Notes and progress.

    Returns:
        One line about the checkpoint, and whether it was there already.

    Raises:
        InputError: `out` holds something else.
        ClefqError: The recipe, the model or the calibration set is unusable.
    """
    from clefq.quantize.manifest import read_build_manifest
    from clefq.quantize.run import QuantizeSpec, quantize

    source = baseline.locate().folder
    if out.is_dir():
        manifest = read_build_manifest(out)
        _check_same(manifest, recipe, source, out)
        _check_untouched(manifest, out)
        return _line(manifest), True
    spec = QuantizeSpec(
        str(source), recipe.scheme, recipe.file, recipe.calibration, rounding=recipe.rounding
    )
    return _line(quantize(spec, out, console).manifest), False


def _check_same(manifest: Manifest, recipe: CandidateSpec, source: Path, out: Path) -> None:
    from clefq.clef.checkpoint import open_checkpoint
    from clefq.clef.family import layer_types
    from clefq.quantize.finish import hash_files, identity
    from clefq.quantize.recipes import bundled_recipe, custom_recipe
    from clefq.store.sets import open_set

    if recipe.file is not None:
        asked = custom_recipe(recipe.file)
    else:
        layers = len(layer_types(open_checkpoint(source).text_config))
        calibrated = recipe.calibration is not None
        asked = bundled_recipe(
            recipe.scheme or "", layers, calibrated=calibrated, rounding=recipe.rounding
        )
    made_with = (manifest.calibration or {}).get("sha256")
    same_set = made_with is None or (
        recipe.calibration is not None and open_set(recipe.calibration).sha256() == made_with
    )
    same_source = manifest.source["sha256"] == identity(hash_files(source))
    if manifest.recipe["sha256"] != asked.sha256 or not same_set or not same_source:
        raise InputError(
            f"{out} was made from another source, recipe or calibration set.",
            fix="remove it, or choose another --out.",
        )


def _check_untouched(manifest: Manifest, out: Path) -> None:
    """What was audited when it was made must be what lies here now."""
    from clefq.quantize.finish import hash_files, identity

    found = hash_files(out)
    changed = [name for name, digest in manifest.files.items() if found.get(name) != digest]
    if changed or identity(found) != manifest.sha256 or not manifest.audit["passed"]:
        what = changed[0] if changed else "its files"
        raise InputError(
            f"{out} is not what was audited when it was made ({what}).",
            fix="remove it, or choose another --out.",
        )


def _line(manifest: Manifest) -> str:
    before, after = manifest.bytes["source"], manifest.bytes["output"]
    checks = sum(manifest.audit["checks"].values())
    return (
        f"{manifest.scheme} by {manifest.method}, {before / after:.2f}× smaller "
        f"({size_text(after)}); audited against its source: {checks:,} checks"
    )
