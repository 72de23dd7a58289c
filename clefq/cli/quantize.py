"""`clefq quantize`: make a quantized checkpoint and prove it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clefq.cli.options import Json, Quiet

if TYPE_CHECKING:
    from clefq.quantize.run import Result

Model = Annotated[
    str, typer.Argument(metavar="MODEL", help="BF16 Clef: a folder, or a hub id with @revision.")
]
Scheme = Annotated[
    str | None,
    typer.Option("--scheme", metavar="NAME", help="nvfp4, nvfp4-mlp, nvfp4a16, fp8 or mixed."),
]
RecipeFile = Annotated[
    Path | None, typer.Option("--recipe", metavar="FILE", help="Your own llm-compressor recipe.")
]
CalibrationSet = Annotated[
    Path | None,
    typer.Option("--calibration", metavar="SET", help="Calibration set (nvfp4, nvfp4-mlp, mixed)."),
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
Out = Annotated[
    Path | None, typer.Option("--out", metavar="DIR", help="Output folder (default MODEL-SCHEME).")
]


def command(
    model: Model,
    scheme: Scheme = None,
    recipe: RecipeFile = None,
    calibration: CalibrationSet = None,
    method: Method = "auto",
    max_length: MaxLength = 16384,
    fp8_layers: Fp8Layers = None,
    allow_vanished: Vanished = False,
    out: Out = None,
    json_output: Json = False,
    quiet: Quiet = False,
) -> None:
    """Quantize a BF16 Clef and audit the result.

    The folder appears only when it is whole and its audit is clean. Interrupted, the same command
    goes on with what is finished.
    """
    from clefq.console import Console
    from clefq.quantize.run import QuantizeSpec, quantize

    console = Console(json_output=json_output, quiet=quiet)
    spec = QuantizeSpec(
        model=model,
        scheme=scheme,
        recipe=recipe,
        calibration=_set_folder(calibration),
        method=method,
        max_length=max_length,
        fp8_layers=fp8_layers,
        allow_vanished=allow_vanished,
    )
    result = quantize(spec, out or _default_out(model, scheme, recipe), console)
    console.result(_json(result), _text(result))


def _set_folder(given: Path | None) -> Path | None:
    """A set folder, or the name of a set of the run folder that is the current folder."""
    if given is None or given.exists():
        return given
    inside = Path("sets") / given
    return inside if inside.is_dir() else given


def _default_out(model: str, scheme: str | None, recipe: Path | None) -> Path:
    name = Path(model.partition("@")[0]).name or "model"
    return Path(f"{name}-{scheme or (recipe.stem if recipe is not None else 'quantized')}")


def _json(result: Result) -> dict[str, Any]:
    from dataclasses import asdict

    return {"folder": str(result.folder), **asdict(result.manifest)}


def _text(result: Result) -> str:
    from clefq.console import size_text

    manifest = result.manifest
    before, after = manifest.bytes["source"], manifest.bytes["output"]
    formats = ", ".join(f"{count} × {kind}" for kind, count in manifest.formats.items())
    checked = sum(manifest.audit["checks"].values())
    memory = size_text(manifest.peak_memory_bytes)
    lines = [
        f"{result.folder}  ({manifest.scheme}, {manifest.method})",
        f"  modules   {formats}",
        f"  size      {size_text(before)} → {size_text(after)}, {before / after:.2f}× smaller",
        f"  audit     {manifest.audit['verdict']}: {checked} checks",
        f"  took      {manifest.seconds:.1f} s, peak memory {memory}",
        *(f"  note      {n}" for n in result.report.notes if not n.startswith("no clefq.json")),
        f"next: clefq predict {result.folder} --eval SET --engine transformers",
    ]
    return "\n".join(lines)
