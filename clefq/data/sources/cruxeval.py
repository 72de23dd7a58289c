"""CRUXEval: what a short Python function returns (MIT).

Reads `cruxeval.jsonl` (800 rows: id, code, input, output). Code and input are the state; the
options are the right output and three outputs of other functions, of the same kind (text, list,
number …) as far as there are any, picked and placed by the row's id.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from clefq.data.readers import Row, RowError, jsonl_rows, text_field
from clefq.data.sources.base import Example, HubRef, NoOptions, Quiz, ReadSpec, Source, quiz_example
from clefq.plain_files import stable_order

INSTRUCTIONS = "What does f return when it is called with the input?"
WRONG = 3


def read(spec: ReadSpec) -> Iterator[Row]:
    """Rows as the original has them."""
    for file in spec.files:
        yield from jsonl_rows(spec.folder, file)


def from_hub(row: Mapping[str, Any]) -> dict[str, Any]:
    """Hub row → the same."""
    return {key: row[key] for key in ("id", "code", "input", "output")}


def link(rows: Iterable[Row]) -> Iterator[Row]:
    """Adds to each row the outputs that could be mistaken for its own."""
    kept = list(rows)
    kinds: dict[str, set[str]] = {}
    for row in kept:
        output = row.value.get("output") if row.fault is None else None
        if isinstance(output, str) and output:
            kinds.setdefault(_kind(output), set()).add(output)
    everything = sorted(set().union(*kinds.values()))
    for row in kept:
        if row.fault is not None or not isinstance(row.value.get("output"), str):
            yield row
            continue
        output, key = row.value["output"], str(row.value.get("id"))
        like = stable_order(kinds.get(_kind(output), set()) - {output}, key)
        rest = [o for o in stable_order(everything, key) if o != output and o not in like]
        yield Row(row.file, row.number, {**row.value, "wrong": (like + rest)[:WRONG]})


def _kind(output: str) -> str:
    if output[:1] in ("'", '"', ""):
        return "text"
    if output[:1] in ("[", "(", "{"):
        return output[0]
    return "number" if output.lstrip("-")[:1].isdigit() else "word"


def build(value: dict[str, Any], record_id: str, options: NoOptions) -> Iterable[Example]:
    """One record: code and input, one choice question."""
    output = text_field(value, "output")
    if len(value.get("wrong", ())) < WRONG:
        raise RowError("too few other outputs to choose from")
    key = f"cruxeval-{text_field(value, 'id')}"
    texts = stable_order([output, *value["wrong"]], f"{key} order")
    state = {"code": text_field(value, "code"), "input": str(value.get("input", ""))}
    quiz = Quiz("cruxeval", state, INSTRUCTIONS, texts, texts.index(output))
    yield quiz_example(key, quiz)


SOURCE = Source(
    name="cruxeval",
    title="CRUXEval",
    licence="MIT",
    attribution="CRUXEval, Gu et al. 2024, MIT.",
    revision=None,
    splits={"test": (("cruxeval.jsonl",), ("test.jsonl",))},
    hub=HubRef(
        path="cruxeval-org/cruxeval",
        revision="b96af0450242eb4da433032b90998f25588a5d0f",
        config=None,
        splits={"test": "test"},
    ),
    read=read,
    from_hub=from_hub,
    build=build,
    link=link,
    held_out=("test",),
)
