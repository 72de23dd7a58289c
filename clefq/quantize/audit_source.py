"""Audit against other files: the BF16 source, and the hashes that `clefq.json` recorded."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from clefq.quantize.config_match import NVFP4, Scheme
from clefq.quantize.fusion import fused_groups
from clefq.quantize.manifest import MANIFEST, read_manifest
from clefq.quantize.report import AuditReport
from clefq.quantize.tensors import TensorRef, open_tensors, same_bytes
from clefq.store.atomic import sha256_file

if TYPE_CHECKING:
    from clefq.quantize.rounding import Comparison

Refs = Mapping[str, TensorRef]


def manifest(report: AuditReport, folder: Path) -> None:
    """Compares the files with the hashes in `clefq.json`, where there is one."""
    if not (folder / MANIFEST).is_file():
        report.notes.append("no clefq.json: file hashes are not known.")
        return
    for name, digest in read_manifest(folder).files.items():
        report.looked_at("manifest")
        path = folder / name
        if not path.is_file():
            report.breach("manifest", name, "is missing")
        elif sha256_file(path) != digest:
            report.breach("manifest", name, "is not the file that clefq wrote")


def compare(report: AuditReport, refs: Refs, schemes: Mapping[str, Scheme], source: Path) -> None:
    """Compares every unquantized tensor with the source, bit by bit."""
    theirs = open_tensors(source)
    quantized = {f"{module}.weight" for module in schemes}
    for name, ref in theirs.items():
        if name in quantized:
            continue
        report.looked_at("untouched")
        ours = refs.get(name)
        if ours is None:
            report.breach("untouched", name, "is in the source but not here")
        elif not same_bytes(ours, ref):
            report.breach("untouched", name, "differs from the source", "answers change")
    _quantized(report, refs, schemes, theirs)


# Relative weight error beyond which a weight cannot come from this source: twice what
# round-to-nearest costs on Gaussian weights.
_WORST = {4: 0.19, 8: 0.06}


def _quantized(
    report: AuditReport, refs: Refs, schemes: Mapping[str, Scheme], source: Refs
) -> None:
    if find_spec("torch") is None or find_spec("compressed_tensors") is None:
        report.notes.append(
            "quantized weights not compared with the source: needs `pip install clefq[quantize]`."
        )
        return
    from clefq.quantize.rounding import comparable, compare_module

    groups = {m: group.members for group in fused_groups(schemes) for m in group.members}
    other = []
    for module, scheme in schemes.items():
        due = [f"{module}.{suffix}" for suffix in scheme.suffixes if not suffix.startswith("input")]
        if not comparable(scheme) or not all(name in refs for name in due):
            continue
        if source[f"{module}.weight"].shape != _weight_shape(refs, module, scheme):
            report.breach("quantized", module, "has not the source's shape")
            continue
        report.looked_at("quantized")
        found = compare_module(module, scheme, refs, source, groups.get(module, ()))
        _judge(report, found, _WORST[scheme.bits])
        if not found.exact and not found.damaged and found.made_with in (None, found.divisor):
            other.append(module)
    report.facts["other_rounding"] = other
    if other:
        report.notes.append(
            f"{len(other)} modules are not plain round-to-nearest of the source (GPTQ, AWQ or "
            "another rounding): compared by their error alone."
        )


def _weight_shape(refs: Refs, module: str, scheme: Scheme) -> tuple[int, ...]:
    if scheme.format == NVFP4:
        rows, half = refs[f"{module}.weight_packed"].shape
        return rows, 2 * half
    return refs[f"{module}.weight"].shape


def _judge(report: AuditReport, found: Comparison, worst: float) -> None:
    if found.relative_error > worst:
        report.breach(
            "quantized",
            found.module,
            f"is {found.relative_error:.3f} away from the source (relative), "
            f"round-to-nearest stays below {worst}",
            "answers change",
        )
    made_with = found.made_with
    if made_with is not None and made_with != found.divisor:
        report.breach(
            "quantized",
            f"{found.module}.weight_global_scale",
            f"is {found.divisor:.9g}, its codes were made with {made_with:.9g}",
            "weights are scaled wrongly",
        )
    elif found.damaged:
        report.breach(
            "quantized",
            found.module,
            f"{found.deviating} of {found.numbers:,} codes and scales are not the source's",
            "answers change",
        )
