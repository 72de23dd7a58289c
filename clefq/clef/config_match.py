"""`quantization_config` of a compressed-tensors checkpoint: which module it says is what.

Read without compressed-tensors, so that an audit needs neither torch nor llm-compressor.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from clefq.clef.family import served_name
from clefq.clef.formats import (
    FORMATS,
    PACKED_FP4,
    PACKED_INT4,
    PLAIN_FP8,
    PLAIN_INT8,
    STORAGES,
    Format,
    arithmetic_name,
    suffixes_of,
)

NVFP4 = PACKED_FP4.names[0]
FP8 = PLAIN_FP8.names


@dataclass(frozen=True, slots=True)
class ModuleFormat:
    """How one module is stored.

    Attributes:
        format: compressed-tensors format, for example `nvfp4-pack-quantized`.
        bits: Bits per weight.
        type: Of the weights' numbers: `float` or `int`.
        strategy: Which weights share a scale: `channel`, `tensor_group`, `tensor`, `block`, …
        group_size: Weights per group, or None.
        activations: `None` for 16 bits, else `(bits, dynamic)`, dynamic being True, `local` or
            False.
        input_strategy: Which activations share a scale: `token`, `tensor`, `tensor_group`, or
            None for 16 bits.
        block: Rows and columns that share a scale, for the strategy `block`.
    """

    format: str
    bits: int
    type: str
    strategy: str
    group_size: int | None
    activations: tuple[int, bool | str] | None
    input_strategy: str | None = None
    block: tuple[int, int] | None = None

    @property
    def arithmetic(self) -> str:
        """`w4a16` and so on."""
        inputs = None if self.activations is None else self.activations[0]
        return arithmetic_name(self.bits, inputs, self.type)

    @property
    def weights_format(self) -> Format | None:
        """The format whose weights are rounded so, whatever happens to the activations."""
        said = (self.bits, self.type, self.strategy, self.group_size)
        return next(
            (
                row
                for row in FORMATS.values()
                if (row.weights.bits, row.weights.type, row.weights.strategy, row.weights.group)
                == said
            ),
            None,
        )

    @property
    def suffixes(self) -> tuple[str, ...]:
        """Names of the tensors that a module of this scheme has, below the module's name."""
        storage = STORAGES.get(self.format, PLAIN_FP8)
        names = suffixes_of(storage)
        return (*names, storage.static_input) if self._static_input else names

    @property
    def _static_input(self) -> bool:
        return self.activations is not None and self.activations[1] is not True


def quantization_of(config: Mapping[str, Any]) -> Any:
    """The part of a `config.json` that a serving engine takes for its quantization, or None.

    vLLM looks in this order; compressed-tensors once wrote `compression_config`.
    """
    text = config.get("text_config")
    inner = text.get("quantization_config") if isinstance(text, Mapping) else None
    options = (config.get("quantization_config"), inner, config.get("compression_config"))
    return next((option for option in options if option is not None), None)


def activation_bits(config: Any) -> set[int]:
    """Widths to which the inputs of some layers are quantized; empty for weights alone.

    Args:
        config: What `quantization_of` gives, sound or not.
    """
    groups = config.get("config_groups") if isinstance(config, Mapping) else None
    inputs = [
        group.get("input_activations")
        for group in (groups.values() if isinstance(groups, Mapping) else ())
        if isinstance(group, Mapping)
    ]
    widths = [one.get("num_bits") for one in inputs if isinstance(one, Mapping)]
    return {width for width in widths if isinstance(width, int)}


def misread(config: Mapping[str, Any]) -> list[str]:
    """Where a serving engine would not read the config as its `format` says, one line each.

    vLLM chooses its kernels by the arguments of weights and inputs; the format is a name.

    Args:
        config: The `quantization_config` object, which `module_formats` accepts.
    """
    faults = [
        f"has a {key}, which engines apply"
        for key in ("kv_cache_scheme", "transform_config", "sparsity_config")
        if config.get(key) and config[key] != {"format": "dense"}
    ]
    named: set[str] = set()
    for name, group in (config.get("config_groups") or {}).items():
        form = group.get("format") or config.get("format")
        weights, inputs = group["weights"], group.get("input_activations")
        if group.get("output_activations"):
            faults.append(f"{name} quantizes outputs")
        if form == NVFP4:
            sound = _is_nvfp4(weights, False) and (inputs is None or _is_nvfp4(inputs, "local"))
        elif form in FP8:
            sound = _is_fp8(weights) and (inputs is None or _is_fp8_input(inputs))
        elif form in (*PLAIN_INT8.names, *PACKED_INT4.names):
            sound = weights.get("type", "int") == "int" and not weights.get("dynamic")
        else:
            sound = not (_is_nvfp4(weights, False) or _is_fp8(weights))
        if not sound:
            faults.append(f"{name} says {form}, but its arguments are of another format")
        targets = set(group.get("targets") or [])
        faults += [
            f"{name} targets {target!r}, as a group before it does: engines take the last"
            for target in sorted(targets & named)
        ]
        named |= targets
    return faults


def _is_nvfp4(args: Mapping[str, Any], dynamic: bool | str) -> bool:
    shape = (args.get("num_bits"), args.get("strategy"), args.get("group_size"))
    known = shape == (4, "tensor_group", 16) and args.get("dynamic", False) == dynamic
    return known and _is_float(args)


def _is_fp8(args: Mapping[str, Any]) -> bool:
    strategies = ("tensor", "channel", "block")
    eight = args.get("num_bits") == 8 and args.get("strategy") in strategies
    return eight and _is_float(args) and not args.get("dynamic")


