"""`clefq quantize`: from a BF16 checkpoint to an audited quantized one, whole or not at all."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from clefq import __version__
from clefq.clef.checkpoint import Checkpoint, open_checkpoint, scheme_of, weight_bytes
from clefq.clef.encoding import DEFAULT_MAX_LENGTH
from clefq.clef.family import activation_widths, layer_types
from clefq.clef.formats import SEARCH_OBSERVER
from clefq.clef.tensor_files import TensorInfo
from clefq.console import Console
from clefq.errors import AuditError, CheckpointError, InputError, RecipeError
from clefq.names.hub import verify_download
from clefq.names.models import ModelRef, find_model
from clefq.names.run_folder import RunFolder, only_set
from clefq.plain_files import sha256_bytes, sha256_file
from clefq.quantize import finish, preflight
from clefq.quantize.audit import audit_checkpoint, summary
from clefq.quantize.audit.measured import FEW_RECORDS, growth
from clefq.quantize.audit.report import AuditReport
from clefq.quantize.audit.values import refuse_impossible
from clefq.quantize.calibration import Calibration, load_calibration
from clefq.quantize.layout import (
    MAX_SHARD_BYTES,
    WriteUnit,
    plan_shards,
    plan_units,
    write_shards,
)
from clefq.quantize.manifest import (
    MANIFEST,
    SCHEMA_VERSION,
    Manifest,
    read_build_manifest,
    write_manifest,
)
from clefq.quantize.oneshot import run_oneshot, same_config, saved_outputs, take_over
from clefq.quantize.oneshot_worker import OneshotJob
from clefq.quantize.output import bytes_there, output_folder
from clefq.quantize.plan import Plan, make_plan
from clefq.quantize.quiet import quiet_libraries
from clefq.quantize.recipes import Recipe, bundled_recipe, custom_recipe
from clefq.quantize.stream import (
    Stream,
    default_device,
    one_thread_per_worker,
    stream_outputs,
    stream_workers,
)
from clefq.quantize.tensors import OutTensor, write_index
from clefq.store.atomic import write_json, write_text

METHODS = ("auto", "oneshot", "stream")
_WORK = ".work"
_MAXIMA = "maxima.json"
_DTYPES = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}


@dataclass(frozen=True, slots=True)
class QuantizeSpec:
    """What the user asked for.

    Attributes:
        model: Folder or hub id, with optional `@revision`.
        scheme: A bundled scheme; None with a recipe of the user's own.
        recipe: The user's own recipe file.
        calibration: Calibration set folder.
        method: `auto`, `oneshot` or `stream`.
        max_length: Token limit per calibration record.
        fp8_layers: For `mixed`: how many of the last layers have FP8 MLPs.
        max_shard_bytes: Limit of an output shard.
        run: Run folder that `model` may name a variant of; its only calibration set is taken where
            none is given.
        allow_vanished: Accept weights that four bits erase, however many they are.
        rounding: One of `clefq.clef.formats.ROUNDING_NAMES`; None is the scheme's own.
    """

    model: str
    scheme: str | None = None
    recipe: Path | None = None
    calibration: Path | None = None
    method: str = "auto"
    max_length: int = DEFAULT_MAX_LENGTH
    fp8_layers: int | None = None
    max_shard_bytes: int = MAX_SHARD_BYTES
    run: RunFolder | None = None
    allow_vanished: bool = False
    rounding: str | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """What was made.

    Attributes:
        folder: The checkpoint.
        manifest: Contents of its `clefq.json`.
        report: The audit.
    """

    folder: Path
    manifest: Manifest
    report: AuditReport


@dataclass(frozen=True)
class Work:
    """Everything that is decided before the first byte is written.

    Attributes:
        spec: What the user asked for.
        source: Where the BF16 checkpoint comes from.
        checkpoint: The BF16 checkpoint.
        tensors: Its backbone tensors.
        recipe: The recipe.
        plan: What it does to this model.
        method: `oneshot` or `stream`.
        calibration: Encoded prompts, where activations are calibrated.
        needs: Disk and memory.
        device: Where the arithmetic runs: `cpu` or `cuda`.
    """

    spec: QuantizeSpec
    source: ModelRef
    checkpoint: Checkpoint
    tensors: Mapping[str, TensorInfo]
    recipe: Recipe
    plan: Plan
    method: str
    calibration: Calibration | None
    needs: preflight.Needs
    device: str

    @property
    def dtype(self) -> str:
        """The model's dtype in safetensors' words."""
        for config in (self.checkpoint.config, self.checkpoint.text_config):
            for key in ("dtype", "torch_dtype"):  # the older name
                if config.get(key) in _DTYPES:
                    return _DTYPES[config[key]]
        return "BF16"


def quantize(spec: QuantizeSpec, out: Path, console: Console) -> Result:
    """Quantizes a checkpoint.

    Args:
        spec: What to make.
        out: The folder to make; appears only when it is whole and its audit is clean.
        console: Notes and progress.

    Raises:
        RecipeError: The recipe would harm the checkpoint.
        CheckpointError: The source is not a whole BF16 Clef checkpoint.
        InputError: Missing calibration set, not enough disk or memory, unwritable `out`, or one
            that is there already and was not made by the same work.
        AuditError: The result is not what it should be; `out` does not exist then.
    """
    started = time.monotonic()
    work = prepare(spec, console)
    finish.refuse_inside(out, work.source.folder)
    finished = _finished(out, work)
    if finished is not None:
        console.note(f"{out} is finished, made by the same work: nothing is written.")
        return Result(out, finished, AuditReport(str(out)))
    preflight.check(work.needs, out, bytes_there(out))
    refuse_impossible(work.tensors, work.source.folder)
    with output_folder(out, lambda: _fingerprint(work)) as partial:
        write_text(partial / "recipe.yaml", work.recipe.text)
        if work.method == "stream":
            outputs, write_unit = _stream(work)
        else:
            outputs, write_unit = _oneshot(work, partial / _WORK, console)
        _write(partial, work, outputs, write_unit, console)
        config = finish.config_with(
            work.checkpoint.config, work.plan.quantization_config, work.tensors
        )
        report = _verify(partial, work, config)
        coverage = _coverage(work, partial, console)
        shutil.rmtree(partial / _WORK, ignore_errors=True)
        write_json(partial / "config.json", config)
        manifest = _manifest(partial, work, report, started, coverage)
        write_manifest(partial, manifest)
    return Result(out, manifest, report)


def _finished(out: Path, work: Work) -> Manifest | None:
    """The manifest of an output that the same work has made, if every file is as it wrote it."""
    if not (out / MANIFEST).is_file():
        return None
    manifest = read_build_manifest(out)
    if manifest.work_sha256 != _work_sha256(work):
        return None
    there = finish.hash_files(out)
    whole = all(there.get(name) == digest for name, digest in manifest.files.items())
    return manifest if whole else None


def _work_sha256(work: Work) -> str:
    text = json.dumps(_fingerprint(work), sort_keys=True)
    return sha256_bytes(text.encode())


def prepare(spec: QuantizeSpec, console: Console) -> Work:
    """Opens the source, plans the recipe and encodes the calibration set; writes nothing."""
    source = find_model(spec.model, spec.run)
    checkpoint = open_checkpoint(source.folder)
    _refuse_quantized(checkpoint)
    recipe = _recipe(spec, checkpoint)
    with quiet_libraries():
        plan = make_plan(source.folder, recipe)
    method = _method(spec.method, plan, console)
    tensors = checkpoint.tensors
    calibration = _calibration(spec, plan, source.folder, console)
    if spec.calibration is not None and calibration is None:
        console.note("--calibration is not used: this scheme has no scale that data decides.")
    if calibration is not None and calibration.role == "eval":
        console.note(f"{calibration.set_name} is an eval set: judge the result on another one.")
    device = default_device()
    prompts = None
    if calibration is not None:
        widths = activation_widths(checkpoint.text_config)
        prompts = preflight.Prompts(calibration.longest, calibration.tokens, widths)
    needs = needs_of(method, plan, tensors, device, prompts)
    if method == "oneshot" and recipe.rounding == "gptq":
        needs = preflight.with_hessians(needs, *_widest_layer(plan, tensors))
    if needs.offload:
        console.note("memory does not hold the model: its weights stay on disk, which is slower.")
    return Work(
        spec=spec,
        source=source,
        checkpoint=checkpoint,
        tensors=tensors,
        recipe=recipe,
        plan=plan,
        method=method,
        calibration=calibration,
        needs=needs,
        device=device,
    )


def _refuse_quantized(checkpoint: Checkpoint) -> None:
    config = checkpoint.quantization_config
    if checkpoint.modelopt is not None:
        what = checkpoint.modelopt.title
    elif config is not None:
        scheme = scheme_of(checkpoint)
        what = str(config.get("quant_method")) if scheme == "unknown" else scheme
    else:
        return
    raise CheckpointError(
        f"{checkpoint.folder} is quantized already ({what}).",
        fix="give the BF16 checkpoint it was made from.",
    )


def needs_of(
    method: str,
    plan: Plan,
    tensors: Mapping[str, TensorInfo],
    device: str = "cpu",
    prompts: preflight.Prompts | None = None,
) -> preflight.Needs:
    """Memory and disk, in bytes, that a run needs.

    Args:
        method: `stream` or `oneshot`.
        plan: What is quantized, and how.
        tensors: Of the source.
        device: Where the arithmetic runs.
        device: Where the arithmetic runs.
        prompts: What calibrates, where something does.
    """
    units = plan_units(tensors, stream_outputs(plan.modules, tensors, "BF16"))
    output = sum(unit.nbytes for unit in units)
    if method == "stream":
        return preflight.needs_of_stream(output, stream_workers(device), device)
    layers: dict[str, int] = {}
    for name, ref in tensors.items():
        layers[layer_of(name)] = layers.get(layer_of(name), 0) + ref.nbytes
    whole, largest = sum(layers.values()), max(layers.values())
    taken = 0 if prompts is None else prompts.at_work + prompts.waiting
    available = preflight.available_memory() - taken
    needs = preflight.needs_of_oneshot(whole, output, largest, available)
    if device != "cpu":
        needs = replace(needs, gpu=preflight.gpu_of_oneshot(largest))
    return needs if prompts is None else preflight.with_prompts(needs, prompts)


def _widest_layer(plan: Plan, tensors: Mapping[str, TensorInfo]) -> tuple[list[int], int]:
    """Columns of the Linears of the layer whose are widest, and the largest Linear's weights."""
    shapes = {module: tensors[f"{module}.weight"].shape for module in plan.modules}
    layers: dict[str, list[int]] = {}
    for module, shape in shapes.items():
        layers.setdefault(layer_of(module), []).append(shape[1])
    widest = max(layers.values(), key=lambda widths: sum(width**2 for width in widths))
    return widest, max(rows * columns for rows, columns in shapes.values())


