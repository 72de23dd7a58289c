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
make up for those; `gptq-chain` the same, decoder layer by decoder layer, for what reaches a layer
through the quantized layers before it. For inputs: `inputs-0.5`, `inputs-2`: the calibrated range
halved, doubled; `smooth`: columns of weights multiplied, and of inputs divided, by
√(largest input / largest weight), as SmoothQuant does; `sorted`: columns in the order of their
inputs' size, so that a group holds like ones. Both change what no file could hold as it is (a norm
before many Linears, one order for all layers): they say at most what it would gain. Every
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

from clefq.clef.family import fused_groups  # noqa: E402
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

    `inputs`: Σ x xᵀ; `rounded`: Σ x̂ x̂ᵀ of inputs as they will be multiplied; `cross`: Σ x x̂ᵀ;
    `peaks`: largest magnitude per column.
    """

    tokens: int = 0
    peaks: Tensor | None = None
    inputs: Tensor | None = None
    rounded: Tensor | None = None
    cross: Tensor | None = None

    def add(self, x: Tensor, hat: Tensor) -> None:
        """Adds tokens: inputs [tokens, columns], and the same as they will be multiplied."""
        self.tokens += len(x)
        peaks = x.abs().amax(0)
        self.peaks = peaks if self.peaks is None else torch.maximum(self.peaks, peaks)
        self.inputs = plus(self.inputs, x.T @ x)
        self.rounded = plus(self.rounded, hat.T @ hat)
        self.cross = plus(self.cross, x.T @ hat)


def plus(sum_: Tensor | None, term: Tensor) -> Tensor:
    return term if sum_ is None else sum_ + term


@dataclass(frozen=True)
class Columns:
    """Inputs divided by a factor per column, then put in another order, before they are rounded."""

    divisor: float
    factors: Tensor
    order: Tensor

    def quantize(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """E2M1 values times group scales, and one over the global divisor."""
        return Nvfp4Inputs(self.divisor).quantize((inputs.float() / self.factors)[:, self.order])

    def key(self) -> tuple[str, float]:
        """Nothing is shared between layers."""
        return "columns", float(id(self))


@dataclass
class Layer:
    """One quantized Linear of the engine.

    `calibrated`: its input scale as the checkpoint has it; `input_divisor`: the one in use;
    `columns`: what a lever does to its inputs' columns.
    """

    name: str
    module: QuantizedLinear
    source: Tensor
    divisor: Tensor
    calibrated: float
    input_divisor: float
    moments: Moments = field(default_factory=Moments)
    columns: Columns | None = None


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
CHAIN = "gptq-chain"


def smooth(layer: Layer, fused: Sequence[Layer]) -> tuple[Tensor, Tensor]:
    """Factor and order of every column: √(largest input / largest weight of the fused group)."""
    weights = torch.stack([each.source.abs().amax(0) for each in fused]).amax(0)
    peaks = given(layer.moments.peaks)
    factors = (peaks.clamp(min=1e-6) / weights.clamp(min=1e-6)).sqrt()
    return factors / factors.median(), torch.arange(len(peaks), device=peaks.device)


def sorted_columns(layer: Layer, fused: Sequence[Layer]) -> tuple[Tensor, Tensor]:
    """Factor and order of every column: by the inputs' mean square."""
    power = given(layer.moments.inputs).diagonal()
    return torch.ones_like(power), power.argsort(stable=True)


COLUMN_LEVERS = {"smooth": smooth, "sorted": sorted_columns}


def apply_columns(layers: Sequence[Layer], lever: Callable) -> float:
    """Gives every layer other columns, with global scales of its fused group; the weight error."""
    by_name = {layer.name: layer for layer in layers}
    fused = {name: [name] for name in by_name}
    fused |= {m: list(group.members) for group in fused_groups(by_name) for m in group.members}
    error = norm = 0.0
    for layer in layers:
        group = [by_name[name] for name in fused[layer.name]]
        factors, order = lever(layer, group)
        amax = max(float((each.source * factors).abs().max()) for each in group)
        divisor = torch.tensor(448 * 6 / amax, device=factors.device)
        weight = (layer.source * factors)[:, order]
        groups = weight.unflatten(-1, (-1, GROUP))
        packed, scales = codes_of(groups, plain_scales(groups, divisor), divisor)
        store(layer, packed, scales, divisor)
        largest = float((given(layer.moments.peaks) / factors).max())
        layer.columns = Columns(448 * 6 / largest, factors, order)
        back = torch.empty_like(weight)
        back[:, order] = values_of(packed, scales, divisor)
        error += float((back / factors - layer.source).double().square().sum())
        norm += float(layer.source.double().square().sum())
    return (error / norm) ** 0.5


