"""`clefq threshold`: the candidate's own threshold for a policy that acts at p ≥ T."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clefq.cli.options import Json, Quiet, Run

if TYPE_CHECKING:
    from rich.console import RenderableType

    from clefq.parity.statistics.metric import Metric
    from clefq.parity.statistics.pairs import PairedSet
    from clefq.parity.statistics.thresholds import Acting, ThresholdResult
    from clefq.store.predictions import Predictions

SCHEMA = "clefq.policy/1"


def command(
    baseline: Annotated[
        str, typer.Argument(metavar="BASELINE", help="Predictions file, or variant (with --eval).")
    ],
    candidate: Annotated[str, typer.Argument(metavar="CANDIDATE", help="The same.")],
    questions: Annotated[
        str, typer.Option("--questions", metavar="PATTERN", help="Question ids, with * and ?.")
    ],
    at: Annotated[
        float, typer.Option("--at", metavar="T", help="The baseline acts at p(option) ≥ T.")
    ],
    option: Annotated[
        str, typer.Option("--option", metavar="ID", help="The option whose probability decides.")
    ] = "true",
    keep: Annotated[
        str,
        typer.Option(
            "--keep", metavar="WHAT", help="precision, recall or action-rate of the baseline."
        ),
    ] = "precision",
    precision: Annotated[
        float | None,
        typer.Option(
            "--precision",
            metavar="P",
            help="Let both reach this precision instead; --at is then where you are today.",
        ),
    ] = None,
    choose_on: Annotated[
        float,
        typer.Option(
            "--choose-on",
            metavar="SHARE",
            help="Share of the records to choose on; the others judge.",
        ),
    ] = 0.5,
    confidence: Annotated[
        float, typer.Option("--confidence", metavar="C", help="Two-sided, of the intervals.")
    ] = 0.95,
    eval_set: Annotated[
        str | None, typer.Option("--eval", metavar="SET", help="Set, for variants by name.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="Write the policy to deploy (YAML)."),
    ] = None,
    run: Run = None,
    json_output: Json = False,
    quiet: Quiet = False,
) -> None:
    """Carry a threshold over from the baseline to the candidate.

    A policy acts where p(option) ≥ T. The candidate's threshold is chosen on one part of the
    records so that it keeps what the baseline has there, and judged on the other part, beside the
    candidate at the old threshold. Exit code 3 where no threshold keeps it.
    """
    from clefq.console import Console
    from clefq.errors import ExitCode, InputError
    from clefq.parity.statistics.figures import Sampling
    from clefq.parity.statistics.pairs import join
    from clefq.parity.statistics.resampling import resampling_key
    from clefq.parity.statistics.thresholds import KEEPS, ThresholdRule, threshold_result

    console = Console(json_output=json_output, quiet=quiet)
    if keep not in KEEPS:
        raise InputError(f"--keep is {keep!r}, expected one of {', '.join(KEEPS)}.")
    if precision is not None and keep != "precision":
        raise InputError(
            "--precision is a target of --keep precision.", fix=f"leave --keep {keep} out."
        )
    _check_shares(at=at, choose_on=choose_on, confidence=confidence, precision=precision)
    if out is not None and out.exists():
        raise InputError(f"{out} exists already.", fix="remove it or choose another --out.")
    sides = [_predictions(name, eval_set, run) for name in (baseline, candidate)]
    _check_probabilities(sides)
    pairs = join(*sides)
    rule = ThresholdRule(questions, option, at, keep, precision)
    key = resampling_key("0" * 64, pairs.baseline.meta.eval_set_sha256)
    result = threshold_result(pairs, rule, choose_on, Sampling(key), confidence)
    value = _json(result, pairs, choose_on)
    if out is not None and result.chosen is not None:
        _write(out, value)
    console.result(value, _text(result, pairs, out))
    if result.chosen is None:
        raise typer.Exit(ExitCode.INCONCLUSIVE)


def _check_shares(**values: float | None) -> None:
    from clefq.errors import InputError

    faults = [
        f"--{name.replace('_', '-')} is {value:g}, expected more than 0 and less than 1"
        for name, value in values.items()
        if value is not None and not 0 < value < 1
    ]
    if faults:
        raise InputError(f"{faults[0]}.", faults=faults[1:])


def _check_probabilities(sides: list[Predictions]) -> None:
    from clefq.errors import PredictionsError

    for side in sides:
        if side.meta.labels:
            raise PredictionsError(
                f"{side.path} holds labels without probabilities, which no threshold applies to.",
                fix="give predictions with probabilities.",
            )


def _predictions(name: str, eval_set: str | None, folder: Path | None) -> Predictions:
    from clefq.errors import InputError
    from clefq.names.predictions import check_file, find_predictions, is_predictions
    from clefq.names.run_folder import find_run, find_set
    from clefq.store.predictions import read_predictions
    from clefq.store.sets import open_set

    if is_predictions(name):
        return read_predictions(Path(name))
    if eval_set is None:
        raise InputError(
            f"{name} is no predictions file.", fix="give --eval SET for a variant's predictions."
        )
    run = find_run(folder)
    set_path = find_set(eval_set, run)
    ref = find_predictions(name, open_set(set_path).name, set_path, run)
    if not ref.path.is_file():
        raise InputError(
            f"{name} has no predictions on {eval_set}.",
            fix=f"clefq predict {name} --eval {eval_set}",
        )
    check_file(ref, set_path)
    return read_predictions(ref.path)


def _json(result: ThresholdResult, pairs: PairedSet, share: float) -> dict[str, Any]:
    rule, after = result.rule, result.after
    baseline, candidate = pairs.baseline.meta, pairs.candidate.meta
    return {
        "schema": SCHEMA,
        "questions": rule.questions,
        "option": rule.option,
        "keep": rule.keep,
        "target": rule.target,
        "eval_set": {"name": baseline.eval_set, "sha256": baseline.eval_set_sha256},
        "baseline": {
            "variant": baseline.variant,
            "model_sha256": baseline.model_sha256,
            "threshold": result.baseline_threshold,
        },
        "candidate": {
            "variant": candidate.variant,
            "model_sha256": candidate.model_sha256,
            "kernels": candidate.kernels,
            "arithmetic": candidate.arithmetic,
            "threshold": result.chosen,
        },
        "chosen_on": {
            "share": share,
            "questions": result.choosing,
            "baseline": result.kept[0],
            "candidate": result.kept[1],
        },
        "judged_on": {
            "questions": result.judging,
            "baseline": _acting(result.before),
            "candidate_at_baseline_threshold": _acting(result.same),
            "candidate": None if after is None else _acting(after),
            "differences": {name: _figure(item) for name, item in result.differences.items()},
        },
    }


def _acting(value: Acting) -> dict[str, Any]:
    return {
        "threshold": value.threshold,
        "acted": value.acted,
        "held": value.held,
        "wrong": value.wrong,
        **{name: _figure(getattr(value, name)) for name in _FIGURES},
    }


_FIGURES = ("action_rate", "precision", "recall", "error_rate")


def _figure(value: Metric) -> dict[str, Any]:
    return {
        "estimate": value.estimate,
        "lower": value.lower,
        "upper": value.upper,
        "confidence": value.confidence,
        "method": value.method,
        "n_questions": value.n_questions,
        "n_records": value.n_records,
    }


def _write(out: Path, value: dict[str, Any]) -> None:
    import yaml

    from clefq.store.atomic import atomic_file

    head = (
        "# Made by `clefq threshold`: act where p(option) of the candidate reaches its threshold.\n"
        "# It holds for this candidate (by hash) as it ran here, and for data like this set's.\n"
    )
    text = head + yaml.safe_dump(value, sort_keys=False, allow_unicode=True)
    with atomic_file(out) as partial:
        partial.write_text(text, encoding="utf-8")


def _text(result: ThresholdResult, pairs: PairedSet, out: Path | None) -> RenderableType:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in ("", "T", "acted", "held", "wrong", "precision", "recall"):
        table.add_column(name, justify="left" if not name else "right", no_wrap=True)
    names = (pairs.baseline.meta.variant, pairs.candidate.meta.variant)
    rows = [(names[0], result.before), (f"{names[1]}, same T", result.same)]
    if result.after is not None:
        rows.append((f"{names[1]}, own T", result.after))
    for name, row in rows:
        table.add_row(
            name, f"{row.threshold:.4g}", f"{row.acted:,}", f"{row.held:,}", f"{row.wrong:,}",
            _percent(row.precision), _percent(row.recall),
        )  # fmt: skip
    return Group(
        Text(_sentence(result, names)),
        table,
        *(Text(line) for line in _closing(result, names, out)),
    )


def _sentence(result: ThresholdResult, names: tuple[str, str]) -> str:
    rule = result.rule
    what = rule.keep.replace("-", " ")
    goal = "the baseline's" if rule.target is None else f"{rule.target:.1%}"
    if result.chosen is None:
        return (
            f"{rule.questions} → {rule.option}: no threshold of {names[1]} reaches {goal} {what} "
            f"({result.kept[0]:.1%}) on the {result.choosing:,} questions to choose on."
        )
    return (
        f"{rule.questions} → {rule.option}: {names[1]} keeps {goal} {what} at {result.chosen:.4g} "
        f"(chosen on {result.choosing:,} questions, judged on the {result.judging:,} others)."
    )


def _closing(result: ThresholdResult, names: tuple[str, str], out: Path | None) -> list[str]:
    own = "own T" if result.after is not None else "same T"
    lines = [f"{names[1]} at its {own} − {names[0]}, {_level(result)} intervals:"]
    words = {
        "action_rate": "acted on",
        "recall": "acted on where it is right",
        "error_rate": "acted on wrongly",
    }
    for name, word in words.items():
        lines.append(f"  {word:<28}{_points(result.differences[name])}")
    if out is not None and result.chosen is not None:
        lines.append(f"policy  {out}")
    return lines


def _level(result: ThresholdResult) -> str:
    return f"{100 * result.before.action_rate.confidence:g}%"


def _percent(value: Metric) -> str:
    if value.estimate is None:
        return "–"
    ends = ""
    if value.lower is not None and value.upper is not None:
        ends = f" [{100 * value.lower:.0f}, {100 * value.upper:.0f}]"
    return f"{100 * value.estimate:.1f}%{ends}"


def _points(value: Metric) -> str:
    from clefq.parity.gates.formatting import figure, interval

    if value.estimate is None:
        return "– (no such question)"
    bounds = interval(value.lower, value.upper, signed=True)
    return f"{figure(value.estimate, signed=True)} {bounds}"
