"""The reference engine: transformers' backbone, our joint head, batched by length.

BF16 checkpoints run as transformers runs them. Quantized checkpoints run through
`clefq.engines.simulation`: the kernels' arithmetic in FP32, on any machine, and marked as
simulated. The head runs in FP32 over its BF16-valued weights and the backbone's hidden states:
the release runs it in BF16, which adds rounding but no information.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clefq.clef.checkpoint import open_checkpoint
from clefq.clef.encoding import Encoded, EncodeSpec, PromptTokenizer, encode_record
from clefq.clef.head import HeadBatch, JointHead, split_logits
from clefq.clef.images import ImageReader
from clefq.engines.backbone import Backbone, load_backbone
from clefq.engines.base import (
    NON_FINITE,
    EngineInfo,
    EngineSpec,
    RecordResult,
    result_from_logits,
)
from clefq.engines.batching import plan_batches
from clefq.errors import ClefqError, InputError, RecordError

if TYPE_CHECKING:
    from clefq.clef.records import Record

# Small batches stay in a CPU's caches; a GPU wants to be filled.
_CPU_BATCH_TOKENS = 1_024
_GPU_BATCH_TOKENS = 16_384
_DTYPES = {
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float32": torch.float32,
    "float64": torch.float64,
}


@dataclass(frozen=True, slots=True)
class BatchPrompt:
    """One record, ready to run.

    Attributes:
        record: The record.
        encoded: Its prompt.
        images: Its image files, in prompt order.
    """

    record: Record
    encoded: Encoded
    images: tuple[Path, ...]


class TransformersEngine:
    """One loaded checkpoint.

    Args:
        folder: A checkpoint folder.
        spec: How to run it.

    Raises:
        CheckpointError: Not a whole Clef checkpoint, or a format that is not simulated.
        InputError: The device is not there.
    """

    def __init__(self, folder: Path, spec: EngineSpec = EngineSpec()) -> None:  # noqa: B008
        import transformers

        if spec.threads is not None:
            torch.set_num_threads(spec.threads)
        # Its notes about missing optional kernels; what matters of them is in `warnings`.
        transformers.logging.set_verbosity_error()
        checkpoint = open_checkpoint(folder)
        self._spec = spec
        self._device = _device(spec.device)
        on_cpu = self._device.type == "cpu"
        self._batch_tokens = spec.batch_tokens or (
            _CPU_BATCH_TOKENS if on_cpu else _GPU_BATCH_TOKENS
        )
        dtype = _dtype(spec.dtype, checkpoint.config)
        self._tokenizer = PromptTokenizer.from_folder(folder)
        self._images = ImageReader(folder)
        self._backbone: Backbone | None = load_backbone(checkpoint, dtype, self._device)
        head_dtype = torch.float64 if dtype == torch.float64 else torch.float32
        self._head = JointHead.from_folder(folder, head_dtype, self._device)
        self._head_dtype = head_dtype
        arithmetic = self._backbone.arithmetic
        self.warnings = (*self._backbone.warnings, *_slow_kernels(self._device))
        self.info = EngineInfo(
            engine="transformers",
            engine_version=transformers.__version__,
            kernels="real" if arithmetic == "bf16" else "simulated",
            arithmetic=arithmetic,
            dtype=str(dtype).removeprefix("torch."),
            device=_device_name(self._device),
        )

    def predict(
        self, records: Sequence[Record], media_root: Path | None = None
    ) -> Iterator[Sequence[RecordResult]]:
        """See `Engine.predict`: first the records that cannot be run, then batch by batch."""
        prompts, failed = self.encode(records, media_root)
        if failed:
            yield failed
        for batch in self.batches(prompts):
            yield self._run(batch)

    def close(self) -> None:
        """Frees the weights."""
        self._backbone = None
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    @property
    def backbone(self) -> Backbone:
        """The loaded backbone.

        Raises:
            ClefqError: The engine is closed.
        """
        if self._backbone is None:
            raise ClefqError("this engine is closed.")
        return self._backbone

    def clipped(self) -> dict[str, tuple[int, int]]:
        """See `Simulating.clipped`."""
        return self.backbone.clipped()

    @property
    def head(self) -> JointHead:
        """The joint head."""
        return self._head

    def encode(
        self, records: Sequence[Record], media_root: Path | None
    ) -> tuple[list[BatchPrompt], list[RecordResult]]:
        """Prompts of the records that can be run, and results with errors of the others."""
        spec = EncodeSpec(self._spec.max_length, self._spec.truncate_state)
        prompts: list[BatchPrompt] = []
        failed: list[RecordResult] = []
        for record in records:
            try:
                if record.videos:
                    raise RecordError("videos are not supported by this engine.")
                paths = tuple((media_root or Path()) / image for image in record.images)
                counts = [self._images.token_count(path) for path in paths]
                encoded = encode_record(self._tokenizer, record, spec, counts)
                prompts.append(BatchPrompt(record, encoded, paths))
            except InputError as error:
                failed.append(RecordResult.failed(record, error.message))
        return prompts, failed

    def batches(self, prompts: Sequence[BatchPrompt]) -> list[list[BatchPrompt]]:
        """What runs together, in order."""
        lengths = [len(prompt.encoded.token_ids) for prompt in prompts]
        return [
            [prompts[index] for index in batch]
            for batch in plan_batches(lengths, self._batch_tokens)
        ]

    def _run(self, prompts: Sequence[BatchPrompt]) -> list[RecordResult]:
        return self.answer(prompts, self.hidden_states)

    @torch.inference_mode()
    def answer(
        self,
        prompts: Sequence[BatchPrompt],
        hidden_states: Callable[[Sequence[BatchPrompt]], Sequence[Tensor]],
    ) -> list[RecordResult]:
        """Runs the joint head on a batch.

        Args:
            prompts: The batch.
            hidden_states: Gives its final hidden states, as `hidden_states` does.

        Raises:
            ClefqError: The device ran out of memory.
        """
        try:
            hidden = hidden_states(prompts)
            finite = [bool(torch.isfinite(states).all()) for states in hidden]
            # One record's NaN must not reach another through the batched head.
            sound = [index for index, good in enumerate(finite) if good]
            logits = self._head_logits(
                [prompts[index].encoded for index in sound], [hidden[index] for index in sound]
            )
        except torch.OutOfMemoryError as error:
            raise ClefqError(
                f"the device ran out of memory at {self._batch_tokens} tokens a batch.",
                fix="lower --batch-tokens, or --max-length.",
            ) from error
        by_index = dict(zip(sound, logits, strict=True))
        return [_result(prompt, by_index.get(index)) for index, prompt in enumerate(prompts)]

    def hidden_states(self, prompts: Sequence[BatchPrompt]) -> list[Tensor]:
        """Final hidden states per prompt, [its length, hidden], without padding."""
        backbone = self.backbone
        lengths = [len(prompt.encoded.token_ids) for prompt in prompts]
        pad = self._tokenizer.special.im_end
        rows = torch.full((len(prompts), max(lengths)), pad, dtype=torch.int64)
        for row, prompt, length in zip(rows, prompts, lengths, strict=True):
            row[:length] = torch.tensor(prompt.encoded.token_ids)
        real = torch.arange(max(lengths)) < torch.tensor(lengths).unsqueeze(1)
        backbone.memo.real = real.view(-1).to(self._device)
        paths = [path for prompt in prompts for path in prompt.images]
        if paths:
            images = self._images.read(paths)
            states = backbone.hidden_states_with_images(
                rows.to(self._device),
                self._image_positions(prompts, rows).to(self._device),
                images.pixels.to(self._device),
                images.grids.to(self._device),
            )
        else:
            states = backbone.hidden_states(rows.to(self._device))
        return [states[index, :length] for index, length in enumerate(lengths)]

    def _image_positions(self, prompts: Sequence[BatchPrompt], rows: Tensor) -> Tensor:
        positions = torch.zeros_like(rows, dtype=torch.bool)
        for index, prompt in enumerate(prompts):
            start, end = prompt.encoded.media_span
            positions[index, start:end] = (
                rows[index, start:end] == self._tokenizer.special.image_pad
            )
        return positions

    def _head_logits(
        self, encoded: Sequence[Encoded], hidden: Sequence[Tensor]
    ) -> list[dict[str, NDArray[np.float64]]]:
        if not encoded:
            return []
        batch = HeadBatch.build(encoded, self._device)
        lexical = self.backbone.lexical_table[batch.option_token_ids].to(self._head_dtype)
        flat = self._head(torch.cat(list(hidden)).to(self._head_dtype), batch, lexical)
        return split_logits(flat, encoded)


def open_engine(folder: Path, spec: EngineSpec) -> TransformersEngine:
    """Loads a checkpoint (the entry point that `clefq.engines.select` calls)."""
    return TransformersEngine(folder, spec)


def _result(prompt: BatchPrompt, logits: dict[str, NDArray[np.float64]] | None) -> RecordResult:
    tokens = len(prompt.encoded.token_ids)
    if logits is None:
        return RecordResult.failed(prompt.record, NON_FINITE, tokens)
    return result_from_logits(prompt.record, logits, tokens, prompt.encoded.truncated_tokens)


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise InputError(
            f"unknown device {name!r}.", fix="use auto, cpu, cuda or cuda:N."
        ) from error
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise InputError(f"this machine has no device {name!r}.", fix="use --device cpu.")
    return device


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def _slow_kernels(device: torch.device) -> tuple[str, ...]:
    if device.type != "cuda" or find_spec("fla") is not None:
        return ()
    return ("flash-linear-attention is not installed: DeltaNet runs many times slower on a GPU",)


def _dtype(name: str, config: Mapping[str, Any]) -> torch.dtype:
    if name != "auto":
        return _DTYPES[name]
    stated = str(config.get("dtype") or config.get("torch_dtype") or "bfloat16")
    return _DTYPES.get(stated, torch.bfloat16)
