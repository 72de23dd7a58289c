"""Checkpoints of other tools, named by their one cause instead of by its many consequences."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from clefq.clef import modelopt
from clefq.clef.config_match import matches
from clefq.clef.modelopt import ModelOpt, Translated
from clefq.clef.tensor_files import HeldTensor, TensorInfo
from clefq.errors import CheckpointError
from clefq.quantize.audit.report import AuditReport

Refs = Mapping[str, TensorInfo]
CACHE_SCALES = (".k_scale", ".v_scale")
_AGAIN = "make it anew with `clefq quantize`, or ask the publisher for compressed-tensors."
_VLLM = "`clefq predict --engine vllm` runs it; its file is not audited. "
_UNKNOWN = "vLLM loads it, by kernels whose arithmetic is not known here. "
_NOWHERE = "neither vLLM (0.32) nor clefq runs it. "
# `quant_method` of a config to what that is and who runs it.
METHODS: dict[str, tuple[str, str]] = {
    "auto-round": ("AutoRound, in GPTQ's packing", _VLLM),
    "intel/auto-round": ("AutoRound, in GPTQ's packing", _VLLM),
    "gptq": ("GPTQ: qweight, qzeros and scales in columns", _VLLM),
    "awq": ("AWQ: qweight, qzeros and scales in AWQ's order", _VLLM),
    "bitsandbytes": ("bitsandbytes (NF4 or LLM.int8)", _NOWHERE),
    "gguf": ("GGUF, which is llama.cpp's format", _NOWHERE),
    "fp8": ("FP8 in DeepSeek's layout (weight_scale_inv, a scale per tile)", _VLLM),
    "fbgemm_fp8": ("FP8 of FBGEMM", _VLLM),
    "mxfp4": ("MXFP4: a power of two per 32 weights", "vLLM loads it for experts only. "),
    "quark": ("AMD's Quark", _UNKNOWN),
    "torchao": ("torchao", _UNKNOWN),
    "hqq": ("HQQ", _NOWHERE),
}
# Tensors that tell a method where no config does.
_TELLTALES = {
    ".qweight": "gptq",
    ".weight.absmax": "bitsandbytes",
    ".weight_scale_inv": "fp8",
}


def refuse_method(folder: Path, method: Any) -> NoReturn:
    """Refuses another quantization method by its name.

    Raises:
        CheckpointError: Always.
    """
    what, who = METHODS.get(str(method).lower(), (f"quantized by {method!r}", ""))
    raise CheckpointError(
        f"{folder} is not in the compressed-tensors format: it is {what}.",
        fix=f"{who}For a checkpoint that can be audited, {_AGAIN}",
    )


def refuse_telltales(folder: Path, refs: Refs) -> None:
    """Refuses tensors of another method that no config names.

    Raises:
        CheckpointError: There are some.
    """
    for ending, method in _TELLTALES.items():
        if any(name.endswith(ending) for name in refs):
            refuse_method(folder, method)


def modelopt_of(folder: Path, config: Mapping[str, Any]) -> ModelOpt | None:
    """What ModelOpt says of a folder; None where it was not its maker.

    Raises:
        CheckpointError: It is a format of ModelOpt's that is not read here, or says nothing clear.
    """
    found = modelopt.find(folder, config)
    if found is not None and found.unread:
        lines = list(modelopt.unread_lines(found))
        raise CheckpointError(
            f"{folder} is quantized by {found.title}, which clefq does not read: {lines[0]}.",
            fix=f"{', '.join(modelopt.ALGORITHMS)} are read; " + _AGAIN,
            faults=lines[1:],
        )
    return found


def translated(
    report: AuditReport, folder: Path, found: ModelOpt, refs: Refs, linears: Iterable[str]
) -> Translated:
    """A ModelOpt checkpoint in compressed-tensors' terms, with what is to be said of that."""
    result = modelopt.translate(found, refs, linears)
    factors = any(isinstance(ref, HeldTensor) for ref in result.tensors.values())
    report.notes.append(
        f"{found.title} ({found.where}), read as compressed-tensors"
        + (": its weight_scale_2 and input_scale as their reciprocals, global scales." * factors)
        + ("." * (not factors))
    )
    if found.cache is not None:
        report.notes.append(
            f"its KV cache is quantized too ({found.cache}): vLLM takes that up where its cache's "
            "type is auto."
        )
    if found.where == modelopt.CONFIG_FILE:
        report.notes.append(
            f"config.json says nothing of it: transformers takes it for BF16; vLLM reads "
            f"{modelopt.CONFIG_FILE}."
        )
    if result.dropped:
        report.notes.append(
            f"{len(result.dropped)} input scales of weight-only layers (first: "
            f"{result.dropped[0]}): vLLM drops them."
        )
    return result


def names(report: AuditReport, refs: Refs) -> bool:
    """Tensor names of a wrapped model, which no loader of the plain model knows.

    Returns:
        Whether they explain everything else, so that nothing else is worth looking at.
    """
    wrapped = [name for name in refs if ".base_layer." in name or ".lora_" in name]
    if not wrapped:
        return False
    report.breach(
        "files",
        "index",
        f"tensors have the names of a model with adapters ({wrapped[0]}, {len(wrapped)} in all)",
        "loading fails; merge the adapter (merge_and_unload) and save again",
    )
    report.cannot_see("anything else: these names hide which tensor is which")
    return True


def mended_ignore(
    report: AuditReport, block: Mapping[str, Any], linears: Iterable[str]
) -> Mapping[str, Any]:
    """The config with its ignore list as it was meant, and a breach where it is not so.

    Names of wrapped modules (`….linear`) and trailing dots match nothing: everything ignored
    would count as quantized, and be missing.
    """
    ignore = block.get("ignore")
    if not isinstance(ignore, list) or not all(isinstance(entry, str) for entry in ignore):
        return block
    linears = list(linears)
    meant: dict[str, str] = {}
    for entry in ignore:
        plain = entry.removesuffix(".").removesuffix(".linear")
        if plain == entry or entry.startswith("re:"):
            continue
        if any(matches(m, plain) for m in linears) and not any(matches(m, entry) for m in linears):
            meant[entry] = plain
    if not meant:
        return block
    first = next(iter(meant))
    report.breach(
        "config",
        "config.json",
        f"its ignore list has {first!r}, which matches no module; {meant[first]!r} is meant "
        f"({len(meant)} entries)",
        "engines take what is ignored for quantized, and find no such tensors",
    )
    return {**block, "ignore": [meant.get(entry, entry) for entry in ignore]}
