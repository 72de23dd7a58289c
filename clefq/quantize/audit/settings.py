"""Audit of `config.json`: that engines read it, and read in it what the tensors are."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from clefq.clef.config_match import (
    FP8,
    NVFP4,
    ModuleFormat,
    matches,
    misnamed,
    misread,
    module_formats,
    quantization_of,
)
from clefq.clef.family import (
    FAMILY,
    Shapes,
    fused_groups,
    fused_versions,
    linear_modules,
    served_name,
)
from clefq.clef.formats import MODEL_DTYPE
from clefq.clef.images import PROCESSOR_FILES
from clefq.clef.tensor_files import TensorInfo
from clefq.quantize.audit import foreign
from clefq.quantize.audit.report import AuditReport

Refs = Mapping[str, TensorInfo]
FLOATS = ("BF16", "F16", "F32")
SUFFIXES = (
    "weight",
    "weight_packed",
    "weight_scale",
    "weight_global_scale",
    "input_global_scale",
    "input_scale",
    "weight_zero_point",
    "weight_shape",
)


def schemes(
    report: AuditReport,
    folder: Path,
    config: Mapping[str, Any],
    refs: Refs,
    linears: list[str],
) -> dict[str, ModuleFormat]:
    """The scheme of every quantized Linear, by the config.

    Raises:
        CheckpointError: It is quantized in another format than compressed-tensors.
    """
    block = quantization_of(config)
    if block is None:
        foreign.refuse_telltales(folder, refs)
        _unquantized(report, refs)
        return {}
    method = block.get("quant_method") if isinstance(block, Mapping) else None
    if method != "compressed-tensors":
        foreign.refuse_method(folder, method)
    block = foreign.mended_ignore(report, block, linears)
    try:
        found = module_formats(block, linears)
    except ValueError as error:
        report.breach("config", "config.json", str(error), "loading fails")
        found = {}
    for fault in misread(block) if found else ():
        report.breach("config", "config.json", fault, "it runs in another arithmetic")
    status = block.get("quantization_status")
    if status != "compressed":
        message = f"quantization_status is {status!r}, expected 'compressed'"
        report.breach("config", "config.json", message, "transformers loads no usable weights")
    if not found:
        report.breach("config", "config.json", "its quantization_config matches no Linear")
    _names(report, block, linears, found)
    _remarks(report, block, found)
    _drafts(report, block, refs)
    return found


def _remarks(
    report: AuditReport, block: Mapping[str, Any], found: Mapping[str, ModuleFormat]
) -> None:
    """What engines read otherwise than it looks, without any harm that is known."""
    kinds = {scheme.format for scheme in found.values()}
    if block.get("format") == "mixed-precision" and len(kinds) == 1:
        report.notes.append(
            f"config.json says mixed-precision, though every module is {kinds.pop()}: some tools "
            "then take it for unquantized."
        )
    if found and not block.get("version"):
        report.notes.append(
            "config.json does not say which version of compressed-tensors wrote it: loaders "
            "cannot tell its conventions."
        )
    unknown = sorted({s.format for s in found.values() if not known(s)})
    if unknown:
        count = sum(not known(scheme) for scheme in found.values())
        report.facts["uncompared"] = [m for m, s in found.items() if not known(s)]
        report.cannot_see(
            f"{count} modules are stored as {', '.join(unknown)}, which clefq does not read: "
            "nothing of their numbers is proven"
        )


def known(scheme: ModuleFormat) -> bool:
    """Whether the scheme's format is one whose tensors are understood here."""
    row = scheme.weights_format
    whole = row is not None and scheme.format in row.storage.names
    return scheme.format == NVFP4 or scheme.format in FP8 or whole


def _drafts(report: AuditReport, block: Mapping[str, Any], refs: Refs) -> None:
    """Draft (MTP) Linears that are BF16 here, and not ignored by the config."""
    linears = [
        name.removesuffix(".weight")
        for name, ref in refs.items()
        if name.startswith(FAMILY.drafts) and name.endswith("_proj.weight") and ref.dtype in FLOATS
    ]
    ignored = block.get("ignore")
    entries = [e for e in ignored if isinstance(e, str)] if isinstance(ignored, list) else []
    open_ = [m for m in linears if not any(_matches(m, entry) for entry in entries)]
    if open_:
        report.breach(
            "config",
            "config.json",
            f"does not ignore the draft (MTP) Linears, which are BF16 here ({open_[0]}, "
            f"{len(open_)} in all)",
            "engines build the drafter as quantized and fail; add re:.*mtp.* to ignore",
        )


def _matches(module: str, entry: str) -> bool:
    try:
        return matches(module, entry)
    except Exception:
        return False


