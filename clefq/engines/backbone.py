"""Loads the backbone of a checkpoint, BF16 or quantized, for prefill.

The module tree of transformers, built from the config without its quantization section; every
quantized layer is replaced by a `QuantizedLinear` over the stored tensors, everything else gets
its tensor from the file. No hook, no decompression pass, and no silent gap: a tensor that is
missing or left over is an error.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from clefq.clef.checkpoint import LM_HEAD
from clefq.clef.family import FAMILY
from clefq.clef.formats import FORMATS, Arithmetic
from clefq.engines.quantized import arithmetic_of, find_layers, read_layer, served_scales
from clefq.engines.simulation import InputMemo, QuantizedLinear
from clefq.errors import CheckpointError

if TYPE_CHECKING:
    from clefq.clef.checkpoint import Checkpoint
    from clefq.clef.tensor_files import TensorInfo

# Decoded FP32 weights are kept between passes up to this size; beyond it they are decoded anew.
KEEP_DECODED_BYTES = 2 << 30
# transformers checks a config nowhere in one place: a value of the wrong type surfaces as any of
# these, wherever it is first used.
_CONFIG_FAULTS = (AttributeError, KeyError, RuntimeError, TypeError, ValueError)
_DTYPES = {
    "U8": torch.uint8,
    "F8_E4M3": torch.float8_e4m3fn,
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "F32": torch.float32,
}
_QUANTIZATION_KEYS = ("quantization_config", "compression_config")


@dataclass(slots=True)
class Backbone:
    """A loaded backbone.

    Attributes:
        model: transformers' model of the family, in eval mode.
        arithmetic: Coarsest matrix arithmetic in it.
        warnings: What the user should know, one line each.
        memo: Quantized inputs shared between layers; clear it after each pass.
    """

    model: Any
    arithmetic: Arithmetic
    warnings: tuple[str, ...]
    memo: InputMemo

    @property
    def lexical_table(self) -> Tensor:
        """The output embedding, [vocabulary, hidden], never quantized."""
        weight: Tensor = self.model.lm_head.weight
        return weight

    def clipped(self) -> dict[str, tuple[int, int]]:
        """See `Simulating.clipped`."""
        counts = {
            name: (int(layer.clipping.beyond), int(layer.clipping.blocks))
            for name, layer in self.model.named_modules()
            if isinstance(layer, QuantizedLinear)
        }
        return {name: count for name, count in counts.items() if count[1]}

    def hidden_states(self, token_ids: Tensor) -> Tensor:
        """Final hidden states of right-padded prompts without media.

        No mask is needed: attention, convolution and DeltaNet are causal, so that padding on the
        right changes nothing on its left.

        Args:
            token_ids: int64 [batch, length].

        Returns:
            [batch, length, hidden], after the last norm.
        """
        output = self.model.model.language_model(
            input_ids=token_ids, use_cache=False, return_dict=True
        )
        self.memo.clear()
        hidden: Tensor = output.last_hidden_state
        return hidden

    def hidden_states_with_images(
        self, token_ids: Tensor, is_image: Tensor, pixels: Tensor, grids: Tensor
    ) -> Tensor:
        """Final hidden states of right-padded prompts, some of which hold images.

        Image embeddings go to the positions named by `is_image`, not to every image token: a
        state may spell the token out.

        Args:
            token_ids: int64 [batch, length].
            is_image: bool [batch, length], true on the pad tokens of the media blocks.
            pixels: [patches, patch dimension], images in prompt order.
            grids: int64 [images, 3].

        Returns:
            [batch, length, hidden], after the last norm.
        """
        core = self.model.model
        features = core.get_image_features(pixels, grids, return_dict=True).pooler_output
        embedded = core.get_input_embeddings()(token_ids)
        flat = torch.cat(list(features), dim=0).to(embedded.dtype)
        embedded = embedded.masked_scatter(is_image.unsqueeze(-1), flat)
        positions, _ = core.get_rope_index(
            token_ids, mm_token_type_ids=is_image.to(torch.int64), image_grid_thw=grids
        )
        output = core.language_model(
            inputs_embeds=embedded, position_ids=positions, use_cache=False, return_dict=True
        )
        self.memo.clear()
        hidden: Tensor = output.last_hidden_state
        return hidden


def load_backbone(checkpoint: Checkpoint, dtype: torch.dtype, device: torch.device) -> Backbone:
    """Loads a backbone, tensor by tensor, straight to its device.

    Args:
        checkpoint: An opened checkpoint.
        dtype: Type of everything that is not quantized, and of the activations.
        device: Where it runs.

    Raises:
        CheckpointError: Tensors missing, left over or of a wrong shape, or an unknown format.
    """
    layers = find_layers(checkpoint)
    with _TensorFiles(checkpoint, device) as read:
        # ModelOpt's loader takes the largest factor, which is the smallest divisor
        smallest = checkpoint.modelopt is not None
        scales, warnings = served_scales(layers, read, min if smallest else max)
        model = _skeleton(checkpoint, dtype)
        memo = InputMemo()
        keep = _decoded_bytes(checkpoint, layers) <= KEEP_DECODED_BYTES
        for module, kind in layers.items():
            stored = read_layer(module, kind, read, scales)
            bias = read(f"{module}.bias") if f"{module}.bias" in checkpoint.tensors else None
            layer = QuantizedLinear(stored.weight, stored.quantizer, bias, memo, keep)
            _replace(model, module, layer, checkpoint)
        _fill(model, checkpoint, layers, read, dtype)
    model.to(device)
    if warnings:
        warnings.append(
            "served with one scale for all, as vLLM does; `clefq audit` says by how much that is "
            "off, and `clefq repair` mends it (of ModelOpt: after `clefq convert --keep-faults`)"
        )
    return Backbone(model.eval(), arithmetic_of(layers), tuple(warnings), memo)


class _TensorFiles:
    """Reads tensors by name; opens each shard once."""

    def __init__(self, checkpoint: Checkpoint, device: torch.device) -> None:
        self._checkpoint = checkpoint
        self._device = str(device)
        self._files: dict[Any, Any] = {}

    def __enter__(self) -> _TensorFiles:
        return self

    def __exit__(self, *_: object) -> None:
        self._files.clear()

    def __call__(self, name: str) -> Tensor:
        from safetensors import safe_open

        info = self._checkpoint.tensors[name]
        if self._checkpoint.modelopt is not None:
            return self._translated(info)
        if info.file not in self._files:
            opened = safe_open(info.file, framework="pt", device=self._device)
            self._files[info.file] = opened.__enter__()
        tensor: Tensor = self._files[info.file].get_tensor(name)
        return tensor

    def _translated(self, info: TensorInfo) -> Tensor:
        """A tensor that its file holds under another name, shape or as a reciprocal."""
        data = torch.frombuffer(info.read(), dtype=_DTYPES[info.dtype])
        return data.reshape(info.shape).to(self._device)


def _skeleton(checkpoint: Checkpoint, dtype: torch.dtype) -> Any:
    """The module tree with computed buffers; its parameters are untouched, so cost no memory.

    Raises:
        CheckpointError: transformers makes nothing of `config.json`.
    """
    import transformers
    from huggingface_hub.errors import StrictDataclassError
    from transformers.initialization import no_init_weights

    values = {k: v for k, v in checkpoint.config.items() if k not in _QUANTIZATION_KEYS}
    if isinstance(text := values.get("text_config"), dict):
        values["text_config"] = {k: v for k, v in text.items() if k not in _QUANTIZATION_KEYS}
    try:
        config = getattr(transformers, FAMILY.config_class).from_dict(values)
        config.use_cache = False
        with no_init_weights():
            model_class = getattr(transformers, FAMILY.model_class)
            return model_class._from_config(config, dtype=dtype)
    except (*_CONFIG_FAULTS, StrictDataclassError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise CheckpointError(
            f"{checkpoint.folder / 'config.json'}: transformers cannot build it: {reason}.",
            fix="take config.json from the release, or quantize the source again.",
        ) from error


def _decoded_bytes(checkpoint: Checkpoint, layers: Mapping[str, str]) -> int:
    total = 0
    for module, kind in layers.items():
        suffix, _, per_element = FORMATS[kind].storage.codes
        total += 4 * math.prod(checkpoint.tensors[f"{module}.{suffix}"].shape) * per_element
    return total


def _replace(model: nn.Module, name: str, layer: QuantizedLinear, checkpoint: Checkpoint) -> None:
    parent_name, _, leaf = name.rpartition(".")
    try:
        parent = model.get_submodule(parent_name)
        old = parent.get_submodule(leaf)
    except AttributeError as error:
        raise CheckpointError(f"{checkpoint.folder}: the model has no layer {name}.") from error
    if not isinstance(old, nn.Linear):
        raise CheckpointError(
            f"{checkpoint.folder}: {name} is quantized but is a {type(old).__name__}.",
            fix="quantize the source again with `clefq quantize`.",
        )
    stored = checkpoint.tensors.get(f"{name}.weight_packed") or checkpoint.tensors[f"{name}.weight"]
    size = (stored.shape[0], layer.in_features)
    if size != (old.out_features, old.in_features):
        raise CheckpointError(
            f"{checkpoint.folder}: {name} is {list(size)}, config.json says "
            f"{[old.out_features, old.in_features]}.",
            fix="take config.json from the BF16 source, with this build's quantization_config.",
        )
    setattr(parent, leaf, layer)


def _fill(
    model: Any,
    checkpoint: Checkpoint,
    layers: Mapping[str, str],
    read: _TensorFiles,
    dtype: torch.dtype,
) -> None:
    """Gives every remaining parameter its tensor."""
    by_file: dict[Any, list[str]] = defaultdict(list)
    for name, info in checkpoint.tensors.items():
        if name.rpartition(".")[0] not in layers and not name.startswith(FAMILY.drafts):
            by_file[info.file].append(name)
    wanted = dict(model.named_parameters(remove_duplicate=False))
    faults = []
    for names in by_file.values():
        for name in names:
            target = wanted.pop(name, None)
            if target is None:
                faults.append(f"{name} is no tensor of this model")
            elif tuple(target.shape) != tuple(checkpoint.tensors[name].shape):
                faults.append(f"{name} has shape {list(checkpoint.tensors[name].shape)}")
            else:
                parent, _, leaf = name.rpartition(".")
                tensor = nn.Parameter(read(name).to(dtype), requires_grad=False)
                setattr(model.get_submodule(parent), leaf, tensor)
    if LM_HEAD not in checkpoint.tensors:
        # An opened checkpoint lacks it only where the embeddings are tied.
        wanted.pop(LM_HEAD, None)
        model.lm_head.weight = model.model.language_model.embed_tokens.weight
    faults += [f"{name} is missing" for name in wanted]
    if faults:
        raise CheckpointError(
            f"{checkpoint.folder}: {faults[0]}.",
            fix="copy the whole checkpoint, or quantize the source again.",
            faults=faults[1:5],
        )
