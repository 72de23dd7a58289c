"""A ModelOpt checkpoint as a compressed-tensors one: the same numbers under other names.

Codes, group scales and every tensor that is not quantized are copied byte by byte; FP8 scales are
too. NVFP4's `weight_scale_2` is a factor and compressed-tensors wants a divisor: the one is stored
whose reciprocal, in F32, is the factor again. Where there is none, every weight of the module is
computed both ways and must round to the same BF16 number, or the checkpoint is refused.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from clefq import __version__
from clefq.clef import modelopt
from clefq.clef.checkpoint import weight_bytes
from clefq.clef.config_match import quantization_of
from clefq.clef.formats import scheme_from_config
from clefq.clef.modelopt import ModelOpt
from clefq.clef.small_floats import E2M1_VALUES, E4M3
from clefq.clef.tensor_files import HeldTensor, TensorInfo
from clefq.clef.weight_files import open_tensors
from clefq.errors import AuditError, CheckpointError, InputError
from clefq.plain_files import read_json, sha256_file
from clefq.quantize import finish
from clefq.quantize.audit import Audited, audit_checkpoint, open_audited, scales, summary
from clefq.quantize.audit.report import AuditReport
from clefq.quantize.layout import Unit, copy_tensor, plan_shards, plan_units, write_shards
from clefq.quantize.manifest import (
    MANIFEST,
    SCHEMA_VERSION,
    Manifest,
    read_build_manifest,
    write_manifest,
)
from clefq.quantize.output import output_folder
from clefq.quantize.tensors import ShardFile, write_index
from clefq.quantize.values import Floats, to_bf16
from clefq.quantize.workers import default_workers
from clefq.store.atomic import write_json

if TYPE_CHECKING:
    from clefq.console import Console

METHOD = "convert"
_QUANTIZATION_KEYS = ("quantization_config", "compression_config")


@dataclass(frozen=True, slots=True)
class Conversion:
    """What was converted.

    Attributes:
        folder: The new checkpoint.
        origin: What made the old one: `ModelOpt 0.39.0, NVFP4`.
        formats: Arithmetic to number of modules.
        exact: Modules whose global factor came through bit for bit.
        rounded: Modules whose factor is the reciprocal of no F32 number: each of their weights is
            the same in BF16.
        left_out: Tensors that the new checkpoint does not have.
        audit: The audit's last word on it.
        finished: Whether it was there already, and nothing was done.
    """

    folder: str
    origin: str
    formats: Mapping[str, int]
    exact: int
    rounded: tuple[str, ...]
    left_out: tuple[str, ...]
    audit: str
    finished: bool = False


def convert_checkpoint(
    folder: Path,
    out: Path,
    console: Console,
    *,
    source: Path | None = None,
    keep_faults: bool = False,
) -> Conversion:
    """Writes a compressed-tensors copy of a ModelOpt checkpoint.

    Args:
        folder: The checkpoint.
        out: The folder to make; appears only when it is whole.
        console: Notes and progress.
        source: The BF16 checkpoint it was made from, for the audit.
        keep_faults: Write it though its audit finds breaches.

    Raises:
        CheckpointError: Not of ModelOpt, or in a format that has no counterpart.
        AuditError: The copy would be wrong, as the checkpoint is.
    """
    started = time.monotonic()
    finish.refuse_inside(out, *(place for place in (folder, source) if place is not None))
    audited = open_audited(folder)
    found = audited.modelopt
    if found is None:
        _refuse(folder, audited.config)
    rounded = _rounded_alike(audited, found)
    result = _described(audited, out, rounded)
    if _is_there(out, folder):
        return _described(audited, out, rounded, read_build_manifest(out))
    if not keep_faults:
        _check_shared(audited)
    with output_folder(out, lambda: _fingerprint(folder, source)) as partial:
        _write(partial, audited, console)
        finish.copy_side_files(folder, partial)
        write_json(partial / "config.json", _config(audited))
        audit = audit_checkpoint(partial, source)
        if not (audit.passed or keep_faults):
            _refuse_faults(audit)
        write_manifest(partial, _manifest(partial, folder, found, audit, started))
    return replace(result, audit=audit.word)


def _refuse(folder: Path, config: Mapping[str, Any]) -> NoReturn:
    block = quantization_of(config)
    if block is None:
        raise InputError(
            f"{folder} is not quantized: there is nothing to convert.",
            fix="`clefq quantize` makes a quantized checkpoint of it.",
        )
    raise InputError(
        f"{folder} is a compressed-tensors checkpoint already.",
        fix="use it as it is; `clefq audit` says whether it is sound.",
    )


def _described(
    audited: Audited, out: Path, rounded: tuple[str, ...], there: Manifest | None = None
) -> Conversion:
    assert audited.modelopt is not None
    held = {
        name.rpartition(".")[0]
        for name, ref in audited.refs.items()
        if isinstance(ref, HeldTensor) and name.endswith(".weight_global_scale")
    }
    return Conversion(
        folder=str(out),
        origin=audited.modelopt.title,
        formats=_formats(audited),
        exact=len(held) - len(rounded),
        rounded=rounded,
        left_out=tuple(_left_out(audited)),
        audit="" if there is None else str(there.audit.get("verdict", "")),
        finished=there is not None,
    )


def _formats(audited: Audited) -> dict[str, int]:
    counts: dict[str, int] = {}
    for scheme in audited.schemes.values():
        counts[scheme.arithmetic] = counts.get(scheme.arithmetic, 0) + 1
    return counts


def _left_out(audited: Audited) -> Iterable[str]:
    """Scales of a KV cache: no part of the weights, and engines would quantize the cache."""
    return (name for name in audited.refs if name.endswith(modelopt.CACHE_SCALES))


def _rounded_alike(audited: Audited, found: ModelOpt) -> tuple[str, ...]:
    """Modules whose factor has no F32 reciprocal, once their weights are proven to be the same.

    Raises:
        CheckpointError: A weight would round to another BF16 number.
    """
    inexact = {
        name.removesuffix(".weight_global_scale"): ref
        for name, ref in audited.refs.items()
        if isinstance(ref, HeldTensor) and not ref.exact and name.endswith(".weight_global_scale")
    }
    wrong = [module for module, ref in inexact.items() if not _same_weights(audited, module, ref)]
    if wrong:
        raise CheckpointError(
            f"{wrong[0]}.weight_scale_2 is the reciprocal of no F32 number, and some of its "
            "weights would be other BF16 numbers in compressed-tensors.",
            fix=f"serve the {found.title.partition(',')[0]} checkpoint as it is, or quantize the "
            "BF16 source with `clefq quantize`.",
            faults=wrong[1:],
        )
    return tuple(inexact)


def _same_weights(audited: Audited, module: str, divisor: HeldTensor) -> bool:
    """Whether every code under every group scale that is there gives the same BF16 number.

    A code times a group scale is exact in F32, so that one rounding and one more to BF16 follow.
    """
    stored = audited.refs.get(f"{module}.weight_scale")
    if stored is None or stored.dtype != "F8_E4M3":
        return True  # the audit's breach
    present = np.unique(np.frombuffer(stored.read(), dtype=np.uint8))
    products = np.outer(E4M3[present], np.array(E2M1_VALUES, dtype=np.float32)).astype(np.float32)
    theirs = to_bf16(products * np.float32(divisor.factor))
    ours = to_bf16(products * (np.float32(1) / _number(divisor)))
    return bool(np.array_equal(ours, theirs, equal_nan=True))


def _number(ref: HeldTensor) -> Any:
    found: Floats = np.frombuffer(ref.data, dtype="<f4")
    return found[0]


def _check_shared(audited: Audited) -> None:
    """Refuses before anything is written where members of a fused product differ.

    Raises:
        AuditError: ModelOpt's loader serves the largest factor, compressed-tensors' the smallest:
            the copy would be run otherwise.
    """
    report = AuditReport(str(audited.folder))
    scales.global_scales(report, audited.refs, audited.schemes)
    if not report.passed:
        _refuse_faults(report)


def _refuse_faults(report: AuditReport) -> NoReturn:
    lines = [f"{b.check}: {b.subject} {b.message}" for b in report.breaches]
    raise AuditError(
        f"the copy would be wrong, as the checkpoint is: {lines[0]}.",
        fix="`clefq audit` says what each means; --keep-faults writes it for `clefq repair`.",
        faults=lines[1:],
    )


def _is_there(out: Path, folder: Path) -> bool:
    """Whether an earlier run made `out` of this very checkpoint."""
    if not (out / MANIFEST).is_file():
        return False
    made = read_build_manifest(out)
    return made.method == METHOD and made.source.get("sha256") == _identity(folder)


def _identity(folder: Path) -> str:
    return finish.identity(finish.hash_files(folder))


def _fingerprint(folder: Path, source: Path | None) -> dict[str, Any]:
    """What the output's bytes depend on; JSON values only."""
    files = sorted({ref.file for ref in open_tensors(folder).values()})
    said = [folder / name for name in ("config.json", modelopt.CONFIG_FILE)]
    return {
        "folder": str(folder.resolve()),
        "weights": {path.name: [path.stat().st_size, path.stat().st_mtime_ns] for path in files},
        "said": {path.name: sha256_file(path) for path in said if path.is_file()},
        "side_files": {name: sha256_file(folder / name) for name in finish.side_files(folder)},
        "source": None if source is None else str(source.resolve()),
        "clefq": __version__,
    }


