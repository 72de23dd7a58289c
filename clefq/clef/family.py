"""The backbone family: its modules, names, shapes, fused products, and what must stay as it is.

Everything that knows how a Qwen3.5 backbone is built reads it here; another family would be
another value of `Family`. vLLM's own class of it is the base of `clefq.serving.model`, and what
the miniature is built from stands in `tools.nano.build`; nothing else names the architecture.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

Shapes = dict[str, tuple[int, ...]]

MLP, ATTENTION, DELTANET = "mlp", "attention", "deltanet"


@dataclass(frozen=True, slots=True)
class Part:
    """The MLP or a mixer of a layer.

    Attributes:
        path: Its module, below the layer.
        linears: Its Linears that may be quantized, in serving's stacking order.
        title: Its name in reports.
        shapes: From the text model's config to every tensor below the layer.
        norm: The layer's norm whose output its first Linears read.
        behind: Linear to those whose product, or whose mean over tokens, it reads instead.
        gated: Linear to the norm, below `path`, that what it reads has passed as well.
    """

    path: str
    linears: tuple[str, ...]
    title: str
    shapes: Callable[[Mapping[str, Any]], Shapes]
    norm: str
    behind: Mapping[str, tuple[str, ...]]
    gated: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Family:
    """A backbone architecture.

    Attributes:
        name: In messages.
        model_type: Of `config.json`.
        text_types: `model_type` of its text part.
        model_class: transformers' class, and what `architectures` names.
        config_class: transformers' class of the config.
        norm_class: transformers' class of the norms whose gain is 1 + w.
        text: Module path of the language model.
        visual: Module path of the vision tower.
        drafts: Module paths of draft (multi-token prediction) layers, which prefill never uses.
        parts: Kind to part: the MLP, and each mixer.
        mixers: Layer type of the config to the kind of its mixer.
        fused: Fused product to its members, in the order in which an engine stacks them. An NVFP4
            product has one weight and one input global scale, so members must share both, and
            one format.
        fused_in: The oldest and the newest vLLM that the fused products were read from.
        protected: Pattern of module names that no recipe may quantize to why.
        ignore: The same as entries of a recipe.
        served: Prefix of module names in a checkpoint to that in vLLM.
    """

    name: str
    model_type: str
    text_types: tuple[str, ...]
    model_class: str
    config_class: str
    norm_class: str
    text: str
    visual: str
    drafts: tuple[str, ...]
    parts: Mapping[str, Part]
    mixers: Mapping[str, str]
    fused: Mapping[str, tuple[str, ...]]
    fused_in: tuple[tuple[int, ...], tuple[int, ...]]
    protected: Mapping[str, str]
    ignore: tuple[str, ...]
    served: Mapping[str, str]


def _norms(text: Mapping[str, Any]) -> Shapes:
    hidden = text["hidden_size"]
    return {"input_layernorm.weight": (hidden,), "post_attention_layernorm.weight": (hidden,)}


def _mlp(text: Mapping[str, Any]) -> Shapes:
    hidden, width = text["hidden_size"], text["intermediate_size"]
    return {
        "mlp.gate_proj.weight": (width, hidden),
        "mlp.up_proj.weight": (width, hidden),
        "mlp.down_proj.weight": (hidden, width),
    }


def _attention(text: Mapping[str, Any]) -> Shapes:
    hidden, dim = text["hidden_size"], text["head_dim"]
    query, key = text["num_attention_heads"] * dim, text["num_key_value_heads"] * dim
    shapes: Shapes = {
        # the query projection carries the output gate beside it
        "self_attn.q_proj.weight": (2 * query, hidden),
        "self_attn.k_proj.weight": (key, hidden),
        "self_attn.v_proj.weight": (key, hidden),
        "self_attn.o_proj.weight": (hidden, query),
        "self_attn.q_norm.weight": (dim,),
        "self_attn.k_norm.weight": (dim,),
    }
    if text.get("attention_bias", False):
        for leaf in ("q", "k", "v", "o"):
            rows = shapes[f"self_attn.{leaf}_proj.weight"][0]
            shapes[f"self_attn.{leaf}_proj.bias"] = (rows,)
    return shapes


def _deltanet(text: Mapping[str, Any]) -> Shapes:
    hidden, heads = text["hidden_size"], text["linear_num_value_heads"]
    key = text["linear_num_key_heads"] * text["linear_key_head_dim"]
    value = heads * text["linear_value_head_dim"]
    convolved = 2 * key + value
    return {
        "linear_attn.in_proj_qkv.weight": (convolved, hidden),
        "linear_attn.in_proj_z.weight": (value, hidden),
        "linear_attn.in_proj_b.weight": (heads, hidden),
        "linear_attn.in_proj_a.weight": (heads, hidden),
        "linear_attn.out_proj.weight": (hidden, value),
        "linear_attn.conv1d.weight": (convolved, 1, text.get("linear_conv_kernel_dim", 4)),
        "linear_attn.A_log": (heads,),
        "linear_attn.dt_bias": (heads,),
        "linear_attn.norm.weight": (text["linear_value_head_dim"],),
    }


QWEN3_5 = Family(
    name="Qwen3.5",
    model_type="qwen3_5",
    text_types=("qwen3_5", "qwen3_5_text"),
    model_class="Qwen3_5ForConditionalGeneration",
    config_class="Qwen3_5Config",
    norm_class="Qwen3_5RMSNorm",
    text="model.language_model",
    visual="model.visual",
    drafts=("mtp.", "model.mtp."),
    parts={
        MLP: Part(
            "mlp",
            ("gate_proj", "up_proj", "down_proj"),
            "MLP",
            _mlp,
            norm="post_attention_layernorm",
            behind={"down_proj": ("gate_proj", "up_proj")},
        ),
        ATTENTION: Part(
            "self_attn",
            ("q_proj", "k_proj", "v_proj", "o_proj"),
            "attention",
            _attention,
            norm="input_layernorm",
            behind={"o_proj": ("v_proj",)},
        ),
        DELTANET: Part(
            "linear_attn",
            ("in_proj_qkv", "in_proj_z", "out_proj"),
            "DeltaNet",
            _deltanet,
            norm="input_layernorm",
            behind={"out_proj": ("in_proj_z",)},
            gated={"out_proj": "norm"},
        ),
    },
    mixers={"full_attention": ATTENTION, "linear_attention": DELTANET},
    fused={
        "qkv_proj": ("q_proj", "k_proj", "v_proj"),
        "gate_up_proj": ("gate_proj", "up_proj"),
        "in_proj_qkvz": ("in_proj_qkv", "in_proj_z"),
        "in_proj_ba": ("in_proj_b", "in_proj_a"),
    },
    # proposals for later versions (VLLM_GDN_FUSE_QKVZBA) stack all four DeltaNet inputs
    fused_in=((0, 25, 1), (0, 33)),
    protected={
        r"(^|\.)lm_head$": "the joint head reads its rows as they are",
        r"(^|\.)visual\.": "the vision tower stays BF16",
        r"\.in_proj_[ab]$": "the DeltaNet gates stay BF16",
        r"(^|\.)embed_tokens$|(^|\.)pos_embed$": "embeddings stay BF16",
        r"norm\d?$": "norms stay BF16",
        r"conv1d$|\.patch_embed\.": "convolutions stay BF16",
        r"(^|\.)(clef_head|joint_head)(\.|$)": "the joint head stays as it is",
        r"^mtp\.": "the draft layers stay BF16",
    },
    ignore=("re:.*lm_head$", "re:.*visual.*", r"re:.*linear_attn\.in_proj_[ab]$"),
    served={"model.language_model.": "language_model.model.", "model.visual.": "visual."},
)
FAMILY = QWEN3_5
TEXT = FAMILY.text


@dataclass(frozen=True, slots=True)
class Widths:
    """Columns of the activations of a layer: between layers, in its MLP, of a DeltaNet's values."""

    hidden: int
    mlp: int
    deltanet: int


