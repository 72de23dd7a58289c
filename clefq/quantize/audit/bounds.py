"""Audit of magnitudes without a source: what stored scales say of weights and of activations.

A scale that is its own reciprocal (other tools store multipliers where compressed-tensors stores
divisors), that belongs to another tensor or that was never measured leaves every shape and every
code as it should be. Its size does not fit, though: a weight has about the size of the same
projection's in other layers, and an activation behind a norm cannot exceed what the norm lets
through. These bounds hold for every input, so that no record is needed; the torch-free numbers
behind them are those of the stored scales alone.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from clefq.clef.config_match import NVFP4, ModuleFormat
from clefq.clef.family import Reads, fused_groups, group_key, reads
from clefq.clef.formats import largest_number
from clefq.clef.small_floats import E2M1_MAX, E4M3_MAX
from clefq.clef.tensor_files import TensorInfo
from clefq.quantize.audit.report import AuditReport
from clefq.quantize.values import Floats, read_floats

Refs = Mapping[str, TensorInfo]

NVFP4_MAX = E2M1_MAX * E4M3_MAX
# No weight of a trained Linear is larger.
LARGEST_WEIGHT = 1024.0
# How far a projection's weights may be from the same projection's in other layers, up and down.
_PEERS, _OUTLIER, _TINY = 3, 16.0, 1 / 256
# Where a projection has too few peers, all quantized ones are.
_LOOSER = 4.0
# Rounded weights and activations may exceed a bound that holds for exact ones.
_SLACK = 1.5
# Members of a fused group see the same inputs.
_SAME_INPUTS = 2.0
# Behind so many different activations no two largest numbers are all the same.
_DIFFERENT = 3
_LAYER = re.compile(r"^(?P<layer>.*\.layers\.\d+)\.(?P<leaf>.+)$")


@dataclass(frozen=True, slots=True)
class Range:
    """What the largest magnitude of an activation can be.

    Attributes:
        lower: No token stays below it; 0 where nothing is known.
        upper: No token exceeds it.
        why: Where the bound comes from.
    """

    lower: float
    upper: float
    why: str


def weights(report: AuditReport, refs: Refs, schemes: Mapping[str, ModuleFormat]) -> None:
    """Checks the size of the weights that the stored scales imply."""
    told = _told(report)
    found = {
        module: size
        for module, scheme in schemes.items()
        if not _is_told(told, module) and (size := _weight_size(refs, module, scheme)) is not None
    }
    for module, (typical, largest) in found.items():
        if largest > LARGEST_WEIGHT:
            name = _scale_name(module, schemes[module])
            report.breach(
                "weight scales" if schemes[module].format == NVFP4 else "group scales",
                name,
                f"would make the largest weight {largest:.3g}"
                + _reciprocal(schemes[module], typical),
                "the whole product is noise",
            )
    sound = {m: size for m, size in found.items() if size[1] <= LARGEST_WEIGHT}
    for module, (typical, _) in sound.items():
        _beside_peers(report, module, typical, {m: t for m, (t, _) in sound.items()}, schemes)


def _beside_peers(
    report: AuditReport,
    module: str,
    typical: float,
    sizes: Mapping[str, float],
    schemes: Mapping[str, ModuleFormat],
) -> None:
    leaf = _leaf(module)
    peers = [t for m, t in sizes.items() if m != module and _leaf(m) == leaf]
    looser = 1.0 if len(peers) >= _PEERS else _LOOSER
    if looser > 1:
        peers = [t for m, t in sizes.items() if m != module]
    if len(peers) < _PEERS:
        return
    usual = float(np.median(peers))
    factor = typical / usual if usual else 1.0
    where = "in other layers" if looser == 1 else "of the other projections"
    said = f"makes the weights {factor:.3g} times as large as {where}"
    if factor > _OUTLIER * looser or factor < _TINY / looser:
        check = "weight scales" if schemes[module].format == NVFP4 else "group scales"
        name = _scale_name(module, schemes[module])
        report.breach(check, name, said, "the whole product is scaled wrongly")
    elif factor < 1 / _OUTLIER:
        report.notes.append(f"{_scale_name(module, schemes[module])} {said}.")


def _weight_size(refs: Refs, module: str, scheme: ModuleFormat) -> tuple[float, float] | None:
    """Typical and largest magnitude of a module's weights, from its scales; None if unreadable."""
    scales = largest_under_scales(refs, module, scheme)
    if scales is None or not scales.size:
        return None
    wide = scales.astype(np.float64)
    return float(np.sqrt(np.mean(wide**2))), float(wide.max())


