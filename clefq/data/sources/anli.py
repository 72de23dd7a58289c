"""Adversarial NLI, rounds 1 to 3 (CC-BY-NC-4.0).

Reads the original layout `R{1,2,3}/{train,dev,test}.jsonl`: uid, context, hypothesis, label
(e, n, c). Premise and hypothesis are the state. `questions: relation` asks for the relation;
`questions: three` asks it as a choice, as true/false and as a score in one record.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from clefq.data.readers import Row, RowError, jsonl_rows, text_field
from clefq.data.sources.base import Example, HubRef, ReadSpec, Source, choice, many, noul, score
from clefq.store.reading import Stored

LABELS = {"e": "entailment", "n": "neutral", "c": "contradiction"}
RELATION = choice(
    "relation",
    "How does the hypothesis relate to the premise?",
    {
        "entailment": "The premise makes the hypothesis true.",
        "neutral": "The premise leaves open whether the hypothesis is true.",
        "contradiction": "The premise makes the hypothesis false.",
    },
)
FOLLOWS = noul("follows", "Does the hypothesis follow from the premise?")
SUPPORT = score(
    "support",
    "How far does the premise support the hypothesis?",
    [
        "It contradicts the hypothesis.",
        "It leaves the hypothesis open.",
        "It proves the hypothesis.",
    ],
)
LEVELS = {"contradiction": "0", "neutral": "1", "entailment": "2"}


@dataclass(frozen=True, slots=True)
class Options(Stored):
    """Options of a definition.

    Attributes:
        questions: `relation` (one choice) or `three` (choice, true/false and score).
    """

    questions: Literal["relation", "three"] = "relation"


def read(spec: ReadSpec) -> Iterator[Row]:
    """Rows as {uid, premise, hypothesis, label}, the label by its name."""
    for file in spec.files:
        for row in jsonl_rows(spec.folder, file):
            if row.fault is not None:
                yield row
                continue
            value = dict(row.value)
            value["premise"] = value.get("context")
            value["label"] = LABELS.get(str(value.get("label")), value.get("label"))
            yield Row(row.file, row.number, value)


def from_hub(row: Mapping[str, Any]) -> dict[str, Any]:
    """Hub row {uid, premise, hypothesis, label} → the same."""
    return {key: row[key] for key in ("uid", "premise", "hypothesis", "label")}


def build(value: dict[str, Any], record_id: str, options: Options) -> Iterable[Example]:
    """One record: premise and hypothesis, one or three questions."""
    label = text_field(value, "label")
    if label not in LEVELS:
        raise RowError(f"unknown label {label!r}")
    state = {name: text_field(value, name) for name in ("premise", "hypothesis")}
    questions = [RELATION]
    gold = {RELATION.id: label}
    if options.questions == "three":
        questions += [FOLLOWS, SUPPORT]
        gold |= {FOLLOWS.id: "true" if label == "entailment" else "false"}
        gold |= {SUPPORT.id: LEVELS[label]}
    cohort = "anli_" + record_id.split("_")[-1].split("-")[0]
    yield many(record_id, cohort, state, questions, gold, label)


SOURCE = Source(
    name="anli",
    title="Adversarial NLI",
    licence="CC-BY-NC-4.0",
    attribution="Adversarial NLI, Nie et al. 2020, CC-BY-NC-4.0.",
    revision="anli_v1.0",
    splits={
        f"{part}_r{number}": ((f"R{number}/{part}.jsonl",),)
        for number in (1, 2, 3)
        for part in ("train", "dev", "test")
    },
    hub=HubRef(
        path="facebook/anli",
        revision="8e4813d81f46d313dac7892e1c28076917cfcdf9",
        config="plain_text",
        splits={f"{p}_r{n}": f"{p}_r{n}" for n in (1, 2, 3) for p in ("train", "dev", "test")},
    ),
    read=read,
    from_hub=from_hub,
    build=build,
    options=Options,
    held_out=tuple(f"{part}_r{number}" for number in (1, 2, 3) for part in ("dev", "test")),
)
