"""Clef as a vLLM pooling model: vLLM's own Qwen3.5 backbone with the joint head on top.

Loaded by vLLM through the name in `clefq.serving.layout.ARCHITECTURE`. Nothing here may be
imported outside of vLLM's processes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from vllm.config import VllmConfig
from vllm.model_executor.layers.linear import UnquantizedLinearMethod
from vllm.model_executor.layers.vocab_parallel_embedding import (
    UnquantizedEmbeddingMethod,
    VocabParallelEmbedding,
)
from vllm.model_executor.models.interfaces_base import default_pooling_type
from vllm.model_executor.models.qwen3_5 import (
    Qwen3_5ForConditionalGeneration,
    Qwen3_5ProcessingInfo,
)
from vllm.model_executor.models.qwen3_vl import (
    Qwen3VLDummyInputsBuilder,
    Qwen3VLMultiModalProcessor,
)
from vllm.multimodal import MULTIMODAL_REGISTRY

from clefq.clef.head import JointHead
from clefq.clef.head_config import HEAD_FILE
from clefq.serving.deltanet import FLASHINFER_HEAD, fits_flashinfer
from clefq.serving.gpu_nvfp4 import four_bit_layers
from clefq.serving.head_files import check_format, head_config, head_subfolder
from clefq.serving.pooler import JointHeadPooler

_HEAD_PREFIX = "pooler.head."


@default_pooling_type(tok_pooling_type="ALL")
@MULTIMODAL_REGISTRY.register_processor(
    Qwen3VLMultiModalProcessor,
    info=Qwen3_5ProcessingInfo,
    dummy_inputs=Qwen3VLDummyInputsBuilder,
)
class ClefqForJointSchema(Qwen3_5ForConditionalGeneration):
    """Qwen3.5 whose pooler is Clef's joint head."""

    is_pooling_model = True

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "model") -> None:
        with four_bit_layers(vllm_config):
            super().__init__(vllm_config=vllm_config, prefix=prefix)
        model = vllm_config.model_config
        look_up_rows(self.language_model.lm_head)
        check_deltanet(self, model.hf_text_config.to_dict())
        check_format(model.model)
        subfolder = head_subfolder(model.model)
        config = head_config(model.model, getattr(model.hf_config, "joint_head_config", None))
        # FP32 over BF16-valued weights: the head rounds nothing that a gate could trip over
        head = JointHead(config).float()
        self.pooler = JointHeadPooler(head.eval(), self._embed_rows)
        self._head_file = _head_file(model.model, model.revision, subfolder)

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        """Loads the backbone from vLLM's iterator and the head from its own file.

        The head is not a secondary source of vLLM's loader: with an index in the folder, vLLM
        0.25 drops every file that the index does not name, the head file among them. Without an
        index the main source reads the head file too, under names without our prefix; those
        copies are dropped.
        """
        head = self.pooler.head
        names = set(head.state_dict())
        loaded = super().load_weights(pair for pair in weights if pair[0] not in names)
        head.load_state_dict(load_file(self._head_file), strict=True)
        return loaded | {_HEAD_PREFIX + name for name in names}

    def _embed_rows(self, token_ids: torch.Tensor) -> torch.Tensor:
        # ParallelLMHead forbids look-ups; its parent class does them, across ranks too.
        rows: Any = VocabParallelEmbedding.forward(self.language_model.lm_head, token_ids)
        return rows


def look_up_rows(lm_head: Any) -> None:
    """Lets output embeddings that stay unquantized be looked up.

    Where a quantization leaves them out, some of vLLM's (ModelOpt's) make them a plain Linear.
    """
    if isinstance(lm_head.quant_method, UnquantizedLinearMethod):
        lm_head.quant_method = UnquantizedEmbeddingMethod()


def check_deltanet(model: torch.nn.Module, config: Mapping[str, Any]) -> None:
    """Refuses a DeltaNet kernel that the model does not fit.

    `clefq` asks for another one itself; this is for those who start vLLM themselves.

    Raises:
        ValueError: FlashInfer's kernel was chosen for heads of another size than its own.
    """
    chosen = {getattr(module, "gdn_prefill_backend", None) for module in model.modules()}
    if "flashinfer" in chosen and not fits_flashinfer(config):
        raise ValueError(
            f"FlashInfer's DeltaNet kernel is for heads of {FLASHINFER_HEAD}: start vLLM with "
            "--gdn-prefill-backend triton"
        )


def _head_file(model: str, revision: str | None, subfolder: str | None) -> Path:
    """The head's file in a checkpoint folder, downloaded first where `model` is a hub id."""
    folder = Path(model)
    if folder.is_dir():
        return folder / (subfolder or "") / HEAD_FILE
    from huggingface_hub import hf_hub_download

    return Path(hf_hub_download(model, HEAD_FILE, subfolder=subfolder, revision=revision))