def largest_under_scales(refs: Refs, module: str, scheme: ModuleFormat) -> Floats | None:
    """Largest magnitude under each stored scale of a weight; None if absent or not finite."""
    ref = refs.get(f"{module}.weight_scale")
    if ref is None or ref.dtype not in ("F8_E4M3", "BF16", "F16", "F32"):
        return None
    values = np.abs(read_floats(ref))
    if scheme.format != NVFP4:
        found = values * np.float32(largest_number(scheme.bits, scheme.type))
    else:
        divisor = _scalar(refs, f"{module}.weight_global_scale")
        if not divisor:
            return None
        # far-off scales may overflow: then they are no finite number, and another check's
        found = (values.astype(np.float64) * (E2M1_MAX / divisor)).astype(np.float64)
    return found if bool(np.isfinite(found).all()) else None


def _reciprocal(scheme: ModuleFormat, typical: float) -> str:
    """What the size would be if the stored number were its own reciprocal."""
    # what divides NVFP4's largest, or multiplies FP8's, came from the largest weight
    alone = largest_number(scheme.bits, scheme.type)
    turned = (NVFP4_MAX if scheme.format == NVFP4 else alone) ** 2 / typical
    return f"; it looks like the reciprocal, which makes it {turned:.3g}" if turned < 64 else ""


def inputs(report: AuditReport, refs: Refs, schemes: Mapping[str, ModuleFormat]) -> None:
    """Checks calibrated input scales against what the layers before them let through."""
    claims = {m: c for m, s in schemes.items() if (c := claimed(refs, m, s)) is not None}
    if not claims:
        return
    _same_inputs(report, claims, schemes)
    _measured(report, claims)
    open_, told = [], _told(report)
    for module, claim in claims.items():
        if _is_told(told, module):
            continue
        found = possible(refs, schemes, module, told)
        if found is None:
            open_.append(module)
            continue
        said = f"says that its inputs reach {claim:.4g}"
        name = input_name(module, schemes[module])
        turned = _turned(schemes[module], claim)
        fits = found.lower / _SLACK <= turned <= found.upper * _SLACK
        hint = f"; as its reciprocal it would say {turned:.4g}" if fits else ""
        if claim > found.upper * _SLACK:
            message = f"{said}, which {found.why} keeps below {found.upper:.4g}{hint}"
            report.breach("input scales", name, message, "inputs are rounded to zero")
        elif claim < found.lower / _SLACK:
            message = f"{said}, and {found.why} takes every token above {found.lower:.4g}{hint}"
            report.breach("input scales", name, message, "inputs are clipped")
        elif fits:
            open_.append(module)
    if open_:
        report.cannot_see(
            f"input scales of {len(open_)} projections ({_kinds(open_)}) are inside what is "
            "possible, and so would their reciprocals be: --calibration SET measures them"
        )
    report.cannot_see(
        f"how well {len(claims)} input scales fit real inputs (only their bounds are checked): "
        "--calibration SET measures them"
    )


def claimed(refs: Refs, module: str, scheme: ModuleFormat) -> float | None:
    """The largest input that a module's stored scale stands for; None without a sound scale."""
    if scheme.format == NVFP4:
        divisor = _scalar(refs, f"{module}.input_global_scale")
        return NVFP4_MAX / divisor if divisor else None
    scale = _scalar(refs, f"{module}.input_scale")
    return scale * E4M3_MAX if scale else None


