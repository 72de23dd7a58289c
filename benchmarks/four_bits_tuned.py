"""What gradients gain NVFP4: the tensors that stay in BF16 tuned, or codes moved to a neighbour.

    python benchmarks/four_bits_tuned.py NVFP4 --source BF16 --calibration SET --evals SET [SET …]
        --json rows.json [--starts plain …] [--what none norms …] [--arithmetics w4a4] [--steps N]

Begins with the codes of a lever of `four_bits.py` and lowers the mean KL divergence of the
quantized model's answers from BF16's over the calibration set; rounded inputs pass gradients
straight on. `norms`: every norm of the text backbone; `head`: the joint head; both by Adam, rounded
to BF16 in the end. `codes`: every weight may take the E2M1 number on either side of it (signs of
gradients, as AutoRound does, but through the whole model); group scales stay. `+` joins them. Rows
are those of `four_bits.py`; the first of each arithmetic is what `against_plain` is against.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(REPOSITORY), str(REPOSITORY / "benchmarks")]

import four_bits  # noqa: E402
from four_bits import GROUP, Layer  # noqa: E402

from clefq.clef.head_batch import HeadBatch  # noqa: E402
from clefq.clef.small_floats import pack_e2m1, round_to_e2m1, unpack_e2m1  # noqa: E402
from clefq.engines.base import EngineSpec  # noqa: E402
from clefq.engines.transformers_engine import Prompt, TransformersEngine  # noqa: E402

Batch = Sequence[Prompt]
WHAT = ("none", "norms", "head", "norms+head", "codes", "codes+norms+head")
RATE = {"norms": 1e-3, "head": 2e-5}  # of Adam, falling linearly to zero


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--calibration", type=Path, required=True)
    parser.add_argument("--evals", type=Path, nargs="+", required=True)
    parser.add_argument("--starts", nargs="+", default=["plain", "gptq-search"])
    parser.add_argument("--what", nargs="+", default=[*WHAT], choices=WHAT)
    parser.add_argument("--arithmetics", nargs="+", default=["w4a4"])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch-tokens", type=int, default=4096)
    parser.add_argument("--rates", type=float, nargs="+", default=[1.0], help="factors of the rate")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--limit", type=int, help="records of each set")
    parser.add_argument("--json", type=Path, required=True)
    options = parser.parse_args()
    spec = EngineSpec(max_length=4096)
    sets = {path.name: four_bits.records_of(path, options.limit) for path in options.evals}
    bf16 = TransformersEngine(options.source, spec)
    truth = {name: four_bits.answers(bf16, records) for name, records in sets.items()}
    gold = {name: four_bits.gold_of(records) for name, records in sets.items()}
    engine = TransformersEngine(options.checkpoint, spec)
    layers = four_bits.layers_of(engine, bf16)
    calibration = four_bits.records_of(options.calibration, None)
    if not four_bits.DATA_FREE.issuperset(options.starts):
        four_bits.collect(bf16, bf16, layers, calibration)
    small = EngineSpec(max_length=4096, batch_tokens=options.batch_tokens)
    prompts, _ = bf16.encode(calibration, None)
    batches = TransformersEngine(options.source, small).batches(prompts)
    with torch.no_grad():
        wanted = [logits_of(bf16, batch) for batch in batches]
    study = Study(engine, layers, batches, wanted, options.steps)
    table = four_bits.Table(sets, truth, gold, options.json)
    for arithmetic in options.arithmetics:
        for start in options.starts:
            for what in options.what:
                for rate in options.rates if what != "none" else [1.0]:
                    for seed in options.seeds if what != "none" else [0]:
                        error = four_bits.apply(layers, four_bits.LEVERS[start], 1.0)
                        four_bits.switch(layers, arithmetic == "w4a4")
                        started = time.monotonic()
                        losses = study.tune(what, rate, seed)
                        about = {"lever": f"{start}, {what}", "rate": rate, "seed": seed}
                        about |= {"arithmetic": arithmetic, "weight_error": error}
                        about |= {"seconds": time.monotonic() - started, "losses": losses}
                        print(" ".join(f"{loss:.5f}" for loss in losses))
                        table.add(engine, about)
                        study.restore()


def logits_of(engine: TransformersEngine, batch: Batch) -> Tensor:
    """Logits of all options of a batch, [options], F32, with gradients where they are on."""
    hidden = torch.cat(engine.hidden_states(batch)).float()
    encoded = [prompt.encoded for prompt in batch]
    head = HeadBatch.build(encoded, hidden.device)
    lexical = engine.backbone.lexical_table[head.option_token_ids].float()
    logits: Tensor = engine.head(hidden, head, lexical)
    return logits


def divergence(wanted: Tensor, logits: Tensor, batch: Batch) -> Tensor:
    """Mean KL(wanted ‖ ours) over the questions of a batch, in nats."""
    sizes = [len(q.option_ids) for prompt in batch for q in prompt.encoded.questions]

    def log_probabilities(flat: Tensor) -> Tensor:
        rows = nn.utils.rnn.pad_sequence(flat.split(sizes), True, padding_value=-1e4)
        return rows.log_softmax(-1)

    before, after = log_probabilities(wanted), log_probabilities(logits)
    return (before.exp() * (before - after)).sum(-1).mean()


@dataclass
class Codes:
    """The codes of one layer while they may move.

    `base`: where each weight lies on the E2M1 axis, inside the cell of its code; `gap`: distance to
    the next number; `factor`: what one on that axis stands for; `move`: in gaps, -0.5 to 0.5.
    """

    base: Tensor
    gap: Tensor
    factor: Tensor
    move: Tensor

    @classmethod
    def of(cls, layer: Layer) -> Codes:
        stored = layer.module.stored
        codes = unpack_e2m1(stored.packed)
        factor = (stored.group_scale.float() / stored.global_scale).repeat_interleave(GROUP, 1)
        size = codes.abs()
        gap = torch.where(size <= 2, 0.5, torch.where(size <= 4, 1.0, 2.0))
        offset = layer.source / factor - codes
        base = codes + torch.minimum(torch.maximum(offset, -0.49 * gap), 0.49 * gap)
        # a number's lower cell ends half a smaller gap away than its upper one
        base = torch.where(round_to_e2m1(base.clone()) == codes, base, codes)
        return cls(base, gap, factor, torch.zeros_like(base, requires_grad=True))

    def codes(self) -> Tensor:
        """E2M1 numbers, [rows, columns]."""
        return round_to_e2m1((self.base + self.gap * self.move).detach().clone())

    def weight(self) -> Tensor:
        """What the codes stand for; the gradient is that of the unrounded weights."""
        smooth = self.base + self.gap * self.move
        return (smooth + (self.codes() - smooth).detach()) * self.factor

    def step(self, length: float) -> None:
        """Moves every code by one length against its gradient."""
        gradient = four_bits.given(self.move.grad)
        self.move.data.sub_(length * gradient.sign()).clamp_(-0.5, 0.5)
        self.move.grad = None


class Masters:
    """Parameters that Adam tunes in F32, whatever they are stored in."""

    def __init__(self, parameters: Sequence[nn.Parameter], rate: float) -> None:
        self._live, self._rate = parameters, rate
        self._wide = [p.detach().float().clone() for p in parameters]
        self._adam = torch.optim.Adam(self._wide, betas=(0.9, 0.99))
        for parameter in parameters:
            parameter.requires_grad_(True)

    def step(self, left: float) -> None:
        """One step, at a share of the rate."""
        for wide, live in zip(self._wide, self._live, strict=True):
            wide.grad, live.grad = four_bits.given(live.grad).float(), None
        nn.utils.clip_grad_norm_(self._wide, 1.0)
        self._adam.param_groups[0]["lr"] = self._rate * left
        self._adam.step()
        for wide, live in zip(self._wide, self._live, strict=True):
            live.data.copy_(wide)

    def end(self) -> None:
        """Leaves BF16 values."""
        for live in self._live:
            live.requires_grad_(False)
            live.data.copy_(live.data.bfloat16())


class Study:
    """Tunes parts of one engine, and puts them back."""

    def __init__(
        self,
        engine: TransformersEngine,
        layers: Sequence[Layer],
        batches: Sequence[Batch],
        wanted: Sequence[Tensor],
        steps: int,
    ) -> None:
        self._engine, self._layers, self._steps = engine, layers, steps
        self._batches, self._wanted = batches, wanted
        text = engine.backbone.model.model.language_model
        self._norms = [p for name, p in text.named_parameters() if "norm" in name]
        self._head = [*engine.head.parameters()]
        self._kept = [p.detach().clone() for p in (*self._norms, *self._head)]
        for parameter in self._head:
            parameter.requires_grad_(False)

    def restore(self) -> None:
        """Norms and head as they were."""
        for parameter, kept in zip((*self._norms, *self._head), self._kept, strict=True):
            parameter.data.copy_(kept)

    def tune(self, what: str, rate: float, seed: int) -> list[float]:
        """Tunes; returns the mean loss of every tenth of the steps."""
        if what == "none":
            return []
        parts = what.split("+")
        tuned = {"norms": self._norms, "head": self._head}
        masters = [Masters(tuned[part], RATE[part] * rate) for part in parts if part in tuned]
        moving = [Codes.of(layer) for layer in self._layers] if "codes" in parts else []
        order = self._order(seed)
        losses = []
        with StraightThrough(self._layers, moving):
            for step in range(self._steps):
                left = 1 - step / self._steps
                index = next(order)
                batch = self._batches[index]
                loss = divergence(self._wanted[index], logits_of(self._engine, batch), batch)
                loss.backward()
                losses.append(float(loss.detach()))
                for each in masters:
                    each.step(left)
                for codes in moving:
                    codes.step(rate * left / self._steps)
        for each in masters:
            each.end()
        for layer, codes in zip(self._layers, moving, strict=False):
            packed = pack_e2m1(codes.codes()).view(len(codes.base), -1)
            stored = layer.module.stored
            four_bits.store(layer, packed, stored.group_scale, stored.global_scale)
        tenth = max(1, len(losses) // 10)
        return [sum(losses[i : i + tenth]) / tenth for i in range(0, len(losses), tenth)]

    def _order(self, seed: int) -> Iterator[int]:
        generator = torch.Generator().manual_seed(seed)
        while True:
            yield from torch.randperm(len(self._batches), generator=generator).tolist()


class StraightThrough:
    """Inside the block, quantized layers pass gradients: to their inputs, and to moving codes."""

    def __init__(self, layers: Sequence[Layer], moving: Sequence[Codes]) -> None:
        self._layers, self._moving = layers, moving

    def __enter__(self) -> None:
        for at, layer in enumerate(self._layers):
            stored = layer.module.stored
            fixed = stored.values() * stored.scale()
            weight = self._moving[at].weight if self._moving else lambda fixed=fixed: fixed
            layer.module.forward = product(layer.module, weight)

    def __exit__(self, *_: object) -> None:
        for layer in self._layers:
            del layer.module.forward


def product(module: nn.Module, weight: Callable[[], Tensor]) -> Callable[[Tensor], Tensor]:
    """A layer's forward pass with gradients."""

    def forward(inputs: Tensor) -> Tensor:
        flat = inputs.reshape(-1, inputs.shape[-1])
        with torch.no_grad():
            values, scale = module.quantizer.quantize(flat)
            rounded = values if scale is None else values * scale
        wide = flat.float()
        wide = wide + (rounded - wide).detach()
        output = functional.linear(wide, weight())
        return output.to(inputs.dtype).reshape(*inputs.shape[:-1], -1)

    return forward


if __name__ == "__main__":
    main()
