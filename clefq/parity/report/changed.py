"""Changed answers to read: each flip of a report with its texts and both models' probabilities.

`flips.parquet` holds the answers, the set the texts, and the predictions, where they lie as the
report was made of them, the probabilities of every option. Nothing here is judged again.
"""

from __future__ import annotations

import csv
import io
import math
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from clefq.clef.json_values import render
from clefq.clef.records import Question, Record
from clefq.errors import InputError
from clefq.parity.gates.formatting import NONE, count, figure
from clefq.parity.statistics.divergences import EDGE
from clefq.parity.statistics.slices import (
    FURTHER,
    GOLD,
    LENGTH_BANDS,
    MARGIN_BANDS,
    OPTION_BANDS,
    QUESTION,
    SLICE_KEYS,
    is_slice_key,
)
from clefq.plain_files import compact_json, harmless_cell, sha256_file
from clefq.store.predictions import read_predictions

FLIPS_FILE = "flips.parquet"
WIDTH = 80
MOST_TEXT = 1600  # characters of a state on a terminal page
LEAST_SHOWN = 0.005  # options that neither model gives as much are counted only
CSV_COLUMNS = (
    *("record_id", "question_id", "cohort", "cohorts", "question_type", "effect", "gold"),
    *("baseline_choice", "baseline_confidence", "candidate_choice", "candidate_confidence"),
    *("tv", "instructions", "state", "options"),
)
Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class OptionRow:
    """One option of a changed answer.

    Attributes:
        id: Its id.
        text: Its description, or empty.
        baseline: The baseline's probability, or None where it is not known.
        candidate: The candidate's.
        gold: Whether it is the right one.
    """

    id: str
    text: str
    baseline: float | None
    candidate: float | None
    gold: bool


@dataclass(frozen=True, slots=True)
class ChangedAnswer:
    """One changed answer.

    Attributes:
        flip: Its row of `flips.parquet`.
        effect: `lost`, `gained`, `wrong both times`, or `no right answer known`.
        options: Its options in prompt order; the two answers alone without set and predictions.
        state: The record's state as text, or None without the set.
        instructions: What is asked, likewise.
        cohorts: The record's further cohorts.
        media: Its images and videos.
    """

    flip: Mapping[str, Any]
    effect: str
    options: tuple[OptionRow, ...]
    state: str | None = None
    instructions: str | None = None
    cohorts: Mapping[str, str] = field(default_factory=dict)
    media: tuple[str, ...] = ()

    @property
    def shown(self) -> list[OptionRow]:
        """The options that matter: right, chosen, or given half a percent by a model."""
        chosen = (self.flip["baseline_choice"], self.flip["candidate_choice"])
        return [
            option
            for option in self.options
            if option.gold
            or option.id in chosen
            or max(option.baseline or 0.0, option.candidate or 0.0) >= LEAST_SHOWN
        ]

    def slices(self) -> set[str]:
        """The names of the slices that it is in."""
        flip = self.flip
        names = {
            f"cohort={flip['cohort']}",
            f"{QUESTION}={flip['question_id']}",
            f"type={flip['question_type']}",
            *_band("options", flip["options"], OPTION_BANDS),
            *_band("length", flip["input_tokens"], LENGTH_BANDS),
        }
        if flip["baseline_margin"] is not None:  # answers without probabilities have none
            names.update(_band("margin", flip["baseline_margin"] + EDGE, MARGIN_BANDS))
        if flip["gold"] is not None:
            names.add(f"{GOLD}={flip['question_id']}/{flip['gold']}")
        return names | {f"{FURTHER}{name}={value}" for name, value in self.cohorts.items()}


def _band(key: str, value: float, bands: Iterable[tuple[str, float, float]]) -> Iterator[str]:
    yield from (f"{key}={label}" for label, low, high in bands if low <= value < high)


