"""BFCL: which function answers a request, and with which arguments (Apache-2.0).

Reads the leaderboard's files `BFCL_v4_<category>.json` (JSON Lines) and the accepted calls in
`possible_answer/`; the hub holds v3, whose files are named likewise. The conversation is the
state. `relevant` asks whether any function fits, `function` asks which one (with `no_function`),
and where a case has a single function, one question per argument that has a closed set of values
asks for the value. A case is right when all of its questions are: `record_exact_delta` judges
cases.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from clefq.clef.records import Question
from clefq.data.readers import Row, RowError, jsonl_rows
from clefq.data.sources.base import Example, HubFiles, ReadSpec, Source, choice, many, noul
from clefq.store.reading import Stored

NO_FUNCTION = "no_function"
RELEVANT = noul("relevant", "Can one of the offered functions serve the user's request?")
WITH_ANSWERS = ("simple_python", "multiple", "live_simple")
WITHOUT_ANSWERS = ("irrelevance", "live_irrelevance", "live_relevance")


@dataclass(frozen=True, slots=True)
class Options(Stored):
    """Options of a definition.

    Attributes:
        arguments: Ask for arguments too.
    """

    arguments: bool = True


def read(spec: ReadSpec) -> Iterator[Row]:
    """Rows as {id, category, question, function, calls}; calls is None where none is published."""
    file, *answers = spec.files
    calls = {}
    for answer in answers:
        for row in jsonl_rows(spec.folder, answer):
            if row.fault is None:
                calls[row.value.get("id")] = row.value.get("ground_truth")
    for row in jsonl_rows(spec.folder, file):
        if row.fault is not None:
            yield row
            continue
        known = calls.get(row.value.get("id"))
        value = {**row.value, "category": spec.split, "calls": known}
        yield Row(row.file, row.number, value)


def from_hub(row: Mapping[str, Any]) -> dict[str, Any]:
    """The hub holds the original files, no table."""
    raise RowError("not a table on the hub")


def build(value: dict[str, Any], record_id: str, options: Options) -> Iterable[Example]:
    """One record: the conversation, two and more questions."""
    category = value["category"]
    functions = _functions(value)
    question = _function_question(functions)
    gold = {RELEVANT.id: "false" if category.endswith("irrelevance") else "true"}
    questions = [RELEVANT, question]
    call = _call(value, category)
    if category.endswith("irrelevance"):
        gold[question.id] = NO_FUNCTION
    elif call is not None:
        gold[question.id] = call[0]
    elif len(functions) == 1:
        gold[question.id] = functions[0]["name"]
    if options.arguments and call is not None and len(functions) == 1:
        for asked, answer in _argument_questions(functions[0], call[1]):
            questions.append(asked)
            gold[asked.id] = answer
    state = {"conversation": _conversation(value)}
    label = "none" if gold.get(question.id) == NO_FUNCTION else f"{len(questions)} questions"
    yield many(record_id, f"bfcl/{category}", state, questions, gold, label)


def _conversation(value: dict[str, Any]) -> list[Any]:
    turns = value.get("question")
    if not isinstance(turns, list) or not turns or not isinstance(turns[0], list):
        raise RowError("question is not a list of turns")
    return [message for turn in turns for message in turn]


def _functions(value: dict[str, Any]) -> list[dict[str, Any]]:
    functions = value.get("function")
    if not isinstance(functions, list) or not functions:
        raise RowError("no function is offered")
    names = [function.get("name") for function in functions]
    if len(set(names)) != len(names) or not all(isinstance(name, str) for name in names):
        raise RowError("function names are missing or doubled")
    return functions


def _function_question(functions: list[dict[str, Any]]) -> Question:
    criteria: dict[str, Any] = {
        function["name"]: {
            "description": function.get("description"),
            "parameters": function.get("parameters"),
        }
        for function in functions
    }
    criteria[NO_FUNCTION] = "None of the functions serves the request."
    return choice("function", "Which function should be called?", criteria)


def _call(value: dict[str, Any], category: str) -> tuple[str, dict[str, list[Any]]] | None:
    """Name and accepted arguments of the one right call, or None where none is published."""
    if category not in WITH_ANSWERS:
        return None
    calls = value["calls"]
    if not isinstance(calls, list) or len(calls) != 1 or len(calls[0]) != 1:
        raise RowError("not exactly one right call")
    [(name, arguments)] = calls[0].items()
    return name, arguments


def _argument_questions(
    function: dict[str, Any], accepted: dict[str, list[Any]]
) -> Iterator[tuple[Question, str]]:
    """Questions about arguments with a closed set of values and a single accepted one."""
    properties = (function.get("parameters") or {}).get("properties") or {}
    for name, schema in sorted(properties.items()):
        values = accepted.get(name)
        # "" stands for "may be left out", so the value is not determined
        if not isinstance(values, list) or len(values) != 1 or values[0] == "":
            continue
        asked = f"Which value should the argument {name} of {function['name']} have?"
        allowed = schema.get("enum")
        if isinstance(values[0], bool):
            question = noul(f"argument_{name}", f"Should the argument {name} be true?")
            yield question, "true" if values[0] else "false"
        elif isinstance(allowed, list) and len(set(map(str, allowed))) > 1:
            options = dict.fromkeys(map(str, allowed))
            if str(values[0]) in options:
                yield choice(f"argument_{name}", asked, options), str(values[0])


def _files(category: str) -> tuple[str, str]:
    """The file of a category in v4 and in v3."""
    older = category.removesuffix("_python")
    return f"BFCL_v4_{category}.json", f"BFCL_v3_{older}.json"


SOURCE = Source(
    name="bfcl",
    title="Berkeley Function-Calling Leaderboard v4",
    licence="Apache-2.0",
    attribution="Berkeley Function-Calling Leaderboard, Patil et al., Apache-2.0.",
    revision="6ea57973c7a6097fd7c5915698c54c17c5b1b6c8",
    splits={
        **{
            name: tuple((file, f"possible_answer/{file}") for file in _files(name))
            for name in WITH_ANSWERS
        },
        **{name: tuple((file,) for file in _files(name)) for name in WITHOUT_ANSWERS},
    },
    hub=None,
    hub_files=HubFiles(
        "gorilla-llm/Berkeley-Function-Calling-Leaderboard",
        "61fc0608cfd831fcfbbaa676ebdfef0ed963eeda",
    ),
    read=read,
    from_hub=from_hub,
    build=build,
    options=Options,
)
