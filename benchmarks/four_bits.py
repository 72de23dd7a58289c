"""What better rounding gains in NVFP4, one lever at a time: same bytes, same kernels.

    python benchmarks/four_bits.py NVFP4 --source BF16 --calibration SET --evals SET [SET …]
        --json rows.json [--levers plain search …] [--checkpoints DIR …] [--limit N]

NVFP4 is a checkpoint that `clefq quantize --scheme nvfp4` made: its global scales and input scales
are kept (but by the levers that are about them), codes and group scales are made anew from the
source, inside the transformers engine's simulation. Every lever runs weight-only (w4a16) and with
four-bit inputs (w4a4). Against BF16: relative weight error, mean KL, agreement, accuracy; against
`plain`: the paired difference of KL per question, with its 95% interval over records.

Levers for weights: `plain` round to nearest, amax / 6; `four-six` the better of amax / 6 and
amax / 4; `search` the E4M3 group scale of least squared error; `importance` the same, errors
weighted by the mean square of each input; `gptq` errors carried to later columns; `gptq-search`
both; `gptq-inputs` as `gptq-search`, for inputs as four bits round them, so that the weights also
make up for those. For inputs: `inputs-0.5`, `inputs-2`: the calibrated range halved, doubled. Every
folder of `--checkpoints` is a lever of its own: its codes and scales, whoever made them.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPOSITORY))

from clefq.clef.records import Record  # noqa: E402
from clefq.clef.small_floats import pack_e2m1, round_to_e2m1, unpack_e2m1  # noqa: E402
from clefq.clef.weight_files import open_tensors  # noqa: E402
from clefq.engines.base import EngineSpec  # noqa: E402
from clefq.engines.simulation import (  # noqa: E402
    KeepInputs,
    Nvfp4Inputs,
    Nvfp4Weight,
    QuantizedLinear,
)
from clefq.engines.transformers_engine import TransformersEngine  # noqa: E402
from clefq.store.sets import open_set  # noqa: E402

GROUP = 16
FP8 = torch.float8_e4m3fn
NEARBY = range(-2, 7)  # E4M3 codes around that of amax / 6; amax / 4 is four or five above
Answers = dict[tuple[str, str], np.ndarray]


@dataclass
class Moments:
    """Sums over the tokens of the calibration set, per module; F32 on the engine's device.

    `inputs`: Σ x xᵀ; `rounded`: Σ x̂ x̂ᵀ of inputs as four bits round them; `cross`: Σ x x̂ᵀ.
    """

    tokens: int = 0
    inputs: Tensor | None = None
    rounded: Tensor | None = None
    cross: Tensor | None = None

    def add(self, x: Tensor, hat: Tensor) -> None:
        """Adds tokens: inputs [tokens, columns], and the same as four bits round them."""
        self.tokens += len(x)
        self.inputs = plus(self.inputs, x.T @ x)
        self.rounded = plus(self.rounded, hat.T @ hat)
        self.cross = plus(self.cross, x.T @ hat)


def plus(sum_: Tensor | None, term: Tensor) -> Tensor:
    return term if sum_ is None else sum_ + term


@dataclass
class Layer:
    """One quantized Linear of the engine.

    `calibrated`: its input scale as the checkpoint has it; `input_divisor`: the one in use.
    """

    name: str
    module: QuantizedLinear
    source: Tensor
    divisor: Tensor
    calibrated: float
    input_divisor: float
    moments: Moments = field(default_factory=Moments)


def group_error(groups: Tensor, scales: Tensor, divisor: Tensor, weight: Tensor | None) -> Tensor:
    """Squared rounding error of every group, [rows, groups], F32."""
    factor = (scales / divisor).unsqueeze(-1)
    scaled = groups / factor.clamp(min=torch.finfo(torch.float32).tiny)
    error = (round_to_e2m1(scaled).mul_(factor) - groups).square_()
    return (error if weight is None else error * weight).sum(-1)


def plain_scales(groups: Tensor, divisor: Tensor) -> Tensor:
    """E4M3 scale of amax / 6, as F32 [rows, groups]."""
    amax = groups.abs().amax(-1)
    scales = (divisor * (amax / 6)).clamp(max=448).to(FP8).float()
    return torch.where(scales == 0, torch.tensor(2.0**-9, device=groups.device), scales)


def searched_scales(
    groups: Tensor, divisor: Tensor, weight: Tensor | None, steps: Sequence[int] = NEARBY
) -> Tensor:
    """The E4M3 scale near amax / 6 with the least error."""
    codes = plain_scales(groups, divisor).to(FP8).view(torch.uint8).int()
    best = errors = None
    for step in steps:
        scales = (codes + step).clamp(1, 126).to(torch.uint8).view(FP8).float()
        error = group_error(groups, scales, divisor, weight)
        if best is None or errors is None:
            best, errors = scales, error
            continue
        better = error < errors
        best, errors = torch.where(better, scales, best), torch.where(better, error, errors)
    assert best is not None
    return best


def four_six(groups: Tensor, divisor: Tensor, weight: Tensor | None) -> Tensor:
    """The better of amax / 6 and amax / 4."""
    six = plain_scales(groups, divisor)
    four = (divisor * (groups.abs().amax(-1) / 4)).clamp(max=448).to(FP8).float()
    better = group_error(groups, four, divisor, weight) < group_error(groups, six, divisor, weight)
    return torch.where(better, four, six)


Scales = Callable[[Tensor, Tensor, "Tensor | None"], Tensor]


def rounded(layer: Layer, scales_of: Scales, importance: bool = False) -> tuple[Tensor, Tensor]:
    """Nearest codes under the scales that a rule gives: packed, E4M3."""
    weight = None
    if importance:
        assert layer.moments.inputs is not None
        weight = layer.moments.inputs.diagonal().unflatten(0, (-1, GROUP))
    groups = layer.source.unflatten(-1, (-1, GROUP))
    scales = scales_of(groups, layer.divisor, weight)
    return codes_of(groups, scales, layer.divisor)


def codes_of(groups: Tensor, scales: Tensor, divisor: Tensor) -> tuple[Tensor, Tensor]:
    """Nearest codes under given scales."""
    scaled = groups / (scales / divisor).unsqueeze(-1)
    return pack_e2m1(scaled).view(groups.shape[0], -1), scales.to(FP8)


def gptq(layer: Layer, scales_of: Scales, *, inputs: bool = False) -> tuple[Tensor, Tensor]:
    """Errors of a column carried to the later ones (GPTQ), group scales chosen as they come."""
    moments = layer.moments
    assert moments.inputs is not None
    weights = layer.source.clone()
    hessian = moments.inputs.clone()
    damp = 0.01
    if inputs:
        assert moments.rounded is not None and moments.cross is not None
        hessian = moments.rounded.clone()
        ridge = hessian + damp * hessian.diagonal().mean() * torch.eye(
            len(hessian), device=hessian.device
        )
        # what makes rounded inputs give the products of the true ones, by least squares; damped
        # towards the weights as they are
        pull = moments.cross + damp * hessian.diagonal().mean() * torch.eye(
            len(hessian), device=hessian.device
        )
        weights = torch.linalg.solve(ridge.double(), (weights.double() @ pull.double()).T).T.float()
    hessian.diagonal().add_(damp * hessian.diagonal().mean())
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(hessian.double()))
    upper = torch.linalg.cholesky(inverse, upper=True).float()
    codes = torch.empty_like(weights)
    scales = []
    for start in range(0, weights.shape[1], GROUP):
        block = weights[:, start : start + GROUP]
        importance = upper.diagonal()[start : start + GROUP].square().reciprocal()
        scale = scales_of(block.unsqueeze(1), layer.divisor, importance.unsqueeze(0))[:, 0]
        scales.append(scale)
        factor = scale / layer.divisor
        errors = torch.empty_like(block)
        for column in range(GROUP):
            at = start + column
            code = round_to_e2m1(weights[:, at] / factor)
            codes[:, at] = code
            errors[:, column] = (weights[:, at] - code * factor) / upper[at, at]
            end = start + GROUP
            weights[:, at + 1 : end] -= errors[:, column : column + 1] * upper[at, at + 1 : end]
        weights[:, start + GROUP :] -= errors @ upper[start : start + GROUP, start + GROUP :]
    # a code times one lies on the grid: packing rounds nothing more
    packed = pack_e2m1(codes).view(len(codes), -1)
    return packed, torch.stack(scales, 1).to(FP8)


LEVERS: dict[str, Callable[[Layer], tuple[Tensor, Tensor]]] = {
    "plain": lambda layer: rounded(layer, lambda g, d, _: plain_scales(g, d)),
    "four-six": lambda layer: rounded(layer, four_six),
    "search": lambda layer: rounded(layer, searched_scales),
    "importance": lambda layer: rounded(layer, searched_scales, importance=True),
    "gptq": lambda layer: gptq(layer, lambda g, d, _: plain_scales(g, d)),
    "gptq-search": lambda layer: gptq(layer, searched_scales),
    "gptq-inputs": lambda layer: gptq(layer, searched_scales, inputs=True),
}
DATA_FREE = {"plain", "four-six", "search", "inputs-0.5", "inputs-2"}
INPUT_LEVERS = {"inputs-0.5": 2.0, "inputs-2": 0.5}  # factors of the divisor


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--calibration", type=Path, required=True)
    parser.add_argument("--evals", type=Path, nargs="+", required=True)
    parser.add_argument("--levers", nargs="+", default=[*LEVERS, *INPUT_LEVERS])
    parser.add_argument("--checkpoints", type=Path, nargs="*", default=[])
    parser.add_argument("--arithmetics", nargs="+", default=["w4a16", "w4a4"])
    parser.add_argument("--limit", type=int, help="records of each set")
    parser.add_argument("--json", type=Path, required=True)
    options = parser.parse_args()
    spec = EngineSpec(max_length=4096)
    sets = {path.name: records_of(path, options.limit) for path in options.evals}
    bf16 = TransformersEngine(options.source, spec)
    truth = {name: answers(bf16, records) for name, records in sets.items()}
    gold = {name: gold_of(records) for name, records in sets.items()}
    engine = TransformersEngine(options.checkpoint, spec)
    layers = layers_of(engine, bf16)
    started = time.monotonic()
    # one record a batch: padding is no input
    alone = TransformersEngine(options.source, EngineSpec(max_length=4096, batch_tokens=1))
    if DATA_FREE.issuperset(options.levers):
        print("no lever needs data")
    else:
        collect(alone, layers, records_of(options.calibration, None))
        took = time.monotonic() - started
        print(f"moments of {layers[0].moments.tokens:,} tokens: {took:.0f} s")
    rows: list[dict] = []
    plain: dict[tuple[str, str], dict] = {}
    made = {folder.name: stored_in(folder) for folder in options.checkpoints}
    for lever in [*options.levers, *made]:
        started = time.monotonic()
        make = (LEVERS | made).get(lever, LEVERS["plain"])
        factor = INPUT_LEVERS.get(lever, 1.0)
        error = apply(layers, make, factor)
        seconds = time.monotonic() - started
        for arithmetic in options.arithmetics:
            if lever in INPUT_LEVERS and arithmetic == "w4a16":
                continue
            switch(layers, arithmetic == "w4a4")
            for name, records in sets.items():
                found = answers(engine, records)
                row = compare(truth[name], found, gold[name])
                base = plain.setdefault((arithmetic, name), row)
                row |= {"lever": lever, "arithmetic": arithmetic, "set": name}
                row |= {"weight_error": error, "seconds": seconds}
                row["kl_against_plain"] = difference(row["kl_by_record"], base["kl_by_record"])
                rows.append(row)
                print(line(row), flush=True)
        kept = [{k: v for k, v in row.items() if k != "kl_by_record"} for row in rows]
        options.json.write_text(json.dumps(kept, indent=1))


def records_of(path: Path, limit: int | None) -> list[Record]:
    """The set's records without images, the first `limit` of them."""
    return [record for record in open_set(path).records() if not record.images][:limit]


