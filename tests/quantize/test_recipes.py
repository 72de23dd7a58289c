"""Recipes: bundled ones as llm-compressor reads them; the user's own, refused where they harm."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from clefq.clef.family import FUSED, fused_groups, group_key
from clefq.clef.formats import RECIPES, SCHEMES
from clefq.errors import CheckpointError, RecipeError
from clefq.quantize.plan import Plan, make_plan
from clefq.quantize.quiet import quiet_libraries
from clefq.quantize.recipes import (
    Recipe,
    bundled_recipe,
    custom_recipe,
    modifiers_of,
)
from clefq.quantize.shared_scales import shared_scale_tables
from clefq.store.data_files import data_folder
from tests.quantize.conftest import Make
from tests.quantize.models import Shape, build_release

IGNORE = ["re:.*lm_head$", "re:.*visual.*", r"re:.*linear_attn\.in_proj_[ab]$"]


def write(path: Path, modifier: str = "QuantizationModifier", **arguments: object) -> Path:
    body = {"quant_stage": {"quant_modifiers": {modifier: arguments}}}
    path.write_text(yaml.safe_dump(body))
    return path


def plan(source: Path, recipe: Recipe) -> Plan:
    with quiet_libraries():
        return make_plan(source, recipe)


def refused(source: Path, path: Path) -> str:
    with pytest.raises(RecipeError) as caught:
        plan(source, custom_recipe(path))
    assert caught.value.fix
    return str(caught.value)


def test_the_registry_is_the_folder() -> None:
    named = {*RECIPES.values(), *(row.calibrated_recipe for row in SCHEMES.values())} - {None}
    assert named == {path.name for path in data_folder("recipes").iterdir()}


def test_int4_is_rounded_by_gptq_where_data_is_given(source: Path) -> None:
    plain, calibrated = (bundled_recipe("int4", 4, calibrated=given) for given in (False, True))
    assert plan(source, plain).data_free_reason is None
    assert not plan(source, plain).needs_data
    assert plan(source, calibrated).needs_data
    assert plan(source, calibrated).data_free_reason == "GPTQModifier needs calibration data"


def test_a_rounding_is_named_by_the_recipe(source: Path) -> None:
    plain = bundled_recipe("nvfp4a16", 4)
    assert plain == bundled_recipe("nvfp4a16", 4, rounding="nearest")
    searched = bundled_recipe("nvfp4a16", 4, rounding="search")
    carried = bundled_recipe("nvfp4", 4, rounding="gptq")
    mixed = bundled_recipe("mixed", 4, fp8_layers=1, rounding="search")
    assert [r.rounding for r in (plain, searched, carried, mixed)] == [
        "nearest", "search", "gptq", "search",
    ]  # fmt: skip
    assert plan(source, searched).data_free_reason is None
    assert not plan(source, searched).needs_data
    assert plan(source, carried).needs_data
    before, after = plan(source, plain), plan(source, searched)
    assert before.modules.keys() == after.modules.keys()
    assert before.formats == after.formats
    for line in (line for line in plain.text.splitlines() if line.startswith("#")):
        assert line in searched.text


def test_roundings_that_a_scheme_does_not_have() -> None:
    for scheme, rounding in (("fp8", "search"), ("int8", "gptq"), ("int4", "search")):
        with pytest.raises(RecipeError, match=f"--rounding {rounding} is for weights of 4 bits"):
            bundled_recipe(scheme, 4, rounding=rounding)
    with pytest.raises(RecipeError, match="unknown rounding 'best'"):
        bundled_recipe("nvfp4", 4, rounding="best")
    assert bundled_recipe("int4", 4, rounding="gptq").rounding == "gptq"
    assert bundled_recipe("int4", 4, calibrated=True, rounding="nearest").rounding == "nearest"


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"weight_observer": "memoryless_minmax"}, "nearest"),
        ({"weight_observer": "memoryless_mse"}, "memoryless_mse"),
        ({"weight_observer": "clefq_search"}, "search"),
    ],
)
def test_the_rounding_of_a_recipe_of_one_s_own(
    tmp_path: Path, arguments: dict[str, str], name: str
) -> None:
    path = write(tmp_path / "mine.yaml", targets=["Linear"], scheme="NVFP4A16", **arguments)
    assert custom_recipe(path).rounding == name


def test_a_group_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    narrow = build_release(tmp_path / "narrow", Shape(hidden=192))
    with pytest.raises(RecipeError, match="columns=192, group_size=128"):
        plan(narrow, bundled_recipe("int4", 4))
    path = write(
        tmp_path / "mine.yaml",
        targets=["Linear"],
        scheme="W4A16",
        ignore=IGNORE,
        bypass_divisibility_checks=True,
    )
    assert "cuts the 192 inputs of" in refused(narrow, path)


@pytest.mark.parametrize("scheme", RECIPES)
def test_llm_compressor_reads_a_bundled_recipe_unchanged(scheme: str) -> None:
    from llmcompressor.recipe import Recipe as LibraryRecipe

    path = data_folder("recipes") / RECIPES[scheme]
    (modifier,) = LibraryRecipe.create_instance(str(path)).modifiers
    assert modifier.resolved_config.config_groups
    header = [line for line in path.read_text().splitlines() if line.startswith("#")]
    assert any("is applied by `clefq quantize`" in line for line in header)
    assert any("`clefq repair`" in line for line in header)


@pytest.mark.parametrize(
    ("scheme", "formats", "data"),
    [
        ("fp8", {"w8a8": 25}, False),
        ("nvfp4a16", {"w4a16": 25}, False),
        ("nvfp4", {"w4a4": 25}, True),
        ("nvfp4-mlp", {"w4a4": 12}, True),
        ("mixed", {"w4a4": 9, "w8a8": 16}, True),
    ],
)
def test_what_a_bundled_recipe_quantizes(
    source: Path, scheme: str, formats: dict[str, int], data: bool
) -> None:
    found = plan(source, bundled_recipe(scheme, 4))
    assert found.formats == formats
    assert found.needs_data is data
    assert (found.data_free_reason is None) is not data
    for name in ("lm_head", "visual", "in_proj_a", "in_proj_b", "embed", "norm", "conv"):
        assert not any(name in module for module in found.modules)
    if scheme == "nvfp4-mlp":
        assert all(".mlp." in module for module in found.modules)


def test_the_layer_split_of_mixed() -> None:
    real = yaml.safe_load(bundled_recipe("mixed", 32).text)
    file = yaml.safe_load((data_folder("recipes") / "mixed.yaml").read_text())
    assert real == file  # as it stands the file is clef-flash's
    text = bundled_recipe("mixed", 64).text
    assert r"layers\.(56|57|58|59|60|61|62|63)\.mlp" in text
    assert r"layers\.(0|1)\.mlp" in bundled_recipe("mixed", 4, fp8_layers=2).text
    for wrong in (0, 4, -1):
        with pytest.raises(RecipeError, match="does not fit"):
            bundled_recipe("mixed", 4, fp8_layers=wrong)
    with pytest.raises(RecipeError, match="no meaning for nvfp4"):
        bundled_recipe("nvfp4", 4, fp8_layers=2)
    with pytest.raises(RecipeError, match="unknown scheme"):
        bundled_recipe("int3", 4)


@pytest.mark.parametrize(
    ("drop", "named", "why"),
    [
        ("lm_head", "lm_head", "the joint head reads its rows"),
        ("visual", "model.visual.blocks.0.attn.qkv", "vision tower"),
        ("in_proj", "linear_attn.in_proj_a", "DeltaNet gates"),
    ],
)
def test_a_recipe_that_touches_protected_modules(
    source: Path, tmp_path: Path, drop: str, named: str, why: str
) -> None:
    ignore = [entry for entry in IGNORE if drop not in entry]
    path = write(tmp_path / "r.yaml", targets=["Linear"], scheme="FP8_DYNAMIC", ignore=ignore)
    text = refused(source, path)
    assert named in text
    assert why in text


def test_embeddings_and_the_kv_cache(source: Path, tmp_path: Path) -> None:
    path = write(tmp_path / "e.yaml", scheme={"FP8_DYNAMIC": ["Embedding"]}, ignore=IGNORE)
    assert "embeddings stay BF16" in refused(source, path)
    cache = {"num_bits": 8, "type": "float", "strategy": "tensor"}
    path = write(
        tmp_path / "k.yaml",
        targets=["Linear"],
        scheme="FP8_DYNAMIC",
        ignore=IGNORE,
        kv_cache_scheme=cache,
    )
    assert "KV cache" in refused(source, path)


def test_a_recipe_that_splits_a_fused_group(source: Path, tmp_path: Path) -> None:
    path = write(
        tmp_path / "r.yaml",
        targets=["Linear"],
        scheme="NVFP4A16",
        ignore=[*IGNORE, r"re:.*layers\.1\.linear_attn\.in_proj_z$", r"re:.*v_proj$"],
    )
    text = refused(source, path)
    assert "splits model.language_model.layers.1.linear_attn.in_proj_qkvz" in text
    assert "splits model.language_model.layers.3.self_attn.qkv_proj" in text
    assert "in_proj_z bf16" in text


def test_recipes_that_are_none(source: Path, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("quant_stage: [")
    (tmp_path / "b.yaml").write_text("something: else\n")
    for name, word in (("a.yaml", "is not valid YAML, line 1: "), ("b.yaml", "no modifiers")):
        with pytest.raises(RecipeError, match=word) as caught:
            custom_recipe(tmp_path / name)
        assert caught.value.fix is not None and caught.value.fix.startswith("start from a file")
    path = write(tmp_path / "c.yaml", targets=["Linear"], scheme="FP7", ignore=IGNORE)
    assert "no valid recipe" in refused(source, path)
    path = write(tmp_path / "d.yaml", targets=["re:.*nowhere"], scheme="FP8_DYNAMIC")
    assert "matches no module" in refused(source, path)
    path = write(tmp_path / "e.yaml", "SmoothQuantModifier", smoothing_strength=0.5)
    assert "changes tensors that must stay" in refused(source, path)
    for scheme in ("W4A16_ASYM", "W8A16"):
        path = write(tmp_path / "f.yaml", targets=["Linear"], scheme=scheme, ignore=IGNORE)
        assert "), which clefq cannot audit" in refused(source, path)


def test_a_quantized_source_is_refused(made: Make) -> None:
    with pytest.raises(CheckpointError, match="quantized already"):
        plan(made("fp8", "stream").folder, bundled_recipe("fp8", 4))


def test_fused_groups() -> None:
    modules = [f"m.{n}.{leaf}" for n in (0, 1) for leaves in FUSED.values() for leaf in leaves]
    groups = fused_groups(modules)
    assert [group.name for group in groups] == [f"m.{n}.{k}" for n in (0, 1) for k in FUSED]
    assert groups[0].members == ("m.0.q_proj", "m.0.k_proj", "m.0.v_proj")
    assert fused_groups(["m.0.q_proj", "m.0.down_proj", "q_proj"]) == []
    assert group_key("m.0.in_proj_z") == "m.0.in_proj_qkvz"
    assert group_key("m.0.o_proj") is None


def test_both_tables_of_llm_compressor_are_fed_and_restored() -> None:
    from llmcompressor.entrypoints.model_free import microscale
    from llmcompressor.observers.helpers import FUSED_LAYER_NAMES

    names = [f"m.{leaf}.weight" for leaf in ("in_proj_z", "in_proj_qkv")]
    before = list(FUSED_LAYER_NAMES), dict(microscale.DEFAULT_FUSED_MAPPINGS)
    assert not microscale.get_fused_names(names)[0]
    with shared_scale_tables():
        assert ("in_proj_qkv", "in_proj_z") in FUSED_LAYER_NAMES
        # what the library has already is not there twice
        assert len({frozenset(g) for g in FUSED_LAYER_NAMES}) == len(FUSED_LAYER_NAMES)
        assert len(microscale.get_fused_names(names)[0]) == 1
    assert before == (FUSED_LAYER_NAMES, microscale.DEFAULT_FUSED_MAPPINGS)


def test_arguments_that_are_no_mapping_are_refused() -> None:
    text = "quant_stage:\n  quant_modifiers:\n    QuantizationModifier: FP8\n"
    with pytest.raises(RecipeError, match="expected a mapping"):
        modifiers_of(text, "mine.yaml")


def test_a_group_whose_activations_are_quantized_differently_is_refused(source: Path) -> None:
    weights = {"num_bits": 8, "type": "float", "strategy": "channel"}
    token = {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": True}
    tensor = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False}
    groups = {
        f"group_{leaf}": {
            "targets": [rf"re:.*self_attn\.{leaf}_proj$"],
            "weights": weights,
            "input_activations": inputs,
        }
        for leaf, inputs in (("q", token), ("k", tensor), ("v", token))
    }
    body = {"quant_stage": {"quant_modifiers": {"QuantizationModifier": {"config_groups": groups}}}}
    with quiet_libraries(), pytest.raises(RecipeError, match="splits"):
        make_plan(source, Recipe("custom", yaml.safe_dump(body), "mine.yaml"))


HEAD = "default_stage:\n  default_modifiers:\n    "
BODY = "      scheme: FP8_DYNAMIC\n      ignore: ['re:.*lm_head$', 're:.*visual.*']\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "QuantizationModifier:\n      targets: ['re:.*(proj']\n" + BODY,
            "unterminated subpattern",
        ),
        ("QuantizationModifier:\n", "QuantizationModifier is empty"),
        ("QuantisationModifier:\n      targets: [Linear]\n" + BODY, "which is no modifier"),
        ("QuantizationModifier:\n      target: [Linear]\n" + BODY, "target: Extra inputs"),
    ],
)
def test_a_recipe_that_is_misspelt(source: Path, tmp_path: Path, text: str, words: str) -> None:
    """One line with the cause, never a traceback."""
    (tmp_path / "own.yaml").write_text(HEAD + text)
    with pytest.raises(RecipeError, match=words) as caught:
        make_plan(source, custom_recipe(tmp_path / "own.yaml"))
    assert caught.value.fix