def layer_of(name: str) -> str:
    """The decoder layer (or other part) that a tensor or module belongs to."""
    return ".".join(name.split(".")[:4])


def _recipe(spec: QuantizeSpec, checkpoint: Checkpoint) -> Recipe:
    if spec.recipe is not None:
        if spec.scheme is not None:
            raise RecipeError("--scheme and --recipe exclude each other.", fix="give one of them.")
        if spec.rounding is not None:
            raise RecipeError(
                "--rounding changes bundled recipes, a file says itself how it rounds.",
                fix=f"write `weight_observer: {SEARCH_OBSERVER}` into it, or GPTQModifier.",
            )
        return custom_recipe(spec.recipe)
    if spec.scheme is None:
        raise RecipeError("no scheme given.", fix="add --scheme nvfp4, or --recipe FILE.")
    layers, calibrated = len(layer_types(checkpoint.text_config)), spec.calibration is not None
    return bundled_recipe(spec.scheme, layers, spec.fp8_layers, calibrated, spec.rounding)


def _method(asked: str, plan: Plan, console: Console) -> str:
    if asked not in METHODS:
        raise InputError(f"unknown method {asked!r}.", fix=f"use one of {', '.join(METHODS)}.")
    if asked == "stream" and plan.data_free_reason is not None:
        raise InputError(
            f"--method stream cannot make this: {plan.data_free_reason}.",
            fix="use --method oneshot.",
        )
    if asked != "auto":
        return asked
    if plan.data_free_reason is None:
        console.note("method: stream, because this scheme needs no calibration data.")
        return "stream"
    console.note(f"method: oneshot, because {plan.data_free_reason}.")
    return "oneshot"


