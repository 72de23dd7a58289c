"""The joint schema head: final hidden states in, one logit per allowed option out.

Every record's options attend to its own tokens (evidence routing), its fields are built from the
routed options and decided jointly by a small decoder, and each option is scored against its
field, beside a prior from the language model's output embeddings. Many records are read in one
pass over ragged tensors; nothing is padded to the longest state.

Parameter names follow the released head's state dict.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from clefq.clef.answers import log_softmax
from clefq.clef.encoding import Encoded
from clefq.clef.head_batch import HeadBatch
from clefq.clef.head_config import HEAD_FILE, HeadConfig, head_folder
from clefq.clef.ragged import AttentionPlan
from clefq.clef.tensor_files import check_head_file

__all__ = ["HeadBatch", "HeadConfig", "JointHead", "log_softmax", "split_logits"]

_MAX_LOG_SCALE = math.log(100.0)
# Options scored at a time: their gathered rows take 8 Ki × 5120 × 4 bytes, 160 MiB.
_SCORE_ROWS = 1 << 13


class RaggedAttention(nn.Module):
    """Multi-head attention with biases, over an `AttentionPlan`.

    Args:
        width: Model width.
        heads: Divides width.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.in_proj_weight = nn.Parameter(torch.empty(3 * width, width))
        self.in_proj_bias = nn.Parameter(torch.zeros(3 * width))
        self.out_proj = nn.Linear(width, width)
        nn.init.xavier_uniform_(self.in_proj_weight)
        nn.init.zeros_(self.out_proj.bias)

    def forward(self, queries: Tensor, memory: Tensor, plan: AttentionPlan) -> Tensor:
        """[query rows, width] attends to [memory rows, width]; gives [query rows, width]."""
        width = queries.shape[-1]
        weight, bias = self.in_proj_weight, self.in_proj_bias
        query = functional.linear(queries, weight[:width], bias[:width])
        key, value = functional.linear(memory, weight[width:], bias[width:]).chunk(2, dim=-1)
        mixed: Tensor = self.out_proj(plan.attend(query, key, value, self.heads))
        return mixed


def _feedforward(width: int, inner: int) -> nn.Sequential:
    # The two identities keep the released names (`.0`, `.3`), where dropout stood.
    return nn.Sequential(nn.Linear(width, inner), nn.GELU(), nn.Identity(), nn.Linear(inner, width))


class EvidenceLayer(nn.Module):
    """Options read the record's memory, then pass a feed-forward; both pre-norm and residual."""

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        width = config.width
        self.query_norm = nn.LayerNorm(width)
        self.memory_norm = nn.LayerNorm(width)
        self.attention = RaggedAttention(width, config.heads)
        self.feedforward_norm = nn.LayerNorm(width)
        self.feedforward = _feedforward(width, config.feedforward)

    def forward(self, options: Tensor, memory: Tensor, plan: AttentionPlan) -> Tensor:
        """[options, width] and [tokens, width] give [options, width]."""
        normed = self.memory_norm(memory)
        options = options + self.attention(self.query_norm(options), normed, plan)
        mixed: Tensor = options + self.feedforward(self.feedforward_norm(options))
        return mixed


class FieldLayer(nn.Module):
    """Pre-norm decoder layer: fields see each other, then the memory, then a feed-forward."""

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        width, inner = config.width, config.feedforward
        self.self_attn = RaggedAttention(width, config.heads)
        self.multihead_attn = RaggedAttention(width, config.heads)
        self.linear1 = nn.Linear(width, inner)
        self.linear2 = nn.Linear(inner, width)
        self.norm1 = nn.LayerNorm(width)
        self.norm2 = nn.LayerNorm(width)
        self.norm3 = nn.LayerNorm(width)

    def forward(self, fields: Tensor, memory: Tensor, batch: HeadBatch) -> Tensor:
        """[questions, width] and [tokens, width] give [questions, width]."""
        normed = self.norm1(fields)
        fields = fields + self.self_attn(normed, normed, batch.fields_to_fields)
        fields = fields + self.multihead_attn(self.norm2(fields), memory, batch.fields_to_memory)
        inner = functional.gelu(self.linear1(self.norm3(fields)))
        mixed: Tensor = fields + self.linear2(inner)
        return mixed