def activation_widths(text_config: Mapping[str, Any]) -> Widths:
    """How wide a language model's activations are."""
    shapes = FAMILY.parts[MLP].shapes(text_config) | FAMILY.parts[DELTANET].shapes(text_config)
    mlp, hidden = shapes["mlp.gate_proj.weight"]
    return Widths(hidden, mlp, shapes["linear_attn.in_proj_z.weight"][0])


# fused product -> members; read by everything that shares scales
FUSED: dict[str, tuple[str, ...]] = dict(FAMILY.fused)
_PART_AT = {part.path: part for part in FAMILY.parts.values()}
_FUSED_OF: dict[str, str] = {leaf: fused for fused, leaves in FUSED.items() for leaf in leaves}


def layer_types(text_config: Mapping[str, Any]) -> tuple[str, ...]:
    """`full_attention` or `linear_attention` per layer.

    Args:
        text_config: The language model's config; without `layer_types`, every
            `full_attention_interval`-th layer (4 by default) has full attention.

    Raises:
        ValueError: The number of layers or a type is not sound.
    """
    count = text_config.get("num_hidden_layers")
    if not isinstance(count, int) or count < 1:
        raise ValueError(f"num_hidden_layers is {count!r}")
    given = text_config.get("layer_types")
    if given is None:
        every = text_config.get("full_attention_interval", 4)
        if not isinstance(every, int) or every < 1:
            raise ValueError(f"full_attention_interval is {every!r}")
        return tuple(
            "linear_attention" if (layer + 1) % every else "full_attention"
            for layer in range(count)
        )
    known = isinstance(given, list) and all(kind in list(FAMILY.mixers) for kind in given)
    if not known or len(given) != count:
        raise ValueError(f"layer_types does not name the type of each of {count} layers")
    return tuple(given)


