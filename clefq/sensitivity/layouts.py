"""Layouts that people publish, and recipes as text that llm-compressor reads.

A layout gives each block a format. A recipe is only ever written after llm-compressor's own
matching, on the model without weights, has given back exactly the layout that was meant.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import yaml

from clefq.clef.family import FAMILY, MLP
from clefq.clef.formats import BF16, PACKED_FP4, RECIPE_FORMATS, SEARCH_OBSERVER
from clefq.errors import RecipeError
from clefq.quantize.plan import Plan, arithmetic_of, make_plan
from clefq.quantize.quiet import quiet_libraries
from clefq.quantize.recipes import Recipe, bundled_recipe
from clefq.sensitivity.blocks import Block, Layout, uniform

_FORMATS: dict[str, str] = {row.arithmetic: name for name, row in RECIPE_FORMATS.items()}
RULE = """\
# llm-compressor reads this file unchanged. The rule that fused projections share one format and
# one global scale (q/k/v, gate/up, and the DeltaNet pair in_proj_qkv/in_proj_z, which
# llm-compressor alone does not share) is applied by `clefq quantize`; `clefq audit` checks any
# checkpoint for it and `clefq repair` mends one."""


def published_layouts(
    folder: Path, blocks: Sequence[Block], schemes: Iterable[str]
) -> dict[str, Layout]:
    """The layouts that published checkpoints use, scaled to this model's depth.

    Args:
        folder: The BF16 checkpoint.
        blocks: Its blocks.
        schemes: Formats that may be used; layouts that need another one are left out.

    Returns:
        Name to layout.
    """
    layers = max(block.layer for block in blocks) + 1
    last = max(1, layers // 4)

    def fp8_where(chosen: Iterable[int]) -> Layout:
        kept = set(chosen)
        return {b.name: "fp8" if b.layer in kept else "nvfp4" for b in blocks}

    found = {scheme: uniform(blocks, scheme) for scheme in RECIPE_FORMATS}
    found["nvfp4-mlp"] = {b.name: "nvfp4" if b.kind == MLP else BF16 for b in blocks}
    if layers > 1:
        found["mixed"] = recipe_layout(folder, blocks, bundled_recipe("mixed", layers))
        found["last-quarter-fp8"] = fp8_where(range(layers - last, layers))
        found["first-half-fp8"] = fp8_where(range(layers // 2))
    allowed = {*schemes, BF16}
    return {name: layout for name, layout in found.items() if set(layout.values()) <= allowed}


def recipe_layout(folder: Path, blocks: Sequence[Block], recipe: Recipe) -> Layout:
    """The layout that a recipe gives this model.

    Raises:
        RecipeError: The recipe does not fit the model, or has two formats in one block.
    """
    with quiet_libraries():
        plan = make_plan(folder, recipe)
    return _layout_of(plan, blocks, recipe.origin)


def _layout_of(plan: Plan, blocks: Sequence[Block], origin: str) -> Layout:
    forms = {}
    for module, scheme in plan.modules.items():
        form = _FORMATS.get(arithmetic_of(scheme))
        if form is None:
            raise RecipeError(f"{origin}: {arithmetic_of(scheme)} is not simulated.")
        forms[module] = form
    layout = {}
    for block in blocks:
        kinds = {forms.pop(module, BF16) for module in block.modules}
        if len(kinds) > 1:
            raise RecipeError(
                f"{origin} gives {block.path} the formats {', '.join(sorted(kinds))}.",
                fix="give each MLP, attention and DeltaNet one format.",
            )
        layout[block.name] = kinds.pop()
    if forms:
        raise RecipeError(f"{origin} quantizes {next(iter(forms))}, which is in no block.")
    return layout


def write_recipe(
    folder: Path,
    blocks: Sequence[Block],
    layout: Mapping[str, str],
    header: Sequence[str],
    searched: bool = False,
) -> Recipe:
    """A recipe that gives each block its format, proved against llm-compressor's matching.

    Args:
        folder: The BF16 checkpoint.
        blocks: Its blocks.
        layout: Block name to format.
        header: Lines of the leading comment.
        searched: Whether NVFP4 group scales are searched.

    Raises:
        RecipeError: Nothing would be quantized.
    """
    scheme = {
        row.preset: _targets([b for b in blocks if layout.get(b.name, BF16) == form])
        for form, row in RECIPE_FORMATS.items()
    }
    scheme = {preset: targets for preset, targets in scheme.items() if targets}
    if not scheme:
        raise RecipeError("this layout quantizes nothing: keep the BF16 checkpoint.")
    modifier: dict[str, object] = {"scheme": scheme, "ignore": list(FAMILY.ignore)}
    used = [RECIPE_FORMATS[form].storage for form in layout.values() if form != BF16]
    if searched and PACKED_FP4 in used:
        modifier["weight_observer"] = SEARCH_OBSERVER
    body = {"quant_stage": {"quant_modifiers": {"QuantizationModifier": modifier}}}
    comment = "\n".join([*(f"# {line}".rstrip() for line in header), "#", RULE])
    text = f"{comment}\n{yaml.safe_dump(body, sort_keys=False, width=10_000)}"
    recipe = Recipe("custom", text, "the recipe found")
    back = recipe_layout(folder, blocks, recipe)
    wrong = [b.name for b in blocks if back[b.name] != layout.get(b.name, BF16)]
    if wrong:
        raise RecipeError(f"llm-compressor reads the recipe otherwise: {', '.join(wrong)}.")
    return recipe


def _targets(blocks: Sequence[Block]) -> list[str]:
    found = []
    for kind, part in FAMILY.parts.items():
        layers = [str(block.layer) for block in blocks if block.kind == kind]
        if layers:
            names = "|".join(part.linears)
            found.append(rf"re:.*layers\.({'|'.join(layers)})\.{part.path}\.({names})$")
    return found