def _calibration(
    spec: QuantizeSpec, plan: Plan, model: Path, console: Console
) -> Calibration | None:
    if not plan.needs_data:
        return None
    chosen = spec.calibration
    if chosen is None and spec.run is not None:
        chosen = only_set(spec.run, "calibration", "--calibration")
        console.note(f"calibration set {chosen.name}, the only one of the run folder")
    if chosen is None:
        why = "this scheme calibrates activations" if plan.calibrates else "this recipe uses data"
        raise InputError(
            f"{why} and needs a calibration set.",
            fix="build one with `clefq build calibration NAME`, then add --calibration SET.",
        )
    return load_calibration(chosen, model, spec.max_length)


def _fingerprint(work: Work) -> dict[str, Any]:
    """What the output's bytes depend on; JSON values only."""
    files = {ref.file for ref in work.tensors.values()}
    stats = {path.name: path.stat() for path in files}
    calibration = work.calibration
    folder = work.source.folder
    return {
        "source": {name: [stat.st_size, stat.st_mtime_ns] for name, stat in stats.items()},
        "side_files": {name: sha256_file(folder / name) for name in finish.side_files(folder)},
        "config": sha256_file(folder / "config.json"),
        "folder": str(folder.resolve()),
        "recipe": work.recipe.sha256,
        "rounding": work.recipe.rounding,
        "method": work.method,
        "device": work.device,
        "calibration": None if calibration is None else calibration.to_json(),
        "max_shard_bytes": work.spec.max_shard_bytes,
        "versions": finish.versions(),
    }