def _turned(scheme: ModuleFormat, claim: float) -> float:
    largest = NVFP4_MAX if scheme.format == NVFP4 else E4M3_MAX
    return largest**2 / claim


def _same_inputs(
    report: AuditReport, claims: Mapping[str, float], schemes: Mapping[str, ModuleFormat]
) -> None:
    """FP8 members of a fused group; those of NVFP4 must be equal, which is another check."""
    fp8 = [module for module in claims if schemes[module].format != NVFP4]
    for group in fused_groups(fp8):
        members = {m: claims[m] for m in group.members}
        if max(members.values()) > _SAME_INPUTS * min(members.values()):
            listed = ", ".join(f"{m.rpartition('.')[2]} {v:.4g}" for m, v in members.items())
            report.breach(
                "input scales",
                group.name,
                f"members see the same inputs, and their scales say they reach {listed}",
                "vLLM takes the largest scale for all: small inputs are rounded to zero",
            )


def _measured(report: AuditReport, claims: Mapping[str, float]) -> None:
    """No calibration finds the same largest number behind different layers."""
    places = {place(module) for module in claims}
    if len(places) >= _DIFFERENT and len(set(claims.values())) == 1:
        claim = next(iter(claims.values()))
        report.breach(
            "input scales",
            "every input scale",
            f"says that inputs reach {claim:.4g}, in {len(places)} different places: none was "
            "measured",
            "inputs are clipped, or rounded to zero",
        )


def _told(report: AuditReport) -> frozenset[str]:
    """What has a breach already: its numbers prove nothing, and one breach is enough."""
    return frozenset(breach.subject for breach in report.breaches)


def _is_told(told: frozenset[str], module: str) -> bool:
    subjects = {module, group_key(module), *(f"{module}.{suffix}" for suffix in _SCALES)}
    return not told.isdisjoint(subjects)


_SCALES = ("weight_scale", "weight_global_scale", "input_scale", "input_global_scale")


def possible(
    refs: Refs, schemes: Mapping[str, ModuleFormat], module: str, told: frozenset[str] = frozenset()
) -> Range | None:
    """What the largest magnitude of a module's inputs can be, whatever the record.

    Behind an RMSNorm Σ x² = H, so that max |x·(1 + w)| is at most √H·max |1 + w| and at least
    √(H / Σ (1 + w)⁻²). What follows from it: a value is at most ‖row‖ times that √H·max |1 + w|;
    attention averages values, and its gate is at most 1; |silu(a)| ≤ |a|; the DeltaNet's own norm
    lets √d·max |w| through.

    Args:
        refs: The checkpoint's tensors.
        schemes: Format of every quantized module.
        module: Module name.
        told: Modules and tensors that are known to be wrong.

    Returns:
        None for a module whose inputs are not known to be bounded.
    """
    way = reads(module)
    if way is None or any(_is_told(told, name) for name in way.behind):
        return None
    if not way.behind:
        return _behind_norm(refs, way.norm)
    before = _behind(refs, schemes, way)
    if way.gated is None or before is None:
        return before
    inner = refs.get(f"{way.gated}.weight")
    if inner is None:
        return None
    values = np.abs(read_floats(inner))
    upper = before.upper * math.sqrt(values.size) * float(values.max())
    return Range(0.0, upper, "the DeltaNet's norm")


def _behind_norm(refs: Refs, norm: str) -> Range | None:
    ref = refs.get(f"{norm}.weight")
    if ref is None or ref.dtype not in ("BF16", "F16", "F32"):
        return None
    gain = np.abs(1 + read_floats(ref).astype(np.float64))
    if not np.isfinite(gain).all():
        return None
    upper = math.sqrt(gain.size) * float(gain.max())
    inverse = float(np.sum(1 / np.maximum(gain, 1e-9) ** 2))
    return Range(math.sqrt(gain.size / inverse), upper, norm.rpartition(".")[2])


