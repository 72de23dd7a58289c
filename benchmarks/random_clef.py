"""A random checkpoint in the shape of clef-flash (9B), for speed and memory measurements.

    python benchmarks/random_clef.py OUT --like run/models/bf16 [--shape flash] [--layers 32]

Tokenizer, processor and other small files come from the checkpoint at `--like`. Weights are drawn
on the GPU where there is one and go straight to 2 GB shards: the model is never in memory. The
answers mean nothing; two engines must still agree on them.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import save_file

from clefq.clef.head_config import HeadConfig

FLASH = {
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "vocab_size": 248320,
}
# the tower of the Qwen3-VL family that this size comes with
VISION = {
    "depth": 27,
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "num_heads": 16,
    "num_position_embeddings": 2304,
}
SMALL = {**FLASH, "hidden_size": 512, "intermediate_size": 1024, "vocab_size": 4096}
SHAPES = {"flash": FLASH, "small": SMALL}
HEADS = {
    "flash": HeadConfig(4096, 1024, 2, 4, 16, 4096),
    "small": HeadConfig(512, 256, 2, 4, 4, 512),
}
SHARD_BYTES = 2 << 30


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--like", type=Path, required=True, help="a Clef checkpoint")
    parser.add_argument("--shape", choices=sorted(SHAPES), default="flash")
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    generator = torch.Generator(device).manual_seed(options.seed)
    options.out.mkdir(parents=True)
    for path in options.like.iterdir():
        if path.is_file() and not path.name.startswith("model") and path.name != "clefq.json":
            shutil.copy(path, options.out / path.name)
    config = config_of(options)
    write_backbone(options.out, config, generator)
    write_head(options.out, HEADS[options.shape], generator)
    size = sum(path.stat().st_size for path in options.out.iterdir())
    print(f"{options.out}: {size / 1e9:.1f} GB")


def config_of(options: argparse.Namespace) -> dict:
    """The config of `--like` with the text model's dimensions exchanged."""
    config = json.loads((options.like / "config.json").read_text())
    kinds = ["linear_attention"] * 3 + ["full_attention"]
    text = config["text_config"] | SHAPES[options.shape]
    text |= {
        "num_hidden_layers": options.layers,
        "layer_types": (kinds * options.layers)[: options.layers],
        "max_position_embeddings": 32768,
    }
    rotary = text["rope_parameters"]
    pairs = int(text["head_dim"] * rotary.get("partial_rotary_factor", 0.25)) // 2
    if "mrope_section" in rotary:
        third = pairs // 3
        rotary["mrope_section"] = [pairs - 2 * third, third, third]
    config["text_config"] = text
    if options.shape == "flash":
        config["vision_config"] |= VISION
    config["vision_config"]["out_hidden_size"] = text["hidden_size"]
    (options.out / "config.json").write_text(json.dumps(config, indent=2))
    return config


def write_backbone(out: Path, config: dict, generator: torch.Generator) -> None:
    from transformers import Qwen3_5Config, Qwen3_5ForConditionalGeneration

    with torch.device("meta"):
        model = Qwen3_5ForConditionalGeneration(Qwen3_5Config(**config))
    shapes = {name: value.shape for name, value in model.state_dict().items()}
    shards: list[dict[str, torch.Size]] = [{}]
    size = 0
    for name, shape in shapes.items():
        if size and size + shape.numel() * 2 > SHARD_BYTES:
            shards.append({})
            size = 0
        shards[-1][name] = shape
        size += shape.numel() * 2
    index = {}
    for number, names in enumerate(shards, start=1):
        file = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        tensors = {name: draw(name, shape, generator) for name, shape in names.items()}
        save_file(tensors, out / file, metadata={"format": "pt"})
        index |= dict.fromkeys(names, file)
    total = sum(shape.numel() * 2 for shape in shapes.values())
    body = {"metadata": {"total_size": total}, "weight_map": index}
    (out / "model.safetensors.index.json").write_text(json.dumps(body))


def write_head(out: Path, config: HeadConfig, generator: torch.Generator) -> None:
    shapes = {name: torch.Size(shape) for name, shape in config.tensor_shapes().items()}
    tensors = {name: draw(name, shape, generator) for name, shape in shapes.items()}
    save_file(tensors, out / "joint_head.safetensors", metadata={"format": "pt"})
    body = {name: getattr(config, name) for name in config.__slots__}
    (out / "joint_head_config.json").write_text(json.dumps(body, indent=2))


def draw(name: str, shape: torch.Size, generator: torch.Generator) -> torch.Tensor:
    """One tensor: variance-preserving matrices, norms near their neutral value."""
    noise = torch.randn(shape, generator=generator, device=generator.device)
    if name.endswith("A_log"):
        value = noise * 0.5 + 1.5
    elif name.endswith(("_logit_scale", "residual_gate")):
        value = noise * 0 + 0.75
    elif name.endswith("embed_tokens.weight"):
        value = noise * 0.5
    elif len(shape) >= 2:
        value = noise / shape[1:].numel() ** 0.5
    elif "norm" in name and name.startswith(("model.language_model", "model.visual")):
        neutral = 1.0 if "linear_attn" in name or "visual" in name else 0.0
        value = noise * 0.1 + (neutral if name.endswith("weight") else 0.0)
    elif "norm" in name and name.endswith("weight"):
        value = noise * 0.1 + 1.0
    else:
        value = noise * 0.1
    return value.to(torch.bfloat16).cpu().contiguous()


if __name__ == "__main__":
    main()