def gold_of(records: Sequence[Record]) -> dict[tuple[str, str], str]:
    return {(record.id, name): option for record in records for name, option in record.gold.items()}


def answers(engine: TransformersEngine, records: Sequence[Record]) -> dict:
    return {
        (result.record_id, name): (values, result.option_ids[name])
        for group in engine.predict(records)
        for result in group
        for name, values in result.logprobs.items()
    }


def layers_of(engine: TransformersEngine, bf16: TransformersEngine) -> list[Layer]:
    """The quantized layers, with the weights that they were made of."""
    ours = dict(linears(engine, QuantizedLinear))
    theirs = dict(linears(bf16, nn.Linear))
    return [
        Layer(
            name,
            module,
            theirs[name].weight.detach().float(),
            module.stored.global_scale.float(),
            calibrated=module.quantizer.global_scale,
            input_divisor=module.quantizer.global_scale,
        )
        for name, module in ours.items()
        if isinstance(module.stored, Nvfp4Weight) and isinstance(module.quantizer, Nvfp4Inputs)
    ]


def stored_in(folder: Path) -> Callable[[Layer], tuple[Tensor, Tensor]]:
    """A lever that takes a checkpoint's codes and scales; its global scales must be ours."""
    refs = open_tensors(folder)

    def read(name: str, dtype: torch.dtype, device: torch.device) -> Tensor:
        ref = refs[name]
        data = torch.frombuffer(bytearray(ref.read()), dtype=dtype)
        return data.view(ref.shape).to(device)

    def make(layer: Layer) -> tuple[Tensor, Tensor]:
        device = layer.source.device
        theirs = read(f"{layer.name}.weight_global_scale", torch.float32, device)
        if not theirs.equal(layer.divisor.reshape(1)):
            raise SystemExit(f"{folder}: {layer.name} has another global scale.")
        packed = read(f"{layer.name}.weight_packed", torch.uint8, device)
        return packed, read(f"{layer.name}.weight_scale", FP8, device)

    return make


