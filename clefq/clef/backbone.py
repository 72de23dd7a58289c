"""Which modules a Clef backbone consists of, to tell a whole checkpoint from a partial one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

TEXT = "model.language_model"

_COMMON = (
    "input_layernorm",
    "post_attention_layernorm",
    "mlp.gate_proj",
    "mlp.up_proj",
    "mlp.down_proj",
)
_MIXERS = {
    "full_attention": tuple(
        f"self_attn.{name}" for name in ("q_proj", "k_proj", "v_proj", "o_proj", "q_norm", "k_norm")
    ),
    "linear_attention": tuple(
        f"linear_attn.{name}"
        for name in (
            "in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a", "out_proj", "conv1d", "norm",
            "A_log", "dt_bias",
        )
    ),
}  # fmt: skip


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
    known = isinstance(given, list) and all(kind in list(_MIXERS) for kind in given)
    if not known or len(given) != count:
        raise ValueError(f"layer_types does not name the type of each of {count} layers")
    return tuple(given)


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
        expected += [f"{TEXT}.layers.{layer}.{part}" for part in (*_COMMON, *_MIXERS[kind])]
    expected.append(f"{TEXT}.norm")
    return [module for module in expected if module not in present]
