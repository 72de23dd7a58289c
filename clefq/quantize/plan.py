"""What a recipe does to a model: which module gets which scheme, and the resulting config.

llm-compressor's own matching decides, on a model without weights (the meta device), so that the
plan is what oneshot will do. A plan that would touch a tensor which must stay as it is, or that
splits a fused group over two formats, is refused with the reason.
"""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from clefq.clef.family import FAMILY, fused_groups, protected_reason
from clefq.clef.formats import FORMATS, SEARCH_OBSERVER, arithmetic_name, format_of_weights
from clefq.errors import CheckpointError, RecipeError
from clefq.quantize.recipes import Recipe, modifiers_of

# modifiers that change nothing but the weights they quantize
MODIFIERS = ("QuantizationModifier", "GPTQModifier")
# What chooses scales in the streaming method too: the largest magnitude, or our search.
_STREAMED_OBSERVERS = (None, "minmax", "static_minmax", "memoryless_minmax", SEARCH_OBSERVER)
_STORED = {row.storage.names[0] for row in FORMATS.values()}


@dataclass(frozen=True)
class Plan:
    """What will be quantized, and how.

    Attributes:
        modules: Full module name to its scheme (a compressed-tensors `QuantizationScheme` with
            its `format` set), in model order.
        quantization_config: What `config.json` will hold under that name.
        needs_data: Whether activations are calibrated, or weights rounded by what they multiply.
        data_free_reason: None if the streaming method can do it, else why it cannot.
    """

    modules: dict[str, Any]
    quantization_config: dict[str, Any]
    needs_data: bool
    data_free_reason: str | None

    @property
    def calibrates(self) -> bool:
        """Whether activations are."""
        return any(_calibrated(scheme) for scheme in self.modules.values())

    @property
    def formats(self) -> dict[str, int]:
        """Number of modules per format and activation arithmetic, for the summary."""
        counts: dict[str, int] = {}
        for scheme in self.modules.values():
            key = arithmetic_of(scheme)
            counts[key] = counts.get(key, 0) + 1
        return counts


def arithmetic_of(scheme: Any) -> str:
    """`w8a8`, `w4a4`, `w4a16` and so on, of a compressed-tensors scheme."""
    inputs = scheme.input_activations
    bits = None if inputs is None else inputs.num_bits
    return arithmetic_name(scheme.weights.num_bits, bits, str(scheme.weights.type))


def make_plan(folder: Path, recipe: Recipe) -> Plan:
    """Applies a recipe to the model of `folder` without loading its weights.

    Raises:
        CheckpointError: The config is not that of a Clef backbone.
        RecipeError: The recipe is malformed or would harm the checkpoint; lists every fault.
    """
    modifiers = _instantiate(recipe)
    model = meta_model(folder)
    for modifier in modifiers:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _apply(modifier, model, recipe)
    modules = {
        name: module.quantization_scheme
        for name, module in model.named_modules()
        if getattr(module, "quantization_scheme", None) is not None
    }
    linears = {n: module.in_features for n, module in model.named_modules() if _is_linear(module)}
    reason = _not_streamable(recipe, modules)
    config = _config(model) if modules else {}  # names the formats that are checked next
    faults = _faults(modules, linears)
    if faults:
        raise RecipeError(
            f"{recipe.origin} would harm the checkpoint: {faults[0]}.",
            fix="start from a file of recipes/ and keep its ignore list.",
            faults=faults[1:],
        )
    return Plan(
        modules=modules,
        quantization_config=config,
        needs_data=_needs_data(recipe, modules),
        data_free_reason=reason,
    )


def _is_linear(module: Any) -> bool:
    import torch

    return isinstance(module, torch.nn.Linear)


def meta_model(folder: Path) -> Any:
    """The model of a folder on the meta device: shapes and names, no weights.

    Raises:
        CheckpointError: The config is not that of a Clef backbone.
    """
    import torch
    import transformers

    try:
        config = transformers.AutoConfig.from_pretrained(folder)
    except (OSError, ValueError, KeyError) as error:
        raise CheckpointError(f"{folder / 'config.json'} is not a usable model config.") from error
    if FAMILY.model_class not in (config.architectures or []):
        raise CheckpointError(
            f"{folder / 'config.json'} is of {config.architectures}, not of {FAMILY.model_class}.",
            fix="give a Clef checkpoint in BF16.",
        )
    if getattr(config, "quantization_config", None) is not None:
        raise CheckpointError(
            f"{folder} is quantized already.", fix="give the BF16 checkpoint it was made from."
        )
    with torch.device("meta"):
        return getattr(transformers, FAMILY.model_class)._from_config(config)


def _instantiate(recipe: Recipe) -> list[Any]:
    from llmcompressor.recipe import Recipe as LibraryRecipe

    for name, arguments in modifiers_of(recipe.text, recipe.origin):
        near = get_close_matches(name, MODIFIERS, n=1, cutoff=0.85)
        if name not in MODIFIERS and near:
            raise RecipeError(
                f"{recipe.origin} names {name}, which is no modifier.", fix=f"write {near[0]}."
            )
        if not arguments and name in MODIFIERS:
            raise RecipeError(
                f"{recipe.origin}: {name} is empty.", fix="give it targets and a scheme."
            )
        if name not in MODIFIERS:
            raise RecipeError(
                f"{recipe.origin} uses {name}, which changes tensors that must stay as they are.",
                fix=f"use {' or '.join(MODIFIERS)}.",
            )
    try:
        return list(LibraryRecipe.create_instance(recipe.text).modifiers)
    except (ValueError, TypeError, KeyError, NotImplementedError, re.error) as error:
        raise RecipeError(
            f"{recipe.origin} is no valid recipe: {_plain(error)}.",
            fix="start from a file of recipes/.",
        ) from error


