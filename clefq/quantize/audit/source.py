"""Audit against other files: the BF16 source, and the hashes that `clefq.json` recorded."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from clefq.clef.config_match import NVFP4, Scheme
from clefq.clef.family import fused_groups
from clefq.clef.tensor_files import TensorInfo, same_bytes
from clefq.clef.weight_files import open_tensors
from clefq.quantize.audit.report import AuditReport
from clefq.quantize.finish import identity, loaded_files
from clefq.quantize.manifest import MANIFEST, read_manifest
from clefq.quantize.workers import in_threads
from clefq.store.atomic import sha256_file

if TYPE_CHECKING:
    from clefq.quantize.audit.tallies import Comparison

Refs = Mapping[str, TensorInfo]

# Relative weight error beyond which a weight cannot come from this source: twice what
# round-to-nearest costs on Gaussian weights.
_WORST = {4: 0.19, 8: 0.06}
_SOURCE_DTYPES = ("BF16", "F16", "F32")


def manifest(report: AuditReport, folder: Path) -> None:
    """Compares the files with the hashes in `clefq.json`, where there is one."""
    if not (folder / MANIFEST).is_file():
        report.notes.append("no clefq.json: file hashes are not known.")
        return
    found = read_manifest(folder)
    recorded = found.files
    report.looked_at("manifest", len(recorded))
    if found.sha256 != identity(recorded):
        report.breach("manifest", MANIFEST, "has a hash that is not that of the files it lists")
    there = [name for name in recorded if (folder / name).is_file()]
    for name in sorted(recorded.keys() - set(there)):
        report.breach("manifest", name, "is missing")
    for name in sorted(set(loaded_files(folder)) - recorded.keys() - {MANIFEST}):
        report.breach("manifest", name, "is not among the files that clefq wrote")
    digests = in_threads(sha256_file, [folder / name for name in there])
    for name, digest in zip(there, digests, strict=True):
        if digest != recorded[name]:
            report.breach("manifest", name, "is not the file that clefq wrote")


def compare(report: AuditReport, refs: Refs, schemes: Mapping[str, Scheme], source: Path) -> None:
    """Compares every tensor with the source: unquantized ones bit by bit."""
    theirs = open_tensors(source)
    quantized = {f"{module}.weight" for module in schemes}
    kept = [ref for name, ref in theirs.items() if name not in quantized]
    report.looked_at("untouched", len(kept))
    for ref in kept:
        if ref.name not in refs:
            report.breach("untouched", ref.name, "is in the source but not here")
    both = [ref for ref in kept if ref.name in refs]
    equal = in_threads(lambda ref: same_bytes(refs[ref.name], ref), both)
    for ref, same in zip(both, equal, strict=True):
        if not same:
            report.breach("untouched", ref.name, "differs from the source", "answers change")
    if find_spec("torch") is None or find_spec("compressed_tensors") is None:
        report.notes.append(
            "quantized weights not compared with the source: needs `pip install 'clefq[quantize]'`."
        )
    else:
        _quantized(report, refs, schemes, theirs)


def _quantized(
    report: AuditReport, refs: Refs, schemes: Mapping[str, Scheme], source: Refs
) -> None:
    from clefq.quantize.audit.rounding import compare_module
    from clefq.quantize.stream import one_thread_per_worker

    known = [module for module in schemes if f"{module}.weight" in source]
    groups = {m: group.members for group in fused_groups(known) for m in group.members}
    modules = _comparable(report, refs, schemes, source)
    report.looked_at("quantized", len(modules))

    def compare_one(module: str) -> Comparison:
        return compare_module(module, schemes[module], refs, source, groups.get(module, ()))

    other = []
    with one_thread_per_worker():
        for found in in_threads(compare_one, modules):
            _judge(report, found, _WORST[schemes[found.module].bits])
            if found.other_rounding:
                other.append(found.module)
    report.facts["other_rounding"] = other
    if other:
        report.notes.append(
            f"{len(other)} of {len(modules)} modules are not plain round-to-nearest of the source "
            f"(GPTQ, AWQ or another rounding): compared by their error alone ({_first(other)})."
        )


def _first(modules: list[str]) -> str:
    more = f" and {len(modules) - 3} more" if len(modules) > 3 else ""
    return ", ".join(modules[:3]) + more


def _comparable(
    report: AuditReport, refs: Refs, schemes: Mapping[str, Scheme], source: Refs
) -> list[str]:
    from clefq.quantize.audit.rounding import comparable

    modules, skipped = [], []
    for module, scheme in schemes.items():
        due = [f"{module}.{suffix}" for suffix in scheme.suffixes if not suffix.startswith("input")]
        theirs = source.get(f"{module}.weight")
        if theirs is None:
            report.breach("quantized", module, "is not in the source", "nothing proves it")
            continue
        if theirs.dtype not in _SOURCE_DTYPES:
            message = f"is {theirs.dtype} in the source, which is no BF16 checkpoint"
            report.breach("quantized", module, message, "nothing proves it")
            continue
        if not all(name in refs for name in due):
            continue  # what is missing is the config check's breach
        wrong = [name for name in due if refs[name].dtype not in _stored_dtypes(name, scheme)]
        if not comparable(scheme):
            skipped.append(module)
        elif wrong:
            message = f"is {refs[wrong[0]].dtype}, a type that its format does not have"
            report.breach("quantized", wrong[0], message)
        elif theirs.shape == _weight_shape(refs, module, scheme):
            modules.append(module)
        else:
            report.breach("quantized", module, "has not the source's shape")
    if skipped:
        report.notes.append(
            f"{len(skipped)} modules are NOT compared with the source: their format "
            f"({schemes[skipped[0]].format}, {schemes[skipped[0]].strategy}) is not known here."
        )
    return modules


def _stored_dtypes(name: str, scheme: Scheme) -> tuple[str, ...]:
    """What a quantized module's tensor may be stored as."""
    suffix = name.rpartition(".")[2]
    if suffix == "weight_packed":
        return ("U8",)
    if suffix == "weight" or (suffix == "weight_scale" and scheme.format == NVFP4):
        return ("F8_E4M3",)
    return _SOURCE_DTYPES


def _weight_shape(refs: Refs, module: str, scheme: Scheme) -> tuple[int, ...]:
    if scheme.format == NVFP4:
        rows, half = refs[f"{module}.weight_packed"].shape
        return rows, 2 * half
    return refs[f"{module}.weight"].shape


def _judge(report: AuditReport, found: Comparison, worst: float) -> None:
    if not found.relative_error <= worst:
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
    elif found.damaged and not found.few:
        if found.relative_error > worst:
            return  # said already
        report.breach(
            "quantized",
            found.module,
            f"{found.wild} of {found.numbers:,} weights are further from the source than any "
            "rounding puts them",
            "answers change",
        )
    elif found.damaged:
        report.breach(
            "quantized",
            found.module,
            f"{found.deviating} of {found.numbers:,} codes and scales are not the source's",
            "answers change",
        )