Outputs = dict[str, list[OutTensor]]


def _stream(work: Work) -> tuple[Outputs, WriteUnit]:
    outputs = stream_outputs(work.plan.modules, work.tensors, work.dtype)
    stream = Stream(work.plan.modules, work.tensors, work.dtype, work.device)
    return outputs, stream.write_unit


def _oneshot(work: Work, folder: Path, console: Console) -> tuple[Outputs, WriteUnit]:
    folder.mkdir(exist_ok=True)
    saved, done = folder / "saved", folder / "saved.done"
    if not done.is_file():
        shutil.rmtree(saved, ignore_errors=True)
        prompts = None
        if work.calibration is not None:
            prompts = folder / "prompts.json"
            prompts.write_text(work.calibration.to_job(), encoding="utf-8")
        job = OneshotJob(
            source=str(work.source.folder),
            recipe=str(folder.parent / "recipe.yaml"),
            saved=str(saved),
            prompts=None if prompts is None else str(prompts),
            offload=str(folder / "offload") if work.needs.offload else None,
            memory=preflight.available_memory() - work.needs.memory,
            maxima=None if prompts is None else str(folder / _MAXIMA),
            watched=tuple(m for m, scheme in work.plan.modules.items() if _calibrated(scheme)),
        )
        with console.progress("quantizing layers, %", 100) as advance:
            run_oneshot(job, folder / "oneshot.log", _Steps(advance))
        done.touch()
    if not same_config(saved, work.plan.quantization_config):
        raise AuditError("llm-compressor wrote another quantization_config than was planned.")
    outputs = saved_outputs(saved, list(work.plan.modules))
    return outputs, take_over(saved, work.tensors)


def _calibrated(scheme: Any) -> bool:
    """Whether a compressed-tensors scheme has an input scale that data decides."""
    inputs = scheme.input_activations
    return inputs is not None and inputs.dynamic is not True


