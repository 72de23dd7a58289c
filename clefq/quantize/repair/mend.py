"""Mends unequal shared scales of a published checkpoint, with or without its BF16 source.

Without the source, the FP8 group scales of a member are multiplied by the ratio of the shared
(smallest) divisor to its own and rounded to E4M3. The member with the largest magnitude keeps
every bit. With the source, a deviating member is quantized anew under the shared divisor, which
gives the bits of a run that shared it from the start; that is right only where the stored
weights are plain round-to-nearest, which is checked first.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from clefq import __version__
from clefq.clef.checkpoint import weight_bytes
from clefq.clef.family import FusedGroup
from clefq.clef.formats import scheme_from_config
from clefq.clef.small_floats import encode_e4m3
from clefq.clef.tensor_files import Buffer, TensorInfo
from clefq.clef.weight_files import INDEX, open_tensors, weight_files
from clefq.console import Console
from clefq.errors import AuditError
from clefq.quantize import finish
from clefq.quantize.audit import Audited, audit_checkpoint, open_audited, summary
from clefq.quantize.audit.report import AuditReport
from clefq.quantize.audit.scales import read_global_scale, shared_groups, shrink_factors
from clefq.quantize.layout import copy_tensor
from clefq.quantize.manifest import (
    MANIFEST,
    SCHEMA_VERSION,
    Manifest,
    read_build_manifest,
    write_manifest,
)
from clefq.quantize.repair.refusals import (
    RepairError,
    nonzero,
    refuse_damaged_divisors,
    refuse_damaged_inputs,
    refuse_unmendable,
)
from clefq.quantize.repair.report import Mended, RepairReport
from clefq.quantize.tensors import OutTensor, ShardFile, write_index
from clefq.quantize.values import Floats, decode, nvfp4_floats, read_floats
from clefq.store.atomic import atomic_folder

if TYPE_CHECKING:
    from clefq.quantize.audit.tallies import Comparison

# Rescaling may cost this much of a member's weights (relative), no more
WORST_RESCALE = 0.05


Edits = dict[str, Callable[[], Buffer]]


def repair_checkpoint(
    folder: Path, source: Path | None, out: Path, console: Console
) -> RepairReport:
    """Writes a mended copy of a checkpoint.

    Args:
        folder: The checkpoint with breaches.
        source: The BF16 checkpoint it was made from, if there is one.
        out: The folder to make; appears only when its audit is clean.
        console: Notes and progress.

    Returns:
        What was done; its `folder` is None when there was nothing to mend.

    Raises:
        RepairError: The checkpoint has a breach that cannot be mended honestly.
    """
    started = time.monotonic()
    finish.refuse_inside(out, *(f for f in (folder, source) if f is not None))
    found = audit_checkpoint(folder, source)
    report = RepairReport(None, "stored weights" if source is None else "source")
    if found.passed:
        report.audit = found
        return report
    task = _Task(open_audited(folder), None if source is None else open_tensors(source), found)
    refuse_unmendable(found, source is not None)
    edits = _mend_scales(task, report) | _mend_inputs(task, report)
    edits |= _mend_modules(task, report, edits)
    added = _restore(task, report)
    with atomic_folder(out) as target:
        _copy(task, edits, added, target, console)
        audit = audit_checkpoint(target, source)
        if not audit.passed:
            first = audit.breaches[0]
            raise AuditError(f"the repair failed: {first.check}: {first.subject} {first.message}.")
        _manifest(task, audit, target, started)
    report.folder, report.audit = out, audit
    return report


@dataclass(frozen=True)
class _Task:
    """The checkpoint, its source and what is wrong with it."""

    audited: Audited
    source: Mapping[str, TensorInfo] | None
    found: AuditReport

    @property
    def refs(self) -> dict[str, TensorInfo]:
        return self.audited.refs

    def known(self, module: str) -> Comparison | None:
        """How a module's numbers come from the source; None without one, or where they do not."""
        return None if self.source is None else self.found.recomputed.get(module)

    def own_divisor(self, module: str, stored: float) -> float:
        """The weight global scale that a module's codes were made with."""
        known = self.known(module)
        return stored if known is None or known.made_with is None else known.made_with


def _mend_scales(task: _Task, report: RepairReport) -> Edits:
    edits: Edits = {}
    broken = {breach.subject for breach in task.found.of("weight scales")}
    for group in shared_groups(task.audited.schemes):
        stored = _divisors(task.refs, group, "weight_global_scale")
        divisors = {m: task.own_divisor(m, value) for m, value in stored.items()}
        if group.name not in broken or len(set(divisors.values())) < 2:
            continue  # with a source: one of equal scales was damaged, see _mend_modules
        if task.source is None:  # with a source the audit knows the codes' own divisor
            refuse_damaged_divisors(task.refs, divisors)
        shared = _smallest(task.refs, divisors)
        factors = shrink_factors(divisors)
        for module, own in divisors.items():
            requantize = task.known(module) is not None
            if own == shared:
                method = "kept"
            elif requantize:
                method = "requantized"
                edits |= _requantized(task, module, shared)
            else:
                method = "rescaled"
                edits |= _rescaled(task.refs, module, own, shared)
            before, after = _errors(task, module, edits, factors[module])
            if method == "rescaled" and task.source is None and after > WORST_RESCALE:
                raise RepairError(
                    f"rescaling {module} would change its weights by {after:.1%}.",
                    fix="give the BF16 checkpoint with --source.",
                )
            report.members.append(Mended(module, method, factors[module], before, after))
    return edits


