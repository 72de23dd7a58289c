"""`clefq sensitivity`: which blocks suffer, and the mixed recipe that fits a budget."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clefq.cli.options import Json, Quiet, Run

if TYPE_CHECKING:
    from clefq.engines.base import EngineSpec
    from clefq.sensitivity.paired import PairedDifference
    from clefq.sensitivity.schema import Budget
    from clefq.sensitivity.session import SweepSpec

_BUDGETS = "Budget of the recipe (one of)"


def command(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL", help="BF16 Clef: a folder, a variant of the run folder, or a hub id."
        ),
    ],
    eval_set: Annotated[
        str, typer.Option("--eval", metavar="SET", help="Set that damage is measured on.")
    ],
    compare: Annotated[
        list[str] | None,
        typer.Option(
            "--compare",
            metavar="VARIANT",
            help="Run nothing: hold MODEL's predictions against this variant's; repeatable.",
        ),
    ] = None,
    calibration: Annotated[
        str | None,
        typer.Option("--calibration", metavar="SET", help="Set for the input scales of nvfp4."),
    ] = None,
    schemes: Annotated[
        str, typer.Option("--schemes", metavar="LIST", help="Formats to try on every block.")
    ] = "fp8,nvfp4a16,nvfp4",
    rounding: Annotated[
        str,
        typer.Option("--rounding", metavar="NAME", help="Of NVFP4 weights: nearest or search."),
    ] = "nearest",
    budget_bytes: Annotated[
        int | None,
        typer.Option(
            "--budget-bytes",
            metavar="N",
            help="Most bytes of all weights, head included.",
            rich_help_panel=_BUDGETS,
        ),
    ] = None,
    budget_gb: Annotated[
        float | None,
        typer.Option(
            "--budget-gb", metavar="X", help="The same in GB (1e9).", rich_help_panel=_BUDGETS
        ),
    ] = None,
    budget_fraction: Annotated[
        float | None,
        typer.Option(
            "--budget-fraction",
            metavar="F",
            help="The same as a share of BF16's bytes.",
            rich_help_panel=_BUDGETS,
        ),
    ] = None,
    budget_speed: Annotated[
        float | None,
        typer.Option(
            "--budget-speed",
            metavar="S",
            help="Least estimated prefill speed, BF16 is 1.",
            rich_help_panel=_BUDGETS,
        ),
    ] = None,
    speeds: Annotated[
        str | None,
        typer.Option(
            "--speeds",
            metavar="LIST",
            help="Assumed speeds, BF16 is 1; default: peak rates, fp8=2,nvfp4=4,nvfp4a16=1.",
        ),
    ] = None,
    records: Annotated[
        int | None,
        typer.Option("--records", min=10, metavar="N", help="Sample of the set, by a hash of ids."),
    ] = None,
    verify: Annotated[
        bool, typer.Option("--verify/--no-verify", help="Measure the recipe on the set.")
    ] = True,
    published: Annotated[
        bool,
        typer.Option("--published/--no-published", help="Measure the published layouts too."),
    ] = True,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="Default: sensitivity/SET in the run folder."),
    ] = None,
    max_length: Annotated[
        int, typer.Option("--max-length", metavar="N", help="Most tokens of a prompt.")
    ] = 16_384,
    truncate_state: Annotated[
        bool, typer.Option("--truncate-state", help="Cut over-long states as the release does.")
    ] = False,
    batch_tokens: Annotated[
        int | None, typer.Option("--batch-tokens", metavar="N", help="Most tokens of one batch.")
    ] = None,
    device: Annotated[str, typer.Option("--device", help="auto, cpu, cuda or cuda:N.")] = "auto",
    threads: Annotated[
        int | None, typer.Option("--threads", metavar="N", help="CPU threads.")
    ] = None,
    memory_gb: Annotated[
        float,
        typer.Option(
            "--memory-gb", min=0.0, metavar="X", help="Hidden states in memory; the rest on disk."
        ),
    ] = 4.0,
    run: Run = None,
    json_output: Json = False,
    quiet: Quiet = False,
) -> None:
    """Measure what each block loses in each format, and search the best mixed recipe.

    Every MLP, attention and DeltaNet is quantized alone, in memory, with the arithmetic of
    `clefq predict`; its damage is measured on the answers. An exact knapsack picks a format per
    block within the budget (default: the size of the `mixed` layout) and writes `recipe.yaml` for
    `clefq quantize --recipe`. Interrupted, the same command continues.

    With `--compare`, MODEL and the variants are names of the run folder that have predictions on
    the set: the differences of their damage, with paired intervals.
    """
    from clefq.console import Console
    from clefq.engines.base import EngineSpec
    from clefq.sensitivity.cost import parse_speeds
    from clefq.sensitivity.report_text import paired_text, report_text
    from clefq.sensitivity.workflow import SearchSpec, run_sensitivity
    from clefq.store.reading import to_plain

    console = Console(json_output=json_output, quiet=quiet)
    if compare:
        found_pairs = _paired(run, eval_set, model, compare)
        console.result(to_plain(found_pairs), paired_text(found_pairs))
        return
    engine = EngineSpec(
        max_length=max_length,
        truncate_state=truncate_state,
        batch_tokens=batch_tokens,
        device=device,
        threads=threads,
    )
    names = _Names(model, eval_set, calibration, out, run)
    asked = _Asked(budget_bytes, budget_gb, budget_fraction, budget_speed)
    spec = names.spec(schemes, engine, records, round(memory_gb * 1e9))
    spec = replace(spec, rounding=rounding)
    wanted = SearchSpec(asked.budget(spec), parse_speeds(speeds), verify, published)
    found = run_sensitivity(spec, wanted, console)
    named = str(spec.model) if spec.revision is None else f"{spec.model_id}@{spec.revision}"
    console.result(to_plain(found), report_text(found, spec.out, named, spec.calibration))


@dataclass(frozen=True, slots=True)
class _Names:
    """The options that name things."""

    model: str
    eval_set: str
    calibration: str | None
    out: Path | None
    run: Path | None

    def spec(self, schemes: str, engine: EngineSpec, records: int | None, memory: int) -> SweepSpec:
        from clefq.errors import InputError
        from clefq.names.models import find_model
        from clefq.names.run_folder import find_run, find_set
        from clefq.sensitivity.blocks import parse_schemes
        from clefq.sensitivity.session import SweepSpec
        from clefq.store.sets import open_set

        folder = find_run(self.run)
        model = find_model(self.model, folder)
        eval_set = find_set(self.eval_set, folder)
        out = self.out
        if out is None:
            if folder is None:
                raise InputError(
                    "there is no run folder here to write to.", fix="give --out DIR, or --run DIR."
                )
            out = folder.root / "sensitivity" / open_set(eval_set).name
        return SweepSpec(
            model=model.folder,
            eval_set=eval_set,
            calibration=None if self.calibration is None else find_set(self.calibration, folder),
            schemes=parse_schemes(schemes),
            out=out,
            model_id=model.model_id,
            revision=model.revision,
            engine=engine,
            records=records,
            memory=memory,
        )


@dataclass(frozen=True, slots=True)
class _Asked:
    """The budget options."""

    nbytes: int | None
    gb: float | None
    fraction: float | None
    speed: float | None

    def budget(self, spec: SweepSpec) -> Budget | None:
        """The one that was given, or None.

        Raises:
            InputError: Several were given, or one is not positive.
        """
        from clefq.errors import InputError
        from clefq.sensitivity.schema import Budget
        from clefq.sensitivity.search import BYTES, SPEED

        given = {
            "--budget-bytes": self.nbytes,
            "--budget-gb": self.gb,
            "--budget-fraction": self.fraction,
            "--budget-speed": self.speed,
        }
        named = {name: value for name, value in given.items() if value is not None}
        if not named:
            return None
        (name, value), *others = named.items()
        if others:
            raise InputError(f"{name} and {others[0][0]} exclude each other.", fix="give one.")
        if not 0 < value < float("inf"):
            raise InputError(f"{name} is {value}, expected a positive number.")
        limit = float(value)
        if name == "--budget-gb":
            limit = value * 1e9
        if name == "--budget-fraction":
            limit = value * _bf16_bytes(spec)
        kind = SPEED if name == "--budget-speed" else BYTES
        return Budget(kind, limit, f"{name} {value:g}" if kind == SPEED else f"{name} {value:,}")


def _bf16_bytes(spec: SweepSpec) -> int:
    from clefq.clef.checkpoint import open_checkpoint
    from clefq.sensitivity.blocks import find_blocks
    from clefq.sensitivity.cost import DEFAULT_SPEEDS, cost_model

    checkpoint = open_checkpoint(spec.model)
    return cost_model(checkpoint, find_blocks(checkpoint), 0.0, DEFAULT_SPEEDS).nbytes({})


def _paired(
    run: Path | None, eval_set: str, variant: str, others: list[str]
) -> list[PairedDifference]:
    from clefq.names.predictions import PredictionsRef, check_file
    from clefq.names.run_folder import BASELINE, RunFolder, find_set
    from clefq.sensitivity.paired import paired_difference
    from clefq.store.predictions import read_predictions
    from clefq.store.sets import open_set

    folder = RunFolder.find(run)
    opened = open_set(find_set(eval_set, folder))
    names = (BASELINE, variant, *others)
    for name in names:
        model = folder.model(name) if folder.model(name).is_dir() else None
        path = folder.predictions(opened.name, name)
        check_file(PredictionsRef(name, path, name, model, in_run=True), opened.path)
    baseline, ours, *theirs = (
        read_predictions(folder.predictions(opened.name, name)) for name in names
    )
    found = [paired_difference(baseline, ours, other) for other in theirs]
    sha = opened.sha256()
    searched = [name for name in names if _was_searched(folder.model(name), sha)]
    return [
        replace(
            item,
            nbytes=_checkpoint_bytes(folder.model(item.variant)),
            other_nbytes=_checkpoint_bytes(folder.model(item.other)),
            searched=tuple(name for name in searched if name in (item.variant, item.other)),
        )
        for item in found
    ]


def _was_searched(folder: Path, set_sha256: str) -> bool:
    """Whether a checkpoint's recipe says that it was searched on a set."""
    path = folder / "recipe.yaml"
    return path.is_file() and set_sha256 in path.read_text(encoding="utf-8", errors="replace")


def _checkpoint_bytes(folder: Path) -> int | None:
    """Bytes of a checkpoint's tensors, head included, as in the layout table."""
    from clefq.clef.checkpoint import open_checkpoint
    from clefq.clef.tensor_files import read_header

    if not folder.is_dir():
        return None
    checkpoint = open_checkpoint(folder)
    tensors = [*checkpoint.tensors.values(), *read_header(checkpoint.head_file).values()]
    return sum(tensor.nbytes for tensor in tensors)
