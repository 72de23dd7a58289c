"""Opaque names that stand in for a bundle's own, and keep every order that figures rest on.

Records, questions and options lie in the order of a hash of their ids
(`clefq.parity.statistics.ordering`), which sums and resamples follow; tables break ties by name.
So an opaque name is chosen by its hash: of the records' names `r1` to `rN` the one that comes k-th
in hash order stands for the record that came k-th, and a question's or option's name carries its
number in the alphabet and a suffix that brings its hash between those of its neighbours. The same
rows in the same order give the same bits.

What that order tells: whoever has a list of all ids of a set can hash and sort them as well, and
so knows which record is which. Ids that were hashed under a key (`hash` in a definition) are safe
from that.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from clefq.errors import InputError
from clefq.parity.statistics.metric import OVERALL
from clefq.parity.statistics.ordering import hash64, hash_ranks
from clefq.parity.statistics.slices import FURTHER, GOLD, QUESTION
from clefq.store.predictions import Predictions, read_cohorts
from clefq.store.set_manifest import SetManifest
from clefq.store.variant_links import parse_variant_id

_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
_SUFFIX = 2  # characters tried at once: 1,296 names
_HASHES = 1 << 64
ERROR = "an error, whose text is left out"


@dataclass(frozen=True)
class Names:
    """For every name of a bundle the one that stands in for it.

    Attributes:
        records: Record id → name.
        questions: Question id → name.
        options: Option id → name; ids of true/false and score questions stay.
        cohorts: Cohort → name.
        columns: Further cohort → name.
        values: Value of a further cohort → name.
        sets: Set → name.
    """

    records: Mapping[str, str]
    questions: Mapping[str, str]
    options: Mapping[str, str]
    cohorts: Mapping[str, str]
    columns: Mapping[str, str]
    values: Mapping[str, str]
    sets: Mapping[str, str]

    def frame(self, frame: pd.DataFrame) -> pd.DataFrame:
        """A predictions frame under these names, in an order that tells nothing."""
        swapped = frame.copy()
        swapped["record_id"] = frame["record_id"].map(self.records)
        swapped["cohort"] = frame["cohort"].map(self.cohorts)
        swapped["question_id"] = frame["question_id"].map(self.questions)
        swapped["option_ids"] = frame["option_ids"].map(
            lambda ids: [self.options[name] for name in ids]
        )
        swapped["gold"] = frame["gold"].map(self.options, na_action="ignore")
        swapped["error"] = frame["error"].map(lambda _: ERROR, na_action="ignore")
        if "cohorts" in frame:
            swapped["cohorts"] = frame["cohorts"].map(self._cohorts, na_action="ignore")
        return swapped.sort_values(["record_id", "question_id"], ignore_index=True)

    def _cohorts(self, text: str) -> str:
        known = read_cohorts(text) or {}
        swapped = {self.columns[name]: self.values[value] for name, value in known.items()}
        return json.dumps(swapped, sort_keys=True)

    def slice(self, name: str) -> str:
        """A slice's name, such as `gold=queue/billing`; `overall` and bands stay."""
        key, mark, label = name.partition("=")
        if not mark:
            return name
        return f"{self.key(key)}={self.label(key, label)}"

    def key(self, key: str) -> str:
        """A slice's key."""
        if not key.startswith(FURTHER):
            return key
        column = key.removeprefix(FURTHER)
        return FURTHER + self.columns.get(column, "absent")

    def label(self, key: str, label: str) -> str:
        """The label of a slice of that key; `absent` where nothing here has it."""
        named = key in ("cohort", QUESTION, GOLD) or key.startswith(FURTHER)
        if label == "*" or not named:
            return label
        if key == GOLD:
            return self._gold(label)
        known = {"cohort": self.cohorts, QUESTION: self.questions}.get(key, self.values)
        return known.get(label, "absent")

    def _gold(self, label: str) -> str:
        for question, name in self.questions.items():
            option = label.removeprefix(f"{question}/")
            if option != label and (option == "*" or option in self.options):
                return f"{name}/{self.options.get(option, option)}"
        return "absent/absent"

    def to_json(self) -> dict[str, Any]:
        """All of them, for whoever packed the bundle."""
        return {name: dict(getattr(self, name)) for name in self.__dataclass_fields__}


