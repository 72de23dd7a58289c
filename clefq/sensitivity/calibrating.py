"""Input global scales for NVFP4 activations, as llm-compressor's oneshot records them.

oneshot runs the calibration prompts one by one, with quantization switched off and attention in
its plain form, through a model whose norms it has rewritten from (1 + w) to BF16(1 + w), and keeps
the largest magnitude that enters each Linear. The same is done here, without its two passes per
layer, so that the scales are the same bits (a test holds them against oneshot's).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from clefq.clef.family import FAMILY
from clefq.errors import InputError
from clefq.quantize import kernels
from clefq.sensitivity.blocks import Block
from clefq.store.reading import Stored

if TYPE_CHECKING:
    from pathlib import Path

    from clefq.clef.records import Record
    from clefq.console import Console
    from clefq.engines.transformers_engine import TransformersEngine


@dataclass(frozen=True)
class StoredScales(Stored):
    """The file that keeps them.

    Attributes:
        key: Hash of everything that decides them.
        divisors: Module to input global scale.
    """

    key: str
    divisors: Mapping[str, float]


def input_divisors(
    engine: TransformersEngine,
    records: Sequence[Record],
    media_root: Path,
    blocks: Sequence[Block],
    console: Console,
) -> dict[str, float]:
    """Runs the calibration records and gives each Linear's input global scale (a divisor).

    Args:
        engine: The loaded BF16 model.
        records: The calibration records.
        media_root: Folder of their images.
        blocks: The model's blocks.
        console: Progress.

    Raises:
        InputError: A record cannot be encoded.
    """
    prompts, failed = engine.encode(records, media_root)
    if failed:
        reason = next(iter(failed[0].errors.values()))
        raise InputError(
            f"calibration record {failed[0].record_id!r} cannot be run: {reason}",
            fix="add --truncate-state, or use another calibration set.",
        )
    model = engine.backbone.model
    peaks = _Peaks(model, blocks)
    with (
        torch.inference_mode(),
        _plain_attention(model),
        _rounded_norms(model),
        peaks,
        console.progress("calibrate", len(prompts)) as advance,
    ):
        for prompt in prompts:
            engine.hidden_states([prompt])
            advance(1)
    return {module: float(kernels.global_scale(peak)) for module, peak in peaks.by_module().items()}


class _Peaks:
    """Largest magnitude that enters each product, while the context is open."""

    def __init__(self, model: Any, blocks: Sequence[Block]) -> None:
        self._model = model
        self._units = [unit.modules for block in blocks for unit in block.units]
        self._peaks: dict[str, Tensor] = {}
        self._hooks: list[Any] = []

    def __enter__(self) -> _Peaks:
        for modules in self._units:
            linear = self._model.get_submodule(modules[0])
            self._hooks.append(linear.register_forward_pre_hook(self._hook(modules[0])))
        return self

    def __exit__(self, *_: object) -> None:
        for hook in self._hooks:
            hook.remove()

    def _hook(self, module: str) -> Any:
        def observe(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            peak = kernels.absmax(inputs[0])
            known = self._peaks.get(module)
            self._peaks[module] = peak if known is None else torch.maximum(peak, known)

        return observe

    def by_module(self) -> dict[str, Tensor]:
        """Module to peak: the Linears of one product read the same inputs."""
        return {name: self._peaks[modules[0]] for modules in self._units for name in modules}


@contextmanager
def _plain_attention(model: Any) -> Iterator[None]:
    """Attention with explicit scores, as oneshot runs it: other bits than the fused kernel's."""
    saved = model.config._attn_implementation
    try:
        model.config._attn_implementation = "eager"
        yield
    finally:
        model.config._attn_implementation = saved


@contextmanager
def _rounded_norms(model: Any) -> Iterator[None]:
    """Norms with gains 1 + w rounded to the weights' dtype, as oneshot runs them."""
    norms = [module for module in model.modules() if type(module).__name__ == FAMILY.norm_class]
    saved = [norm.weight for norm in norms]
    try:
        for norm in norms:
            weight = norm.weight.detach()
            gain = (1.0 + weight.float()).to(weight.dtype).float()
            # the norm adds one again, in F32, which is exact here
            norm.weight = nn.Parameter(gain - 1.0, requires_grad=False)
        yield
    finally:
        for norm, weight in zip(norms, saved, strict=True):
            norm.weight = weight