ALL_LEVERS = [*LEVERS, CHAIN, *INPUT_LEVERS, *COLUMN_LEVERS]


def given(value: Tensor | None) -> Tensor:
    assert value is not None  # data were collected
    return value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--calibration", type=Path, required=True)
    parser.add_argument("--evals", type=Path, nargs="+", required=True)
    parser.add_argument("--levers", nargs="+", default=ALL_LEVERS)
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
    calibration: Sequence[Record] = ()
    if DATA_FREE.issuperset(options.levers):
        print("no lever needs data")
    else:
        calibration = records_of(options.calibration, None)
        collect(bf16, bf16, layers, calibration)
        took = time.monotonic() - started
        print(f"moments of {layers[0].moments.tokens:,} tokens: {took:.0f} s")
    table = Table(sets, truth, gold, options.json)
    made = {folder.name: stored_in(folder) for folder in options.checkpoints}
    for arithmetic in options.arithmetics:
        for lever in [*options.levers, *made]:
            if lever in INPUT_LEVERS | COLUMN_LEVERS and arithmetic == "w4a16":
                continue
            started = time.monotonic()
            four = arithmetic == "w4a4"
            for layer in layers:
                layer.columns = None
            if lever in COLUMN_LEVERS:
                error = apply_columns(layers, COLUMN_LEVERS[lever])
            elif lever == CHAIN:
                error = chain(engine, bf16, layers, calibration, four)
            else:
                make = (LEVERS | made).get(lever, LEVERS["plain"])
                error = apply(layers, make, INPUT_LEVERS.get(lever, 1.0))
            switch(layers, four)
            about = {"weight_error": error, "seconds": time.monotonic() - started}
            table.add(engine, {"lever": lever, "arithmetic": arithmetic} | about)


class Table:
    """Rows of one engine in several states, against BF16 and against its first state."""

    def __init__(self, sets: Mapping, truth: Mapping, gold: Mapping, path: Path) -> None:
        self._sets, self._truth, self._gold, self._path = sets, truth, gold, path
        self._first: dict[tuple[str, str], dict] = {}
        self._rows: list[dict] = []

    def add(self, engine: TransformersEngine, about: dict) -> None:
        """Predicts every set, and writes all rows so far."""
        for name, records in self._sets.items():
            row = compare(self._truth[name], answers(engine, records), self._gold[name])
            row |= about | {"set": name}
            base = self._first.setdefault((about["arithmetic"], name), row)
            for what in ("kl", "agree", "right"):
                row[f"{what}_against_plain"] = difference(row[what + "_by"], base[what + "_by"])
            self._rows.append(row)
            print(line(row), flush=True)
        kept = [{k: v for k, v in row.items() if not k.endswith("_by")} for row in self._rows]
        self._path.write_text(json.dumps(kept, indent=1))


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


def collect(
    bf16: TransformersEngine,
    source: TransformersEngine,
    layers: Sequence[Layer],
    records: Sequence[Record],
    four_bit_inputs: bool = True,
) -> None:
    """Sums the moments of every layer's inputs over the calibration records.

    True inputs are those of `bf16`; those that will be multiplied reach the layer in `source`, and
    are rounded to four bits there, if asked. Padding is no input.
    """
    true, reached = ({**dict(linears(each, nn.Linear))} for each in (bf16, source))
    reached |= dict(linears(source, QuantizedLinear))
    kept: dict[str, Tensor] = {}
    mask = torch.ones(0, dtype=torch.bool)
    handles = []

    def tokens_of(args) -> Tensor:
        return args[0].reshape(-1, args[0].shape[-1])[mask]

    for layer in layers:

        def keep(_module, args, layer=layer):
            kept[layer.name] = tokens_of(args)

        def add(_module, args, layer=layer):
            x = tokens_of(args)
            hat = x.float()
            if four_bit_inputs:
                values, scale = Nvfp4Inputs(layer.calibrated).quantize(x)
                hat = values * scale
            layer.moments.add(kept[layer.name].float(), hat)

        handles.append(true[layer.name].register_forward_pre_hook(keep))
        handles.append(reached[layer.name].register_forward_pre_hook(add))
    prompts, _ = bf16.encode(records, None)
    with torch.inference_mode():
        for batch in bf16.batches(prompts):
            lengths = torch.tensor([len(prompt.encoded.token_ids) for prompt in batch])
            mask = (torch.arange(int(lengths.max())) < lengths.unsqueeze(1)).flatten()
            mask = mask.to(layers[0].source.device)
            bf16.hidden_states(batch)
            if source is not bf16:
                source.hidden_states(batch)
            kept.clear()
    for handle in handles:
        handle.remove()


