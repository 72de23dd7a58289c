"""What is known of each metric beside its figure, from `metrics/cards.yaml`.

Everything that a gate file, a report or a card asks of a metric (its unit, which way is better,
whether it can be gated, where it is shown) is asked here, so that a new metric takes two files:
where it is computed, and its entry in the YAML.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from clefq.errors import InputError
from clefq.store.data_files import data_folder

SCHEMA = "clefq.cards/1"
LABELS = "labels without probabilities"
# The views that list some metrics only; `breakdown.csv` and `parity.json` hold all.
REPORT, SUMMARY, MODEL_CARD = "report", "summary", "model_card"
_CHOICES = {
    "direction": ("higher", "lower"),
    "kind": ("difference", "level"),
}
_NEEDS = (None, "baseline", "both")


@dataclass(frozen=True, slots=True)
class MetricFacts:
    """The facts of one metric.

    Attributes:
        name: As in `parity.json`; `@T` and `@NAME` stand for a parameter.
        title: Short name for tables.
        unit: Unit of its figures.
        direction: `higher` or `lower`: which way is better.
        kind: `difference` (candidate minus baseline; gates give a margin) or `level` (a bound).
        gate: Whether a gate may be set on it.
        meaning: One sentence.
        shown: The views that list it: `report`, `summary`, `model_card`.
        noise_floor: Whether a replicate of the baseline has it too, so that a gate can be on the
            excess over that.
        needs: Whose probabilities it takes, `baseline` or `both`; None where labels will do.
    """

    name: str
    title: str
    unit: str
    direction: str
    kind: str
    gate: bool
    meaning: str
    shown: tuple[str, ...] = ()
    noise_floor: bool = False
    needs: str | None = None

    @property
    def signed(self) -> bool:
        """Whether its figures are differences, which are shown with their sign."""
        return self.kind == "difference"


@cache
def load_facts() -> Mapping[str, MetricFacts]:
    """The bundled facts, by metric name, in the file's order, which every table follows."""
    return read_facts(data_folder("metrics") / "cards.yaml")


def read_facts(path: Path) -> dict[str, MetricFacts]:
    """Reads a facts file.

    Raises:
        InputError: The file does not follow its form; lists every fault.
    """
    value = yaml.safe_load(path.read_text(encoding="utf-8"))
    faults = [] if value.get("schema") == SCHEMA else [f"schema must be {SCHEMA}"]
    found = {}
    for name, entry in value["metrics"].items():
        wrong = _faults(name, entry)
        faults += wrong
        if not wrong:
            found[name] = MetricFacts(name, **{**entry, "shown": tuple(entry.get("shown", ()))})
    if faults:
        raise InputError(f"{path}: {faults[0]}.", faults=faults[1:])
    return found


def _faults(name: str, entry: Mapping[str, Any]) -> list[str]:
    known = {field.name for field in fields(MetricFacts)} - {"name"}
    faults = [f"{name}: {key} is unknown" for key in sorted(entry.keys() - known)]
    faults += [
        f"{name}: {key} is missing"
        for key in sorted(known - {"shown", "noise_floor", "needs"} - entry.keys())
    ]
    faults += [
        f"{name}: {key} must be one of {', '.join(choices)}"
        for key, choices in _CHOICES.items()
        if entry.get(key) not in choices
    ]
    if entry.get("needs") not in _NEEDS:
        faults.append(f"{name}: needs must be baseline or both")
    unknown = set(entry.get("shown", ())) - {REPORT, SUMMARY, MODEL_CARD}
    return faults + [f"{name}: shown in {view}, which is no view" for view in sorted(unknown)]


def find_facts(metric: str) -> MetricFacts | None:
    """The facts of a metric, also of a parameterised one such as `threshold_flips@0.5`."""
    facts = load_facts()
    if "@" not in metric:
        return facts.get(metric)
    stem = metric.split("@", 1)[0]
    return next((found for name, found in facts.items() if name.startswith(f"{stem}@")), None)


def lacks_probabilities(metric: str, baseline: str, candidate: str) -> str | None:
    """Why a metric has no figure where answers are labels alone, or None where it has one.

    Args:
        metric: Its name.
        baseline: What the baseline's answers are, `probabilities` or `labels`.
        candidate: What the candidate's are.
    """
    facts = find_facts(metric)
    needs = None if facts is None else facts.needs
    sides = {"baseline": baseline} | ({"candidate": candidate} if needs == "both" else {})
    without = [role for role, answers in sides.items() if answers == "labels"]
    if needs is None or not without:
        return None
    return f"the {' and the '.join(without)} gave {LABELS}"


def shown_in(view: str, metrics: Mapping[str, Any]) -> list[str]:
    """The metrics that a view lists, of those at hand, in the order of the facts.

    Parameterised ones follow in their own order. Exact records are listed only where a record has
    several questions with gold: elsewhere they are the accuracy once more.

    Args:
        view: `report`, `summary` or `model_card`.
        metrics: Metric name → its figure as in `parity.json`.
    """
    names = [
        name for name, facts in load_facts().items() if view in facts.shown and name in metrics
    ]
    for name in metrics:
        facts = find_facts(name) if "@" in name else None
        if facts is not None and view in facts.shown:
            names.append(name)
    exact, asked = metrics.get("record_exact_delta"), metrics.get("accuracy_delta")
    if exact is None or asked is None or exact["n_questions"] == asked["n_questions"]:
        names = [name for name in names if not name.startswith("record_exact_")]
    return names


def noise_floor_metrics() -> tuple[str, ...]:
    """The stems of metrics that a replicate of the baseline has too."""
    return tuple(name.split("@")[0] for name, facts in load_facts().items() if facts.noise_floor)


def title_of(metric: str) -> str:
    """A metric's title for tables, with its parameter."""
    facts = find_facts(metric)
    if facts is None:
        return metric
    if "@" not in metric:
        return facts.title
    return re.sub(r"\b(T|NAME)$", metric.split("@", 1)[1], facts.title)
