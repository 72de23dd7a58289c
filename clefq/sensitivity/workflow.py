"""`clefq sensitivity`: sweep, search, recipe, verification, report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from clefq import __version__
from clefq.clef.formats import BF16
from clefq.errors import InputError
from clefq.quantize.recipes import Recipe
from clefq.sensitivity.blocks import Layout
from clefq.sensitivity.cost import CostModel, cost_model
from clefq.sensitivity.figures import Damage
from clefq.sensitivity.layouts import published_layouts, write_recipe
from clefq.sensitivity.schema import (
    ANSWERS_FILE,
    BASELINE_FILE,
    PUBLISHED,
    PUBLISHED_FOLDER,
    RECIPE_FILE,
    REPORT_FILE,
    SEARCHED,
    SUMMARY_FILE,
    TRIED,
    Budget,
    LayoutResult,
    Sensitivity,
    save,
)
from clefq.sensitivity.search import BYTES, Costs, check_budget, front, mark_front, search
from clefq.sensitivity.session import Session, SweepSpec
from clefq.sensitivity.sweep import (
    Sweep,
    known_baseline,
    layouts_tried,
    measure_layout,
    predicted_kl,
    run_sweep,
)
from clefq.store.atomic import disk_error, sole_writer, write_text
from clefq.store.predictions import Predictions

if TYPE_CHECKING:
    from clefq.console import Console


@dataclass(frozen=True, slots=True)
class SearchSpec:
    """What is made of the sweep.

    Attributes:
        budget: What the recipe must meet; None for the size of the published `mixed` layout.
        speeds: Format to assumed speed relative to BF16.
        verify: Measure the searched layout on the set.
        published: Measure the published layouts too.
    """

    budget: Budget | None
    speeds: dict[str, float]
    verify: bool = True
    published: bool = True


def run_sensitivity(spec: SweepSpec, wanted: SearchSpec, console: Console) -> Sensitivity:
    """Sweeps, searches and writes everything into `spec.out`.

    Raises:
        InputError: `spec.out` holds something other than a sweep.
        ClefqError: A bad model, set or budget.
    """
    with _locked(spec.out):
        session = Session(spec, console)
        try:
            return _run(session, wanted)
        finally:
            session.close()


def _run(session: Session, wanted: SearchSpec) -> Sensitivity:
    spec = session.spec
    model = cost_model(session.checkpoint, session.blocks, _mean_tokens(session), wanted.speeds)
    published = published_layouts(spec.model, session.blocks, spec.schemes)
    budget = wanted.budget or _default_budget(model, published)
    if budget is not None:
        check_budget(model, spec.schemes, budget)  # before the hours, not after them
    sweep = run_sweep(session)
    costs = Costs(model, sweep.stored, spec.schemes)
    layouts: list[_Named] = [(name, PUBLISHED, layout) for name, layout in published.items()]
    recipe = None
    if budget is None:
        session.console.note("no recipe: give a budget (--budget-gb, --budget-speed, …)")
    else:
        layout = search(costs, budget)
        layouts.insert(0, (SEARCHED, SEARCHED, layout))
        recipe = _recipe(session, costs, budget, layout)
    _write_recipes(session, recipe, published if wanted.published else {})
    found = Sensitivity(
        clefq_version=__version__,
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        model=_model(session, model),
        eval_set=_eval_set(session, sweep.baseline),
        calibration=_calibration(session),
        engine=_engine(sweep.baseline),
        speeds={name: wanted.speeds[name] for name in costs.forms},
        baseline_accuracy=_accuracy(sweep.baseline),
        blocks=tuple(stored.result for stored in sweep.stored.values()),
        layouts=mark_front(_results(session, sweep, costs, layouts, wanted)),
        budget=budget,
        recipe=None if recipe is None else RECIPE_FILE,
        front=front(costs),
        effort=sweep.effort,
    )
    return _written(found, spec.out)


# name, origin, format per block
_Named = tuple[str, str, Layout]


def _results(
    session: Session,
    sweep: Sweep,
    costs: Costs,
    layouts: Sequence[_Named],
    wanted: SearchSpec,
) -> list[LayoutResult]:
    """The layouts, and whatever else was measured here, with their figures."""
    known = layouts_tried(session)
    measured: list[tuple[_Named, Damage | None]] = []
    for name, origin, layout in layouts:
        damage = next((found for _, tried, found in known if tried == layout), None)
        if damage is None and (wanted.verify if origin == SEARCHED else wanted.published):
            damage = measure_layout(session, sweep.judge, layout)
        measured.append(((name, origin, layout), damage))
    shown = [layout for _, _, layout in layouts]
    for name, layout, damage in known:
        if layout not in shown and set(layout.values()) <= set(costs.forms):
            measured.append(((name, TRIED, layout), damage))
    return [
        LayoutResult(
            name=name,
            origin=origin,
            formats=layout,
            nbytes=costs.model.nbytes(layout),
            speedup=costs.model.speedup(layout),
            predicted_kl=sweep.judge.mean_kl(predicted_kl(sweep, layout)),
            measured=damage,
        )
        for (name, origin, layout), damage in measured
    ]


def _write_recipes(session: Session, recipe: Recipe | None, published: dict[str, Layout]) -> None:
    """The searched recipe, and those of the published layouts at this depth to compare with."""
    out = session.spec.out
    if recipe is None:
        (out / RECIPE_FILE).unlink(missing_ok=True)
    else:
        write_text(out / RECIPE_FILE, recipe.text)
    for name, layout in published.items():
        header = [f"The published layout {name}, for {session.spec.model_id}."]
        spec = session.spec
        text = write_recipe(spec.model, session.blocks, layout, header, spec.searched).text
        write_text(out / PUBLISHED_FOLDER / f"{name}.yaml", text)


def _written(found: Sensitivity, out: Path) -> Sensitivity:
    from clefq.sensitivity.report_html import report_html

    save(out / SUMMARY_FILE, found)
    write_text(out / REPORT_FILE, report_html(found))
    return found


def _default_budget(model: CostModel, published: dict[str, Layout]) -> Budget | None:
    if "mixed" not in published:
        return None
    return Budget(BYTES, model.nbytes(published["mixed"]), "the size of the published layout mixed")


def _recipe(session: Session, costs: Costs, budget: Budget, layout: Layout) -> Recipe | None:
    if set(layout.values()) == {BF16}:
        session.console.note("no recipe: BF16 itself meets the budget")
        return None
    size, folder = costs.model.nbytes(layout), session.eval_folder
    header = [
        f"Searched by clefq {__version__} sensitivity: least predicted KL within {budget.given}.",
        f"model     {session.spec.model_id}, {session.model_sha256}",
        f"eval set  {folder.name}, {folder.sha256()}, {len(session.records)} records",
        f"predicted KL {costs.total_kl(layout):.6g} nats, {size} bytes with the joint head",
    ]
    spec = session.spec
    return write_recipe(spec.model, session.blocks, layout, header, spec.searched)


def _mean_tokens(session: Session) -> float:
    known = known_baseline(session)
    if known is None:
        return float(np.mean([len(prompt.encoded.token_ids) for prompt in session.prompts]))
    return float(known[0].frame.drop_duplicates("record_id")["input_tokens"].mean())


def _accuracy(baseline: Predictions) -> float | None:
    frame = baseline.frame[baseline.frame["gold"].notna()]
    if not len(frame):
        return None
    top = [int(np.argmax(logprobs)) for logprobs in frame["logprobs"]]
    said = [ids[at] for ids, at in zip(frame["option_ids"], top, strict=True)]
    return float((np.array(said, dtype=object) == frame["gold"].to_numpy(dtype=object)).mean())


def _model(session: Session, model: CostModel) -> dict[str, Any]:
    return {
        "model_id": session.spec.model_id,
        "revision": session.spec.revision,
        "sha256": session.model_sha256,
        "bf16_bytes": model.nbytes({}),
        "fixed_bytes": model.fixed_bytes,
    }


def _eval_set(session: Session, baseline: Predictions) -> dict[str, Any]:
    records = baseline.frame.drop_duplicates("record_id")
    return {
        "name": session.eval_folder.name,
        "sha256": session.eval_folder.sha256(),
        "records": len(records),
        "questions": len(baseline.frame),
        "tokens": int(records["input_tokens"].sum()),
        "asked_records": session.spec.records,
    }


def _calibration(session: Session) -> dict[str, Any] | None:
    if session.calibration is None or "nvfp4" not in session.spec.schemes:
        return None
    return {"name": session.calibration.name, "sha256": session.calibration.sha256()}


def _engine(baseline: Predictions) -> dict[str, Any]:
    meta = baseline.meta
    return {
        "engine": meta.engine,
        "version": meta.engine_version,
        "device": meta.device,
        "dtype": meta.dtype,
        "kernels": "simulated",
    }


def _check_own(folder: Path) -> None:
    """What is there must be a sweep, be it unfinished: its first files are BF16's answers."""
    names = {path.name for path in folder.iterdir() if not path.name.startswith(".")}
    if names and BASELINE_FILE not in names and names != {ANSWERS_FILE}:
        raise InputError(
            f"{folder} is there and is not a sensitivity folder.", fix="choose another --out."
        )


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One sweep per folder at a time."""
    with sole_writer(folder):
        try:
            folder.mkdir(exist_ok=True)
            _check_own(folder)
            yield
        except OSError as error:
            raise disk_error(error, folder) from error
