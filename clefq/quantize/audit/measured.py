"""Largest activations, measured with records: what calibrated input scales should stand for.

Bounds (see `bounds`) tell a reciprocal from a scale almost everywhere; how well a scale fits real
inputs, records alone tell. A few records leave the maxima of later ones out: see `growth`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clefq.clef.config_match import ModuleFormat
from clefq.quantize.audit.bounds import Refs, claimed, input_name, place
from clefq.quantize.audit.report import AuditReport
from clefq.quantize.calibration import Calibration

if TYPE_CHECKING:
    from collections.abc import Iterator

Maxima = Mapping[str, Sequence[float]]
# Beyond these, no other choice of records explains a scale: it clips nearly everything, or leaves
# 4-bit inputs (a ratio of 12 between the largest and the smallest) nothing but zeros.
_CLIPS, _ERASES = 16.0, 1 / 256
# A scale that other records exceed by less is as calibrations are.
_USUAL = 1.1
# The last records whose part in the maxima is told.
LAST = 0.1
# Of 32 records of the miniature's calibration set, 86% of the maxima are within 1.1 times those of
# all 128, and 99% within 1.5; of 8 records 53% and 95%, and one is 2.2 times too small
# (docs/quantize.md).
FEW_RECORDS = 32


@contextmanager
def watching(model: Any, modules: Iterable[str]) -> Iterator[dict[str, list[float]]]:
    """Notes the largest magnitude that enters each module, call by call, inside the block.

    Args:
        model: A transformers model.
        modules: Names of its Linears; of those that see the same inputs the first is watched.

    Yields:
        Module name to one number per call, in the order of the calls.
    """
    firsts = {place(name): name for name in reversed(list(modules))}
    found: dict[str, list[float]] = {name: [] for name in firsts.values()}
    handles = []

    def watch(name: str) -> Any:
        def hook(module: Any, arguments: tuple[Any, ...]) -> None:
            found[name].append(float(arguments[0].detach().abs().amax()))

        return hook

    for name, module in model.named_modules():
        if name in found:
            handles.append(module.register_forward_pre_hook(watch(name)))
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


@dataclass(frozen=True, slots=True)
class MaximaGrowth:
    """How far the maxima still grew with the last tenth of the records.

    Attributes:
        places: Different inputs that are scaled.
        grew: How many of them had their largest number in the last tenth.
        factor: By how much the one that grew most did, at least 1.
    """

    places: int
    grew: int
    factor: float

    def to_json(self) -> dict[str, object]:
        """What `clefq.json` keeps."""
        return {
            "scales": self.places,
            "grew_in_last_tenth": self.grew,
            "largest_growth": round(self.factor, 4),
        }


def growth(maxima: Maxima, records: int) -> MaximaGrowth | None:
    """What the last tenth of the records added; None for fewer than ten records.

    Args:
        maxima: Module to one number per call; calls beyond the first `records` repeat them.
        records: How many records there are.
    """
    last = int(records * LAST)
    if not last or not maxima:
        return None
    factors = []
    for values in maxima.values():
        seen = list(values[:records])
        before = max(seen[: records - last], default=0.0)
        factors.append(max(seen, default=0.0) / before if before else 1.0)
    return MaximaGrowth(len(factors), sum(f > 1 for f in factors), max(factors))


def check(
    report: AuditReport,
    refs: Refs,
    schemes: Mapping[str, ModuleFormat],
    model: Path,
    calibration: Calibration,
) -> None:
    """Measures activations with records and holds the stored input scales against them.

    Args:
        report: Takes the breaches.
        refs: The checkpoint's tensors.
        schemes: Format of every quantized module.
        model: The BF16 source, or the checkpoint itself, whose weights are then dequantized.
        calibration: The records.
    """
    claims = {m: c for m, s in schemes.items() if (c := claimed(refs, m, s)) is not None}
    if not claims:
        report.notes.append("no input scale is stored: there is nothing to measure.")
        return
    measured = {place(m): max(v) for m, v in measure(model, calibration, claims).items() if v}
    ratios = {m: measured[place(m)] / claim for m, claim in claims.items() if place(m) in measured}
    report.looked_at("input scales", len(ratios))
    for module, ratio in ratios.items():
        if _ERASES <= ratio <= _CLIPS:
            continue
        effect = "inputs are clipped" if ratio > 1 else "inputs are rounded to zero"
        report.breach(
            "input scales",
            input_name(module, schemes[module]),
            f"says that its inputs reach {claims[module]:.4g}, {len(calibration.prompts)} records "
            f"reach {ratio * claims[module]:.4g}",
            effect,
        )
    small = {m: r for m, r in ratios.items() if _USUAL < r <= _CLIPS}
    if small:
        worst = max(small, key=lambda module: small[module])
        report.notes.append(
            f"{len(small)} of {len(ratios)} input scales are smaller than these records need, "
            f"by up to {small[worst]:.2f} times ({worst}): larger inputs are clipped."
        )
    report.proved("--calibration SET")
    report.notes.append(f"input scales were measured with {len(calibration.prompts)} records.")


def measure(
    model: Path, calibration: Calibration, modules: Iterable[str]
) -> dict[str, list[float]]:
    """Runs the records through a model in BF16 and notes each place's largest input."""
    import json

    import torch
    from transformers import CompressedTensorsConfig, Qwen3_5ForConditionalGeneration

    from clefq.quantize.model_inputs import calibration_arguments
    from clefq.quantize.quiet import quiet_libraries

    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    options: dict[str, Any] = {"dtype": torch.bfloat16}
    with quiet_libraries():
        if config.get("quantization_config") is not None:
            options["quantization_config"] = CompressedTensorsConfig(dequantize=True)
        loaded = Qwen3_5ForConditionalGeneration.from_pretrained(str(model), **options)
        if "quantization_config" in options:
            from compressed_tensors.quantization import disable_quantization

            loaded.apply(disable_quantization)
        rows = calibration_arguments(json.loads(calibration.to_job()), str(model))["dataset"]
        backbone: Any = loaded.model
        with torch.inference_mode(), watching(loaded, modules) as found:
            for row in rows:
                backbone(**row, use_cache=False)
    return found
