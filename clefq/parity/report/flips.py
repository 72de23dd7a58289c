"""Changed answers: the table of all flips, their margins, and the worst questions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from clefq.parity.statistics.arrays import FloatArray, IntArray
from clefq.parity.statistics.divergences import EDGE, QuestionValues, SideValues
from clefq.parity.statistics.intervals import mcnemar_exact
from clefq.parity.statistics.measures import CONFIDENT_MARGIN
from clefq.parity.statistics.pairs import PairedSet
from clefq.parity.statistics.slices import LENGTH_BANDS

if TYPE_CHECKING:
    import pandas as pd

N_WORST = 20
PERCENTILES = (10, 25, 50, 75, 90)


def flips_summary(pairs: PairedSet, values: QuestionValues) -> dict[str, Any]:
    """The object under `flips` in `parity.json`.

    Args:
        pairs: The joined predictions.
        values: Their per-question values.
    """
    flipped = values.valid & ~values.agree
    gained = values.has_gold & values.candidate.correct & ~values.baseline.correct
    lost = values.has_gold & values.baseline.correct & ~values.candidate.correct
    new = flipped & (values.candidate.margin >= CONFIDENT_MARGIN - EDGE)
    return {
        "count": int(flipped.sum()),
        "questions": int(values.valid.sum()),
        "gained": int(gained.sum()),
        "lost": int(lost.sum()),
        "mcnemar_p": mcnemar_exact(int(gained.sum()), int(lost.sum())),
        "confident_new": None if pairs.candidate.meta.labels else int(new.sum()),
        "ties": {
            "baseline": int(values.baseline.tied.sum()),
            "candidate": int(values.candidate.tied.sum()),
            "bracket": int((values.agree != values.agree_surely).sum()),
        },
        "baseline_margin": {
            "flips": _percentiles(values.baseline.margin[flipped]),
            "agreements": _percentiles(values.baseline.margin[values.agree]),
        },
        "worst": worst_questions(pairs, values),
    }


def worst_questions(pairs: PairedSet, values: QuestionValues) -> list[dict[str, Any]]:
    """The questions that moved most, of those measured: changed answers first, then by TV."""
    moved = np.where(values.measured, values.tv, -1.0)
    order = np.lexsort((-moved, values.agree | ~values.measured))[:N_WORST]
    chosen = order[moved[order] > 0]
    return [
        {key: column[row] for key, column in _columns(pairs, values, chosen).items()}
        for row in range(len(chosen))
    ]


def flips_frame(pairs: PairedSet, values: QuestionValues) -> pd.DataFrame:
    """Every question whose answer changed, largest total variation first."""
    import pandas as pd

    rows = np.flatnonzero(values.valid & ~values.agree)
    rows = rows[np.argsort(-values.tv[rows], kind="stable")]
    return pd.DataFrame(_columns(pairs, values, rows))


def _columns(pairs: PairedSet, values: QuestionValues, rows: IntArray) -> dict[str, list[Any]]:
    columns: dict[str, list[Any]] = {
        "record_id": list(pairs.record_ids[pairs.record_index[rows]]),
        "question_id": list(pairs.question_ids[rows]),
        "cohort": list(pairs.cohort[rows]),
        "question_type": list(pairs.question_type[rows]),
        "options": pairs.option_counts[rows].tolist(),
        "input_tokens": pairs.input_tokens[rows].tolist(),
        "length_band": [band(tokens) for tokens in pairs.input_tokens[rows]],
        "gold": option_names(pairs, pairs.gold[rows]),
    }
    sides = (pairs.baseline.meta, values.baseline), (pairs.candidate.meta, values.candidate)
    for role, (meta, side) in zip(("baseline", "candidate"), sides, strict=True):
        columns |= _side_columns(pairs, role, side, rows)
        if meta.labels:  # one chosen option is no probability of 1
            columns |= {f"{role}_{name}": [None] * len(rows) for name in ("confidence", "margin")}
    columns["tv"] = values.tv[rows].tolist()
    columns["kl"] = values.kl[rows].tolist()
    return columns


def _side_columns(
    pairs: PairedSet, role: str, side: SideValues, rows: IntArray
) -> Mapping[str, list[Any]]:
    return {
        f"{role}_choice": option_names(pairs, side.top[rows]),
        f"{role}_confidence": side.confidence[rows].tolist(),
        f"{role}_margin": side.margin[rows].tolist(),
    }


def option_names(pairs: PairedSet, flat: IntArray) -> list[str | None]:
    """Option ids at flat indices; None for −1."""
    codes = pairs.option_code[np.maximum(flat, 0)]
    return [
        str(name) if index >= 0 else None
        for name, index in zip(pairs.option_names[codes], flat, strict=True)
    ]


def _percentiles(values: FloatArray) -> dict[str, float] | None:
    values = values[~np.isnan(values)]  # labels have no margin
    if values.size == 0:
        return None
    found = np.percentile(values, PERCENTILES)
    return {f"p{level}": float(value) for level, value in zip(PERCENTILES, found, strict=True)}


def band(tokens: int) -> str:
    """The length band of a prompt; `unknown` where its tokens were not counted."""
    bands = (name for name, low, high in LENGTH_BANDS if low <= tokens < high)
    return next(bands, "unknown")
