"""Audit against other files: the BF16 source, and the hashes that `clefq.json` recorded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from clefq.clef.config_match import ModuleFormat
from clefq.clef.family import fused_groups
from clefq.clef.formats import MODEL_DTYPE, PLAIN_FP8, STORAGES
from clefq.clef.tensor_files import TensorInfo, same_bytes
from clefq.clef.weight_files import open_tensors
from clefq.plain_files import sha256_file
from clefq.quantize.audit.report import AuditReport
from clefq.quantize.audit.tallies import Comparison, Sides
from clefq.quantize.finish import identity, loaded_files
from clefq.quantize.manifest import MANIFEST, read_build_manifest
from clefq.quantize.values import read_floats, to_bf16
from clefq.quantize.workers import in_threads

Refs = Mapping[str, TensorInfo]

# Relative weight error beyond which a weight cannot come from this source: twice what
# round-to-nearest costs on Gaussian weights.
_WORST = {4: 0.19, 8: 0.06}
# A rounding that makes up for its errors (GPTQ) moves weights further, in favour of the outputs:
# 0.14 to 0.21 for NVFP4 on the miniature, whose answers are no further from BF16 than those of
# round-to-nearest. Another model's weights are 1.4 away. What scales weights wrongly shows in the
# slope, which such a rounding leaves at 1 (0.991 to 0.998 there).
_WORST_COMPENSATED = {4: 0.35, 8: 0.12}
_SLOPE = 0.05
# Share of a weight's groups that may vanish: each is a note, and more of them a breach. A trained
# weight has none, since its smallest group is far above 1/458,752 of its largest number.
VANISHED_SHARE = 0.005
_SOURCE_DTYPES = ("BF16", "F16", "F32")


def manifest(report: AuditReport, folder: Path) -> None:
    """Compares the files with the hashes in `clefq.json`, where there is one."""
    if not (folder / MANIFEST).is_file():
        report.notes.append("no clefq.json: file hashes are not known.")
        return
    found = read_build_manifest(folder)
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


def compare(
    report: AuditReport,
    refs: Refs,
    schemes: Mapping[str, ModuleFormat],
    source: Path,
    allow_vanished: bool = False,
    device: str | None = None,
) -> None:
    """Compares every tensor with the source: unquantized ones bit by bit.

    Args:
        report: Takes the breaches; its facts say what repair needs: `rounded_twice` (norms that
            come from the source's by a save that rounded), `other_rounding`, `uncompared` and
            `recomputed` (module to how its numbers are made from the source).
        refs: The checkpoint's tensors.
        schemes: Format of every quantized module.
        source: The BF16 checkpoint.
        allow_vanished: Weights that four bits erase are a note, however many.
        device: Where quantized weights are recomputed; None for a GPU where there is one.
    """
    theirs = open_tensors(source)
    quantized = {f"{module}.weight" for module in schemes}
    kept = [ref for name, ref in theirs.items() if name not in quantized]
    report.looked_at("untouched", len(kept))
    for ref in kept:
        if ref.name not in refs:
            report.breach("untouched", ref.name, "is in the source but not here")
    both = [ref for ref in kept if ref.name in refs]
    equal = in_threads(lambda ref: same_bytes(refs[ref.name], ref), both)
    differ = [ref for ref, same in zip(both, equal, strict=True) if not same]
    twice = [ref.name for ref in differ if rounded_twice(refs[ref.name], ref)]
    for ref in differ:
        message = "differs from the source"
        if ref.name in twice:
            message += ": it was rounded twice, as 1 + w and back"
        report.breach("untouched", ref.name, message, "answers change")
    report.facts["rounded_twice"] = twice
    if find_spec("torch") is None or find_spec("compressed_tensors") is None:
        report.facts["uncompared"] = list(schemes)
        report.cannot_see(
            f"{len(schemes)} quantized modules are NOT compared with the source: that needs "
            "`pip install '.[quantize]'` in clefq's checkout"
        )
    else:
        from clefq.quantize.stream import default_device

        sides = Sides(refs, theirs, device or default_device())
        _quantized(report, schemes, sides, allow_vanished)


def rounded_twice(ours: TensorInfo, source: TensorInfo) -> bool:
    """Whether a norm is bf16(bf16(1 + w) - 1) of the source's w, as llm-compressor saves it.

    Such a norm carries nothing that a recipe moved into it: it can be restored whatever the
    weights beside it are.
    """
    if ours.dtype != "BF16" or source.dtype != "BF16" or ours.shape != source.shape:
        return False
    if len(source.shape) != 1 or "norm" not in source.name:
        return False
    one = np.float32(1)
    again = to_bf16(to_bf16(read_floats(source) + one) - one)
    return bool(np.array_equal(again, read_floats(ours)))


def _quantized(
    report: AuditReport,
    schemes: Mapping[str, ModuleFormat],
    sides: Sides,
    allow_vanished: bool,
) -> None:
    from clefq.quantize.audit.rounding import compare_module
    from clefq.quantize.stream import one_thread_per_worker, stream_workers

    known = [module for module in schemes if f"{module}.weight" in sides.source]
    groups = {m: group.members for group in fused_groups(known) for m in group.members}
    modules = _comparable(report, sides.refs, schemes, sides.source)
    report.looked_at("quantized", len(modules))

    def compare_one(module: str) -> Comparison:
        return compare_module(module, schemes[module], sides, groups.get(module, ()))

    with one_thread_per_worker():
        found = list(in_threads(compare_one, modules, stream_workers(sides.device)))
    for one in found:
        _judge(report, one, schemes[one.module].bits)
        _vanished(report, one, allow_vanished)
    other = [one.module for one in found if one.other_rounding]
    report.facts["other_rounding"] = other
    report.facts["uncompared"] = sorted(set(schemes) - set(modules))
    report.recomputed = {one.module: one for one in found if not one.other_rounding}
    if other:
        report.notes.append(
            f"{len(other)} of {len(modules)} modules are not plain round-to-nearest of the source "
            f"(GPTQ, AWQ or another rounding): compared by their error alone ({_first(other)})."
        )
        report.cannot_see(
            f"single wrong numbers of {len(other)} modules that are not rounded to nearest: only "
            "their error, their size and far-off weights are compared"
        )


def _vanished(report: AuditReport, found: Comparison, allowed: bool) -> None:
    """What four bits erase: rows and groups far smaller than their weight's largest number."""
    if not found.lost_groups:
        return
    rows = found.lost_rows
    what = f"{found.lost_groups:,} of its {found.groups:,} groups of weights"
    if rows:
        what = f"{len(rows):,} rows ({_ranges(rows)}) and {what}"
    message = f"loses {what}: zero, or less than half of their norm left"
    cure = "quantize it in FP8, which scales every row by itself"
    if allowed or found.lost_groups <= VANISHED_SHARE * found.groups:
        report.notes.append(f"{found.module} {message}; {cure}.")
        return
    report.breach("quantized", found.module, message, f"{cure}, or accept it with --allow-vanished")


def _ranges(rows: Sequence[int]) -> str:
    """Row numbers as ranges, the first three: `0-511, 700, 702-703, …`."""
    edges: list[list[int]] = []
    for row in rows:
        if edges and row == edges[-1][1] + 1:
            edges[-1][1] = row
        else:
            edges.append([row, row])
    shown = [f"{a}" if a == b else f"{a}-{b}" for a, b in edges[:3]]
    return ", ".join([*shown, "…"] if len(edges) > 3 else shown)


def _first(modules: list[str]) -> str:
    more = f" and {len(modules) - 3} more" if len(modules) > 3 else ""
    return ", ".join(modules[:3]) + more


def _comparable(
    report: AuditReport, refs: Refs, schemes: Mapping[str, ModuleFormat], source: Refs
) -> list[str]:
    from clefq.quantize.audit.rounding import comparable

    modules, skipped, quantized = [], [], []
    for module, scheme in schemes.items():
        due = [f"{module}.{suffix}" for suffix in scheme.suffixes if not suffix.startswith("input")]
        theirs = source.get(f"{module}.weight_packed") or source.get(f"{module}.weight")
        if theirs is None:
            report.breach("quantized", module, "is not in the source", "nothing proves it")
            continue
        if theirs.dtype not in _SOURCE_DTYPES:
            quantized.append(theirs)
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
    _not_compared(report, quantized, {m: schemes[m] for m in skipped})
    return modules


def _not_compared(
    report: AuditReport, quantized: Sequence[TensorInfo], skipped: Mapping[str, ModuleFormat]
) -> None:
    if quantized:
        report.breach(
            "quantized",
            "the source",
            f"is quantized itself: {quantized[0].name} is {quantized[0].dtype} "
            f"({len(quantized)} modules)",
            "nothing proves them; give the BF16 checkpoint with --source",
        )
    if skipped:
        first = next(iter(skipped.values()))
        report.cannot_see(
            f"{len(skipped)} quantized modules are NOT compared with the source: their format "
            f"({first.format}, {first.strategy}) is not known here"
        )


def _stored_dtypes(name: str, scheme: ModuleFormat) -> tuple[str, ...]:
    """What a quantized module's tensor may be stored as."""
    suffix = name.rpartition(".")[2]
    storage = STORAGES.get(scheme.format, PLAIN_FP8)
    if suffix == storage.codes[0]:
        return (storage.codes[1],)
    if suffix == "weight_scale" and storage.scale_dtype != MODEL_DTYPE:
        return (storage.scale_dtype,)
    return ("I64",) if suffix == "weight_shape" else _SOURCE_DTYPES


def _weight_shape(refs: Refs, module: str, scheme: ModuleFormat) -> tuple[int, ...]:
    suffix, _, per_element = STORAGES.get(scheme.format, PLAIN_FP8).codes
    *rows, columns = refs[f"{module}.{suffix}"].shape
    return (*rows, per_element * columns)


def _judge(report: AuditReport, found: Comparison, bits: int) -> None:
    table = _WORST_COMPENSATED if found.other_rounding else _WORST
    worst = table.get(bits, max(table.values()))
    kind = "a rounding that compensates" if found.other_rounding else "round-to-nearest"
    far = not found.relative_error <= worst
    if far:
        report.breach(
            "quantized",
            found.module,
            f"is {found.relative_error:.3f} away from the source (relative), "
            f"{kind} stays below {worst}",
            "answers change",
        )
    elif found.other_rounding and abs(found.slope - 1) > _SLOPE:
        report.breach(
            "quantized",
            found.module,
            f"is {found.slope:.3f} times the source on average, a rounding stays at 1",
            "weights are scaled wrongly",
        )
    made_with = found.made_with
    if made_with is not None and made_with != found.divisor:
        report.breach(
            "quantized",
            f"{found.module}.weight_global_scale",
            f"is {found.divisor:.9g}, its codes were made with {made_with:.9g}",
            "weights are scaled wrongly",
        )
    elif found.damaged and not (far and not found.few):
        count, what = (
            (found.deviating, "codes and scales are not the source's")
            if found.few
            else (found.wild, "weights are further from the source than any rounding puts them")
        )
        message = f"{count} of {found.numbers:,} {what}"
        report.breach("quantized", found.module, message, "answers change")
