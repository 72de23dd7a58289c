"""The tensors that a Qwen3.5 checkpoint holds before quantization, from its config alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from clefq.clef.backbone import layer_types

Shapes = dict[str, tuple[int, ...]]

_LINEAR_LEAVES = ("bias", "weight")
# Linears of the vision tower; its convolution and its embedding are no Linears
_VISION_LINEARS = ("attn.qkv", "attn.proj", "mlp.linear_fc1", "mlp.linear_fc2")


def text_prefix(names: Iterable[str]) -> str:
    """`model.language_model` for a Clef, `model` for a text-only checkpoint."""
    return (
        "model.language_model"
        if any(name.startswith("model.language_model.") for name in names)
        else "model"
    )


def expected_tensors(config: Mapping[str, Any], prefix: str) -> Shapes | None:
    """Name and shape of every tensor of the unquantized model, or None if it is no Qwen3.5.

    Args:
        config: The whole `config.json`, or the text part of a text-only checkpoint.
        prefix: Module path of the text model, from `text_prefix`.
    """
    text = config.get("text_config", config)
    if not isinstance(text, Mapping) or text.get("model_type") not in ("qwen3_5", "qwen3_5_text"):
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
        layer = _full(text) if kind == "full_attention" else _delta(text)
        layer |= _common(text)
        shapes |= {f"{prefix}.layers.{index}.{name}": shape for name, shape in layer.items()}
    shapes[f"{prefix}.norm.weight"] = (hidden,)
    if not (tied or text.get("tie_word_embeddings", False)):
        shapes["lm_head.weight"] = (vocabulary, hidden)
    return shapes


def _common(text: Mapping[str, Any]) -> Shapes:
    hidden, width = text["hidden_size"], text["intermediate_size"]
    return {
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
        "mlp.gate_proj.weight": (width, hidden),
        "mlp.up_proj.weight": (width, hidden),
        "mlp.down_proj.weight": (hidden, width),
    }


def _full(text: Mapping[str, Any]) -> Shapes:
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


def _delta(text: Mapping[str, Any]) -> Shapes:
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
    return {f"model.visual.{name}": shape for name, shape in shapes.items()}


def linear_modules(shapes: Shapes) -> list[str]:
    """The Linears among the expected tensors, by module name, in model order."""
    return [
        name.removesuffix(".weight")
        for name, shape in shapes.items()
        if len(shape) == 2
        and name.endswith(".weight")
        and not name.endswith(("embed_tokens.weight", "pos_embed.weight"))
    ]