def linears(engine: TransformersEngine, kind: type[nn.Module]) -> Iterator[tuple[str, nn.Module]]:
    for name, module in engine.backbone.model.named_modules():
        if isinstance(module, kind):
            yield name, module


def collect(bf16: TransformersEngine, layers: Sequence[Layer], records: Sequence[Record]) -> None:
    """Sums the moments of every layer's inputs over the calibration records."""
    modules = dict(linears(bf16, nn.Linear))
    handles = []
    for layer in layers:
        quantizer = layer.module.quantizer

        def keep(_module, args, layer=layer, quantizer=quantizer):
            x = args[0].reshape(-1, args[0].shape[-1])
            x = x[x.abs().amax(-1) > 0].float()
            values, scale = quantizer.quantize(x.bfloat16())
            layer.moments.add(x, values if scale is None else values * scale)

        handles.append(modules[layer.name].register_forward_pre_hook(keep))
    for _ in bf16.predict(records):
        pass
    for handle in handles:
        handle.remove()


def apply(layers: Sequence[Layer], make: Callable, factor: float) -> float:
    """Gives every layer its new codes; returns the relative weight error over all."""
    error = norm = 0.0
    for layer in layers:
        packed, scales = make(layer)
        stored = layer.module.stored
        layer.module.stored = Nvfp4Weight(packed, scales, stored.global_scale, stored.columns)
        layer.module._decoded = None
        values = unpack_e2m1(packed).unflatten(-1, (-1, GROUP)) * scales.float().unsqueeze(-1)
        weight = values.flatten(-2) / layer.divisor
        error += float((weight - layer.source).double().square().sum())
        norm += float(layer.source.double().square().sum())
        layer.input_divisor = layer.calibrated * factor
    return (error / norm) ** 0.5