@dataclass
class _Seen:
    """The names of a bundle, as they are collected."""

    records: set[str] = field(default_factory=set)
    questions: set[str] = field(default_factory=set)
    options: set[str] = field(default_factory=set)
    fixed: set[str] = field(default_factory=set)
    cohorts: set[str] = field(default_factory=set)
    columns: set[str] = field(default_factory=set)
    values: set[str] = field(default_factory=set)

    def add(self, predictions: Predictions) -> None:
        frame = predictions.frame
        self.records |= set(frame["record_id"])
        self.questions |= set(frame["question_id"])
        self.cohorts |= set(frame["cohort"])
        for kind, ids in zip(frame["question_type"], frame["option_ids"], strict=True):
            (self.options if kind == "choice" else self.fixed).update(ids)
        for text in frame["cohorts"].dropna().unique() if "cohorts" in frame else ():
            known = read_cohorts(text) or {}
            self.columns |= known.keys()
            self.values |= set(known.values())

    def add_set(self, manifest: SetManifest) -> None:
        self.cohorts |= manifest.cohorts.keys()
        self.questions |= manifest.classes.keys()
        named = {option for options in manifest.classes.values() for option in options}
        self.options |= named - {""} - self.fixed


def names_of(files: Iterable[Predictions], sets: Mapping[str, SetManifest | None]) -> Names:
    """Names for all that predictions files and manifests of a bundle name.

    Args:
        files: The predictions.
        sets: Set → its manifest, where that is here.

    Raises:
        InputError: A set has variants of records, whose ids say how their options map back.
    """
    seen = _Seen()
    for predictions in files:
        seen.add(predictions)
    for manifest in sets.values():
        if manifest is not None:
            seen.add_set(manifest)
    if any(parse_variant_id(record) is not None for record in seen.records):
        raise InputError(
            "a set with variants of records cannot be redacted: their ids say what was changed.",
            fix="judge and bundle the set that the variants were made of.",
        )
    fixed = {name: name for name in seen.fixed}
    return Names(
        records=by_hash(seen.records, "r"),
        questions=between(seen.questions, "q"),
        options={**between(seen.options - seen.fixed, "o", seen.fixed), **fixed},
        cohorts=numbered(seen.cohorts, "cohort-"),
        columns=numbered(seen.columns, "column-"),
        values=numbered(seen.values, "value-"),
        sets=numbered(sets, "set-"),
    )


def numbered(names: Collection[str], stem: str) -> dict[str, str]:
    """Name → stem and its number, padded: in the alphabet's order as before."""
    width = len(str(len(names)))
    return {name: f"{stem}{k:0{width}}" for k, name in enumerate(sorted(names), start=1)}


def by_hash(names: Collection[str], stem: str) -> dict[str, str]:
    """Name → stem and a number: in hash order as before."""
    if not names:
        return {}
    old = np.array(sorted(names), dtype=object)
    new = np.array([f"{stem}{number}" for number in range(1, len(old) + 1)], dtype=object)
    place = np.empty(len(new), dtype=np.int64)
    place[hash_ranks(new)] = np.arange(len(new))
    return dict(zip(old.tolist(), new[place[hash_ranks(old)]].tolist(), strict=True))


def between(names: Collection[str], stem: str, fixed: Collection[str] = ()) -> dict[str, str]:
    """Name → stem, its number and a suffix: in both orders as before, among fixed names too.

    Args:
        names: What is replaced.
        stem: How new names begin.
        fixed: Names beside them that stay, whose place in hash order is kept.
    """
    stems = numbered(names, stem)
    everything = np.array(sorted({*names, *fixed}), dtype=object)
    if not stems:
        return {}
    order = np.empty(len(everything), dtype=object)
    order[hash_ranks(everything)] = everything
    found: dict[str, str] = {}
    low = 0
    for is_fixed, run in itertools.groupby(order.tolist(), key=lambda name: name not in stems):
        group = list(run)
        if is_fixed:
            low = int(hash64(np.array(group, dtype=object))[-1]) + 1
            continue
        high = _next_fixed(order.tolist(), group[-1], stems)
        for number, name in enumerate(group):
            edges = [low + (high - low) * (number + k) // len(group) for k in range(2)]
            found[name] = _with_hash(stems[name], edges[0], edges[1])
    return found


def _next_fixed(order: list[str], last: str, stems: Mapping[str, str]) -> int:
    """The hash of the fixed name that follows, or the end of all hashes."""
    after = order[order.index(last) + 1 :]
    return int(hash64(np.array(after[:1], dtype=object))[0]) if after else _HASHES


def _with_hash(stem: str, low: int, high: int) -> str:
    """The first name of a stem whose hash is at least `low` and below `high`."""
    endings = ["".join(letters) for letters in itertools.product(_DIGITS, repeat=_SUFFIX)]
    for number in itertools.count():
        begin = stem + "-" + np.base_repr(number, 36).lower()
        tried = [begin + ending for ending in endings]
        hashes = hash64(pa.array(tried, type=pa.large_string()))
        fit = np.flatnonzero((hashes >= np.uint64(low)) & (hashes <= np.uint64(high - 1)))
        if len(fit):
            return tried[int(fit[0])]
    raise AssertionError("every interval is hit in the end")


def scope_of(cohort: str, names: Names) -> str:
    """A key of `expected_accuracy`: `overall`, or a cohort."""
    return cohort if cohort == OVERALL else names.cohorts.get(cohort, "absent")
