"""Recipe files: the bundled ones by scheme name, and the user's own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from clefq.clef.formats import FORMATS, RECIPES, ROUNDING_NAMES, SCHEMES, SEARCH_OBSERVER
from clefq.errors import InputError, RecipeError
from clefq.plain_files import sha256_bytes
from clefq.store.data_files import data_folder
from clefq.store.yaml_text import load_yaml, yaml_fault

DEFAULT_FP8_LAYERS = 8
_FIX = "start from a file of recipes/ (quant_stage: quant_modifiers: …)."
_NEAREST, _GPTQ = "QuantizationModifier", "GPTQModifier"
# What a recipe says of its rounding, in its first lines.
_SAID = {
    "search": """\
# Group scales of NVFP4 are searched (--rounding search): the E4M3 number near amax / 6 that rounds
# a group best. The observer is clefq's: llm-compressor knows it once
# `clefq.quantize.search_observer` is imported.
#
""",
    "gptq": """\
# Rounded by GPTQ (--rounding gptq): errors are made up for in the weights not yet rounded. Group
# scales of NVFP4 are searched; that observer is clefq's: llm-compressor knows it once
# `clefq.quantize.search_observer` is imported.
#
""",
}
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

    @property
    def rounding(self) -> str:
        """How it rounds weights: one of `ROUNDING_NAMES`, or the observer that it names."""
        found = modifiers_of(self.text, self.origin)
        if any(name == _GPTQ for name, _ in found):
            return "gptq"
        named = {str(args["weight_observer"]) for _, args in found if args.get("weight_observer")}
        named -= {"minmax", "static_minmax", "memoryless_minmax"}
        return ", ".join(sorted(named)).replace(SEARCH_OBSERVER, "search") or "nearest"


def bundled_recipe(
    scheme: str,
    layers: int,
    fp8_layers: int | None = None,
    calibrated: bool = False,
    rounding: str | None = None,
) -> Recipe:
    """The recipe of a scheme, for a model with `layers` decoder layers.

    Args:
        scheme: A key of `clefq.clef.formats.RECIPES`.
        layers: Number of decoder layers; only `mixed` depends on it.
        fp8_layers: For `mixed`: how many of the last layers have FP8 MLPs. By default 8, or a
            quarter of the layers in models of fewer than 16.
        calibrated: Whether a calibration set is given, which some schemes can do without.
        rounding: One of `ROUNDING_NAMES`; None is `nearest`, but for schemes that take GPTQ where
            a calibration set is given.

    Raises:
        RecipeError: Unknown scheme or rounding, a layer split that does not fit, or a rounding that
            the scheme's formats do not have.
    """
    if scheme not in RECIPES:
        raise RecipeError(f"unknown scheme {scheme!r}.", fix=f"use one of {', '.join(RECIPES)}.")
    if fp8_layers is not None and scheme != "mixed":
        raise RecipeError(f"--fp8-layers has no meaning for {scheme}.", fix="use --scheme mixed.")
    if rounding is not None:
        _check_rounding(scheme, rounding)
    ready = SCHEMES[scheme].calibrated_recipe if _takes_ready(calibrated, rounding) else None
    path = data_folder("recipes") / (ready or RECIPES[scheme])
    text = path.read_text(encoding="utf-8")
    if scheme == "mixed":
        text = _split(text, layers, fp8_layers)
    if ready is None and rounding in _SAID:
        text = _rounded(text, str(rounding))
    return Recipe(scheme, text, path.name)


def _takes_ready(calibrated: bool, rounding: str | None) -> bool:
    """Whether a scheme's recipe for calibration sets is taken, where it has one."""
    return rounding == "gptq" or (calibrated and rounding is None)


def _check_rounding(scheme: str, rounding: str) -> None:
    if rounding not in ROUNDING_NAMES:
        raise RecipeError(
            f"unknown rounding {rounding!r}.", fix=f"use one of {', '.join(ROUNDING_NAMES)}."
        )
    four_bits = [FORMATS[name].weights for name in SCHEMES[scheme].formats]
    has = {
        "nearest": True,
        "search": any(w.bits == 4 and w.type == "float" for w in four_bits),
        "gptq": any(w.bits == 4 for w in four_bits),
    }
    if not has[rounding]:
        raise RecipeError(
            f"--rounding {rounding} is for weights of 4 bits, {scheme} has none that it changes.",
            fix="leave --rounding out.",
        )


def _rounded(text: str, rounding: str) -> str:
    """A recipe's text with another rounding than to the nearest under amax / 6."""
    body = yaml.safe_load(text)
    modifiers = body["quant_stage"]["quant_modifiers"]
    arguments = modifiers.pop(_NEAREST)
    name = _GPTQ if rounding == "gptq" else _NEAREST
    modifiers[name] = {**arguments, "weight_observer": SEARCH_OBSERVER}
    if name == _GPTQ:
        modifiers[name]["actorder"] = None  # scales are found in the columns' own order
    return _SAID[rounding] + _with_header(text, body)


def _with_header(text: str, body: Any) -> str:
    """A changed recipe under the comments that it began with."""
    header = [line for line in text.splitlines() if line.startswith("#")]
    return "\n".join([*header, ""]) + yaml.safe_dump(body, sort_keys=False, width=1000)


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
    return _with_header(text, body)


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