def switch(layers: Sequence[Layer], four_bit_inputs: bool) -> None:
    for layer in layers:
        layer.module.quantizer = (
            Nvfp4Inputs(layer.input_divisor) if four_bit_inputs else KeepInputs()
        )
        layer.module.memo.clear()


def compare(truth: Mapping, found: Mapping, gold: Mapping) -> dict:
    """KL(BF16‖candidate) in nats, agreement, accuracy of both."""
    kl_by_record: dict[str, list[float]] = {}
    agree = right = right_before = labelled = 0
    for key, (before, options) in truth.items():
        after, _ = found[key]
        p = np.exp(before)
        kl_by_record.setdefault(key[0], []).append(float((p * (before - after)).sum()))
        agree += int(before.argmax() == after.argmax())
        if key in gold:
            labelled += 1
            right += int(options[int(after.argmax())] == gold[key])
            right_before += int(options[int(before.argmax())] == gold[key])
    count = len(truth)
    return {
        "questions": count,
        "kl": sum(map(sum, kl_by_record.values())) / count,
        "agreement": agree / count,
        "accuracy": right / max(labelled, 1),
        "accuracy_bf16": right_before / max(labelled, 1),
        "kl_by_record": kl_by_record,
    }


def difference(ours: Mapping[str, list[float]], theirs: Mapping[str, list[float]]) -> list[float]:
    """Mean difference of KL per question and its 95% interval, records as clusters."""
    sums = np.array([sum(ours[name]) - sum(theirs[name]) for name in ours])
    counts = np.array([len(ours[name]) for name in ours])
    mean = sums.sum() / counts.sum()
    residual = sums - mean * counts
    size = len(sums)
    half = 1.96 * np.sqrt(size / (size - 1) * (residual**2).sum()) / counts.sum()
    return [float(mean), float(mean - half), float(mean + half)]


def line(row: Mapping) -> str:
    mean, low, high = row["kl_against_plain"]
    return (
        f"{row['lever']:<12} {row['arithmetic']:<6} {row['set']:<14}"
        f" error {row['weight_error']:.4f}  KL {row['kl']:.5f}"
        f" ({mean:+.5f} [{low:+.5f}, {high:+.5f}])"
        f"  agree {row['agreement']:.4f}  right {row['accuracy']:.4f} of {row['accuracy_bf16']:.4f}"
        f"  {row['seconds']:.0f} s"
    )


if __name__ == "__main__":
    main()
