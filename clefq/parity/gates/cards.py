"""Metric cards: name, unit, direction and meaning of each metric, from `metrics/cards.yaml`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import yaml

from clefq.errors import InputError
from clefq.parity.gates.fields import Fields
from clefq.store.data_files import data_folder

SCHEMA = "clefq.cards/1"


@dataclass(frozen=True, slots=True)
class Card:
    """What a metric means.

    Attributes:
        name: As in `parity.json`; `@T` and `@NAME` stand for a parameter.
        title: Short name for tables.
        unit: Unit of its figures.
        direction: `higher` or `lower`: which way is better.
        kind: `difference` (candidate minus baseline; gates give a margin) or `level` (a bound).
        gate: Whether a gate may be set on it.
        meaning: One sentence.
    """

    name: str
    title: str
    unit: str
    direction: str
    kind: str
    gate: bool
    meaning: str


@cache
def load_cards() -> Mapping[str, Card]:
    """The bundled cards, by metric name, in the file's order."""
    return read_cards(data_folder("metrics") / "cards.yaml")


def read_cards(path: Path) -> dict[str, Card]:
    """Reads a cards file.

    Raises:
        InputError: The file does not follow its form; lists every fault.
    """
    faults: list[str] = []
    top = Fields(yaml.safe_load(path.read_text(encoding="utf-8")), "", faults)
    top.choice("schema", (SCHEMA,))
    entries = top.take("metrics")
    top.done()
    cards = {}
    for name, entry in (entries or {}).items():
        fields = Fields(entry, str(name), faults)
        cards[str(name)] = Card(
            name=str(name),
            title=fields.text("title"),
            unit=fields.text("unit"),
            direction=fields.choice("direction", ("higher", "lower")),
            kind=fields.choice("kind", ("difference", "level")),
            gate=fields.boolean("gate"),
            meaning=fields.text("meaning"),
        )
        fields.done()
    if faults:
        raise InputError(f"{path}: {faults[0]}.", faults=faults[1:])
    return cards


def find_card(metric: str) -> Card | None:
    """The card of a metric, also of a parameterised one such as `threshold_flips@0.5`."""
    cards = load_cards()
    if "@" not in metric:
        return cards.get(metric)
    stem = metric.split("@", 1)[0]
    return next((card for name, card in cards.items() if name.startswith(f"{stem}@")), None)