def _behind(refs: Refs, schemes: Mapping[str, ModuleFormat], way: Reads) -> Range | None:
    """Behind projections of a norm's output that are multiplied by each other."""
    first = _behind_norm(refs, way.norm)
    norms = [_row_norms(refs, schemes.get(name), name) for name in way.behind]
    if first is None or any(rows is None for rows in norms):
        return None
    product = np.prod([rows for rows in norms if rows is not None], axis=0)
    upper = float(product.max()) * first.upper ** len(norms)
    return Range(0.0, upper, f"{way.norm.rpartition('.')[2]} and what is between")


def _row_norms(refs: Refs, scheme: ModuleFormat | None, module: str) -> Floats | None:
    """No less than the norm of each row of a weight, from its scales alone where quantized."""
    if scheme is None:
        ref = refs.get(f"{module}.weight")
        if ref is None or ref.dtype not in ("BF16", "F16", "F32"):
            return None
        found: Floats = np.linalg.norm(read_floats(ref), axis=1)
        return found
    scales = largest_under_scales(refs, module, scheme)
    codes = refs.get(f"{module}.weight_packed" if scheme.format == NVFP4 else f"{module}.weight")
    if scales is None or codes is None or len(codes.shape) != 2:
        return None
    columns = codes.shape[1] * (2 if scheme.format == NVFP4 else 1)
    if scheme.strategy == "block":
        return None
    per_row = scales.reshape(-1, scales.shape[-1]) if scales.ndim else scales.reshape(1, 1)
    per_row = np.broadcast_to(per_row, (codes.shape[0], per_row.shape[1]))
    return np.asarray(np.sqrt((per_row**2).sum(1) * (columns / per_row.shape[1])))


def _scalar(refs: Refs, name: str) -> float | None:
    ref = refs.get(name)
    if ref is None or ref.nbytes == 0 or ref.dtype not in ("BF16", "F16", "F32"):
        return None
    value = float(read_floats(ref).reshape(-1)[0])
    return value if math.isfinite(value) and value > 0 else None


def _scale_name(module: str, scheme: ModuleFormat) -> str:
    suffix = "weight_global_scale" if scheme.format == NVFP4 else "weight_scale"
    return f"{module}.{suffix}"


def input_name(module: str, scheme: ModuleFormat) -> str:
    """Name of the tensor that scales a module's inputs."""
    return f"{module}.{'input_global_scale' if scheme.format == NVFP4 else 'input_scale'}"


def _leaf(module: str) -> str:
    found = _LAYER.match(module)
    return module if found is None else found["leaf"]


def place(module: str) -> tuple[str, ...]:
    """Modules of one place have the same inputs."""
    way = reads(module)
    return (module,) if way is None or way.behind else (way.layer, way.norm)


def _kinds(modules: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(_leaf(m).rpartition(".")[2] for m in modules))


# Means of one kind of norm differ by less between layers; stored as 1 + w, one is 1 higher.
_SHIFT = 0.8
_KINDS_OF_NORM = ("input_layernorm", "post_attention_layernorm", "q_norm", "k_norm")


def norms(report: AuditReport, refs: Refs) -> None:
    """A word on norms that look as if stored as 1 + w: others of their kind are 1 lower."""
    for kind in _KINDS_OF_NORM:
        means = {
            name: float(read_floats(ref).mean(dtype=np.float64))
            for name, ref in refs.items()
            if name.endswith(f".{kind}.weight") and ref.dtype in ("BF16", "F16", "F32")
        }
        for name, mean in means.items():
            others = [value for other, value in means.items() if other != name]
            if len(others) >= _DIFFERENT and mean - max(others) > _SHIFT:
                report.notes.append(
                    f"{name} has a mean of {mean:.2f}, those of other layers reach at most "
                    f"{max(others):.2f}: it looks as if stored as 1 + w."
                )
