"""The blocks of a model: what can be quantized, in which formats, and what that weighs.

A block is the MLP, the attention or the DeltaNet of one layer. It has one format: the fused
products inside it (`clefq.clef.family`) could not have two, and what a block adds to the residual
stream is the smallest thing whose damage is worth a measurement of its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from clefq.clef.checkpoint import Checkpoint
from clefq.clef.family import FAMILY, MLP, TEXT, group_key, layer_types, protected_reason
from clefq.clef.formats import BF16, RECIPE_FORMATS
from clefq.clef.tensor_files import TensorInfo
from clefq.errors import InputError


@dataclass(frozen=True, slots=True)
class Product:
    """One matrix product in serving.

    Attributes:
        name: Its name below the block, for example `gate_up_proj`.
        modules: Full names of the Linears that it fuses, in stacking order.
    """

    name: str
    modules: tuple[str, ...]


@dataclass(frozen=True)
class Block:
    """One block.

    Attributes:
        layer: Layer number from 0.
        kind: `mlp`, `attention` or `deltanet`.
        path: Its module, for example `model.language_model.layers.0.mlp`.
        units: Its products.
        shapes: Module to (rows, columns) of its weight.
        item_size: Bytes of one BF16 (or F16, F32) number of the source.
    """

    layer: int
    kind: str
    path: str
    units: tuple[Product, ...]
    shapes: Mapping[str, tuple[int, int]]
    item_size: int

    @property
    def name(self) -> str:
        """Short name, for example `3.attention`."""
        return f"{self.layer}.{self.kind}"

    @cached_property
    def modules(self) -> tuple[str, ...]:
        """Full names of its Linears."""
        return tuple(module for unit in self.units for module in unit.modules)

    @property
    def macs(self) -> int:
        """Multiplications per token."""
        return sum(math.prod(self.shapes[module]) for module in self.modules)

    def nbytes(self, form: str) -> int:
        """Bytes of its weights, scales included, as stored in a format.

        Args:
            form: `bf16` or a key of `RECIPE_FORMATS`.
        """
        total = 0
        for module in self.modules:
            rows, columns = self.shapes[module]
            if form == BF16:
                total += rows * columns * self.item_size
            else:
                total += RECIPE_FORMATS[form].nbytes(rows, columns, self.item_size)
        return total


def find_blocks(checkpoint: Checkpoint) -> tuple[Block, ...]:
    """Every block of an unquantized checkpoint, in the order in which a token meets them.

    Raises:
        InputError: The checkpoint is quantized already.
    """
    if checkpoint.quantization_config is not None:
        raise InputError(
            f"{checkpoint.folder} is quantized already.", fix="give the BF16 checkpoint."
        )
    blocks = []
    for layer, mixer in enumerate(layer_types(checkpoint.text_config)):
        kinds = (FAMILY.mixers[mixer], MLP)
        blocks += [_block(layer, kind, checkpoint.tensors) for kind in kinds]
    return tuple(blocks)


def _block(layer: int, kind: str, tensors: Mapping[str, TensorInfo]) -> Block:
    part = FAMILY.parts[kind]
    path = f"{TEXT}.layers.{layer}.{part.path}"
    modules = [f"{path}.{leaf}" for leaf in part.linears]
    weights = {module: tensors[f"{module}.weight"] for module in modules}
    assert not any(protected_reason(module) for module in modules)
    units: dict[str, list[str]] = {}
    for module in modules:
        units.setdefault(group_key(module) or module, []).append(module)
    return Block(
        layer=layer,
        kind=kind,
        path=path,
        units=tuple(Product(key.rpartition(".")[2], tuple(of)) for key, of in units.items()),
        shapes={module: (info.shape[0], info.shape[1]) for module, info in weights.items()},
        item_size=weights[modules[0]].nbytes // math.prod(weights[modules[0]].shape),
    )


Layout = dict[str, str]


def uniform(blocks: Iterable[Block], form: str) -> Layout:
    """Every block in one format: block name to format."""
    return {block.name: form for block in blocks}


def check_groups(blocks: Iterable[Block], forms: Iterable[str]) -> None:
    """Refuses formats whose groups do not fit the inputs of a Linear.

    Raises:
        InputError: Such a format, with the first Linear that it does not fit.
    """
    widths = {module: shape[1] for block in blocks for module, shape in block.shapes.items()}
    for form in forms:
        size = RECIPE_FORMATS[form].weights.group
        odd = [module for module, columns in widths.items() if size and columns % size]
        if odd:
            raise InputError(
                f"--schemes: {form} cuts inputs into groups of {size}, {odd[0]} has "
                f"{widths[odd[0]]} ({len(odd)} such in all).",
                fix=f"leave {form} out.",
            )


def parse_schemes(text: str) -> tuple[str, ...]:
    """Formats from a comma-separated option, finest first.

    Raises:
        InputError: An unknown format, or none.
    """
    asked = [part.strip() for part in text.split(",") if part.strip()]
    unknown = [name for name in asked if name not in RECIPE_FORMATS]
    if unknown or not asked:
        raise InputError(
            f"--schemes: unknown scheme {unknown[0]!r}." if unknown else "--schemes is empty.",
            fix=f"use some of {','.join(RECIPE_FORMATS)}.",
        )
    return tuple(name for name in RECIPE_FORMATS if name in asked)