def read_changed(
    path: Path, document: Mapping[str, Any], records: Iterable[Record] | None
) -> list[ChangedAnswer]:
    """The changed answers of a report, those that moved most first.

    Args:
        path: Its `parity.json`.
        document: The value of it.
        records: The set's records, or None where it is not here.

    Raises:
        InputError: `flips.parquet` is missing or is none.
    """
    frame = _flips(path.parent / FLIPS_FILE)
    flips = [
        {str(key): None if _absent(value) else value for key, value in row.items()}
        for row in frame.to_dict("records")
    ]
    keys = {(str(flip["record_id"]), str(flip["question_id"])) for flip in flips}
    texts = _texts(records or (), keys)
    sides = [_probabilities(path, document[role], keys) for role in ("baseline", "candidate")]
    return [_changed(flip, texts, sides) for flip in flips]


def _absent(value: object) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))


def _flips(path: Path) -> pd.DataFrame:
    try:
        return pd.read_parquet(path)
    except (OSError, ValueError) as error:
        raise InputError(
            f"{path} cannot be read; it lies beside parity.json.",
            fix="make the report again with `clefq parity`.",
        ) from error


def _texts(records: Iterable[Record], keys: set[Key]) -> dict[Key, tuple[Record, Question]]:
    return {
        (record.id, question.id): (record, question)
        for record in records
        for question in record.questions
        if (record.id, question.id) in keys
    }


def _probabilities(
    path: Path, side: Mapping[str, Any], keys: set[Key]
) -> dict[Key, dict[str, float | None]]:
    """Option → probability of each changed answer, None of labels; empty without the very file."""
    stored = side["predictions"]
    file = None if stored is None else path.parent / stored["path"]
    if file is None or not file.is_file() or sha256_file(file) != stored["sha256"]:
        return {}
    frame = read_predictions(file).frame
    columns = (frame[name] for name in ("record_id", "question_id", "option_ids", "logprobs"))
    labels = side.get("answers") == "labels"
    return {
        (record, question): {
            str(option): None if labels else math.exp(log)
            for option, log in zip(options, logs, strict=True)
        }
        for record, question, options, logs in zip(*columns, strict=True)
        if (record, question) in keys and logs is not None
    }


def _changed(
    flip: Mapping[str, Any],
    texts: Mapping[Key, tuple[Record, Question]],
    sides: Sequence[Mapping[Key, Mapping[str, float | None]]],
) -> ChangedAnswer:
    key = (flip["record_id"], flip["question_id"])
    before, after = (side.get(key, {}) for side in sides)
    record, question = texts.get(key, (None, None))
    known = {str(flip[f"{role}_choice"]): "" for role in ("baseline", "candidate")}
    known |= {} if flip["gold"] is None else {flip["gold"]: ""}
    names = dict.fromkeys(before or after) or known
    described = {name: "" for name in names}
    if question is not None:
        described = {o.id: _description(o.description) for o in question.options}

    def probability(role: str, side: Mapping[str, float | None], name: str) -> float | None:
        own = flip[f"{role}_confidence"] if flip[f"{role}_choice"] == name else None
        return side.get(name, own)

    options = tuple(
        OptionRow(
            name,
            text,
            probability("baseline", before, name),
            probability("candidate", after, name),
            name == flip["gold"],
        )
        for name, text in described.items()
    )
    if record is None or question is None:
        return ChangedAnswer(flip, _effect(flip), options)
    return ChangedAnswer(
        flip,
        _effect(flip),
        options,
        state=render(record.state),
        instructions=render(question.instructions or question.id),
        cohorts=record.cohorts,
        media=(*record.images, *record.videos),
    )


def _description(value: Any) -> str:
    return "" if value is None else render(value)


def _effect(flip: Mapping[str, Any]) -> str:
    if flip["gold"] is None:
        return "no right answer known"
    if flip["gold"] == flip["baseline_choice"]:
        return "lost"
    return "gained" if flip["gold"] == flip["candidate_choice"] else "wrong both times"


