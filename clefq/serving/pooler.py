"""The joint head as a vLLM pooler: whole prompts in, one logit per option out.

vLLM hands over the hidden states of one step: pieces of many prompts. Pieces are kept until their
prompt is whole; then all prompts that a step finished go through the head in one ragged pass,
their hidden states concatenated without padding.

The pooler runs inside the engine, where an exception ends the process for every client. So it
never raises for what a request carries: a layout that does not fit its prompt gets an empty
tensor, and the caller, who knows how many options it asked about, reports the error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import torch
from vllm.logger import init_logger
from vllm.model_executor.layers.pooler import Pooler, PoolingParamsUpdate

from clefq.clef.encoding import Encoded, EncodedQuestion
from clefq.clef.head import HeadBatch, JointHead
from clefq.serving.layout import LAYOUT_KEY, TASK, Layout, LayoutError, parse_layout

logger = init_logger("vllm.clefq")

EmbedRows = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True)
class _Finished:
    """One prompt that this step completed: its place in the batch, its states, its questions."""

    index: int
    hidden: torch.Tensor
    encoded: Encoded


class JointHeadPooler(Pooler):
    """Runs the joint head on every prompt that a step finishes.

    Args:
        head: The joint head, parameters named as in the release's head file.
        embed_rows: Token ids [N] → `lm_head.weight` rows [N, H], right under tensor parallelism.
    """

    def __init__(self, head: JointHead, embed_rows: EmbedRows) -> None:
        super().__init__()
        self.head = head
        self._embed_rows = embed_rows
        self._warm = False

    def get_supported_tasks(self) -> Set[Any]:
        """Per-token classification: vLLM's task for poolers over whole prompts."""
        return {TASK}

    def get_pooling_updates(self, task: Any) -> PoolingParamsUpdate:
        """Asks for the prompts' token ids: option vectors are means of their embeddings."""
        del task
        return PoolingParamsUpdate(requires_token_ids=True)

    def forward(
        self, hidden_states: torch.Tensor, pooling_metadata: Any
    ) -> list[torch.Tensor | None]:
        """Logits of the finished prompts of one step.

        Args:
            hidden_states: [tokens of the step, H], the backbone's final states.
            pooling_metadata: vLLM's `PoolingMetadata` of the step.

        Returns:
            Per request: None while its prompt is unfinished; float32 logits [options] when it is
            done, questions and options in prompt order; an empty tensor for a malformed layout.
        """
        states = collect_prompts(hidden_states, pooling_metadata)
        token_ids = pooling_metadata.get_prompt_token_ids_cpu()
        outputs: list[torch.Tensor | None] = [None] * len(states)
        finished: list[_Finished] = []
        for index, (hidden, ids) in enumerate(zip(states, token_ids, strict=True)):
            if hidden is None:
                continue
            outputs[index] = hidden.new_empty(0, dtype=torch.float32)
            encoded = self._read(pooling_metadata.pooling_params[index].extra_kwargs, ids, hidden)
            if encoded is not None:
                finished.append(_Finished(index, hidden, encoded))
        if finished:
            self._answer(finished, outputs)
        elif not self._warm:
            self._warm_up(hidden_states)
        return outputs

    def _read(self, extra_kwargs: Any, ids: torch.Tensor, hidden: torch.Tensor) -> Encoded | None:
        try:
            layout = parse_layout(extra_kwargs, hidden.shape[0])
        except LayoutError as error:
            if isinstance(extra_kwargs, dict) and LAYOUT_KEY in extra_kwargs:
                logger.warning("clefq: refused a layout: %.200s", error)
            return None
        return encoded_of(layout, ids)

    def _answer(self, finished: Sequence[_Finished], outputs: list[torch.Tensor | None]) -> None:
        """All at once; prompt by prompt if the device has no room for that."""
        try:
            self._run(finished, outputs)
        except torch.OutOfMemoryError:
            logger.warning("clefq: no room to score %d prompts at once", len(finished))
            for one in finished:
                self._run([one], outputs)

    def _run(self, finished: Sequence[_Finished], outputs: list[torch.Tensor | None]) -> None:
        hidden = (
            finished[0].hidden
            if len(finished) == 1
            else torch.cat([one.hidden for one in finished])
        )
        encoded = [one.encoded for one in finished]
        batch = on_device(HeadBatch.build(encoded), hidden.device)
        rows = self._embed_rows(batch.option_token_ids)
        with _tensor_cores(hidden.device):
            flat = self.head(hidden, batch, rows).float()
        counts = [sum(len(q.option_spans) for q in one.questions) for one in encoded]
        for one, logits in zip(finished, torch.split(flat, counts), strict=True):
            outputs[one.index] = logits

    def _warm_up(self, hidden_states: torch.Tensor) -> None:
        """Runs the head once while vLLM profiles its memory, so that the head's share counts."""
        self._warm = True
        length = hidden_states.shape[0]
        if length < 3:
            return
        layout = Layout(types=(0,), question_spans=((0, 1),), option_spans=(((1, 2), (2, 3)),))
        encoded = encoded_of(layout, torch.zeros(length, dtype=torch.int64))
        self._run([_Finished(0, hidden_states, encoded)], [None])