def _is_fp8_input(args: Mapping[str, Any]) -> bool:
    static = args.get("strategy") == "tensor" and args.get("symmetric", True)
    return (
        args.get("num_bits") == 8
        and args.get("type") == "float"
        and bool(args.get("dynamic") is True or static)
    )


def _is_float(args: Mapping[str, Any]) -> bool:
    # an engine takes a missing type for int
    return args.get("type") == "float" and bool(args.get("symmetric", True))


def matches(module: str, target: str, kind: str = "Linear") -> bool:
    """Whether a target or ignore entry names the module: exactly, by `re:` pattern, or by class."""
    if target.startswith("re:"):
        pattern = target.removeprefix("re:")
        return re.match(pattern, module) is not None or re.match(pattern, kind) is not None
    return target in (module, kind)


def module_formats(config: Mapping[str, Any], linears: Iterable[str]) -> dict[str, ModuleFormat]:
    """The format of every Linear that a `quantization_config` quantizes.

    Args:
        config: The `quantization_config` object.
        linears: Names of all Linears of the model.

    Raises:
        ValueError: The object lacks what every compressed-tensors config has.
    """
    return _assigned(config, {module: module for module in linears})


def _assigned(config: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, ModuleFormat]:
    """Formats by module; `names` holds the name under which patterns see each module."""
    ignored = _patterns(config, "ignore")
    groups = config.get("config_groups")
    if not (isinstance(groups, Mapping) and groups and all(map(_is_object, groups.values()))):
        raise ValueError("quantization_config has no config_groups")
    parsed = [
        (_patterns(group, "targets"), _module_format(group, config)) for group in groups.values()
    ]
    found = {}
    for module, name in names.items():
        if any(_matches_under(module, name, entry) for entry in ignored):
            continue
        # a target that names the module wins over one that names its class
        for exact in (True, False):
            hit = next(
                (
                    scheme
                    for targets, scheme in parsed
                    if any(
                        _matches_under(module, name, t) and (exact is not (t == "Linear"))
                        for t in targets
                    )
                ),
                None,
            )
            if hit is not None:
                found[module] = hit
                break
    return found


def _is_object(value: object) -> bool:
    return isinstance(value, Mapping)


def _patterns(holder: Mapping[str, Any], key: str) -> list[str]:
    """The entries of `ignore` or `targets`."""
    entries = holder.get(key) or []
    if not isinstance(entries, list) or not all(isinstance(entry, str) for entry in entries):
        raise ValueError(f"{key} is no list of names and patterns")
    for entry in entries:
        try:
            re.compile(entry.removeprefix("re:") if entry.startswith("re:") else "")
        except re.error as error:
            raise ValueError(f"{key} has {entry!r}, which is no pattern: {error}") from error
    return entries


def _matches_under(module: str, name: str, target: str) -> bool:
    return matches(name if target.startswith("re:") else module, target)


def misnamed(config: Mapping[str, Any], linears: Iterable[str]) -> list[tuple[str, str]]:
    """Modules that a serving engine would not quantize as the checkpoint is, for their name alone.

    vLLM matches patterns against its own module names: one that begins with `^model` finds none.

    Args:
        config: The `quantization_config` object.
        linears: Names of all Linears of the model.

    Returns:
        Module, and what vLLM would take it for (a scheme's arithmetic, or `bf16`).
    """
    # vLLM decides about the output embeddings elsewhere
    names = {module: served_name(module) for module in linears if module != "lm_head"}
    stored, served = module_formats(config, names), _assigned(config, names)
    return [
        (module, served[module].arithmetic if module in served else "bf16")
        for module in names
        if stored.get(module) != served.get(module)
    ]


def _module_format(group: Mapping[str, Any], config: Mapping[str, Any]) -> ModuleFormat:
    weights, inputs = group.get("weights"), group.get("input_activations")
    if not isinstance(weights, Mapping):
        raise ValueError("a config group quantizes no weights")
    if not (inputs is None or isinstance(inputs, Mapping)):
        raise ValueError("a config group has input_activations that are no object")
    form = group.get("format") or config.get("format")
    return ModuleFormat(
        format=str(form),
        bits=_int(weights, "num_bits"),
        type=str(weights.get("type", "int")),  # an engine takes a missing type for int
        strategy=str(weights.get("strategy")),
        group_size=None if weights.get("group_size") is None else _int(weights, "group_size"),
        activations=None if inputs is None else (_int(inputs, "num_bits"), _dynamic(inputs)),
        input_strategy=None if inputs is None else str(inputs.get("strategy")),
        block=_block(weights.get("block_structure"))
        if weights.get("strategy") == "block"
        else None,
    )


def _int(args: Mapping[str, Any], key: str) -> int:
    value = args.get(key)
    if not isinstance(value, int):
        raise ValueError(f"{key} is {value!r}, no whole number")
    return value


def _dynamic(inputs: Mapping[str, Any]) -> bool | str:
    value = inputs.get("dynamic", False)
    if not isinstance(value, bool | str):
        raise ValueError(f"dynamic is {value!r}")
    return value


def _block(value: Any) -> tuple[int, int] | None:
    """`[128, 128]`, or `128x128` as older versions wrote it."""
    parts = value.split("x") if isinstance(value, str) else value
    try:
        rows, columns = (int(part) for part in parts)
    except (TypeError, ValueError):
        return None
    return (rows, columns) if rows > 0 and columns > 0 else None
