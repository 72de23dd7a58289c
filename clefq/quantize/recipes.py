"""Recipe files: the bundled ones by scheme name, and the user's own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from clefq.clef.formats import RECIPES, SCHEMES
from clefq.errors import InputError, RecipeError
from clefq.plain_files import sha256_bytes
from clefq.store.data_files import data_folder
from clefq.store.yaml_text import load_yaml, yaml_fault

DEFAULT_FP8_LAYERS = 8
_FIX = "start from a file of recipes/ (quant_stage: quant_modifiers: …)."
_MLP = r"mlp\.(gate|up|down)_proj$"


@dataclass(frozen=True, slots=True)
class Recipe:
    """A recipe as text.

    Attributes:
        scheme: Scheme name, or `custom` for the user's own file.
        text: YAML that llm-compressor reads; what the output folder keeps as `recipe.yaml`.
        origin: File it came from, for messages.
    """

    scheme: str
    text: str
    origin: str

    @property
    def sha256(self) -> str:
        """SHA-256 of the text, 64 hex digits."""
        return sha256_bytes(self.text.encode("utf-8"))


def bundled_recipe(
    scheme: str, layers: int, fp8_layers: int | None = None, calibrated: bool = False
) -> Recipe:
    """The recipe of a scheme, for a model with `layers` decoder layers.

    Args:
        scheme: A key of `clefq.clef.formats.RECIPES`.
        layers: Number of decoder layers; only `mixed` depends on it.
        fp8_layers: For `mixed`: how many of the last layers have FP8 MLPs. By default 8, or a
            quarter of the layers in models of fewer than 16.
        calibrated: Whether a calibration set is given, which some schemes can do without.

    Raises:
        RecipeError: Unknown scheme, or a layer split that does not fit.
    """
    if scheme not in RECIPES:
        raise RecipeError(f"unknown scheme {scheme!r}.", fix=f"use one of {', '.join(RECIPES)}.")
    if fp8_layers is not None and scheme != "mixed":
        raise RecipeError(f"--fp8-layers has no meaning for {scheme}.", fix="use --scheme mixed.")
    name = SCHEMES[scheme].calibrated_recipe if calibrated else None
    path = data_folder("recipes") / (name or RECIPES[scheme])
    text = path.read_text(encoding="utf-8")
    if scheme == "mixed":
        text = _split(text, layers, fp8_layers)
    return Recipe(scheme, text, path.name)


def _split(text: str, layers: int, fp8_layers: int | None) -> str:
    last = fp8_layers
    if last is None:
        last = DEFAULT_FP8_LAYERS if layers >= 2 * DEFAULT_FP8_LAYERS else max(1, layers // 4)
    if not 0 < last < layers:
        raise RecipeError(
            f"--fp8-layers {last} does not fit a model of {layers} layers.",
            fix=f"give a number from 1 to {layers - 1}.",
        )
    body = yaml.safe_load(text)
    scheme = body["quant_stage"]["quant_modifiers"]["QuantizationModifier"]["scheme"]
    scheme["NVFP4"] = [_mlp_pattern(range(layers - last))]
    scheme["FP8_DYNAMIC"][0] = _mlp_pattern(range(layers - last, layers))
    header = [line for line in text.splitlines() if line.startswith("#")]
    return "\n".join([*header, ""]) + yaml.safe_dump(body, sort_keys=False, width=1000)


def _mlp_pattern(layers: range) -> str:
    return rf"re:.*layers\.({'|'.join(map(str, layers))})\." + _MLP


def custom_recipe(path: Path) -> Recipe:
    """The user's own recipe file.

    Raises:
        InputError: The file cannot be read.
        RecipeError: It is not a recipe.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise RecipeError(f"{path} is not UTF-8 text.") from error
    modifiers_of(text, str(path))
    return Recipe("custom", text, str(path))


def modifiers_of(text: str, origin: str) -> list[tuple[str, dict[str, Any]]]:
    """The modifiers of a recipe, in order: class name and arguments.

    Raises:
        RecipeError: Not YAML, or no `*_stage` with `*_modifiers`.
    """
    try:
        body = load_yaml(text)
    except yaml.YAMLError as error:
        raise RecipeError(f"{origin} {yaml_fault(error)}", fix=_FIX) from error
    found = []
    for stage_name, stage in body.items() if isinstance(body, dict) else ():
        if not str(stage_name).endswith("_stage") or not isinstance(stage, dict):
            continue
        for group_name, group in stage.items():
            if str(group_name).endswith("_modifiers") and isinstance(group, dict):
                found += [(str(name), _arguments(args, origin)) for name, args in group.items()]
    if not found:
        raise RecipeError(
            f"{origin} holds no modifiers.",
            fix=_FIX,
        )
    return found


def _arguments(args: object, origin: str) -> dict[str, Any]:
    if args is not None and not isinstance(args, dict):
        raise RecipeError(f"{origin}: a modifier's arguments are {args!r}, expected a mapping.")
    return {str(key): value for key, value in (args or {}).items()}
