"""Layouts and recipes, against llm-compressor's own matching."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import yaml

from clefq.clef.checkpoint import Checkpoint, open_checkpoint
from clefq.clef.formats import BF16, RECIPE_FORMATS, RECIPES
from clefq.clef.tensor_files import read_header
from clefq.clef.weight_files import open_tensors
from clefq.console import Console
from clefq.engines.base import EngineSpec
from clefq.errors import InputError, RecipeError
from clefq.quantize.plan import make_plan
from clefq.quantize.recipes import Recipe, bundled_recipe
from clefq.quantize.run import QuantizeSpec, quantize
from clefq.sensitivity.blocks import Block, find_blocks, parse_schemes, uniform
from clefq.sensitivity.cost import DEFAULT_SPEEDS, cost_model, parse_speeds
from clefq.sensitivity.layouts import published_layouts, recipe_layout, write_recipe

QUIET = Console(quiet=True)


def test_the_blocks_are_what_the_plain_recipe_quantizes(
    release: Path, blocks: tuple[Block, ...]
) -> None:
    ours = {module for block in blocks for module in block.modules}
    assert ours == set(make_plan(release, bundled_recipe("nvfp4", 4)).modules)
    assert [block.name for block in blocks] == [
        *(f"{layer}.{kind}" for layer in range(3) for kind in ("deltanet", "mlp")),
        "3.attention",
        "3.mlp",
    ]


# its groups of 128 do not fit this model's 64 columns
FITTING = [name for name in RECIPE_FORMATS if name != "int4"]


@pytest.mark.parametrize("scheme", sorted({*RECIPES} - {"int4"}))
def test_every_bundled_recipe_is_a_layout(
    release: Path, blocks: tuple[Block, ...], scheme: str
) -> None:
    layout = recipe_layout(release, blocks, bundled_recipe(scheme, 4))
    if scheme in RECIPE_FORMATS:
        assert layout == uniform(blocks, scheme)
    if scheme == "nvfp4-mlp":
        assert layout == {b.name: "nvfp4" if b.kind == "mlp" else BF16 for b in blocks}
    if scheme == "mixed":
        nvfp4 = {name for name, form in layout.items() if form == "nvfp4"}
        assert nvfp4 == {"0.mlp", "1.mlp", "2.mlp"}


def test_any_layout_survives_its_recipe(release: Path, blocks: tuple[Block, ...]) -> None:
    rng = random.Random(0)
    for _ in range(2):
        layout = {block.name: rng.choice([BF16, *FITTING]) for block in blocks}
        recipe = write_recipe(release, blocks, layout, ["A test."])
        assert recipe.text.startswith("# A test.\n#\n# llm-compressor reads this file unchanged.")
        assert recipe_layout(release, blocks, recipe) == layout
        body = yaml.safe_load(recipe.text)
        modifier = body["quant_stage"]["quant_modifiers"]["QuantizationModifier"]
        assert set(modifier) == {"scheme", "ignore"}


def test_a_layout_of_bf16_alone_has_no_recipe(release: Path, blocks: tuple[Block, ...]) -> None:
    with pytest.raises(RecipeError, match="quantizes nothing"):
        write_recipe(release, blocks, uniform(blocks, BF16), [])


def test_two_formats_in_one_block_are_no_layout(release: Path, blocks: tuple[Block, ...]) -> None:
    text = """
quant_stage:
  quant_modifiers:
    QuantizationModifier:
      scheme:
        NVFP4A16: ['re:.*layers\\.0\\.mlp\\.(gate|up)_proj$']
        FP8_DYNAMIC: ['re:.*layers\\.0\\.mlp\\.down_proj$']
