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
    FP8,
    NVFP4,
    Scheme,
    misnamed,
    misread,
    quantization_of,
    schemes_of,
)
from clefq.clef.family import (
    FAMILY,
    Shapes,
    expected_tensors,
    fused_groups,
    linear_modules,
    protected_reason,
    served_name,
    text_prefix,
)
from clefq.clef.tensor_files import TensorInfo
from clefq.clef.weight_files import INDEX, FolderTensors, scan_folder
from clefq.errors import CheckpointError
from clefq.quantize.audit import files, scales, values
from clefq.quantize.audit import source as against
from clefq.quantize.audit.report import AuditReport
from clefq.store.atomic import read_json

_FLOATS = ("BF16", "F16", "F32")


@dataclass(frozen=True, slots=True)
class Audited:
    """A checkpoint as its audit sees it.

    Attributes:
        folder: The checkpoint.
        config: `config.json`.
        refs: Every backbone tensor.
        expected: Shapes of the unquantized model.
        schemes: Scheme of every quantized Linear.
    """

    folder: Path
    config: Mapping[str, Any]
    refs: dict[str, TensorInfo]
    expected: Shapes
    schemes: dict[str, Scheme]


def audit_checkpoint(
    folder: Path, source: Path | None = None, *, config: Mapping[str, Any] | None = None
) -> AuditReport:
    """Audits a checkpoint.

    Args:
        folder: The quantized checkpoint.
        source: The BF16 checkpoint it was made from, if it is to be compared.
        config: Used in place of `config.json` while a checkpoint is being made.

    Returns:
        The report; `passed` tells whether any rule is broken.

    Raises:
        CheckpointError: The folder is no Qwen3.5 checkpoint at all, or cannot be read.
    """
    report = AuditReport(str(folder))
    body = _read_config(folder) if config is None else config
    audited = _open(report, folder, body)
    _config(report, audited)
    _coverage(report, audited)
    _protected(report, audited)
    _formats(report, audited)
    scales.global_scales(report, audited.refs, audited.schemes)
    scales.local_scales(report, audited.refs, audited.schemes)
    proven = source is not None
    values.check(report, audited.refs, audited.schemes, folder, proven)
    files.head(report, folder, source)
    if source is not None:
        files.settings(report, folder, body, source)
    against.manifest(report, folder)
    if source is None:
        report.notes.append("not compared with a source; give --source to do so.")
    else:
        against.compare(report, audited.refs, audited.schemes, source)
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
    schemes: dict[str, Scheme] = {}
    report.facts["bytes"] = weight_bytes(folder)
    report.looked_at("config")
    block = quantization_of(config)
    if block is None:
        _unquantized(report, found)
    elif (method := _method(block)) != "compressed-tensors":
        raise CheckpointError(
            f"{folder} is quantized by {method!r}, not in the compressed-tensors format.",
            fix="audit reads compressed-tensors checkpoints only.",
        )
    else:
        try:
            schemes = schemes_of(block, linear_modules(expected))
        except ValueError as error:
            report.breach("config", "config.json", str(error), "loading fails")
        for fault in misread(block) if schemes else ():
            report.breach("config", "config.json", fault, "it runs in another arithmetic")
        status = block.get("quantization_status")
        if status != "compressed":
            message = f"quantization_status is {status!r}, expected 'compressed'"
            report.breach("config", "config.json", message, "transformers loads no usable weights")
        if not schemes:
            report.breach("config", "config.json", "its quantization_config matches no Linear")
        _names(report, block, linear_modules(expected), schemes)
    counts: dict[str, int] = {}
    for scheme in schemes.values():
        counts[scheme.arithmetic] = counts.get(scheme.arithmetic, 0) + 1
    report.scheme = ", ".join(f"{count} × {kind}" for kind, count in sorted(counts.items()))
    report.scheme = report.scheme or "not quantized"
    report.facts["formats"] = counts
    return Audited(folder, config, found.refs, expected, schemes)


def _method(block: Any) -> Any:
    return block.get("quant_method") if isinstance(block, Mapping) else None


def _names(
    report: AuditReport, block: Mapping[str, Any], linears: list[str], schemes: Mapping[str, Scheme]
) -> None:
    wrong = misnamed(block, linears) if schemes else []
    if wrong:
        module, kind = wrong[0]
        stored = schemes[module].arithmetic if module in schemes else "bf16"
        report.breach(
            "config",
            "config.json",
            f"its patterns miss vLLM's names: {module} is {stored} here, but "
            f"{served_name(module)} is {kind} there ({len(wrong)} modules); begin patterns with "
            "re:.* instead",
            "loading fails, or weights are taken for what they are not",
        )


def _unquantized(report: AuditReport, found: FolderTensors) -> None:
    packed = [name for name in found.refs if name.endswith((".weight_packed", ".weight_scale"))]
    if packed:
        report.breach(
            "config",
            "config.json",
            f"has no quantization_config, though {packed[0]} is quantized",
            "the engine loads it as BF16 and fails",
        )


