"""Quantizes blocks of a loaded BF16 model in place.

The weights are those of `clefq quantize`, the arithmetic that of `clefq predict`: rounded
by `clefq.quantize.kernels`, with one global scale per fused product; products run through
`clefq.engines.simulation`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from clefq.clef.formats import BF16, RECIPE_FORMATS
from clefq.engines.backbone import KEEP_DECODED_BYTES, Backbone
from clefq.engines.simulation import (
    ChannelWeight,
    Fp8TokenInputs,
    InputQuantizer,
    Int4Weight,
    Int8TokenInputs,
    KeepInputs,
    Nvfp4Inputs,
    Nvfp4Weight,
    QuantizedLinear,
    QuantizedWeight,
)
from clefq.quantize import kernels
from clefq.quantize.audit.rounding import weight_args
from clefq.sensitivity.blocks import Block, Product

_DYNAMIC: dict[str, InputQuantizer] = {"fp8": Fp8TokenInputs(), "int8": Int8TokenInputs()}
_ROWS = 1 << 22  # numbers of a weight that are rounded at a time


@dataclass(frozen=True, slots=True)
class QuantizedBlock:
    """One block's quantized weights.

    Attributes:
        weights: Module to weight.
        errors: Product to ‖stored − BF16‖ / ‖BF16‖ of its weights, Frobenius norm.
    """

    weights: Mapping[str, QuantizedWeight]
    errors: Mapping[str, float]


def quantize_block(model: Any, block: Block, form: str, searched: bool = False) -> QuantizedBlock:
    """Rounds a block's weights.

    Args:
        model: The BF16 model.
        block: One of its blocks.
        form: A key of `RECIPE_FORMATS`.
        searched: Whether NVFP4 group scales are searched.
    """
    weights: dict[str, QuantizedWeight] = {}
    errors = {}
    for unit in block.units:
        found = _unit(model, unit, form, searched)
        errors[unit.name] = _error(model, found)
        weights |= found
    return QuantizedBlock(weights, errors)


def _unit(model: Any, unit: Product, form: str, searched: bool) -> dict[str, QuantizedWeight]:
    sources = {module: model.get_submodule(module).weight.detach() for module in unit.modules}
    if not kernels.ROUNDINGS[form].shared:
        return {module: _alone(weight, form) for module, weight in sources.items()}
    largest = torch.stack([kernels.absmax(weight) for weight in sources.values()]).max()
    divisor = kernels.global_scale(largest)
    return {module: _nvfp4(weight, divisor, searched) for module, weight in sources.items()}


def _alone(weight: Tensor, form: str) -> QuantizedWeight:
    """Rounds a weight to a format without a global scale."""
    row = RECIPE_FORMATS[form]
    args, rounding = weight_args(row.preset), kernels.ROUNDINGS[form]
    parts = [rounding.quantize(rows, args, None) for rows in _row_blocks(weight)]
    codes, scales = (torch.cat(column) for column in zip(*parts, strict=True))
    if row.weights.strategy == "group":
        return Int4Weight(codes, scales, weight.shape[1])
    return ChannelWeight(codes, scales.to(torch.float32).reshape(-1), weight.shape[1])


def _nvfp4(weight: Tensor, divisor: Tensor, searched: bool) -> Nvfp4Weight:
    args = weight_args("NVFP4A16", searched)
    parts = [kernels.nvfp4_rows(rows, divisor, args) for rows in _row_blocks(weight)]
    packed, scales = (torch.cat(column) for column in zip(*parts, strict=True))
    return Nvfp4Weight(packed, scales, divisor.reshape(()), weight.shape[1])


def _row_blocks(weight: Tensor) -> tuple[Tensor, ...]:
    return weight.split(max(1, _ROWS // weight.shape[1]))


def _error(model: Any, weights: Mapping[str, QuantizedWeight]) -> float:
    off = norm = 0.0
    for module, weight in weights.items():
        source = model.get_submodule(module).weight.detach().float()
        scale = weight.scale().reshape(-1, 1)
        off += float((weight.values() * scale - source).double().square().sum())
        norm += float(source.double().square().sum())
    return math.sqrt(off / norm) if norm > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Installer:
    """Puts quantized blocks into a model, and takes them out again.

    Attributes:
        backbone: The loaded BF16 backbone.
        divisors: Module to input global scale, for `nvfp4`.
        searched: Whether NVFP4 group scales are searched.
    """

    backbone: Backbone
    divisors: Mapping[str, float]
    searched: bool = False

    @contextmanager
    def installed(self, blocks: Sequence[tuple[Block, str]]) -> Iterator[dict[str, float]]:
        """Quantizes the blocks and runs them so inside the block of code.

        Args:
            blocks: Blocks with their formats; those in BF16 are left alone.

        Yields:
            Product (`LAYER.KIND.NAME`) to relative weight error.
        """
        model = self.backbone.model
        chosen = [(block, form) for block, form in blocks if form != BF16]
        numbers = sum(math.prod(s) for block, _ in chosen for s in block.shapes.values())
        keep = 4 * numbers <= KEEP_DECODED_BYTES
        before: dict[str, nn.Module] = {}
        errors: dict[str, float] = {}
        try:
            for block, form in chosen:
                made = quantize_block(model, block, form, self.searched)
                errors |= {f"{block.name}.{unit}": value for unit, value in made.errors.items()}
                for module, weight in made.weights.items():
                    before[module] = model.get_submodule(module)
                    quantizer = self._quantizer(module, form)
                    bias = before[module].bias
                    layer = QuantizedLinear(weight, quantizer, bias, self.backbone.memo, keep)  # type: ignore[arg-type]
                    model.set_submodule(module, layer)
            yield errors
        finally:
            for module, linear in before.items():
                model.set_submodule(module, linear)
            self.backbone.memo.clear()

    def _quantizer(self, module: str, form: str) -> InputQuantizer:
        if RECIPE_FORMATS[form].inputs is None:
            return KeepInputs()
        if form in _DYNAMIC:
            return _DYNAMIC[form]
        return Nvfp4Inputs(self.divisors[module])
