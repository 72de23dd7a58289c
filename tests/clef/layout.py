"""A small checkpoint folder, written by hand so that any dtype and any damage can be made."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from clefq.clef.head_config import HeadConfig
from clefq.clef.weight_files import INDEX

HEAD = HeadConfig(hidden_size=8, width=4, routing_layers=1, layers=1, heads=2, feedforward=8)
VOCABULARY = 20
HIDDEN = (VOCABULARY, 8)
LAYER = "model.language_model.layers.0"
MODULES = (
    "input_layernorm", "post_attention_layernorm", "mlp.gate_proj", "mlp.down_proj",
    "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
    "self_attn.q_norm", "self_attn.k_norm",
)  # fmt: skip
PROJECTION = "model.language_model.layers.0.mlp.up_proj.weight"


def write_tensors(path: Path, tensors: dict[str, tuple[str, tuple[int, ...]]]) -> None:
    """A safetensors file written by hand, so that any dtype can be named."""
    size = {"BF16": 2, "F32": 4, "U8": 1, "F8_E4M3": 1}
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, (dtype, shape) in tensors.items():
        end = at + int(np.prod(shape)) * size[dtype]
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, end]}
        at = end
    raw = json.dumps(header).encode()
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(struct.pack("<Q", len(raw)) + raw + bytes(at))


def write_index(folder: Path, shards: dict[str, dict[str, tuple[str, tuple[int, ...]]]]) -> None:
    for file, tensors in shards.items():
        write_tensors(folder / file, tensors)
    weight_map = {name: file for file, tensors in shards.items() for name in tensors}
    (folder / INDEX).write_text(json.dumps({"weight_map": weight_map}))


SHARDS: dict[str, dict[str, tuple[str, tuple[int, ...]]]] = {
    "model-00001-of-00002.safetensors": {
        "model.language_model.embed_tokens.weight": ("BF16", HIDDEN),
        PROJECTION: ("BF16", (16, 8)),
        **{f"{LAYER}.{module}.weight": ("BF16", (2,)) for module in MODULES},
    },
    "model-00002-of-00002.safetensors": {
        "lm_head.weight": ("BF16", HIDDEN),
        "model.language_model.norm.weight": ("F32", (8,)),
    },
}


def config() -> dict[str, Any]:
    return {
        "model_type": "qwen3_5",
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "text_config": {
            "hidden_size": 8,
            "vocab_size": VOCABULARY,
            "tie_word_embeddings": False,
            "num_hidden_layers": 1,
            "layer_types": ["full_attention"],
        },
    }


def edit(path: Path, change: Callable[[Any], Any]) -> None:
    value = json.loads(path.read_text())
    path.write_text(json.dumps(change(value) or value))


def write_checkpoint(folder: Path, tokenizer_folder: Path) -> Path:
    """A whole checkpoint in two shards."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config()))
    shutil.copy(tokenizer_folder / "tokenizer.json", folder)
    (folder / "joint_head_config.json").write_text(json.dumps(asdict(HEAD)))
    head = {name: ("BF16", shape) for name, shape in HEAD.tensor_shapes().items()}
    write_tensors(folder / "joint_head.safetensors", head)
    write_index(folder, SHARDS)
    return folder
