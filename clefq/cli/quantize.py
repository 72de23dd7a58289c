"""`clefq quantize`: make a quantized checkpoint and prove it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clefq.clef.formats import RECIPES, ROUNDING_NAMES
from clefq.cli.options import Json, Quiet, Run

if TYPE_CHECKING:
    from clefq.names.run_folder import RunFolder
    from clefq.quantize.run import Result

Model = Annotated[
    str | None,
    typer.Argument(
        metavar="MODEL",
        help="BF16 Clef: a folder, a variant of the run folder (default: bf16), or a hub id with "
        "@revision.",
    ),
]
Scheme = Annotated[
    str | None,
    typer.Option("--scheme", metavar="NAME", help=f"{', '.join(RECIPES)}."),
]
RecipeFile = Annotated[
    Path | None, typer.Option("--recipe", metavar="FILE", help="Your own llm-compressor recipe.")
]
Rounding = Annotated[
    str | None,
    typer.Option(
        "--rounding",
        metavar="NAME",
        help=f"Of 4-bit weights: {', '.join(ROUNDING_NAMES)} (needs --calibration).",
    ),
]
CalibrationSet = Annotated[
    str | None,
    typer.Option(
        "--calibration",
        metavar="SET",
        help="Calibration set (nvfp4, nvfp4-mlp, mixed, gptq); default: the run folder's only one.",
    ),
]
Method = Annotated[str, typer.Option("--method", metavar="NAME", help="auto, oneshot or stream.")]
MaxLength = Annotated[
    int, typer.Option("--max-length", min=1, metavar="N", help="Tokens per calibration record.")
]
Fp8Layers = Annotated[
    int | None,
    typer.Option("--fp8-layers", metavar="N", help="mixed: last N layers' MLPs in FP8."),
]
Vanished = Annotated[
    bool, typer.Option("--allow-vanished", help="Accept weights that four bits erase.")
]
ShardBytes = Annotated[
    int | None,
    typer.Option("--max-shard-bytes", min=1_000_000, metavar="N", help="Largest file (5e9)."),
]
Out = Annotated[
    Path | None,
    typer.Option(
        "--out",
        metavar="DIR",
        help="Output folder (default: models/SCHEME of the run folder, else MODEL-SCHEME; another "
        "rounding than nearest is added to the name).",
    ),
]


def command(
    model: Model = None,
    scheme: Scheme = None,
    recipe: RecipeFile = None,
    rounding: Rounding = None,
    calibration: CalibrationSet = None,
    method: Method = "auto",
    max_length: MaxLength = 16384,
    fp8_layers: Fp8Layers = None,
    allow_vanished: Vanished = False,
    max_shard_bytes: ShardBytes = None,
    out: Out = None,
    run: Run = None,
    json_output: Json = False,
    quiet: Quiet = False,
) -> None:
    """Quantize a BF16 Clef and audit the result.

    The folder appears only when it is whole and its audit is clean. Interrupted, the same command
    goes on with what is finished; once all of it is, the command says so and writes nothing.
    """
    from clefq.console import Console
    from clefq.names.run_folder import find_run, find_set
    from clefq.quantize.layout import MAX_SHARD_BYTES
    from clefq.quantize.run import QuantizeSpec, quantize

    console = Console(json_output=json_output, quiet=quiet)
    folder = find_run(run)
    chosen = _model(model, folder)
    made = _made_name(scheme, recipe, rounding)
    target = out or _default_out(chosen, made, folder)
    if folder is not None and (model is None or out is None):
        console.note(f"run folder: {chosen} → {_short(target, folder)}")
    spec = QuantizeSpec(
        model=chosen,
        scheme=scheme,
        recipe=recipe,
        calibration=None if calibration is None else find_set(calibration, folder),
        method=method,
        max_length=max_length,
        fp8_layers=fp8_layers,
        run=folder,
        allow_vanished=allow_vanished,
        rounding=rounding,
        max_shard_bytes=max_shard_bytes or MAX_SHARD_BYTES,
    )
    result = quantize(spec, target, console)
    console.result(_json(result), _text(result, folder))


def _model(given: str | None, run: RunFolder | None) -> str:
    """The model's name: `bf16` of the run folder where none is given."""
    from clefq.errors import InputError
    from clefq.names.run_folder import BASELINE

    if given is not None:
        return given
    if run is None:
        raise InputError(
            "no MODEL is given, and the current folder is no run folder.",
            fix="give MODEL, or make a run folder with `clefq init MODEL`.",
        )
    if BASELINE not in run.variants():
        raise InputError(
            f"{run.root} has no model {BASELINE} (there: {', '.join(run.variants()) or 'none'}).",
            fix="give MODEL, or put the BF16 checkpoint there with `clefq init MODEL --out DIR`.",
        )
    return BASELINE


def _short(target: Path, run: RunFolder) -> Path:
    return target.relative_to(run.root) if target.is_relative_to(run.root) else target


def _made_name(scheme: str | None, recipe: Path | None, rounding: str | None) -> str:
    """What the output is called: the scheme, and its rounding where that is not the nearest."""
    name = scheme or (recipe.stem if recipe is not None else "quantized")
    return name if rounding in (None, "nearest") else f"{name}-{rounding}"


def _default_out(model: str, made: str, run: RunFolder | None) -> Path:
    if run is not None and model in run.variants():
        return run.model(made)
    name = Path(model.partition("@")[0]).name or "model"
    return Path(f"{name}-{made}")


def _json(result: Result) -> dict[str, Any]:
    from dataclasses import asdict

    return {"folder": str(result.folder), **asdict(result.manifest)}


def _text(result: Result, run: RunFolder | None) -> str:
    from clefq.console import size_text

    manifest = result.manifest
    before, after = manifest.bytes["source"], manifest.bytes["output"]
    formats = ", ".join(f"{count} × {kind}" for kind, count in manifest.formats.items())
    checked = sum(manifest.audit["checks"].values())
    memory = size_text(manifest.peak_memory_bytes)
    lines = [
        f"{result.folder}  ({manifest.scheme}, {manifest.method}{_said(manifest.recipe)})",
        f"  modules   {formats}",
        f"  size      {size_text(before)} → {size_text(after)}, {before / after:.2f}× smaller",
        f"  audit     {manifest.audit['verdict']}: {checked} checks",
        f"  took      {manifest.seconds:.1f} s, peak memory {memory}",
        *(f"  note      {n}" for n in result.report.notes if not n.startswith("no clefq.json")),
        f"next: {_next(result.folder, run)}",
    ]
    return "\n".join(lines)


def _said(recipe: dict[str, Any]) -> str:
    return "" if recipe["rounding"] == "nearest" else f", {recipe['rounding']}"


def _next(folder: Path, run: RunFolder | None) -> str:
    from clefq.names.run_folder import BASELINE

    if run is not None and folder.name in run.variants():
        return f"clefq parity --baseline {BASELINE}"
    return f"clefq predict {folder} --eval SET --engine transformers"