def _coverage(work: Work, partial: Path, console: Console) -> dict[str, object] | None:
    """What stands behind each calibrated scale, for the manifest; said where it is little."""
    calibration = work.calibration
    if calibration is None:
        return None
    found = calibration.to_json()
    path = partial / _WORK / _MAXIMA
    grown = None
    if path.is_file():
        grown = growth(json.loads(path.read_text(encoding="utf-8")), len(calibration.prompts))
    count, tokens = len(calibration.prompts), calibration.tokens
    said = f"{count} records ({tokens:,} tokens) stand behind each input scale"
    if grown is not None:
        found["maxima"] = grown.to_json()
        said += (
            f"; the last tenth of them raised {grown.grew} of {grown.places} maxima, by up to "
            f"{grown.factor:.2f} times"
        )
    few = len(calibration.prompts) < FEW_RECORDS
    advice = f": with fewer than {FEW_RECORDS}, real inputs exceed many scales" if few else ""
    console.note(f"{said}{advice}.")
    if calibration.truncated_records:
        console.note(
            f"{calibration.truncated_records} calibration records lost the end of their state: "
            f"they are longer than {calibration.max_length:,} tokens (--max-length)."
        )
    return found


class _Steps:
    """Turns `(step, steps)` into hundredths of a bar; a step is begun when it is printed."""

    def __init__(self, advance: Callable[[int], None]) -> None:
        self._advance = advance
        self._shown = 0

    def __call__(self, step: int, steps: int) -> None:
        done = 100 * (step - 1) // steps
        self._advance(done - self._shown)
        self._shown = done


def _write(
    partial: Path,
    work: Work,
    outputs: Mapping[str, Sequence[OutTensor]],
    write_unit: WriteUnit,
    console: Console,
) -> None:
    shards = plan_shards(plan_units(work.tensors, outputs), work.spec.max_shard_bytes)
    total = sum(len(shard.tensors) for shard in shards)
    with console.progress("writing tensors", total) as advance, one_thread_per_worker():
        workers = stream_workers(work.device)
        kept = write_shards(partial, shards, write_unit, workers, advance)
    if kept:
        console.note(f"kept {kept} finished shard(s) of an interrupted run.")
    write_index(partial, {shard.name: shard.tensors for shard in shards})
    finish.copy_side_files(work.source.folder, partial)


def _verify(partial: Path, work: Work, config: Mapping[str, Any]) -> AuditReport:
    """Reads everything back: the audit against the source.

    Raises:
        AuditError: A rule is broken.
    """
    report = audit_checkpoint(
        partial,
        work.source.folder,
        config=config,
        allow_vanished=work.spec.allow_vanished,
        device=work.device,
    )
    if not report.passed:
        lines = [f"{b.check}: {b.subject} {b.message}" for b in report.breaches]
        kept = (partial / _WORK / "saved.done").is_file()
        raise AuditError(
            f"the result would be wrong: {lines[0]}.",
            fix=f"the calibrated weights are kept in {partial / _WORK}: the same command audits "
            "them again without calibrating; remove that folder to calibrate anew."
            if kept
            else None,
            faults=lines[1:],
        )
    return report


def _manifest(
    partial: Path,
    work: Work,
    report: AuditReport,
    started: float,
    calibration: dict[str, object] | None,
) -> Manifest:
    source_files = finish.hash_files(work.source.folder)
    verify_download(work.source.folder, source_files)
    files = finish.hash_files(partial)
    return Manifest(
        schema_version=SCHEMA_VERSION,
        clefq_version=__version__,
        created_at=finish.now(),
        scheme=work.recipe.scheme,
        method=work.method,
        source={
            "model_id": work.source.model_id,
            "revision": work.source.revision,
            "sha256": finish.identity(source_files),
        },
        recipe={
            "origin": work.recipe.origin,
            "sha256": work.recipe.sha256,
            "rounding": work.recipe.rounding,
        },
        calibration=calibration,
        versions=finish.versions(),
        audit=summary(report),
        formats=work.plan.formats,
        bytes={
            "source": weight_bytes(work.source.folder),
            "output": int(report.facts["bytes"]),
        },
        files=files,
        sha256=finish.identity(files),
        seconds=round(time.monotonic() - started, 3),
        peak_memory_bytes=finish.peak_memory(),
        work_sha256=_work_sha256(work),
    )