def _smallest(refs: Mapping[str, TensorInfo], divisors: Mapping[str, float]) -> float:
    """The shared divisor; a member of zeros alone has none of its own to count."""
    counted = [d for m, d in divisors.items() if nonzero(refs[f"{m}.weight_packed"])]
    return min(counted or divisors.values())


def _divisors(refs: Mapping[str, TensorInfo], group: FusedGroup, suffix: str) -> dict[str, float]:
    values = {m: read_global_scale(refs, m, suffix) for m in group.members}
    return {m: value for m, value in values.items() if value is not None}


def _float_bytes(ref: TensorInfo, value: float) -> bytes:
    """One number in the tensor's dtype (F32 or BF16; global scales are BF16 numbers)."""
    raw = np.float32(value).tobytes()
    return raw if ref.dtype == "F32" else raw[2:]


def _rescaled(refs: Mapping[str, TensorInfo], module: str, own: float, shared: float) -> Edits:
    scale, divisor = refs[f"{module}.weight_scale"], refs[f"{module}.weight_global_scale"]
    return {
        scale.name: lambda: rescale(read_floats(scale), shared / own).tobytes(),
        divisor.name: lambda: _float_bytes(divisor, shared),
    }


def rescale(scales: Floats, ratio: float) -> npt.NDArray[np.uint8]:
    """Group scales times `ratio` (at most 1), rounded to E4M3; none becomes zero that was not."""
    codes = encode_e4m3(scales.astype(np.float64) * ratio)
    return np.where((codes == 0) & (scales > 0), np.uint8(1), codes).astype(np.uint8)


def _requantized(task: _Task, module: str, shared: float) -> Edits:
    edits = _from_source(task, module, shared)
    divisor = task.refs[f"{module}.weight_global_scale"]
    return {**edits, divisor.name: lambda: _float_bytes(divisor, shared)}


def _from_source(task: _Task, module: str, divisor: float | None) -> Edits:
    """A module's codes and scales, quantized anew in the arithmetic that made the others."""
    from clefq.quantize.audit.rounding import requantized

    known = task.known(module)
    assert task.source is not None and known is not None
    scheme = task.audited.schemes[module]
    made = cache(partial(requantized, module, scheme, task.source, known.arithmetic, divisor))
    suffixes = [s for s in scheme.suffixes if not s.startswith("input") and "global" not in s]
    refs = [task.refs[f"{module}.{suffix}"] for suffix in suffixes]
    return {ref.name: partial(_part, made, ref) for ref in refs}


def _part(made: Callable[[], Mapping[str, bytes]], ref: TensorInfo) -> bytes:
    data = made()[ref.name.rpartition(".")[2]]
    # a scale in the weights' dtype may be stored as F32
    return decode(data, "BF16").tobytes() if ref.nbytes == 2 * len(data) else data


def _mend_modules(task: _Task, report: RepairReport, done: Edits) -> Edits:
    """Modules whose global scale or whose few numbers are not what the source gives."""
    edits: Edits = {}
    subjects = {breach.subject for breach in task.found.breaches}
    for module, known in task.found.recomputed.items() if task.source is not None else ():
        if f"{module}.weight_scale" in done:
            continue  # quantized anew already
        divisor = task.refs.get(f"{module}.weight_global_scale")
        wrong = known.made_with is not None and known.made_with != known.divisor
        if wrong and divisor is not None:
            assert known.made_with is not None
            edits[divisor.name] = partial(_float_bytes, divisor, known.made_with)
        damaged = module in subjects or f"{module}.weight_scale" in subjects
        if damaged and (known.few or wrong):
            edits |= _from_source(task, module, known.made_with if divisor is not None else None)
        if wrong or (damaged and known.few):
            report.remade.append(module)
    return edits


def _errors(task: _Task, module: str, edits: Edits, factor: float) -> tuple[float, float]:
    """Relative weight error as an engine ran it before, and now."""
    stored, now = _Stored(task.refs, module, {}), _Stored(task.refs, module, edits)
    source = None if task.source is None else task.source[f"{module}.weight"]
    before = after = norm = 0.0
    for row in range(0, stored.rows, _ROWS):
        values = stored.values(row)
        truth = values
        if source is not None:
            width = source.nbytes // source.shape[0]
            data = source.slice(row * width, len(values) * width)
            truth = decode(data, source.dtype).reshape(values.shape)
        norm += _square(truth)
        before += _square(values * np.float32(factor) - truth)
        after += _square(now.values(row) - truth)
    if norm == 0:
        return 0.0, 0.0
    return (before / norm) ** 0.5, (after / norm) ** 0.5


