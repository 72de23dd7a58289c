"""Index tensors that let the joint head read many records in one pass, without padding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch
from torch import Tensor

from clefq.clef.encoding import Encoded
from clefq.clef.ragged import SCORE_LIMIT, AttentionPlan

# Tokens whose normalized hidden states are held at a time: 16 Ki × 5120 × 4 bytes is 320 MiB.
CHUNK_TOKENS = 1 << 14


@dataclass(frozen=True, slots=True)
class TokenChunk:
    """Whole records whose hidden states are normalized together.

    Token indices count from the chunk's first token; `*_offsets` mark where each span's indices
    start, as `embedding_bag` takes them.

    Attributes:
        start: First token of the chunk in the batch.
        end: One past its last token.
        question_tokens: Tokens of the instruction spans, int64.
        question_offsets: Start of each question's tokens, int64 [questions of the chunk].
        option_tokens: Tokens of the option spans, int64.
        option_offsets: Start of each option's tokens, int64 [options of the chunk].
        last_tokens: Last token of each record, int64 [records of the chunk].
    """

    start: int
    end: int
    question_tokens: Tensor
    question_offsets: Tensor
    option_tokens: Tensor
    option_offsets: Tensor
    last_tokens: Tensor


@dataclass(frozen=True, slots=True)
class HeadBatch:
    """A batch of records, concatenated without padding in batch order.

    Attributes:
        tokens: Tokens of all records.
        options: Options of all questions of all records.
        chunks: The records in groups of bounded length.
        option_token_ids: Token ids of all option spans, int64 [option tokens]: the rows of
            `lm_head.weight` that the head needs.
        option_token_offsets: Start of each option in `option_token_ids`, int64 [options].
        option_rows: 0 … options − 1, int64.
        option_question: Question of each option, int64 [options].
        option_slot: Place of each option in a padded [questions, `max_options`] matrix, flat.
        question_offsets: First option of each question, int64 [questions].
        question_record: Record of each question, int64 [questions].
        type_ids: Type of each question, int64 [questions].
        max_options: Most options of a question.
        options_to_memory: Attention of a record's options to its tokens.
        fields_to_memory: Attention of a record's fields to its tokens.
        fields_to_fields: Attention of a record's fields to each other.
    """

    tokens: int
    options: int
    chunks: tuple[TokenChunk, ...]
    option_token_ids: Tensor
    option_token_offsets: Tensor
    option_rows: Tensor
    option_question: Tensor
    option_slot: Tensor
    question_offsets: Tensor
    question_record: Tensor
    type_ids: Tensor
    max_options: int
    options_to_memory: AttentionPlan
    fields_to_memory: AttentionPlan
    fields_to_fields: AttentionPlan

    @classmethod
    def build(
        cls,
        encoded: Sequence[Encoded],
        device: torch.device | str = "cpu",
        *,
        pad: bool = True,
        chunk_tokens: int = CHUNK_TOKENS,
        score_limit: int = SCORE_LIMIT,
    ) -> HeadBatch:
        """Builds the index tensors of a batch.

        Args:
            encoded: At least one record; spans count from each record's own start.
            device: Where the tensors go.
            pad: Attend to records of similar size together.
            chunk_tokens: Most tokens normalized at a time (at least one record).
            score_limit: Most query-key pairs of one attention call.

        Raises:
            ValueError: No records.
        """
        if not encoded:
            raise ValueError("a head batch needs at least one record")
        lengths = [len(record.token_ids) for record in encoded]
        fields = [len(record.questions) for record in encoded]
        counts = [len(q.option_spans) for record in encoded for q in record.questions]
        options = [sum(len(q.option_spans) for q in record.questions) for record in encoded]
        ids = [
            record.token_ids[start:end]
            for record in encoded
            for question in record.questions
            for start, end in question.option_spans
        ]
        count = np.array(counts)
        question = np.repeat(np.arange(len(counts)), count)
        widest = int(count.max())
        first = _starts(counts)
        place = np.arange(len(question)) - first[question]

        def on(values: np.ndarray) -> Tensor:
            return torch.from_numpy(np.ascontiguousarray(values, dtype=np.int64)).to(device)

        def plan(query_lengths: list[int], key_lengths: list[int]) -> AttentionPlan:
            return AttentionPlan.build(
                query_lengths, key_lengths, device, pad=pad, score_limit=score_limit
            )

        return cls(
            tokens=sum(lengths),
            options=len(ids),
            chunks=tuple(_token_chunks(encoded, device, chunk_tokens)),
            option_token_ids=on(np.fromiter(chain.from_iterable(ids), dtype=np.int64)),
            option_token_offsets=on(_starts([len(span) for span in ids])),
            option_rows=on(np.arange(len(ids))),
            option_question=on(question),
            option_slot=on(question * widest + place),
            question_offsets=on(first),
            question_record=on(np.repeat(np.arange(len(encoded)), fields)),
            type_ids=on(np.array([q.type_id for record in encoded for q in record.questions])),
            max_options=widest,
            options_to_memory=plan(options, lengths),
            fields_to_memory=plan(fields, lengths),
            fields_to_fields=plan(fields, fields),
        )


def _starts(lengths: Sequence[int]) -> np.ndarray:
    return np.cumsum([0, *lengths[:-1]])


def _token_chunks(
    encoded: Sequence[Encoded], device: torch.device | str, limit: int
) -> list[TokenChunk]:
    groups: list[list[Encoded]] = []
    size = 0
    for record in encoded:
        if groups and size + len(record.token_ids) <= limit:
            groups[-1].append(record)
            size += len(record.token_ids)
        else:
            groups.append([record])
            size = len(record.token_ids)
    chunks = []
    start = 0
    for group in groups:
        chunk = _token_chunk(group, start, device)
        chunks.append(chunk)
        start = chunk.end
    return chunks


def _token_chunk(group: list[Encoded], start: int, device: torch.device | str) -> TokenChunk:
    lengths = [len(record.token_ids) for record in group]
    question_spans: list[tuple[int, int]] = []
    option_spans: list[tuple[int, int]] = []
    for record, first in zip(group, _starts(lengths).tolist(), strict=True):
        for question in record.questions:
            question_spans.append((question.span[0] + first, question.span[1] + first))
            option_spans += [(a + first, b + first) for a, b in question.option_spans]
    question_tokens, question_offsets = _bags(question_spans)
    option_tokens, option_offsets = _bags(option_spans)
    arrays = (question_tokens, question_offsets, option_tokens, option_offsets)
    last = np.cumsum(lengths) - 1
    tensors = [torch.from_numpy(array).to(device) for array in (*arrays, last)]
    return TokenChunk(start, start + sum(lengths), *tensors)


def _bags(spans: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    """All token indices of the spans in a row, and where each span's begin."""
    bounds = np.array(spans, dtype=np.int64)
    lengths = bounds[:, 1] - bounds[:, 0]
    offsets = np.cumsum(lengths) - lengths
    return np.arange(lengths.sum()) + np.repeat(bounds[:, 0] - offsets, lengths), offsets
