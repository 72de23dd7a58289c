"""ContractNLI: 607 non-disclosure agreements, 17 hypotheses about each (CC-BY-4.0).

Reads `{train,dev,test}.json`: documents with text and annotations, and the hypotheses. The
agreement is the state. `questions: all` asks all 17 in one record; `questions: one` makes a
record of each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from clefq.clef.records import Question
from clefq.data.readers import Row, RowError, json_file, text_field
from clefq.data.sources.base import Example, ReadSpec, Source, choice, many
from clefq.errors import DefinitionError
from clefq.store.reading import Stored

CHOICES = {
    "Entailment": "entailed",
    "Contradiction": "contradicted",
    "NotMentioned": "not_mentioned",
}
CRITERIA = {
    "entailed": "The agreement states or implies it.",
    "contradicted": "The agreement states or implies the opposite.",
    "not_mentioned": "The agreement does not settle it.",
}


@dataclass(frozen=True, slots=True)
class Options(Stored):
    """Options of a definition.

    Attributes:
        questions: `all` 17 hypotheses in one record, or `one` record per hypothesis.
    """

    questions: Literal["all", "one"] = "all"


def read(spec: ReadSpec) -> Iterator[Row]:
    """Rows as {document, labels}, one per agreement."""
    for file in spec.files:
        whole = json_file(spec.folder, file)
        if not isinstance(whole, dict) or not isinstance(whole.get("documents"), list):
            raise DefinitionError(f"{spec.folder / file} has no list of documents.")
        for number, document in enumerate(whole["documents"], start=1):
            yield Row(file, number, {"document": document, "labels": whole.get("labels")})


def from_hub(row: Mapping[str, Any]) -> dict[str, Any]:
    """The hub holds the original files, no table."""
    raise RowError("not a table on the hub")


def build(value: dict[str, Any], record_id: str, options: Options) -> Iterable[Example]:
    """One record of 17 questions, or 17 records of one."""
    document, labels = value["document"], value["labels"]
    text = text_field(document, "text")
    annotations = _annotations(document)
    questions, gold = [], {}
    for name in sorted(labels):
        questions.append(_question(name, labels[name]))
        gold[name] = _gold(annotations, name)
    if options.questions == "one":
        for question in questions:
            key = f"{record_id}-{question.id}"
            answer = gold[question.id]
            yield many(key, "contractnli", text, [question], {question.id: answer}, answer)
        return
    most = Counter(gold.values()).most_common(1)[0][0]
    yield many(record_id, "contractnli", text, questions, gold, most)


def _annotations(document: dict[str, Any]) -> dict[str, Any]:
    sets = document.get("annotation_sets")
    if not isinstance(sets, list) or len(sets) != 1:
        raise RowError("not exactly one annotation set")
    found: dict[str, Any] = sets[0]["annotations"]
    return found


def _question(name: str, label: dict[str, Any]) -> Question:
    claim = text_field(label, "hypothesis")
    return choice(name, f"Does the agreement say this? {claim}", CRITERIA)


def _gold(annotations: dict[str, Any], name: str) -> str:
    if name not in annotations:
        raise RowError(f"no annotation of {name}")
    answer = annotations[name].get("choice")
    if answer not in CHOICES:
        raise RowError(f"unknown label {answer!r} of {name}")
    return CHOICES[answer]


SOURCE = Source(
    name="contractnli",
    title="ContractNLI",
    licence="CC-BY-4.0",
    attribution="ContractNLI, Koreeda and Manning 2021, Stanford NLP, CC-BY-4.0.",
    revision="e6f53de2c7b4e62dcca1c389861a81043fb162fa",
    splits={part: ((f"{part}.json",),) for part in ("train", "dev", "test")},
    hub=None,
    read=read,
    from_hub=from_hub,
    build=build,
    options=Options,
    held_out=("dev", "test"),
)
