"""`clefq demo`: the whole loop on the bundled miniature, on a CPU, offline."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clefq.cli.options import Json, Quiet

if TYPE_CHECKING:
    from clefq.console import Console
    from clefq.names.run_folder import RunFolder

# What each engine judges: transformers simulates all, vLLM's CPU build has kernels for two.
SCHEMES = {"transformers": ("fp8", "nvfp4a16", "nvfp4"), "vllm": ("fp8", "int8")}
CALIBRATION, EVAL = "nano-calibration", "nano-eval"


def command(
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="Run folder to make, or to complete.")
    ] = Path("clefq-demo"),
    engine: Annotated[
        str,
        typer.Option(
            "--engine",
            metavar="NAME",
            help="transformers, or vllm: FP8 and INT8 in the serving environment, whose kernels "
            "for them are real on a CPU too.",
        ),
    ] = "transformers",
    json_output: Json = False,
    quiet: Quiet = False,
) -> None:
    """Run the whole loop on the bundled miniature.

    Quantizes it, predicts, judges, reports. Takes a few minutes on two CPU cores and needs no
    network. Exits with 0 when the loop completed, whatever the verdicts; run it again
    to complete what was interrupted.
    """
    from rich.console import Group
    from rich.text import Text

    from clefq.cli.comparison import Request, plan, predict_missing, sizes
    from clefq.cli.parity_table import comparison_json, comparison_text
    from clefq.console import Console
    from clefq.names.run_folder import BASELINE, RunFolder
    from clefq.parity.comparison import SetJob, judge_set, load_spec

    console = Console(json_output=json_output, quiet=quiet)
    started = time.monotonic()
    run = RunFolder(out)
    schemes = _schemes(run, engine)
    _lay_out(run, console)
    for scheme in schemes:
        _quantize(run, scheme, console)
    request = Request(BASELINE, schemes, (EVAL,), engine, ())
    plans = plan(request, run)
    predict_missing(plans, request, console)
    (found,) = plans
    job = SetJob(
        baseline=found.baseline.path,
        candidates=tuple(slot.path for slot in found.candidates),
        out=run.report(EVAL),
        sizes=sizes(found, run),
        set_path=found.set_path,
    )
    results = [(job.out, judge_set(job, load_spec("release"), console))]
    seconds = time.monotonic() - started
    ran = "".join(
        f"{row['variant']:<9}  {row['arithmetic']}, {row['kernels']} kernels of {row['engine']}\n"
        for row in results[0][1]["candidates"]
        if row["kernels"] == "real"
    )
    closing = Text(
        f"{ran}\nthe whole loop took {seconds:.0f} s.\n"
        f"next: cd {out} && clefq parity --baseline bf16"
    )
    console.result(
        {**comparison_json(results), "seconds": round(seconds, 1)},
        Group(comparison_text(results), closing),
    )


def _schemes(run: RunFolder, engine: str) -> tuple[str, ...]:
    """What this engine judges; refused where it cannot run, or where another one has answered."""
    from clefq.engines.select import parse_engine, python_for
    from clefq.errors import InputError
    from clefq.names.run_folder import BASELINE
    from clefq.store.predictions import read_meta

    if engine not in SCHEMES:
        raise InputError(
            f"the demo has no engine {engine!r}.", fix=f"use one of {', '.join(SCHEMES)}."
        )
    python_for(parse_engine(engine))
    answered = run.predictions(EVAL, BASELINE)
    if answered.is_file() and (other := read_meta(answered).engine) != engine:
        raise InputError(
            f"{run.root} holds answers of {other}: those of another engine are no comparison.",
            fix="give another --out.",
        )
    return SCHEMES[engine]


def _lay_out(run: RunFolder, console: Console) -> None:
    """Puts the bundled model and sets into the run folder."""
    from clefq.names.run_folder import BASELINE
    from clefq.nano import SETS, WEIGHTS

    _copy(WEIGHTS, run.model(BASELINE))
    for name in (CALIBRATION, EVAL):
        _copy(SETS / name, run.set_folder(name))
    console.note(f"run folder {run.root}: the miniature Clef, a calibration and an eval set")


def _copy(source: Path, target: Path) -> None:
    from clefq.errors import InputError
    from clefq.store.atomic import atomic_folder, sole_writer

    if target.is_dir():
        return
    if not source.is_dir():
        raise InputError(f"this installation lacks {source.name}.", fix="reinstall clefq.")
    with sole_writer(target), atomic_folder(target) as partial:
        shutil.copytree(source, partial, dirs_exist_ok=True)


def _quantize(run: RunFolder, scheme: str, console: Console) -> None:
    from clefq.quantize.run import QuantizeSpec, quantize

    target = run.model(scheme)
    if target.is_dir():
        console.note(f"{scheme}: made before")
        return
    console.note(f"{scheme}: quantizing")
    calibration = run.set_folder(CALIBRATION) if scheme == "nvfp4" else None
    spec = QuantizeSpec(
        model=str(run.model("bf16")), scheme=scheme, recipe=None, calibration=calibration
    )
    quantize(spec, target, console)
