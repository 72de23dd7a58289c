"""Random miniature Clefs in the release layout, built from `clef-finetune`, and small sets.

Norms are off their trivial values and the members of fused groups have different ranges: what
goes wrong with norms and with shared scales shows.
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from clefq.clef.records import parse_record
from clefq.store.sets import SetDraft, SourceInfo, write_set

WORDS = ["parcel", "refund", "blå", "雨", "broken", "invoice", "42", "العربية", "🙂", "door"]
IMAGES = {
    "image_processor_type": "Qwen2VLImageProcessor",
    "patch_size": 16,
    "merge_size": 2,
    "temporal_patch_size": 2,
    "size": {"shortest_edge": 1024, "longest_edge": 16384},
}
# how wide each kind of Linear is, relative to the others
RANGES = {"in_proj_z": 0.6, "up_proj": 1.5, "k_proj": 0.7, "v_proj": 1.2}


@dataclass(frozen=True)
class Shape:
    """Dimensions of a miniature."""

    hidden: int = 256
    width: int = 512
    layers: int = 4
    heads: int = 4
    head_dim: int = 64


def build_release(folder: Path, shape: Shape = Shape(), seed: int = 0) -> Path:
    """A random checkpoint that the unmodified release code loads."""
    from clef_finetune import tiny
    from clef_finetune.jsm import VENDORED_PATH, load_jsm
    from transformers import Qwen3_5ForConditionalGeneration

    folder.mkdir(parents=True)
    tokenizer = tiny._tokenizer(512)
    config = tiny.tiny_config(tokenizer, 512)
    text = config.text_config
    text.hidden_size, text.intermediate_size = shape.hidden, shape.width
    text.num_attention_heads, text.head_dim = shape.heads, shape.head_dim
    text.linear_key_head_dim = text.linear_value_head_dim = shape.head_dim // 2
    text.num_hidden_layers = shape.layers
    text.layer_types = [
        "full_attention" if (i + 1) % 4 == 0 else "linear_attention" for i in range(shape.layers)
    ]
    config.vision_config.out_hidden_size = shape.hidden
    head = dict(tiny.TINY_HEAD, hidden_size=shape.hidden)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        Qwen3_5ForConditionalGeneration(config).to(torch.bfloat16).save_pretrained(folder)
        weights = load_jsm().JointSchemaHead(**head).state_dict()
        _stir(folder / "model.safetensors", seed)
    tokenizer.save_pretrained(folder)
    bf16 = {name: value.to(torch.bfloat16).contiguous() for name, value in weights.items()}
    save_file(bf16, folder / "joint_head.safetensors")
    (folder / "joint_head_config.json").write_text(json.dumps(head))
    (folder / "processor_config.json").write_text(json.dumps({"image_processor": IMAGES}))
    (folder / "LICENSE").write_text("Apache-2.0\n")
    shutil.copy(VENDORED_PATH, folder / "joint_schema_model.py")
    return folder


def _stir(path: Path, seed: int) -> None:
    tensors = load_file(path)
    generator = torch.Generator().manual_seed(seed + 1)
    for name, value in tensors.items():
        leaf = name.split(".")[-2] if "." in name else name
        if value.ndim == 1:
            noise = 0.3 * torch.randn(value.shape, generator=generator)
            tensors[name] = (value.float() + noise).to(value.dtype)
        elif leaf in RANGES:
            tensors[name] = (value.float() * RANGES[leaf]).to(value.dtype)
    save_file(tensors, path, metadata={"format": "pt"})


def reshard(source: Path, target: Path, place: Callable[[str], int]) -> Path:
    """A copy of a release with its tensors spread over shards; `place` says which."""
    shutil.copytree(source, target)
    tensors = load_file(target / "model.safetensors")
    (target / "model.safetensors").unlink()
    shards: dict[int, dict[str, torch.Tensor]] = {}
    for name, value in tensors.items():
        shards.setdefault(place(name), {})[name] = value
    table = {}
    for number, (_, content) in enumerate(sorted(shards.items()), start=1):
        file = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        save_file(content, target / file, metadata={"format": "pt"})
        table |= dict.fromkeys(content, file)
    index = {"metadata": {"total_size": 0}, "weight_map": table}
    (target / "model.safetensors.index.json").write_text(json.dumps(index))
    return target


def build_set(folder: Path, records: int = 4, seed: int = 0, image: Path | None = None) -> Path:
    """A small calibration set of text records, the first with an image if one is given."""
    rng = random.Random(seed)
    rows = []
    for i in range(records):
        value = {
            "id": f"r{i}",
            "cohort": "words",
            "state": " ".join(rng.choices(WORDS, k=20 + 10 * i)),
            "questions": {
                "kind": {"type": "choice", "criteria": {"bill": "a bill", "other": None}},
                "urgent": {"type": "noul", "instructions": "Is it urgent?"},
            },
        }
        if image is not None and i == 0:
            value["images"] = ["images/a.png"]
        rows.append(parse_record(value, f"row {i}"))
    source = SourceInfo("words", "", "generated", None, {}, "CC0-1.0", None)
    draft = SetDraft("calibration", "words", {"seed": seed}, (source,))
    write_set(folder, rows, {} if image is None else {"images/a.png": image}, draft)
    return folder


def build_image(path: Path) -> Path:
    """A small colourful picture."""
    from PIL import Image

    rng = random.Random(0)
    Image.frombytes("RGB", (64, 48), rng.randbytes(64 * 48 * 3)).save(path)
    return path