class JointHead(nn.Module):
    """The joint schema head.

    Args:
        config: Its dimensions.
    """

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        hidden, width = config.hidden_size, config.width
        self.config = config
        self.hidden_norm = nn.LayerNorm(hidden)
        self.memory_projection = nn.Linear(hidden, width, bias=False)
        self.question_projection = nn.Linear(hidden, width, bias=False)
        self.option_question_projection = nn.Linear(hidden, width, bias=False)
        self.global_projection = nn.Linear(hidden, width, bias=False)
        self.option_context_projection = nn.Linear(hidden, width, bias=False)
        self.option_lexical_projection = nn.Linear(hidden, width, bias=False)
        self.type_embedding = nn.Embedding(3, width)
        self.evidence_layers = nn.ModuleList(
            EvidenceLayer(config) for _ in range(config.routing_layers)
        )
        self.option_summary_norm = nn.LayerNorm(width)
        self.layers = nn.ModuleList(FieldLayer(config) for _ in range(config.layers))
        self.field_norm = nn.LayerNorm(width)
        self.option_norm = nn.LayerNorm(width)
        self.residual_scorer = nn.Sequential(
            nn.Linear(4 * width, width), nn.GELU(), nn.Identity(), nn.Linear(width, 1)
        )
        self.prior_logit_scale = nn.Parameter(torch.zeros(()))
        self.joint_logit_scale = nn.Parameter(torch.zeros(()))
        self.residual_gate = nn.Parameter(torch.zeros(()))

    @classmethod
    def from_folder(
        cls,
        folder: Path,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> JointHead:
        """Loads the head of a checkpoint, from the folder itself or its `clef_head/`.

        Args:
            folder: The checkpoint.
            dtype: Type of the weights and of all arithmetic in the head.
            device: Where the weights go.

        Raises:
            CheckpointError: The head or its config is missing, cut short, or of the wrong shape.
        """
        from safetensors.torch import load_file

        config = HeadConfig.from_folder(folder)
        path = head_folder(folder) / HEAD_FILE
        check_head_file(path, config)
        with torch.device("meta"):
            head = cls(config)
        weights = load_file(path, device=str(device))
        # assign: the meta module has no storage to copy into
        head.load_state_dict({name: w.to(dtype) for name, w in weights.items()}, assign=True)
        return head.eval()

    def forward(self, hidden: Tensor, batch: HeadBatch, lexical_rows: Tensor) -> Tensor:
        """Logits of all options of all questions of all records.

        Args:
            hidden: The records' final hidden states (after the backbone's last norm),
                concatenated in batch order without padding, [tokens, hidden_size], any dtype.
            batch: Index tensors of the same records, on the same device.
            lexical_rows: `lm_head.weight[batch.option_token_ids]`, [option tokens, hidden_size].

        Returns:
            [options], in the head's dtype, ordered by record, question, option.
        """
        memory, questions, contexts, globals_ = self._read(hidden, batch)
        lexical = _span_means(
            lexical_rows.to(memory.dtype),
            torch.arange(len(lexical_rows), device=memory.device),
            batch.option_token_offsets,
        )
        asked = self.option_question_projection(questions)[batch.option_question]
        options = self.option_context_projection(contexts)
        options = options + self.option_lexical_projection(lexical) + asked
        for layer in self.evidence_layers:
            options = layer(options, memory, batch.options_to_memory)
        fields = self._fields(questions, options, globals_, batch)
        for layer in self.layers:
            fields = layer(fields, memory, batch)
        anchors = questions + globals_[batch.question_record]
        return self._score(self.field_norm(fields), options, anchors, lexical, batch)

    def _read(self, hidden: Tensor, batch: HeadBatch) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Memory [tokens, width]; question, option and last-token vectors [·, hidden_size]."""
        dtype = self.memory_projection.weight.dtype
        parts: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []
        for chunk in batch.chunks:
            normed = self.hidden_norm(hidden[chunk.start : chunk.end].to(dtype))
            parts.append(
                (
                    self.memory_projection(normed),
                    _span_means(normed, chunk.question_tokens, chunk.question_offsets),
                    _span_means(normed, chunk.option_tokens, chunk.option_offsets),
                    normed[chunk.last_tokens],
                )
            )
        if len(parts) == 1:
            return parts[0]
        memory, questions, contexts, globals_ = (
            torch.cat(part) for part in zip(*parts, strict=True)
        )
        return memory, questions, contexts, globals_

    def _fields(
        self, questions: Tensor, options: Tensor, globals_: Tensor, batch: HeadBatch
    ) -> Tensor:
        """Initial fields [questions, width], with the options summed by routing weight."""
        base = self.question_projection(questions)
        scores = (options * base[batch.option_question]).sum(-1) / math.sqrt(options.shape[-1])
        # softmax per question, over a matrix padded with -inf
        padded = scores.new_full((len(base) * batch.max_options,), -math.inf)
        padded = padded.index_copy(0, batch.option_slot, scores).view(len(base), -1)
        weights = padded.softmax(-1).flatten()[batch.option_slot]
        summary = functional.embedding_bag(
            batch.option_rows,
            options,
            batch.question_offsets,
            mode="sum",
            per_sample_weights=weights,
        )
        broadcast = self.global_projection(globals_)[batch.question_record]
        types = self.type_embedding(batch.type_ids)
        fields: Tensor = base + self.option_summary_norm(summary) + broadcast + types
        return fields

    def _score(
        self, fields: Tensor, options: Tensor, anchors: Tensor, lexical: Tensor, batch: HeadBatch
    ) -> Tensor:
        anchors = functional.normalize(anchors, dim=-1)
        prior_scale = self.prior_logit_scale.clamp(max=_MAX_LOG_SCALE).exp()
        joint_scale = self.joint_logit_scale.clamp(max=_MAX_LOG_SCALE).exp()
        gate = torch.sigmoid(self.residual_gate)
        logits = []
        for start in range(0, batch.options, _SCORE_ROWS):
            rows = slice(start, start + _SCORE_ROWS)
            question = batch.option_question[rows]
            words = functional.normalize(lexical[rows], dim=-1)
            prior = prior_scale * (words * anchors[question]).sum(-1)
            option = self.option_norm(options[rows])
            field = fields[question]
            cosine = functional.cosine_similarity(field, option, dim=-1)
            features = torch.cat([field, option, field * option, (field - option).abs()], dim=-1)
            joint = joint_scale * cosine + self.residual_scorer(features).squeeze(-1)
            logits.append(prior + gate * joint)
        return logits[0] if len(logits) == 1 else torch.cat(logits)


def split_logits(flat: Tensor, encoded: Sequence[Encoded]) -> list[dict[str, np.ndarray]]:
    """Splits flat logits by record and question.

    Args:
        flat: [options] as `JointHead.forward` gives them.
        encoded: The records of the batch, in the same order.

    Returns:
        Per record, question id to float64 logits in prompt order of the options.
    """
    values = flat.detach().to("cpu", torch.float64).numpy()
    results: list[dict[str, np.ndarray]] = []
    start = 0
    for record in encoded:
        logits = {}
        for question in record.questions:
            end = start + len(question.option_ids)
            logits[question.id] = values[start:end]
            start = end
        results.append(logits)
    if start != len(values):
        raise ValueError(f"{len(values)} logits for {start} options")
    return results


def _span_means(values: Tensor, tokens: Tensor, offsets: Tensor) -> Tensor:
    """Mean of `values` over each span, without materializing the gathered rows."""
    return functional.embedding_bag(tokens, values, offsets, mode="mean")