def _write(partial: Path, audited: Audited, console: Console) -> None:
    left_out = set(_left_out(audited))
    tensors = {name: ref for name, ref in audited.refs.items() if name not in left_out}
    shards = plan_shards(plan_units(tensors, {}))
    total = sum(len(shard.tensors) for shard in shards)

    def write_unit(file: ShardFile, unit: Unit) -> None:
        copy_tensor(file, tensors[unit.name])

    with console.progress("writing tensors", total) as advance:
        kept = write_shards(partial, shards, write_unit, default_workers(), advance)
    if kept:
        console.note(f"kept {kept} finished shard(s) of an interrupted run.")
    write_index(partial, {shard.name: shard.tensors for shard in shards})


def _config(audited: Audited) -> dict[str, Any]:
    """`config.json`: nothing changes but what it says of quantization."""
    body = read_json(audited.folder / "config.json")
    text = body.get("text_config")
    if isinstance(text, Mapping):
        body["text_config"] = {k: v for k, v in text.items() if k not in _QUANTIZATION_KEYS}
    kept = {name: value for name, value in body.items() if name not in _QUANTIZATION_KEYS}
    return {**kept, "quantization_config": audited.config["quantization_config"]}


def _manifest(
    partial: Path, folder: Path, found: ModelOpt, audit: AuditReport, started: float
) -> Manifest:
    files = finish.hash_files(partial)
    config = read_json(partial / "config.json")["quantization_config"]
    tensors: Mapping[str, TensorInfo] = open_tensors(partial)
    return Manifest(
        schema_version=SCHEMA_VERSION,
        clefq_version=__version__,
        created_at=finish.now(),
        scheme=scheme_from_config(config, tensors),
        method=METHOD,
        source={"model_id": str(folder), "revision": None, "sha256": _identity(folder)},
        recipe={"origin": found.title, "sha256": None},
        calibration=None,
        versions=finish.versions(),
        audit=summary(audit),
        formats=dict(audit.facts["formats"]),
        bytes={"source": weight_bytes(folder), "output": int(audit.facts["bytes"])},
        files=files,
        sha256=finish.identity(files),
        seconds=round(time.monotonic() - started, 3),
        peak_memory_bytes=finish.peak_memory(),
    )