_ROWS = 512


def _square(values: Floats) -> float:
    wide = values.astype(np.float64)
    return float(np.vdot(wide, wide))


class _Stored:
    """A module's stored numbers, or their edited form."""

    def __init__(self, refs: Mapping[str, TensorInfo], module: str, edits: Edits) -> None:
        def read(suffix: str) -> Buffer:
            name = f"{module}.{suffix}"
            return edits[name]() if name in edits else refs[name].read()

        self.rows = refs[f"{module}.weight_packed"].shape[0]
        packed = np.frombuffer(read("weight_packed"), dtype=np.uint8)
        self._packed = packed.reshape(self.rows, -1)
        self._scales = decode(read("weight_scale"), "F8_E4M3").reshape(self.rows, -1)
        divisor = decode(read("weight_global_scale"), refs[f"{module}.weight_global_scale"].dtype)
        self._divisor = float(divisor.reshape(-1)[0])

    def values(self, row: int) -> Floats:
        """What some rows stand for."""
        end = row + _ROWS
        return nvfp4_floats(self._packed[row:end], self._scales[row:end], self._divisor)


def _mend_inputs(task: _Task, report: RepairReport) -> Edits:
    """Shared input scales: the smallest divisor, whose range holds every member's inputs."""
    edits: Edits = {}
    broken = {breach.subject for breach in task.found.of("input scales")}
    for group in shared_groups(task.audited.schemes):
        divisors = _divisors(task.refs, group, "input_global_scale")
        if group.name not in broken or len(set(divisors.values())) < 2:
            continue
        shared = min(divisors.values())
        refuse_damaged_inputs(group.name, divisors)
        report.inputs.append(group.name)
        for module in divisors:
            ref = task.refs[f"{module}.input_global_scale"]
            edits[ref.name] = partial(_float_bytes, ref, shared)
    return edits


def _restore(task: _Task, report: RepairReport) -> dict[str, TensorInfo]:
    """Unquantized tensors to take from the source."""
    if task.source is None:
        return {}
    names = sorted({breach.subject for breach in task.found.of("untouched")})
    report.restored += names
    return {name: task.source[name] for name in names}


def _copy(
    task: _Task, edits: Edits, restored: Mapping[str, TensorInfo], out: Path, console: Console
) -> None:
    folder = task.audited.folder
    files = weight_files(folder)
    missing = [ref for name, ref in restored.items() if name not in task.refs]
    shards: dict[str, list[OutTensor]] = {}
    with console.progress("writing shards", len(files)) as advance:
        for file in files:
            refs = [restored.get(r.name, r) for r in task.refs.values() if r.file == file]
            if file == files[-1]:
                refs += missing
            tensors = [OutTensor(ref.name, ref.dtype, ref.shape) for ref in refs]
            with ShardFile(out / file.name, tensors) as target:
                for ref in refs:
                    if ref.name in edits:
                        target.put(ref.name, 0, edits[ref.name]())
                    else:
                        copy_tensor(target, ref)
            shards[file.name] = tensors
            advance(1)
    write_index(out, shards)
    written = {file.name for file in files} | {INDEX, MANIFEST}
    for path in sorted(folder.rglob("*")):
        relative = path.relative_to(folder)
        hidden = any(part.startswith(".") for part in relative.parts)
        if path.is_file() and relative.as_posix() not in written and not hidden:
            (out / relative).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, out / relative)


def _manifest(task: _Task, audit: AuditReport, out: Path, started: float) -> None:
    """A manifest of the mended folder; what the old one said of its making is kept."""
    folder = task.audited.folder
    old = read_build_manifest(folder) if (folder / MANIFEST).is_file() else None
    files = finish.hash_files(out)
    config = task.audited.config.get("quantization_config")
    write_manifest(
        out,
        Manifest(
            schema_version=SCHEMA_VERSION,
            clefq_version=__version__,
            created_at=finish.now(),
            scheme=scheme_from_config(config, task.refs) if old is None else old.scheme,
            method="repair",
            source={
                "model_id": str(folder),
                "revision": None,
                "sha256": finish.identity(finish.hash_files(folder)),
            },
            recipe={"origin": None, "sha256": None} if old is None else old.recipe,
            calibration=None if old is None else old.calibration,
            versions=finish.versions(),
            audit=summary(audit),
            formats=dict(audit.facts["formats"]),
            bytes={
                "source": weight_bytes(folder),
                "output": int(audit.facts["bytes"]),
            },
            files=files,
            sha256=finish.identity(files),
            seconds=round(time.monotonic() - started, 3),
            peak_memory_bytes=finish.peak_memory(),
        ),
    )
