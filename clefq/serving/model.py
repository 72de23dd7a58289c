"""Clef as a vLLM pooling model: vLLM's own Qwen3.5 backbone with the joint head on top.

Loaded by vLLM through the name in `clefq.serving.layout.ARCHITECTURE`. Nothing here may be
imported outside of vLLM's processes.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from vllm.config import VllmConfig
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding
from vllm.model_executor.model_loader.default_loader import DefaultModelLoader
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
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        model = vllm_config.model_config
        check_format(model.model)
        subfolder = head_subfolder(model.model)
        config = head_config(model.model, getattr(model.hf_config, "joint_head_config", None))
        # FP32 over BF16-valued weights: the head rounds nothing that a gate could trip over
        head = JointHead(config).float()
        self.pooler = JointHeadPooler(head.eval(), self._embed_rows)
        self.secondary_weights = [
            DefaultModelLoader.Source(
                model_or_path=str(Path(model.model) / subfolder) if subfolder else model.model,
                revision=model.revision,
                prefix=_HEAD_PREFIX,
                allow_patterns_overrides=[HEAD_FILE],
            )
        ]

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        """Loads backbone and head; the head's second copy is dropped.

        A folder without `model.safetensors.index.json` makes vLLM read every safetensors file in
        it as backbone, the head file included, under names without our prefix.
        """
        head_names = set(self.pooler.head.state_dict())
        return super().load_weights(pair for pair in weights if pair[0] not in head_names)

    def _embed_rows(self, token_ids: torch.Tensor) -> torch.Tensor:
        # ParallelLMHead forbids look-ups; its parent class does them, across ranks too.
        rows: Any = VocabParallelEmbedding.forward(self.language_model.lm_head, token_ids)
        return rows