def _config(report: AuditReport, audited: Audited) -> None:
    refs, expected = audited.refs, audited.expected
    for module in linear_modules(expected):
        report.looked_at("config")
        scheme = audited.schemes.get(module)
        stored = {suffix for suffix in _SUFFIXES if f"{module}.{suffix}" in refs}
        due = set(scheme.suffixes) if scheme is not None else {"weight"}
        for suffix in sorted(due - stored):
            report.breach("config", f"{module}.{suffix}", "is missing", "loading fails")
        for suffix in sorted(stored - due):
            said = "leaves it BF16" if scheme is None else f"says {scheme.format}"
            report.breach(
                "config",
                f"{module}.{suffix}",
                f"is there, though the config {said}",
                "loading fails or ignores it",
            )
        if scheme is not None:
            _layout(report, module, scheme, audited)
        elif f"{module}.weight" in refs and refs[f"{module}.weight"].dtype not in _FLOATS:
            report.breach(
                "config",
                f"{module}.weight",
                f"is stored as {refs[f'{module}.weight'].dtype}, though the config leaves it BF16",
                "the codes are taken for weights",
            )


_SUFFIXES = (
    "weight",
    "weight_packed",
    "weight_scale",
    "weight_global_scale",
    "input_global_scale",
    "input_scale",
    "weight_zero_point",
)


def _layout(report: AuditReport, module: str, scheme: Scheme, audited: Audited) -> None:
    rows, columns = audited.expected[f"{module}.weight"]
    for suffix, (dtypes, shapes) in _layouts(scheme, rows, columns).items():
        ref = audited.refs.get(f"{module}.{suffix}")
        if ref is None:
            continue
        if ref.dtype not in dtypes or (shapes and ref.shape not in shapes):
            report.breach(
                "config",
                ref.name,
                f"is {ref.dtype}{list(ref.shape)}, expected {dtypes[0]}"
                + (f"{list(shapes[0])}" if shapes else ""),
                "loading fails",
            )


def _layouts(
    scheme: Scheme, rows: int, columns: int
) -> dict[str, tuple[tuple[str, ...], tuple[tuple[int, ...], ...]]]:
    if scheme.format == NVFP4:
        size = scheme.group_size or 16
        return {
            "weight_packed": (("U8",), ((rows, columns // 2),)),
            "weight_scale": (("F8_E4M3",), ((rows, columns // size),)),
            "weight_global_scale": (("F32", "BF16"), ((1,), ())),
            "input_global_scale": (("F32", "BF16"), ((1,), ())),
        }
    if scheme.format in FP8:
        known: dict[str, tuple[tuple[int, ...], ...]] = {
            "channel": ((rows, 1), (rows,)),
            "tensor": ((1,), ()),
        }
        shapes = known.get(scheme.strategy, ())
        if scheme.block is not None:
            height, width = scheme.block
            shapes = ((-(-rows // height), -(-columns // width)),)
        return {
            "weight": (("F8_E4M3",), ((rows, columns),)),
            "weight_scale": (_FLOATS, shapes),
        }
    return {}


def _coverage(report: AuditReport, audited: Audited) -> None:
    quantized = {f"{module}.{suffix}" for module in audited.schemes for suffix in _SUFFIXES}
    for name, shape in audited.expected.items():
        report.looked_at("coverage")
        if name.removesuffix(".weight") in audited.schemes:
            continue
        ref = audited.refs.get(name)
        if ref is None:
            if not _is_linear_weight(name, audited.expected):
                report.breach("coverage", name, "is missing", "loading fails")
        elif ref.dtype not in _FLOATS and not _is_linear_weight(name, audited.expected):
            report.breach("coverage", name, f"is stored as {ref.dtype}", "answers change")
        elif ref.shape != shape and ref.dtype in _FLOATS:
            report.breach("coverage", name, f"has shape {list(ref.shape)}, expected {list(shape)}")
    known = set(audited.expected) | quantized
    linears = set(linear_modules(audited.expected))
    extra = [n for n in audited.refs if n not in known and not _suffix_known(n, linears)]
    drafts = [name for name in extra if name.startswith(FAMILY.drafts)]
    tied = _tied(report, audited)
    for name in extra:
        if name not in (*drafts, *tied):
            report.breach("coverage", name, "belongs to no part of the model", "loading fails")
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
    return suffix in _SUFFIXES and module in linears


def _protected(report: AuditReport, audited: Audited) -> None:
    for module in linear_modules(audited.expected):
        why = protected_reason(module)
        if why is None:
            continue
        report.looked_at("protected")
        ref = audited.refs.get(f"{module}.weight")
        if module in audited.schemes or (ref is not None and ref.dtype not in _FLOATS):
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
        "checks": dict(report.counts),
        "breaches": len(report.breaches),
    }