def chain(
    engine: TransformersEngine,
    bf16: TransformersEngine,
    layers: Sequence[Layer],
    records: Sequence[Record],
    four_bit_inputs: bool,
) -> float:
    """`gptq-inputs` for what reaches every decoder layer through those before it."""
    apply(layers, LEVERS["plain"], 1.0)
    switch(layers, four_bit_inputs)
    held = [layer.moments for layer in layers]
    blocks: dict[str, list[Layer]] = {}
    for layer in layers:
        blocks.setdefault(".".join(layer.name.split(".")[:4]), []).append(layer)
    errors, norms = [], []
    for block in blocks.values():
        for layer in block:
            layer.moments = Moments()
        collect(bf16, engine, block, records, four_bit_inputs)
        norms.append(sum(float(layer.source.double().square().sum()) for layer in block))
        errors.append(apply(block, LEVERS["gptq-inputs"], 1.0))
        switch(block, four_bit_inputs)
    for layer, moments in zip(layers, held, strict=True):
        layer.moments = moments
    total = sum(error**2 * norm for error, norm in zip(errors, norms, strict=True))
    return (total / sum(norms)) ** 0.5


def values_of(packed: Tensor, scales: Tensor, divisor: Tensor) -> Tensor:
    """What codes and scales stand for, [rows, columns]."""
    values = unpack_e2m1(packed).unflatten(-1, (-1, GROUP)) * scales.float().unsqueeze(-1)
    return values.flatten(-2) / divisor


def store(layer: Layer, packed: Tensor, scales: Tensor, divisor: Tensor) -> None:
    """Gives a layer other codes and scales."""
    columns = layer.module.stored.columns
    layer.module.stored = Nvfp4Weight(packed, scales, divisor, columns)
    layer.module._decoded = None


def apply(layers: Sequence[Layer], make: Callable, factor: float) -> float:
    """Gives every layer its new codes; returns the relative weight error over all."""
    error = norm = 0.0
    for layer in layers:
        packed, scales = make(layer)
        store(layer, packed, scales, layer.divisor)
        weight = values_of(packed, scales, layer.divisor)
        error += float((weight - layer.source).double().square().sum())
        norm += float(layer.source.double().square().sum())
        layer.input_divisor = layer.calibrated * factor
    return (error / norm) ** 0.5


def switch(layers: Sequence[Layer], four_bit_inputs: bool) -> None:
    """Four-bit inputs, as the lever has them, or 16-bit ones."""
    for layer in layers:
        quantizer = layer.columns or Nvfp4Inputs(layer.input_divisor)
        layer.module.quantizer = quantizer if four_bit_inputs else KeepInputs()
        layer.module.memo.clear()


def compare(truth: Mapping, found: Mapping, gold: Mapping) -> dict:
    """KL(BF16‖candidate) in nats, agreement, accuracy of both; `_by` the same by record."""
    by: dict[str, dict[str, list[float]]] = {"kl": {}, "agree": {}, "right": {}}
    right_before = 0
    for key, (before, options) in truth.items():
        after, _ = found[key]
        p = np.exp(before)
        by["kl"].setdefault(key[0], []).append(float((p * (before - after)).sum()))
        agrees = float(before.argmax() == after.argmax())
        by["agree"].setdefault(key[0], []).append(agrees)
        if key in gold:
            right = float(options[int(after.argmax())] == gold[key])
            by["right"].setdefault(key[0], []).append(right)
            right_before += int(options[int(before.argmax())] == gold[key])
    labelled = sum(map(len, by["right"].values()))
    return {
        "questions": len(truth),
        "kl": sum(map(sum, by["kl"].values())) / len(truth),
        "agreement": sum(map(sum, by["agree"].values())) / len(truth),
        "accuracy": sum(map(sum, by["right"].values())) / max(labelled, 1),
        "accuracy_bf16": right_before / max(labelled, 1),
        **{f"{what}_by": values for what, values in by.items()},
    }


def difference(ours: Mapping[str, list[float]], theirs: Mapping[str, list[float]]) -> list[float]:
    """Mean difference per question and its 95% interval, records as clusters."""
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