"""
    with pytest.raises(RecipeError, match=r"layers\.0\.mlp the formats fp8, nvfp4a16"):
        recipe_layout(release, blocks, Recipe("custom", text, "mine.yaml"))


def test_no_layout_reaches_what_must_stay_as_it_is(release: Path, checkpoint: Checkpoint) -> None:
    blocks = find_blocks(checkpoint)
    for scheme in FITTING:
        plan = make_plan(release, write_recipe(release, blocks, uniform(blocks, scheme), []))
        modules = list(plan.modules)
        assert not any(name in module for module in modules for name in ("lm_head", "visual"))
        assert not any(module.endswith(("in_proj_a", "in_proj_b")) for module in modules)


def test_published_layouts_keep_to_the_schemes(release: Path, blocks: tuple[Block, ...]) -> None:
    every = published_layouts(release, blocks, RECIPE_FORMATS)
    assert list(every) == [
        "fp8",
        "int8",
        "nvfp4a16",
        "int4",
        "nvfp4",
        "nvfp4-mlp",
        "mixed",
        "last-quarter-fp8",
        "first-half-fp8",
    ]
    assert {n for n, f in every["last-quarter-fp8"].items() if f == "fp8"} == {
        "3.attention",
        "3.mlp",
    }
    assert {n[0] for n, f in every["first-half-fp8"].items() if f == "fp8"} == {"0", "1"}
    assert list(published_layouts(release, blocks, ("fp8",))) == ["fp8"]


@pytest.mark.parametrize("scheme", ["fp8", "nvfp4a16"])
def test_sizes_are_those_of_the_files(
    release: Path, checkpoint: Checkpoint, blocks: tuple[Block, ...], tmp_path: Path, scheme: str
) -> None:
    made = quantize(QuantizeSpec(str(release), scheme), tmp_path / "out", QUIET)
    model = cost_model(checkpoint, blocks, 100.0, DEFAULT_SPEEDS)
    for layout, folder in ((uniform(blocks, scheme), made.folder), ({}, release)):
        files = [*folder.rglob("*.safetensors")]
        assert model.nbytes(layout) == sum(t.nbytes for f in files for t in read_header(f).values())
    # W4A4 keeps one more scale per Linear
    linears = sum(len(block.modules) for block in blocks)
    more = model.nbytes(uniform(blocks, "nvfp4")) - model.nbytes(uniform(blocks, "nvfp4a16"))
    assert more == 4 * linears


def test_speed_counts_products_and_what_stays(
    checkpoint: Checkpoint, blocks: tuple[Block, ...]
) -> None:
    speeds = {BF16: 1.0, "fp8": 2.0, "nvfp4a16": 1.0, "nvfp4": 4.0}
    short, long = (cost_model(checkpoint, blocks, tokens, speeds) for tokens in (10.0, 10_000.0))
    for model in (short, long):
        assert model.speedup({}) == 1.0
        assert model.speedup(uniform(blocks, "nvfp4a16")) == 1.0
        assert 1 < model.speedup(uniform(blocks, "fp8")) < 2
        assert model.speedup(uniform(blocks, "fp8")) < model.speedup(uniform(blocks, "nvfp4")) < 4
    # attention over long prompts is not made faster
    assert long.speedup(uniform(blocks, "fp8")) < short.speedup(uniform(blocks, "fp8"))
    shapes = open_tensors(checkpoint.folder)
    macs = sum(
        shapes[f"{m}.weight"].shape[0] * shapes[f"{m}.weight"].shape[1]
        for block in blocks
        for m in block.modules
    )
    only = {BF16: 1.0, "fp8": 2.0, "nvfp4a16": 1.0, "nvfp4": 4.0}
    fixed = short.fixed_macs
    expected = (fixed + macs) / (fixed + macs / 2)
    assert cost_model(checkpoint, blocks, 10.0, only).speedup(
        uniform(blocks, "fp8")
    ) == pytest.approx(expected, rel=1e-9)


def test_a_quantized_model_is_refused(release: Path, tmp_path: Path) -> None:
    made = quantize(QuantizeSpec(str(release), "fp8"), tmp_path / "out", QUIET)
    with pytest.raises(InputError, match="quantized already"):
        find_blocks(open_checkpoint(made.folder))


def test_options_are_read_strictly() -> None:
    assert parse_schemes("nvfp4, fp8") == ("fp8", "nvfp4")
    assert parse_speeds("fp8=1.6,nvfp4=2.5") == DEFAULT_SPEEDS | {
        "bf16": 1.0,
        "fp8": 1.6,
        "nvfp4a16": 1.0,
        "nvfp4": 2.5,
    }
    for wrong in ("", "int3", "fp8,mxfp4"):
        with pytest.raises(InputError, match="--schemes"):
            parse_schemes(wrong)
    for wrong in ("fp8", "fp8=0", "fp8=fast", "bf16=2", "int3=2", "fp8=nan"):
        with pytest.raises(InputError, match="--speeds"):
            parse_speeds(wrong)


def test_searched_scales_are_the_recipe_s_and_the_sweep_s(
    release: Path, blocks: tuple[Block, ...]
) -> None:
    """One observer for NVFP4; a recipe without it is as before, and so is its layout."""
    four, eight = uniform(blocks, "nvfp4a16"), uniform(blocks, "fp8")
    assert write_recipe(release, blocks, four, ["x"], searched=True).rounding == "search"
    assert write_recipe(release, blocks, eight, ["x"], searched=True).rounding == "nearest"
    assert write_recipe(release, blocks, four, ["x"]).rounding == "nearest"


def test_a_searched_block_has_less_weight_error(release: Path, blocks: tuple[Block, ...]) -> None:
    from clefq.engines.transformers_engine import open_engine
    from clefq.sensitivity.quantizing import quantize_block

    engine = open_engine(release, EngineSpec(threads=1))
    plain, found = (
        quantize_block(engine.backbone.model, blocks[1], "nvfp4a16", searched).errors
        for searched in (False, True)
    )
    engine.close()
    assert all(found[unit] < 0.95 * plain[unit] for unit in plain)
