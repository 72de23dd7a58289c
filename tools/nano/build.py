"""Builds the miniature's checkpoint folder, laid out as a release lays it out.

The shape is the real architecture at a small scale, in dimensions that real kernels accept:
input sizes are multiples of 128 (Marlin's K, and of NVFP4's group of 16), fused output sizes
multiples of 64 (Marlin's N), DeltaNet heads 64 wide. Three Gated DeltaNet layers go with one
full-attention layer, the embeddings are untied, and the vision tower merges 2×2 patches.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clefq.nano import WEIGHTS
from tools.nano.tokenizer import (
    END_OF_TEXT,
    END_OF_TURN,
    IMAGE_PAD,
    VIDEO_PAD,
    VISION_END,
    VISION_START,
    VOCAB_SIZE,
    tokenizer_settings,
)

if TYPE_CHECKING:
    import torch

HEAD = {
    "hidden_size": 256,
    "width": 128,
    "routing_layers": 1,
    "layers": 2,
    "heads": 4,
    "feedforward": 256,
}
TEXT: dict[str, Any] = {
    "hidden_size": 256,
    "intermediate_size": 256,
    "num_hidden_layers": 8,
    "full_attention_interval": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
    "linear_conv_kernel_dim": 4,
    "vocab_size": VOCAB_SIZE,
    "max_position_embeddings": 16384,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 100000.0,
        "partial_rotary_factor": 0.25,
        # time, height, width share the 8 rotary frequencies of a 64-wide head
        "mrope_section": [3, 3, 2],
        "mrope_interleaved": True,
    },
}
VISION: dict[str, Any] = {
    "depth": 2,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_heads": 2,
    "out_hidden_size": 256,
    "patch_size": 16,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "num_position_embeddings": 64,
}
_PIXELS = {
    "do_convert_rgb": True,
    "do_normalize": True,
    "do_rescale": True,
    "do_resize": True,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
    "merge_size": 2,
    "patch_size": 16,
    "temporal_patch_size": 2,
}
IMAGE_PROCESSOR: dict[str, Any] = {
    **_PIXELS,
    "image_processor_type": "Qwen2VLImageProcessor",
    "resample": 3,
    "rescale_factor": 1 / 255,
    "size": {"longest_edge": 65536, "shortest_edge": 1024},
}
VIDEO_PROCESSOR: dict[str, Any] = {
    **_PIXELS,
    "do_sample_frames": True,
    "fps": 2,
    "max_frames": 16,
    "min_frames": 4,
    "resample": 3,
    "rescale_factor": 1 / 255,
    "size": {"longest_edge": 262144, "shortest_edge": 4096},
    "video_processor_type": "Qwen3VLVideoProcessor",
}
CHAT_TEMPLATE = (
    "{%- for message in messages %}<|im_start|>{{ message.role }}\n"
    "{{ message.content }}<|im_end|>\n{% endfor %}"
    "{%- if add_generation_prompt %}<|im_start|>assistant\n<think>\n\n</think>\n\n{% endif %}"
)
SHARD_SIZE = "6MB"


def nano_config(token_ids: Mapping[str, int]) -> Any:
    """The backbone's `Qwen3_5Config`.

    Args:
        token_ids: Token → id, the special tokens included.
    """
    from transformers import Qwen3_5Config

    text = {
        **TEXT,
        "eos_token_id": token_ids[END_OF_TURN],
        "pad_token_id": token_ids[END_OF_TEXT],
    }
    config = Qwen3_5Config(
        text_config=text,
        vision_config=dict(VISION),
        tie_word_embeddings=False,
        image_token_id=token_ids[IMAGE_PAD],
        video_token_id=token_ids[VIDEO_PAD],
        vision_start_token_id=token_ids[VISION_START],
        vision_end_token_id=token_ids[VISION_END],
    )
    config.architectures = ["Qwen3_5ForConditionalGeneration"]
    return config


def token_ids_of(tokenizer_file: Path) -> dict[str, int]:
    """Token → id of a `tokenizer.json`, added tokens included."""
    value = json.loads(tokenizer_file.read_text(encoding="utf-8"))
    added = {token["content"]: token["id"] for token in value["added_tokens"]}
    return {**value["model"]["vocab"], **added}


def write_static_files(folder: Path, tokenizer_file: Path, license_file: Path) -> None:
    """Writes what does not depend on the weights: tokenizer, processor, template, head config."""
    folder.mkdir(parents=True, exist_ok=True)
    if tokenizer_file.resolve() != (folder / "tokenizer.json").resolve():
        shutil.copyfile(tokenizer_file, folder / "tokenizer.json")
    if license_file.resolve() != (folder / "LICENSE").resolve():
        shutil.copyfile(license_file, folder / "LICENSE")
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")
    files = {
        "tokenizer_config.json": tokenizer_settings(),
        "processor_config.json": {
            "image_processor": IMAGE_PROCESSOR,
            "processor_class": "Qwen3VLProcessor",
            "video_processor": VIDEO_PROCESSOR,
        },
        "preprocessor_config.json": {**IMAGE_PROCESSOR, "processor_class": "Qwen3VLProcessor"},
        "video_preprocessor_config.json": {
            **VIDEO_PROCESSOR,
            "processor_class": "Qwen3VLProcessor",
        },
        "joint_head_config.json": HEAD,
    }
    for name, value in files.items():
        text = json.dumps(value, indent=2, sort_keys=True) + "\n"
        (folder / name).write_text(text, encoding="utf-8")


def write_weights(folder: Path, backbone: Any, head_state: Mapping[str, torch.Tensor]) -> None:
    """Writes backbone shards with their index, config files and the head, all in BF16."""
    import torch
    from safetensors.torch import save_file

    backbone = backbone.to(torch.bfloat16)
    backbone.config.dtype = torch.bfloat16
    backbone.config.use_cache = True
    backbone.save_pretrained(folder, max_shard_size=SHARD_SIZE)
    state = {name: value.to(torch.bfloat16).contiguous() for name, value in head_state.items()}
    save_file(state, folder / "joint_head.safetensors", metadata={"format": "pt"})
    for path in folder.glob("*.safetensors"):
        path.chmod(0o644)


def write_release(
    folder: Path, backbone: Any, head_state: Mapping[str, torch.Tensor], tokenizer_file: Path
) -> None:
    """Writes a whole checkpoint folder."""
    write_static_files(folder, tokenizer_file, WEIGHTS / "LICENSE")
    write_weights(folder, backbone, head_state)


def build_random(folder: Path, *, seed: int = 0, tokenizer_file: Path | None = None) -> Path:
    """A checkpoint of the shipped shape with random weights, for tests and kernel checks.

    Norm gains are drawn around 1 with 10% spread, biases and gates are not zero: nothing that
    quantization must leave alone has a trivial value.

    Args:
        folder: Where to write; created if missing.
        seed: Of all weights.
        tokenizer_file: Defaults to the shipped tokenizer.

    Returns:
        `folder`.
    """
    import torch
    from transformers import Qwen3_5ForConditionalGeneration

    from clefq.clef.head import HeadConfig, JointHead

    tokenizer_file = tokenizer_file or WEIGHTS / "tokenizer.json"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        backbone = Qwen3_5ForConditionalGeneration(nano_config(token_ids_of(tokenizer_file)))
        head = JointHead(HeadConfig(**HEAD))
        for module in (backbone, head):
            _disturb(module)
    write_release(folder, backbone, head.state_dict(), tokenizer_file)
    return folder


def _disturb(module: torch.nn.Module) -> None:
    """Moves norms, biases and scalar gates off their trivial starting values."""
    import torch

    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if name.endswith(("_logit_scale", "residual_gate")):
                parameter.fill_(0.75)
            elif parameter.ndim == 1 and not name.endswith(("A_log", "dt_bias")):
                parameter.add_(torch.randn_like(parameter) * 0.1)