def loads(
    report: AuditReport, folder: Path, config: Mapping[str, Any], refs: Refs, source: Path | None
) -> None:
    """What an engine needs to load the model at all, beside its quantization."""
    named = config.get("architectures")
    if named != [FAMILY.model_class]:
        what = "names no architecture" if not named else f"says {named}, not {FAMILY.model_class}"
        effect = (
            "engines cannot tell which model it is"
            if not named
            else "the vision tower or the joint head is left out, or loading fails"
        )
        if config.get("model_type") != FAMILY.text_types[-1]:
            report.breach("config", "config.json", f"architectures: {what}", effect)
    text = config.get("text_config")
    parts = [config, text] if isinstance(text, Mapping) else [config]
    dtypes = {part.get(key) for part in parts for key in ("dtype", "torch_dtype")}
    if "float16" in dtypes:
        report.breach(
            "config",
            "config.json",
            "dtype is float16: the model was trained in BF16, whose range F16 does not have",
            "activations overflow, and NVFP4 kernels (Marlin) answer NaN; say bfloat16",
        )
    has_tower = any(name.startswith(f"{FAMILY.visual}.") for name in refs)
    places = (folder,) if source is None else (folder, source)  # what the source has is compared
    if has_tower and not any((p / name).is_file() for p in places for name in PROCESSOR_FILES):
        report.breach(
            "head",
            PROCESSOR_FILES[0],
            "is missing, and the checkpoint has a vision tower",
            "vLLM refuses to load it; copy it from the BF16 checkpoint",
        )
    narrow = [n for n, ref in refs.items() if ref.dtype == "F16" and not n.endswith("_scale")]
    if narrow and any(ref.dtype == "BF16" for ref in refs.values()):
        report.notes.append(
            f"{len(narrow)} tensors are F16 among BF16 ones (first: {narrow[0]}): another tool "
            "saved them, and small numbers may have become zero."
        )


def engines(report: AuditReport, schemes: Mapping[str, ModuleFormat]) -> None:
    """Which serving engines the rules of fused products were read from."""
    if fused_groups(schemes):
        report.cannot_see(
            f"products that another engine than {fused_versions()} fuses otherwise: their members "
            "must share scales and a format too"
        )


def unproven(report: AuditReport, schemes: Mapping[str, ModuleFormat]) -> None:
    """What cannot be seen without a source, one line each."""
    report.cannot_see(
        "that it is this model: without --source, weights of another revision look as sound"
    )
    report.cannot_see(
        "single wrong numbers: codes, scales or weights that are off by less than 16 times, "
        "bits below the highest of an exponent"
    )
    report.cannot_see(
        "tensors that stay unquantized: a norm that was rounded twice or stored as 1 + w in every "
        "layer, embeddings, head and tokenizer of another release"
    )
    if any(scheme.format == NVFP4 for scheme in schemes.values()):
        report.cannot_see("which rows four bits erased")


def _names(
    report: AuditReport,
    block: Mapping[str, Any],
    linears: list[str],
    schemes: Mapping[str, ModuleFormat],
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


def _unquantized(report: AuditReport, refs: Refs) -> None:
    packed = [name for name in refs if name.endswith((".weight_packed", ".weight_scale"))]
    if packed:
        report.breach(
            "config",
            "config.json",
            f"has no quantization_config, though {packed[0]} is quantized",
            "the engine loads it as BF16 and fails",
        )


def layouts(
    report: AuditReport, refs: Refs, expected: Shapes, schemes: Mapping[str, ModuleFormat]
) -> None:
    """That every Linear is stored as the config says: which tensors, their types and shapes."""
    for module in linear_modules(expected):
        report.looked_at("config")
        scheme = schemes.get(module)
        if scheme is not None and not known(scheme):
            continue
        stored = {suffix for suffix in SUFFIXES if f"{module}.{suffix}" in refs}
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
            _layout(report, refs, module, scheme, expected)
        elif f"{module}.weight" in refs and refs[f"{module}.weight"].dtype not in FLOATS:
            report.breach(
                "config",
                f"{module}.weight",
                f"is stored as {refs[f'{module}.weight'].dtype}, though the config leaves it BF16",
                "the codes are taken for weights",
            )


def _layout(
    report: AuditReport, refs: Refs, module: str, scheme: ModuleFormat, expected: Shapes
) -> None:
    rows, columns = expected[f"{module}.weight"]
    for suffix, (dtypes, shapes) in _layouts(scheme, rows, columns).items():
        ref = refs.get(f"{module}.{suffix}")
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
    scheme: ModuleFormat, rows: int, columns: int
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
            "channel": ((rows, 1),),
            "tensor": ((1,), ()),
        }
        shapes = known.get(scheme.strategy, ())
        if scheme.block is not None:
            height, width = scheme.block
            shapes = ((-(-rows // height), -(-columns // width)),)
        return {
            "weight": (("F8_E4M3",), ((rows, columns),)),
            "weight_scale": (FLOATS, shapes),
        }
    row = scheme.weights_format
    if row is None or scheme.format not in row.storage.names:
        return {}
    return {
        suffix: (FLOATS if dtype == MODEL_DTYPE else (dtype,), (shape,))
        for suffix, (dtype, shape) in row.tensors(rows, columns, MODEL_DTYPE).items()
    }