def _apply(modifier: Any, model: Any, recipe: Recipe) -> None:
    try:
        if modifier.resolved_config.kv_cache_scheme is not None:
            raise RecipeError(
                f"{recipe.origin} quantizes the KV cache, which is the server's choice.",
                fix="remove kv_cache_scheme.",
            )
        modifier.initialize_quantization(model)
    except (ValueError, NotImplementedError, KeyError, re.error) as error:
        raise RecipeError(
            f"{recipe.origin} does not fit this model: {_plain(error)}.",
            fix="start from a file of recipes/.",
        ) from error


def _plain(error: Exception) -> str:
    """What went wrong in one line, without the library's frame around it."""
    text = " ".join(str(error).split())
    if isinstance(error, ValueError) and hasattr(error, "errors"):
        text = "; ".join(
            f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors()
        )
    return text.rstrip(".")


def _faults(modules: dict[str, Any], linears: dict[str, int]) -> list[str]:
    if not modules:
        return ["it matches no module of this model"]
    found = []
    for name, scheme in modules.items():
        why = protected_reason(name)
        if why is not None:
            found.append(f"it quantizes {name} ({why})")
        elif name not in linears:
            found.append(f"it quantizes {name}, which is no Linear")
        elif scheme.weights is None:
            found.append(f"it quantizes the activations of {name} but not its weights")
        elif scheme.output_activations is not None:
            found.append(f"it quantizes the outputs of {name}")
        else:
            found += _weight_faults(name, scheme, linears[name])
    for group in fused_groups(linears):
        kinds = {_kind(modules.get(member)) for member in group.members}
        if len(kinds) > 1:
            listed = ", ".join(
                f"{member.rpartition('.')[2]} {_kind(modules.get(member))}"
                for member in group.members
            )
            found.append(f"it splits {group.name}, one matrix product in serving ({listed})")
    return found


def _weight_faults(name: str, scheme: Any, columns: int) -> list[str]:
    weights = scheme.weights
    if weights.group_size and columns % weights.group_size:
        return [f"it cuts the {columns} inputs of {name} into groups of {weights.group_size}"]
    whole = str(weights.type) != "int" or format_of_weights(weights) is not None
    if _format(scheme) in _STORED and whole:
        return []
    kind = f"{_format(scheme)} ({weights.num_bits}-bit {weights.strategy})"
    return [f"it stores {name} as {kind}, which clefq cannot audit"]


def _format(scheme: Any) -> str:
    return str(getattr(scheme.format, "value", scheme.format))


def _kind(scheme: Any) -> str:
    if scheme is None:
        return "bf16"
    kind = f"{scheme.weights.type}-{arithmetic_of(scheme)}-{scheme.weights.strategy}"
    inputs = scheme.input_activations
    return kind if inputs is None else f"{kind}-{inputs.strategy}-{inputs.dynamic}"


def _config(model: Any) -> dict[str, Any]:
    """`quantization_config` as oneshot's save writes it."""
    import json

    import compressed_tensors
    from compressed_tensors.compressors.format import infer_model_format
    from compressed_tensors.quantization import QuantizationConfig, QuantizationStatus

    config = QuantizationConfig.from_pretrained(model)
    config.format = infer_model_format(model)
    config.quantization_status = QuantizationStatus.COMPRESSED
    body = {
        "version": compressed_tensors.__version__,
        "quant_method": "compressed-tensors",
        "sparsity_config": {},
        "transform_config": {},
        **config.model_dump(exclude={"quant_method"}),
    }
    loaded: dict[str, Any] = json.loads(json.dumps(body))
    for group in loaded["config_groups"].values():
        for part in ("weights", "input_activations"):
            # the observers that oneshot attaches leave an empty dict here
            if group[part] is not None and group[part]["observer_kwargs"] is None:
                group[part]["observer_kwargs"] = {}
    return loaded


def _calibrated(scheme: Any) -> bool:
    inputs = scheme.input_activations
    return inputs is not None and inputs.dynamic is not True


def _needs_data(recipe: Recipe, modules: dict[str, Any]) -> bool:
    names = [name for name, _ in modifiers_of(recipe.text, recipe.origin)]
    return any(name != "QuantizationModifier" for name in names) or any(
        _calibrated(scheme) or scheme.weights.observer == "imatrix_mse"
        for scheme in modules.values()
    )


def _not_streamable(recipe: Recipe, modules: dict[str, Any]) -> str | None:
    for name, _ in modifiers_of(recipe.text, recipe.origin):
        if name != "QuantizationModifier":
            return f"{name} needs calibration data"
    for scheme in modules.values():
        weights = scheme.weights
        if _calibrated(scheme):
            return f"{arithmetic_of(scheme)} activations need calibration data"
        if weights.observer not in _STREAMED_OBSERVERS:
            return f"the {weights.observer} observer runs through llm-compressor only"
        if format_of_weights(weights) is None:
            return f"{weights.num_bits}-bit {weights.strategy} weights are not streamed"
    return None
