"""Audit of the scales: global ones, shared inside a fused group, and local ones, in range."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import numpy as np

from clefq.clef.config_match import NVFP4, ModuleFormat
from clefq.clef.family import FusedGroup, fused_groups
from clefq.clef.small_floats import E2M1_MAX, E4M3_MAX
from clefq.clef.tensor_files import FLOAT_DTYPES, TensorInfo
from clefq.quantize.audit.report import AuditReport
from clefq.quantize.values import TOO_LARGE, Floats, read_floats

Refs = Mapping[str, TensorInfo]
# a scale below it leaves nothing of what it scales
_TOO_SMALL = 2.0**-40
_KINDS = {"weight_global_scale": "weight scales", "input_global_scale": "input scales"}


def read_global_scale(refs: Refs, module: str, suffix: str) -> float | None:
    """A stored global scale (a divisor), or None where there is none."""
    ref = refs.get(f"{module}.{suffix}")
    if ref is None or ref.nbytes == 0:
        return None
    return float(read_floats(ref).reshape(-1)[0])


Choose = Callable[[Iterable[float]], float]


def global_scales(
    report: AuditReport, refs: Refs, schemes: Mapping[str, ModuleFormat], choose: Choose = max
) -> None:
    """Checks that global scales are finite, positive and equal inside every fused group.

    Args:
        report: Takes the breaches.
        refs: The checkpoint's tensors.
        schemes: Format of every quantized module.
        choose: Which divisor vLLM takes where members differ: the largest, or, of ModelOpt's
            factors, the largest, which is the smallest divisor.
    """
    nvfp4 = [module for module, scheme in schemes.items() if scheme.format == NVFP4]
    for suffix, check in _KINDS.items():
        scales: dict[str, float] = {}
        for module in nvfp4:
            value = read_global_scale(refs, module, suffix)
            if value is None:
                continue
            report.looked_at(check)
            fault = _impossible(value)
            if fault is None:
                scales[module] = value
            else:
                report.breach(
                    check, f"{module}.{suffix}", fault, "the whole product is NaN, zero or noise"
                )
        for group in fused_groups(nvfp4):
            present = {m: scales[m] for m in group.members if m in scales}
            if len(present) > 1 and len(set(present.values())) > 1:
                report.breach(
                    check,
                    group.name,
                    _listing(present),
                    _effect(suffix, shrink_factors(present, choose), choose),
                )


def _impossible(divisor: float) -> str | None:
    if not (np.isfinite(divisor) and divisor > 0):
        return f"is {divisor}"
    largest = E4M3_MAX * E2M1_MAX / divisor
    if 1 / TOO_LARGE <= largest <= TOO_LARGE:
        return None
    return f"is {divisor:.6g}, so that the largest number would be {largest:.3g}"


def shrink_factors(divisors: Mapping[str, float], choose: Choose = max) -> dict[str, float]:
    """By which factor each member shrinks when an engine takes the largest divisor for all.

    A stored global scale divides: weight = code · group scale / global scale. A member whose own
    divisor is d, served with the maximum D, comes out d/D times as large.

    Args:
        divisors: Member to its stored global scale.
        choose: Which divisor the engine takes.

    Returns:
        Member to a factor: of at most 1, or of at least 1 where it takes the smallest.
    """
    top = choose(divisors.values())
    return {name: value / top for name, value in divisors.items()}


def _listing(values: Mapping[str, float]) -> str:
    parts = ", ".join(f"{m.rpartition('.')[2]} {value:.6g}" for m, value in values.items())
    return f"members differ: {parts}"


def _effect(suffix: str, factors: Mapping[str, float], choose: Choose) -> str:
    shrunk = ", ".join(
        f"{m.rpartition('.')[2]} ×{factor:.3f}" for m, factor in factors.items() if factor != 1
    )
    if choose is min:
        what = "weights" if suffix == "weight_global_scale" else "range for inputs"
        return f"vLLM takes the largest factor for all: {what} of {shrunk}"
    if suffix == "weight_global_scale":
        return f"vLLM takes the largest divisor for all: weights of {shrunk}"
    return f"vLLM takes the largest divisor for all: inputs of {shrunk} of their range, clipped"


def shared_groups(schemes: Mapping[str, ModuleFormat]) -> list[FusedGroup]:
    """The fused groups whose members are all NVFP4: those with a scale to share."""
    return fused_groups(m for m, scheme in schemes.items() if scheme.format == NVFP4)


def local_scales(report: AuditReport, refs: Refs, schemes: Mapping[str, ModuleFormat]) -> None:
    """Checks the scales of groups, channels or tensors: finite, positive, none absurd."""
    for module, scheme in schemes.items():
        for suffix in ("weight_scale", "input_scale"):
            ref = refs.get(f"{module}.{suffix}")
            if ref is not None and ref.dtype in ("F8_E4M3", *FLOAT_DTYPES):
                report.looked_at("group scales")
                _local_scale(report, refs, ref, scheme)


def _local_scale(report: AuditReport, refs: Refs, ref: TensorInfo, scheme: ModuleFormat) -> None:
    values = read_floats(ref)
    bad = int(values.size - np.count_nonzero(np.abs(values) < TOO_LARGE))
    if bad:
        message = f"{bad} are NaN, infinite or beyond 2^24"
        report.breach("group scales", ref.name, message, "answers are NaN or noise")
    negative = int(np.count_nonzero(values < 0))
    if negative:
        report.breach("group scales", ref.name, f"{negative} are negative", "numbers flip sign")
    erased = _erased(refs, ref, scheme, values)
    if erased:
        message = f"{erased} are zero, or next to it, over nonzero codes"
        report.breach("group scales", ref.name, message, "numbers vanish")


def _erased(refs: Refs, ref: TensorInfo, scheme: ModuleFormat, scales: Floats) -> int:
    zero = np.abs(scales) < _TOO_SMALL
    if not bool(zero.any()):
        return 0
    packed = refs.get(ref.name.removesuffix("_scale") + "_packed")
    if scheme.format != NVFP4 or packed is None or scales.ndim != 2:
        return int(np.count_nonzero(zero))
    codes = np.frombuffer(packed.read(), dtype=np.uint8).reshape(*scales.shape, -1)
    # a nibble is zero when its three magnitude bits are
    return int(np.count_nonzero(zero & ((codes & 0x77) != 0).any(axis=-1)))
