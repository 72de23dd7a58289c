"""What a layout weighs and, by a stated model, how fast it runs.

Size counts the bytes of every tensor that people download: backbone and joint head.

Speed is an estimate for prefill, nothing measured: the multiplications per token of every product,
each divided by the speed of its format relative to BF16, and everything that stays BF16 beside
them (attention scores at half the mean prompt, the DeltaNet state, the unquantized projections,
the joint head's products over all tokens). Memory traffic, quantizing of activations and launch
overhead are not in it. The default speeds are ratios of peak rates: dense FP8 products run at
twice, FP4 at four times the BF16 rate on hardware that has them natively; 4-bit weights with BF16
activations multiply at the BF16 rate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from clefq.clef.checkpoint import Checkpoint
from clefq.clef.family import ATTENTION, FAMILY, layer_types
from clefq.clef.formats import BF16, RECIPE_FORMATS
from clefq.clef.tensor_files import read_header
from clefq.errors import InputError
from clefq.sensitivity.blocks import Block, Layout

DEFAULT_SPEEDS: dict[str, float] = {BF16: 1.0} | {n: f.speed for n, f in RECIPE_FORMATS.items()}
_STATE_PRODUCTS = 3  # of key width × value width per token and DeltaNet head
_TICKS = 1000  # time is counted in thousandths of a BF16 multiplication


@dataclass(frozen=True)
class CostModel:
    """Sizes and estimated speeds of layouts of one model.

    Attributes:
        blocks: The model's blocks.
        fixed_bytes: Bytes of every tensor that no layout changes.
        fixed_macs: Multiplications per token that stay BF16.
        speeds: Format to its speed relative to BF16.
    """

    blocks: Sequence[Block]
    fixed_bytes: int
    fixed_macs: int
    speeds: Mapping[str, float]

    def nbytes(self, layout: Layout) -> int:
        """Bytes of all weights; blocks that the layout does not name are BF16."""
        return self.fixed_bytes + sum(b.nbytes(layout.get(b.name, BF16)) for b in self.blocks)

    def ticks(self, block: Block, form: str) -> int:
        """Estimated time of a block per token, in thousandths of a BF16 multiplication."""
        return round(_TICKS * block.macs / self.speeds[form])

    @property
    def fixed_ticks(self) -> int:
        """The same of everything that no layout changes."""
        return _TICKS * self.fixed_macs

    @property
    def bf16_ticks(self) -> int:
        """The same of the whole BF16 model."""
        return self.fixed_ticks + sum(self.ticks(block, BF16) for block in self.blocks)

    def speedup(self, layout: Layout) -> float:
        """Estimated prefill speed relative to BF16; higher is faster."""
        time = sum(self.ticks(b, layout.get(b.name, BF16)) for b in self.blocks)
        return self.bf16_ticks / (self.fixed_ticks + time)


def cost_model(
    checkpoint: Checkpoint, blocks: Sequence[Block], mean_tokens: float, speeds: Mapping[str, float]
) -> CostModel:
    """The cost model of a checkpoint.

    Args:
        checkpoint: In BF16.
        blocks: Its blocks.
        mean_tokens: Mean prompt length, for the attention scores.
        speeds: Format to speed relative to BF16.
    """
    total = sum(info.nbytes for info in checkpoint.tensors.values())
    total += sum(info.nbytes for info in read_header(checkpoint.head_file).values())
    changing = sum(block.nbytes(BF16) for block in blocks)
    return CostModel(
        blocks=blocks,
        fixed_bytes=total - changing,
        fixed_macs=_fixed_macs(checkpoint, mean_tokens),
        speeds=speeds,
    )


def _fixed_macs(checkpoint: Checkpoint, mean_tokens: float) -> int:
    text = checkpoint.text_config
    types = layer_types(text)
    full = sum(FAMILY.mixers[kind] == ATTENTION for kind in types)
    scores = mean_tokens * text["num_attention_heads"] * text["head_dim"]  # q·k and p·v, causal
    total = full * scores + (len(types) - full) * _deltanet_macs(text)
    head = checkpoint.head_config
    # the memory, and its keys and values in every layer that attends to it
    total += head.hidden_size * head.width + 2 * head.width**2 * (head.routing_layers + head.layers)
    return round(total)


def _deltanet_macs(text: Mapping[str, Any]) -> int:
    heads = text["linear_num_value_heads"]
    state = text["linear_key_head_dim"] * text["linear_value_head_dim"]
    convolved = 2 * text["linear_num_key_heads"] * text["linear_key_head_dim"]
    convolved += heads * text["linear_value_head_dim"]
    gates = 2 * heads * text["hidden_size"]
    return int(
        _STATE_PRODUCTS * heads * state + gates + convolved * text.get("linear_conv_kernel_dim", 4)
    )


def parse_speeds(text: str | None) -> dict[str, float]:
    """Speeds from an option such as `fp8=1.6,nvfp4=2.4`; the others keep their defaults.

    Raises:
        InputError: An unknown format or a speed that is not positive.
    """
    speeds = dict(DEFAULT_SPEEDS)
    for part in (text or "").split(","):
        name, _, value = part.strip().partition("=")
        if not name:
            continue
        try:
            speed = float(value)
        except ValueError:
            speed = 0.0
        if name not in speeds or name == BF16 or not 0 < speed < 1000:
            raise InputError(
                f"--speeds: {part.strip()!r} is no speed.",
                fix="give speeds relative to BF16, for example fp8=1.6,nvfp4=2.4.",
            )
        speeds[name] = speed
    return speeds
