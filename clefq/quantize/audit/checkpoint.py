"""Proves from the tensors on disk that a quantized checkpoint is what it should be.

Works on any compressed-tensors checkpoint of the Qwen3.5 family, with or without a joint head,
whoever made it. Outputs prove nothing here: unequal scales hardly move a random model's outputs,
so the audit reads the stored numbers. Needs neither torch nor llm-compressor, except to compare
quantized weights with a source.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clefq.clef.checkpoint import LM_HEAD, embeddings_agree, weight_bytes
from clefq.clef.config_match import (
    ModuleFormat,
)
from clefq.clef.encoding import DEFAULT_MAX_LENGTH
from clefq.clef.family import (
    FAMILY,
    Shapes,
    expected_tensors,
    fused_groups,
    linear_modules,
    protected_reason,
    text_prefix,
)
from clefq.clef.modelopt import ModelOpt
from clefq.clef.tensor_files import TensorInfo
from clefq.clef.weight_files import INDEX, FolderTensors, refuse_other_weights, scan_folder
from clefq.errors import CheckpointError
from clefq.plain_files import read_json
from clefq.quantize.audit import bounds, files, foreign, measured, order, scales, settings, values
from clefq.quantize.audit import source as against
from clefq.quantize.audit.report import AuditReport
from clefq.quantize.calibration import load_calibration


@dataclass(frozen=True, slots=True)
class Audited:
    """A checkpoint as its audit sees it.

    Attributes:
        folder: The checkpoint.
        config: `config.json`.
        refs: Every backbone tensor.
        expected: Shapes of the unquantized model.
        schemes: Format of every quantized Linear.
        modelopt: What ModelOpt says of it, where that made it: `config` and `refs` are in
            compressed-tensors' terms then.
    """

    folder: Path
    config: Mapping[str, Any]
    refs: dict[str, TensorInfo]
    expected: Shapes
    schemes: dict[str, ModuleFormat]
    modelopt: ModelOpt | None = None


def audit_checkpoint(
    folder: Path,
    source: Path | None = None,
    *,
    config: Mapping[str, Any] | None = None,
    allow_vanished: bool = False,
    calibration: Path | None = None,
    device: str | None = None,
) -> AuditReport:
    """Audits a checkpoint.

    Args:
        folder: The quantized checkpoint.
        source: The BF16 checkpoint it was made from, if it is to be compared.
        config: Used in place of `config.json` while a checkpoint is being made.
        allow_vanished: Weights that four bits erase are a note, however many they are.
        calibration: Set to measure activations with, for input scales; needs torch.
        device: Where quantized weights are recomputed; None for a GPU where there is one.

    Returns:
        The report; `passed` tells whether any rule is broken.

    Raises:
        CheckpointError: The folder is no Qwen3.5 checkpoint at all, or cannot be read.
    """
    report = AuditReport(str(folder))
    audited = _open(report, folder, _read_config(folder) if config is None else config)
    body = audited.config
    if foreign.names(report, audited.refs):
        return report
    settings.loads(report, folder, body, audited.refs, source)
    settings.layouts(report, audited.refs, audited.expected, audited.schemes)
    _coverage(report, audited)
    _protected(report, audited)
    _formats(report, audited)
    choose = min if audited.modelopt is not None else max
    scales.global_scales(report, audited.refs, audited.schemes, choose)
    scales.local_scales(report, audited.refs, audited.schemes)
    bounds.weights(report, audited.refs, audited.schemes)
    bounds.inputs(report, audited.refs, audited.schemes)
    bounds.norms(report, audited.refs)
    if calibration is not None:
        model = folder if source is None else source
        records = load_calibration(calibration, model, DEFAULT_MAX_LENGTH)
        measured.check(report, audited.refs, audited.schemes, model, records)
    proven = source is not None
    values.check(report, audited.refs, audited.schemes, folder, proven)
    files.head(report, folder, source)
    if source is not None:
        files.settings(report, folder, body, source)
    against.manifest(report, folder)
    settings.engines(report, audited.schemes)
    if source is None:
        order.check(report, audited.refs, audited.schemes)
        settings.unproven(report, audited.schemes)
    else:
        report.against_source = True
        against.compare(report, audited.refs, audited.schemes, source, allow_vanished, device)
    return report


def _files(report: AuditReport, found: FolderTensors) -> None:
    report.looked_at("files", len({ref.file for ref in found.refs.values()}))
    for name in found.doubled:
        report.breach("files", name, "is in more than one shard", "the last shard read wins")
    for fault in found.faults:
        report.breach("files", "index", fault, "tensors are missed, or loading fails")
    for name in found.refs:
        if "language_model.language_model" in name:
            report.breach("files", name, "has a doubled prefix", "loading fails")


def open_audited(folder: Path) -> Audited:
    """The checkpoint as its audit sees it, whatever is wrong with it."""
    return _open(AuditReport(str(folder)), folder, _read_config(folder))


def _read_config(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    if not path.is_file():
        raise CheckpointError(
            f"{folder} is no checkpoint folder: it has no config.json.",
            fix="give a folder; `hf download ORG/NAME --local-dir DIR` gets one from the hub.",
        )
    body = read_json(path)
    if not isinstance(body, dict):
        raise CheckpointError(f"{path} is not a JSON object.", fix="download that file again.")
    return body


def _open(report: AuditReport, folder: Path, config: Mapping[str, Any]) -> Audited:
    refuse_other_weights(folder)
    found = scan_folder(folder)
    _files(report, found)
    if not (folder / INDEX).is_file():
        report.notes.append(f"no {INDEX}: vLLM's native Clef refuses the folder without it.")
    prefix = text_prefix(found.refs)
    expected = expected_tensors(config, prefix)
    if expected is None:
        raise CheckpointError(
            f"{folder / 'config.json'} is not that of a {FAMILY.name} model.",
            fix="give a Clef checkpoint, or another one of its architecture.",
        )
    report.facts["bytes"] = weight_bytes(folder)
    report.looked_at("config")
    refs, linears = found.refs, linear_modules(expected)
    theirs = foreign.modelopt_of(folder, config)
    if theirs is not None:
        translated = foreign.translated(report, folder, theirs, refs, linears)
        config, refs = {**config, "quantization_config": translated.config}, translated.tensors
    schemes = settings.schemes(report, folder, config, refs, linears)
    counts: dict[str, int] = {}
    for scheme in schemes.values():
        counts[scheme.arithmetic] = counts.get(scheme.arithmetic, 0) + 1
    report.scheme = ", ".join(f"{count} × {kind}" for kind, count in sorted(counts.items()))
    report.scheme = report.scheme or "not quantized"
    report.facts["formats"] = counts
    return Audited(folder, config, refs, expected, schemes, theirs)


def _coverage(report: AuditReport, audited: Audited) -> None:
    quantized = {f"{module}.{suffix}" for module in audited.schemes for suffix in settings.SUFFIXES}
    for name, shape in audited.expected.items():
        report.looked_at("coverage")
        if name.removesuffix(".weight") in audited.schemes:
            continue
        ref = audited.refs.get(name)
        if ref is None:
            if not _is_linear_weight(name, audited.expected):
                report.breach("coverage", name, "is missing", "loading fails")
        elif ref.dtype not in settings.FLOATS and not _is_linear_weight(name, audited.expected):
            report.breach("coverage", name, f"is stored as {ref.dtype}", "answers change")
        elif ref.shape != shape and ref.dtype in settings.FLOATS:
            report.breach("coverage", name, f"has shape {list(ref.shape)}, expected {list(shape)}")
    _extra(report, audited, set(audited.expected) | quantized)


def _extra(report: AuditReport, audited: Audited, known: set[str]) -> None:
    """Tensors that the model does not have, and what they are."""
    unread = {m for m, scheme in audited.schemes.items() if not settings.known(scheme)}
    linears = set(linear_modules(audited.expected))
    extra = [
        name
        for name in audited.refs
        if name not in known
        and not _suffix_known(name, linears)
        and name.rpartition(".")[0] not in unread
    ]
    drafts = [name for name in extra if name.startswith(FAMILY.drafts)]
    tied = _tied(report, audited)
    cache = [name for name in extra if name.endswith(foreign.CACHE_SCALES)]
    for name in extra:
        if name not in (*drafts, *tied, *cache):
            report.breach("coverage", name, "belongs to no part of the model", "loading fails")
    if cache:
        report.notes.append(
            f"{len(cache)} scales of a KV cache (first: {cache[0]}): vLLM takes them up where the "
            "server quantizes its cache."
        )
    if drafts:
        report.notes.append(f"{len(drafts)} draft (MTP) tensors are kept as they are.")


def _tied(report: AuditReport, audited: Audited) -> list[str]:
    """The output embeddings that a config which ties them to the input does not expect."""
    if LM_HEAD in audited.expected or LM_HEAD not in audited.refs:
        return []
    if embeddings_agree(audited.refs):
        report.notes.append(f"{LM_HEAD} repeats the embeddings that the config ties it to.")
    else:
        report.breach(
            "config",
            LM_HEAD,
            "differs from the embeddings, though the config ties them",
            "vLLM takes the embeddings for the rows that the joint head reads: answers change",
        )
    return [LM_HEAD]


def _is_linear_weight(name: str, expected: Shapes) -> bool:
    # a missing Linear is reported by the config check, with the module's other tensors
    return name.endswith(".weight") and len(expected[name]) == 2 and "embed" not in name


def _suffix_known(name: str, linears: set[str]) -> bool:
    module, _, suffix = name.rpartition(".")
    # leftovers of a Linear that should not be quantized: the config check names them
    return suffix in settings.SUFFIXES and module in linears


def _protected(report: AuditReport, audited: Audited) -> None:
    for module in linear_modules(audited.expected):
        why = protected_reason(module)
        if why is None:
            continue
        report.looked_at("protected")
        ref = audited.refs.get(f"{module}.weight")
        if module in audited.schemes or (ref is not None and ref.dtype not in settings.FLOATS):
            report.breach("protected", module, f"is quantized ({why})", "answers change")


def _formats(report: AuditReport, audited: Audited) -> None:
    for group in fused_groups(linear_modules(audited.expected)):
        report.looked_at("formats")
        kinds = {audited.schemes.get(member) for member in group.members}
        if len(kinds) > 1:
            listed = ", ".join(
                f"{m.rpartition('.')[2]} {_arithmetic(audited, m)}" for m in group.members
            )
            report.breach("formats", group.name, f"mixes formats ({listed})", "vLLM refuses it")


def _arithmetic(audited: Audited, module: str) -> str:
    scheme = audited.schemes.get(module)
    return "bf16" if scheme is None else scheme.arithmetic


def summary(report: AuditReport) -> dict[str, Any]:
    """What `clefq.json` keeps of an audit."""
    return {
        "passed": report.passed,
        "verdict": report.word,
        "unproven": list(report.unproven),
        "checks": dict(report.counts),
        "breaches": len(report.breaches),
    }
