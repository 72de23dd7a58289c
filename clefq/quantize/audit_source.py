"""Audit against other files: the BF16 source, and the hashes that `clefq.json` recorded."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from clefq.quantize.config_match import Scheme
from clefq.quantize.manifest import MANIFEST, read_manifest
from clefq.quantize.report import AuditReport
from clefq.quantize.tensors import TensorRef, open_tensors
from clefq.store.atomic import sha256_file

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


def same_bytes(ours: TensorRef, theirs: TensorRef) -> bool:
    """Whether two tensors have the same dtype, shape and bytes."""
    if (ours.dtype, ours.shape) != (theirs.dtype, theirs.shape):
        return False
    return all(a == b for a, b in zip(ours.blocks(), theirs.blocks(), strict=True))


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