def _layer_modules(layer_type: str) -> list[str]:
    """Modules below a layer, from the names of its tensors alone."""
    any_size: Mapping[str, Any] = defaultdict(lambda: 1)
    mixer = FAMILY.parts[FAMILY.mixers[layer_type]]
    shapes = _norms(any_size) | FAMILY.parts[MLP].shapes(any_size) | mixer.shapes(any_size)
    return [name.removesuffix(".weight") for name in shapes]


def missing_modules(text_config: Mapping[str, Any], tensors: Iterable[str]) -> list[str]:
    """Modules of the language model of which no tensor is there, in model order.

    A module counts as present under any tensor name (`.weight`, `.weight_packed`, …), so that
    the check holds for every quantization format.

    Raises:
        ValueError: See `layer_types`.
    """
    present = set()
    for name in tensors:
        present.add(name)
        present.add(name.rpartition(".")[0])
    expected = [f"{TEXT}.embed_tokens"]
    for layer, kind in enumerate(layer_types(text_config)):
        expected += [f"{TEXT}.layers.{layer}.{part}" for part in _layer_modules(kind)]
    expected.append(f"{TEXT}.norm")
    return [module for module in expected if module not in present]


def text_prefix(names: Iterable[str]) -> str:
    """`model.language_model` for a Clef, `model` for a text-only checkpoint."""
    return TEXT if any(name.startswith(f"{TEXT}.") for name in names) else "model"


def expected_tensors(config: Mapping[str, Any], prefix: str) -> Shapes | None:
    """Name and shape of every tensor of the unquantized model, or None if it is of no known family.

    Args:
        config: The whole `config.json`, or the text part of a text-only checkpoint.
        prefix: Module path of the text model, from `text_prefix`.
    """
    text = config.get("text_config", config)
    if not isinstance(text, Mapping) or text.get("model_type") not in FAMILY.text_types:
        return None
    try:
        shapes = _text(text, prefix, bool(config.get("tie_word_embeddings", False)))
        vision = config.get("vision_config")
        if vision is not None and prefix != "model":
            shapes |= _vision(vision)
    except (ArithmeticError, KeyError, TypeError, ValueError):
        return None
    return shapes


def _text(text: Mapping[str, Any], prefix: str, tied: bool) -> Shapes:
    hidden, vocabulary = text["hidden_size"], text["vocab_size"]
    shapes: Shapes = {f"{prefix}.embed_tokens.weight": (vocabulary, hidden)}
    for index, kind in enumerate(layer_types(text)):
        layer = FAMILY.parts[FAMILY.mixers[kind]].shapes(text)
        layer |= _norms(text) | FAMILY.parts[MLP].shapes(text)
        shapes |= {f"{prefix}.layers.{index}.{name}": shape for name, shape in layer.items()}
    shapes[f"{prefix}.norm.weight"] = (hidden,)
    if not (tied or text.get("tie_word_embeddings", False)):
        shapes["lm_head.weight"] = (vocabulary, hidden)
    return shapes


_LINEAR_LEAVES = ("bias", "weight")
# Linears of the vision tower; its convolution and its embedding are no Linears
_VISION_LINEARS = ("attn.qkv", "attn.proj", "mlp.linear_fc1", "mlp.linear_fc2")


def _vision(vision: Mapping[str, Any]) -> Shapes:
    hidden, width = vision["hidden_size"], vision["intermediate_size"]
    merged = hidden * vision["spatial_merge_size"] ** 2
    patch = vision["patch_size"]
    shapes: Shapes = {
        "patch_embed.proj.weight": (
            hidden,
            vision["in_channels"],
            vision["temporal_patch_size"],
            patch,
            patch,
        ),
        "patch_embed.proj.bias": (hidden,),
        "pos_embed.weight": (vision["num_position_embeddings"], hidden),
        "merger.norm.weight": (hidden,),
        "merger.norm.bias": (hidden,),
        "merger.linear_fc1.weight": (merged, merged),
        "merger.linear_fc1.bias": (merged,),
        "merger.linear_fc2.weight": (vision["out_hidden_size"], merged),
        "merger.linear_fc2.bias": (vision["out_hidden_size"],),
    }
    sizes = {
        "attn.qkv": (3 * hidden, hidden),
        "attn.proj": (hidden, hidden),
        "mlp.linear_fc1": (width, hidden),
        "mlp.linear_fc2": (hidden, width),
    }
    for index in range(vision["depth"]):
        block = f"blocks.{index}"
        for norm in ("norm1", "norm2"):
            shapes |= {f"{block}.{norm}.{leaf}": (hidden,) for leaf in _LINEAR_LEAVES}
        for name in _VISION_LINEARS:
            shapes[f"{block}.{name}.weight"] = sizes[name]
            shapes[f"{block}.{name}.bias"] = sizes[name][:1]
    return {f"{FAMILY.visual}.{name}": shape for name, shape in shapes.items()}