@contextmanager
def _tensor_cores(device: torch.device) -> Iterator[None]:
    """Lets the head's FP32 matrix products use TF32 on a GPU.

    Its weights are BF16 values, which TF32 holds exactly; activations are rounded to 11
    significant bits, an eighth of the step of the reference, whose head computes in BF16. On an
    H200 the head's share of the time falls from 4.9% to 0.8% (FP8) and from 3.7% to 0.9% (BF16).
    """
    if device.type != "cuda":
        yield
        return
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def collect_prompts(hidden_states: torch.Tensor, metadata: Any) -> list[torch.Tensor | None]:
    """Joins the pieces of prompts that were prefilled in chunks.

    Pieces are copied while their prompt is unfinished: the step's buffer is used again by the
    next step (CUDA graphs and asynchronous scheduling write into it in place).

    Args:
        hidden_states: [tokens of the step, H].
        metadata: vLLM's `PoolingMetadata`; pieces wait in its `pooling_states`.

    Returns:
        Per request, all states of its prompt [tokens, H], or None while it is unfinished.
    """
    cursor = metadata.get_pooling_cursor()
    pieces = torch.split(hidden_states, cursor.num_scheduled_tokens_cpu.tolist())
    finished = (cursor.prompt_lens_cpu == cursor.seq_lens_cpu).tolist()
    prompts: list[torch.Tensor | None] = []
    for piece, state, done in zip(pieces, metadata.pooling_states, finished, strict=True):
        kept = state.hidden_states_cache
        if not done:
            kept.append(piece.clone())
            prompts.append(None)
            continue
        prompts.append(torch.cat([*kept, piece]) if kept else piece)
        state.clean()
    return prompts


def on_device(value: Any, device: torch.device) -> Any:
    """Copies the tensors inside a dataclass to a device, all of a dtype at once, without waiting.

    A plain copy of pageable memory waits until everything queued before it has run: the backbone
    would have to finish before the head's kernels are even queued, at every step. And each copy
    costs the host as much as a kernel: two dozen of them are a millisecond of a single record's
    latency.
    """
    if device.type == "cpu":
        return value
    return move_together(value, lambda flat: flat.pin_memory().to(device, non_blocking=True))


def move_together(value: Any, move: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """`value` with its tensors moved by `move`, which sees all tensors of a dtype as one.

    Args:
        value: Tensors inside dataclasses and tuples; everything else stays as it is.
        move: Takes and returns a flat tensor.

    Returns:
        The same structure; its tensors are views of what `move` returned.
    """
    found: list[torch.Tensor] = []
    _map_tensors(value, found.append)
    moved: dict[torch.dtype, Iterator[torch.Tensor]] = {}
    for dtype in {tensor.dtype for tensor in found}:
        same = [tensor for tensor in found if tensor.dtype == dtype]
        flat = move(torch.cat([tensor.reshape(-1) for tensor in same]))
        moved[dtype] = iter(flat.split([tensor.numel() for tensor in same]))
    return _map_tensors(value, lambda tensor: next(moved[tensor.dtype]).view(tensor.shape))


def _map_tensors(value: Any, change: Callable[[torch.Tensor], Any]) -> Any:
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, tuple):
        return tuple(_map_tensors(item, change) for item in value)
    if is_dataclass(value) and not isinstance(value, type):
        mapped = {
            field.name: _map_tensors(getattr(value, field.name), change) for field in fields(value)
        }
        return type(value)(**mapped)
    return value


def encoded_of(layout: Layout, token_ids: torch.Tensor) -> Encoded:
    """The record as the head wants it, from its layout and its prompt's token ids.

    Args:
        layout: Checked against the prompt's length.
        token_ids: [tokens], on the CPU, placeholders expanded.
    """
    questions = tuple(
        EncodedQuestion(
            id=str(number),
            type_id=type_id,
            span=span,
            option_ids=tuple(str(option) for option in range(len(options))),
            option_spans=options,
        )
        for number, (type_id, span, options) in enumerate(
            zip(layout.types, layout.question_spans, layout.option_spans, strict=True)
        )
    )
    return Encoded(
        record_id="",
        token_ids=tuple(token_ids.tolist()),
        questions=questions,
        truncated_tokens=0,
    )