def in_slices(
    changed: Sequence[ChangedAnswer], wanted: Sequence[str], known: Iterable[str]
) -> list[ChangedAnswer]:
    """The changed answers that are in all of these slices.

    Args:
        changed: All of them.
        wanted: Names such as `cohort=mail` or `question=queue`.
        known: Names of the report's slices, for the message.

    Raises:
        InputError: A name is that of no slice of the report; names what there is.
    """
    names = set(known) | {name for item in changed for name in item.slices()}
    faults = []
    for name in wanted:
        key = name.split("=", 1)[0]
        if "=" not in name or not is_slice_key(key):
            faults.append(f"{name!r} is no slice: give KEY=VALUE, KEY of {', '.join(SLICE_KEYS)}")
        elif name not in names:
            own = sorted(other for other in names if other.startswith(f"{key}="))[:8]
            faults.append(f"the report has no slice {name}; it has {', '.join(own) or 'none'}")
    if faults:
        raise InputError(f"{faults[0]}.", fix="breakdown.csv lists every slice.", faults=faults[1:])
    return [item for item in changed if set(wanted) <= item.slices()]


def csv_text(changed: Sequence[ChangedAnswer]) -> str:
    """One row a changed answer, safe to open in a spreadsheet; options as JSON."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    for item in changed:
        values = {
            **item.flip,
            "effect": item.effect,
            "cohorts": compact_json(dict(item.cohorts)) if item.cohorts else None,
            "instructions": item.instructions,
            "state": item.state,
            "options": compact_json({o.id: [o.baseline, o.candidate] for o in item.options}),
        }
        row = (values[name] for name in CSV_COLUMNS)
        writer.writerow([harmless_cell(cell) if isinstance(cell, str) else cell for cell in row])
    return file.getvalue()


def pages(changed: Sequence[ChangedAnswer]) -> Iterator[str]:
    """One page of text a changed answer, 80 columns wide, safe for a terminal."""
    for number, item in enumerate(changed, start=1):
        flip = item.flip
        head = f"{number} of {len(changed)}: {flip['record_id']} / {flip['question_id']}"
        groups = [flip["cohort"], *(f"{name} {value}" for name, value in item.cohorts.items())]
        lines = [head, "-" * min(WIDTH, len(_plain(head)))]
        lines += [f"{item.effect}; {', '.join(groups)}; {count(flip['input_tokens'])} tokens"]
        if item.state is not None:
            lines += ["", *_cut(item.state)]
        if item.media:
            lines += [f"(with {', '.join(item.media)})"]
        if item.instructions is not None:
            lines += ["", item.instructions]
        lines += ["", f"{'':2}{'baseline':>10}{'candidate':>11}  option"]
        lines += [_option_line(option, item) for option in item.shown]
        hidden = len(item.options) - len(item.shown)
        if hidden:
            lines.append(f"  and {hidden} options below {LEAST_SHOWN:.1%} in both")
        yield "\n".join(_wrapped(lines)) + "\n"


def _option_line(option: OptionRow, item: ChangedAnswer) -> str:
    before, after = (
        NONE if value is None else figure(value) for value in (option.baseline, option.candidate)
    )
    marks = [
        "baseline" if option.id == item.flip["baseline_choice"] else "",
        "candidate" if option.id == item.flip["candidate_choice"] else "",
        "right answer" if option.gold else "",
    ]
    said = ", ".join(mark for mark in marks if mark)
    text = option.id + (f": {option.text}" if option.text else "")
    return f"{'':2}{before:>10}{after:>11}  {text}" + (f"  <- {said}" if said else "")


def _cut(text: str) -> list[str]:
    if len(text) <= MOST_TEXT:
        return text.splitlines()
    hidden = len(text) - MOST_TEXT
    return [
        *text[:MOST_TEXT].splitlines(),
        f"(and {hidden:,} more characters; the CSV file has all)",
    ]


def _wrapped(lines: Iterable[str]) -> Iterator[str]:
    for line in map(_plain, lines):
        indent = " " * 25 if line.startswith("  ") else ""
        yield from textwrap.wrap(
            line, WIDTH, subsequent_indent=indent, drop_whitespace=False, replace_whitespace=False
        ) or [""]


def _plain(text: str) -> str:
    """Text without anything that a terminal would take for a command."""
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)