def linear_modules(shapes: Shapes) -> list[str]:
    """The Linears among the expected tensors, by module name, in model order."""
    return [
        name.removesuffix(".weight")
        for name, shape in shapes.items()
        if len(shape) == 2
        and name.endswith(".weight")
        and not name.endswith(("embed_tokens.weight", "pos_embed.weight"))
    ]


@dataclass(frozen=True, slots=True)
class FusedGroup:
    """Linears that one matrix product serves.

    Attributes:
        prefix: Module path above the members, for example `model.language_model.layers.0.mlp`.
        fused: Name of the fused product, a key of `FUSED`.
        members: Full module names, in stacking order; at least two.
    """

    prefix: str
    fused: str
    members: tuple[str, ...]

    @property
    def name(self) -> str:
        """Full name of the fused product."""
        return f"{self.prefix}.{self.fused}"


@dataclass(frozen=True, slots=True)
class Reads:
    """What a Linear reads: module names.

    Attributes:
        layer: Its layer.
        norm: The norm at the beginning.
        behind: Linears between that norm and this one; empty where it reads the norm itself.
        gated: A norm between them and this one, or None.
    """

    layer: str
    norm: str
    behind: tuple[str, ...]
    gated: str | None


_LAYER_PART = re.compile(r"^(?P<layer>.*\.layers\.\d+)\.(?P<path>\w+)\.(?P<leaf>\w+)$")


def reads(module: str) -> Reads | None:
    """What a Linear of a layer reads, or None for any other module."""
    found = _LAYER_PART.match(module)
    part = None if found is None else _PART_AT.get(found["path"])
    if found is None or part is None:
        return None
    inside = f"{found['layer']}.{part.path}"
    behind = tuple(f"{inside}.{leaf}" for leaf in part.behind.get(found["leaf"], ()))
    gate = part.gated.get(found["leaf"])
    norm = f"{found['layer']}.{part.norm}"
    return Reads(found["layer"], norm, behind, None if gate is None else f"{inside}.{gate}")


def fused_versions() -> str:
    """The versions that `FUSED` was read from, in words."""
    oldest, newest = (".".join(map(str, version)) for version in FAMILY.fused_in)
    return f"vLLM {oldest} to {newest}"


def group_key(module: str) -> str | None:
    """The fused product that a module belongs to, as `prefix.fused`, or None."""
    prefix, _, leaf = module.rpartition(".")
    fused = _FUSED_OF.get(leaf)
    return f"{prefix}.{fused}" if fused is not None and prefix else None


def fused_groups(modules: Iterable[str]) -> list[FusedGroup]:
    """The fused groups among `modules` (full names), in order of first appearance.

    A group of which only one member is present is no group. The vision tower has none: its
    query, key and value are one matrix in the checkpoint already.
    """
    found: dict[str, set[str]] = {}
    for module in modules:
        key = group_key(module)
        if key is not None:
            found.setdefault(key, set()).add(module)
    groups = []
    for key, present in found.items():
        prefix, _, fused = key.rpartition(".")
        members = tuple(
            f"{prefix}.{leaf}" for leaf in FUSED[fused] if f"{prefix}.{leaf}" in present
        )
        if len(members) > 1:
            groups.append(FusedGroup(prefix, fused, members))
    return groups


def protected_reason(module: str) -> str | None:
    """Why a module must not be quantized, or None."""
    found = FAMILY.protected.items()
    return next((why for pattern, why in found if re.search(pattern, module)), None)


def served_name(module: str) -> str:
    """Name of a module in vLLM, which renames plain names of a config too, but no patterns.

    Args:
        module: Name in the checkpoint, for example `model.language_model.layers.0.mlp.up_proj`.
    """
    for prefix, new in FAMILY.served.items():
        if module.startswith(prefix):
            return new + module.removeprefix(prefix)
    return module
