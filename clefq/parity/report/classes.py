"""By class, for people: which answers moved where, and each right answer's recall."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from clefq.parity.gates.rows import FigureRow, figure_row
from clefq.parity.statistics.slices import GOLD, MOST_SLICES

MOST_ROWS = 20


@dataclass(frozen=True, slots=True)
class ClassRow:
    """One right answer.

    Attributes:
        name: `QUESTION/OPTION`.
        baseline: Its recall by the baseline.
        candidate: Its recall by the candidate.
        delta: The difference.
    """

    name: str
    baseline: FigureRow
    candidate: FigureRow
    delta: FigureRow


def class_rows(document: Mapping[str, Any]) -> tuple[list[ClassRow], int]:
    """The classes that lost most recall, worst first, and how many more there are.

    Args:
        document: A `parity.json` value.
    """
    found = [
        (name.split("=", 1)[1], metrics)
        for name, metrics in document["slices"].items()
        if name.startswith(f"{GOLD}=")
    ]
    found.sort(key=lambda item: (item[1]["accuracy_delta"]["estimate"], item[0]))
    rows = [
        ClassRow(
            name,
            *(
                figure_row(metric, metrics[metric])
                for metric in ("accuracy_baseline", "accuracy_candidate", "accuracy_delta")
            ),
        )
        for name, metrics in found[:MOST_ROWS]
    ]
    return rows, len(found) - len(rows)


def moved(document: Mapping[str, Any], most: int = MOST_ROWS) -> tuple[list[Any], int]:
    """The commonest changes of answer, and how many changed answers are in none of them.

    Args:
        document: A `parity.json` value.
        most: Most rows.
    """
    found = (document["details"] or {}).get("confusion") or {"moves": [], "left_out": 0}
    hidden = found["left_out"] + sum(move["count"] for move in found["moves"][most:])
    return list(found["moves"][:most]), hidden


def left_out_note(document: Mapping[str, Any]) -> str | None:
    """Which slices are not reported, in one sentence; None where all are."""
    found = (document["details"] or {}).get("slices_left_out") or {}
    if not found:
        return None
    each = ", ".join(f"{count:,} more by {key}" for key, count in sorted(found.items()))
    return f"Only the {MOST_SLICES} largest slices of a kind are reported: there are {each}."
