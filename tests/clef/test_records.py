from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clefq.clef.json_values import MAX_DEPTH
from clefq.clef.records import (
    Option,
    Question,
    Record,
    iter_records,
    parse_questions,
    parse_record,
    record_to_json,
)
from clefq.errors import RecordError
from clefq.plain_files import compact_json
from tests.clef.generate import record

# Everything but surrogates, which have no UTF-8 form.
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
NAME = TEXT.filter(bool)
NUMBER = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
VALUE = st.recursive(
    st.none() | st.booleans() | NUMBER | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)


@st.composite
def records(draw: st.DrawFn) -> Record:
    questions = []
    gold = {}
    for name in draw(st.lists(NAME, min_size=1, max_size=4, unique=True)):
        kind = draw(st.sampled_from(["noul", "choice", "score"]))
        criteria: Any
        if kind == "noul":
            overrides = st.dictionaries(st.sampled_from(["true", "false"]), VALUE)
            criteria = draw(st.none() | overrides)
        elif kind == "choice":
            criteria = draw(st.dictionaries(NAME, VALUE, min_size=2, max_size=5))
        else:
            criteria = draw(st.lists(VALUE, min_size=2, max_size=5))
        question = Question(name, kind, draw(VALUE), criteria)
        questions.append(question)
        if draw(st.booleans()):
            gold[name] = draw(st.sampled_from(question.option_ids))
    paths = st.lists(st.from_regex(r"[a-z]{1,5}/[a-z]{1,5}\.png", fullmatch=True), max_size=2)
    return Record(
        id=draw(NAME),
        cohort=draw(NAME),
        state=draw(VALUE),
        questions=tuple(questions),
        images=tuple(draw(paths)),
        videos=tuple(draw(paths)),
        gold=gold,
    )


@given(records())
@settings(max_examples=120, deadline=None)
def test_a_record_round_trips_through_json(one: Record) -> None:
    assert parse_record(record_to_json(one), "test") == one
    line = compact_json(record_to_json(one))
    again = parse_record(json.loads(line), "test")
    assert compact_json(record_to_json(again)) == line
    assert sorted(again.questions, key=lambda q: q.id) == sorted(one.questions, key=lambda q: q.id)


@given(VALUE)
@settings(max_examples=150, deadline=None)
def test_any_json_value_gives_a_record_or_a_record_error(value: Any) -> None:
    try:
        assert isinstance(parse_record(value, "test"), Record)
    except RecordError as error:
        assert error.message.startswith("test")


@given(st.integers(0, 400), st.data())
@settings(max_examples=120, deadline=None)
def test_a_damaged_record_is_refused_with_a_record_error(seed: int, data: st.DataObject) -> None:
    raw = record(seed)
    target = data.draw(st.sampled_from(["record", "question"]))
    if target == "record":
        raw[data.draw(st.sampled_from(sorted(raw)))] = data.draw(VALUE)
    else:
        body = raw["questions"][data.draw(st.sampled_from(sorted(raw["questions"])))]
        body[data.draw(st.sampled_from(["type", "criteria", "extra"]))] = data.draw(VALUE)
    with contextlib.suppress(RecordError):
        assert isinstance(parse_record(raw, "test"), Record)


def sound() -> dict[str, Any]:
    return {
        "id": "a",
        "cohort": "c",
        "state": None,
        "questions": {
            "n": {"type": "noul"},
            "c": {"type": "choice", "criteria": {"y": None, "x": "first"}},
            "s": {"type": "score", "criteria": ["low", "high"]},
        },
        "gold": {"n": "true", "c": "y", "s": "1"},
    }


def test_options_are_in_prompt_order() -> None:
    n, c, s = parse_record(sound(), "test").questions
    assert n.option_ids == ("true", "false")
    assert n.options[0] == Option("true", "The proposition is true or the answer is yes.")
    assert c.options == (Option("x", "first"), Option("y", None))
    assert s.options == (Option("0", "low"), Option("1", "high"))
    assert [q.type_id for q in (n, c, s)] == [0, 1, 2]
    assert all(q.option_ids == tuple(o.id for o in q.options) for q in (n, c, s))


def test_noul_criteria_replace_only_what_they_name() -> None:
    question = Question("n", "noul", None, {"false": None})
    assert question.options[0].description == "The proposition is true or the answer is yes."
    assert question.options[1] == Option("false", None)


BAD = {
    "no object": ([], "must be a JSON object"),
    "empty id": ({"id": ""}, "'id' must be a non-empty string"),
    "number id": ({"id": 7}, "'id' must be a non-empty string"),
    "missing cohort": ({"cohort": None}, "'cohort' must be a non-empty string"),
    "unknown key": ({"labels": {}}, "unknown key 'labels'"),
    "no questions": ({"questions": {}}, "'questions' must be a non-empty object"),
    "question list": ({"questions": [1]}, "'questions' must be a non-empty object"),
    "empty question id": ({"questions": {"": {"type": "noul"}}}, "must be a non-empty string"),
    "question no object": ({"questions": {"q": 3}}, "question 'q': must be an object"),
    "unknown type": ({"questions": {"q": {"type": "bool"}}}, "type 'bool' is not one of noul"),
    "list type": ({"questions": {"q": {"type": ["noul"]}}}, "is not one of noul"),
    "missing type": ({"questions": {"q": {}}}, "type None is not one of"),
    "unknown question key": ({"questions": {"q": {"type": "noul", "x": 1}}}, "unknown key 'x'"),
    "noul extra": (
        {"questions": {"q": {"type": "noul", "criteria": {"maybe": 1}}}},
        "may only describe 'true' and 'false'",
    ),
    "noul list": (
        {"questions": {"q": {"type": "noul", "criteria": []}}},
        "may only describe 'true' and 'false'",
    ),
    "choice without": ({"questions": {"q": {"type": "choice"}}}, "needs criteria"),
    "choice list": (
        {"questions": {"q": {"type": "choice", "criteria": ["a", "b"]}}},
        "must be an object",
    ),
    "one option": (
        {"questions": {"q": {"type": "choice", "criteria": {"a": 1}}}},
        "has 1 option(s), needs at least two",
    ),
    "empty option": (
        {"questions": {"q": {"type": "choice", "criteria": {"": 1, "b": 2}}}},
        "option ids must be non-empty",
    ),
    "score object": (
        {"questions": {"q": {"type": "score", "criteria": {"0": "a", "1": "b"}}}},
        "must be a list of levels",
    ),
    "score string": (
        {"questions": {"q": {"type": "score", "criteria": "ab"}}},
        "must be a list of levels",
    ),
    "one level": (
        {"questions": {"q": {"type": "score", "criteria": ["a"]}}},
        "has 1 option(s), needs at least two",
    ),
    "images string": ({"images": "a.png"}, "'images' must be a list of paths"),
    "image outside": ({"images": ["../a.png"]}, "'../a.png' must lie inside the set"),
    "image absolute": ({"images": ["/a.png"]}, "'/a.png' must lie inside the set"),
    "gold list": ({"gold": ["true"]}, "'gold' must be an object"),
    "gold no question": ({"gold": {"z": "true"}}, "gold for 'z', which is no question"),
    "gold no option": ({"gold": {"c": "z"}}, "gold 'z' of question 'c' is none of its option ids"),
    "gold bool": ({"gold": {"n": True}}, "gold True of question 'n' is none of its option ids"),
    "gold number": ({"gold": {"s": 1}}, "gold 1 of question 's' is none of its option ids"),
    "nan": ({"state": {"x": [float("nan")]}}, "value.state.x[0]: the number nan is not finite"),
    "surrogate": ({"state": "a\ud800"}, "value.state: lone surrogate at character 1"),
    "number key": ({"state": {1: "a", "1": "b"}}, "value.state: key 1 is not a string"),
    "not json": ({"state": {"x": {1, 2}}}, "value.state.x: a set is not JSON"),
}


@pytest.mark.parametrize("case", BAD)
def test_faults_are_named(case: str) -> None:
    change, words = BAD[case]
    value = {**sound(), **change} if isinstance(change, dict) else change
    if "questions" in change:
        value.pop("gold")
    with pytest.raises(RecordError) as caught:
        parse_record(value, "records.jsonl:17")
    assert caught.value.message.startswith("records.jsonl:17")
    assert words in str(caught.value)
    assert caught.value.fix


def test_every_fault_is_listed_at_once() -> None:
    raw = sound() | {"id": "", "extra": 1, "gold": {"c": "q", "z": "true"}}
    del raw["state"]
    raw["questions"]["bad"] = {"type": "choice", "criteria": {}, "hint": 1}
    with pytest.raises(RecordError) as caught:
        parse_record(raw, "here")
    said = str(caught.value)
    for words in ("'extra'", "'id'", "'state'", "'hint'", "has 0 option(s)", "gold 'q'", "'z'"):
        assert words in said
    assert len(caught.value.faults) == 6


def test_gold_of_a_faulty_question_is_not_a_second_fault() -> None:
    raw = sound()
    raw["questions"]["c"] = {"type": "choice"}
    with pytest.raises(RecordError) as caught:
        parse_record(raw, "here")
    assert caught.value.faults == ()


def test_missing_state_differs_from_a_null_state() -> None:
    assert parse_record(sound(), "here").state is None
    raw = sound()
    del raw["state"]
    with pytest.raises(RecordError, match="'state' is missing"):
        parse_record(raw, "here")


def test_deep_nesting_is_refused_not_crashed_on() -> None:
    state: Any = 0
    for _ in range(MAX_DEPTH + 5):
        state = [state]
    with pytest.raises(RecordError, match="nested deeper"):
        parse_record(sound() | {"state": state}, "here")
    shallow: Any = 0
    for _ in range(MAX_DEPTH - 5):
        shallow = [shallow]
    assert parse_record(sound() | {"state": shallow}, "here").state == shallow


def test_parse_questions_keeps_the_sound_ones() -> None:
    questions, faults = parse_questions({"a": {"type": "noul"}, "b": {"type": "choice"}})
    assert [q.id for q in questions] == ["a"]
    assert faults == ["question 'b': a choice question needs criteria"]


def write(path: Path, *lines: str) -> Path:
    path.write_bytes("\n".join(lines).encode("utf-8", "surrogatepass"))
    return path


def test_a_file_streams_in_order(tmp_path: Path) -> None:
    lines = [compact_json(record(seed)) for seed in range(20)]
    path = write(tmp_path / "records.jsonl", *lines, "")
    assert [one.id for one in iter_records(path)] == [f"r{seed}" for seed in range(20)]


def test_unicode_line_separators_do_not_split_lines(tmp_path: Path) -> None:
    raw = sound() | {"state": "a\u2028b\x85c\x0bd"}
    path = write(tmp_path / "records.jsonl", compact_json(raw))
    assert next(iter(iter_records(path))).state == raw["state"]


ONE = compact_json(sound())
FILES = {
    "empty": (b"", "holds no records"),
    "blank": (b"\n  \n", "holds no records"),
    "not json": (ONE.encode() + b"\n{]\n", "records.jsonl:2: not valid JSON"),
    "cut": (ONE.encode() + b"\n" + ONE.encode()[:-9], "records.jsonl:2: not valid JSON"),
    "latin": ('{"id": "é"}'.encode("latin-1"), "records.jsonl:1: not UTF-8"),
    "twice": (ONE.encode() + b"\n\n" + ONE.encode(), "records.jsonl:3: id 'a' was already used"),
    "double key": (b'{"id": "a", "id": "b"}', "key 'id' appears twice"),
    "nan": (b'{"id": NaN}', "NaN is not JSON"),
    "infinite": (ONE.replace('"state":null', '"state":1e999').encode(), "not finite"),
    "surrogate": (ONE.replace('"state":null', '"state":"\\ud800"').encode(), "lone surrogate"),
    "deep": (b"[" * 100_000, "records.jsonl:1: cannot be read as JSON"),
    "digits": (b'{"id": ' + b"9" * 5000 + b"}", "records.jsonl:1: cannot be read as JSON"),
}


@pytest.mark.parametrize("case", FILES)
def test_a_bad_file_names_the_line(tmp_path: Path, case: str) -> None:
    content, words = FILES[case]
    path = tmp_path / "records.jsonl"
    path.write_bytes(content)
    with pytest.raises(RecordError) as caught:
        list(iter_records(path))
    assert words in caught.value.message
    assert caught.value.fix


def test_a_missing_file_is_a_record_error(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"cannot read .*records.jsonl"):
        list(iter_records(tmp_path / "records.jsonl"))


@pytest.mark.parametrize(
    ("cohorts", "fault"),
    [
        (["de"], "must be an object"),
        ({"a=b": "x"}, "without '='"),
        ({"language": ""}, "text that is not empty"),
        ({"language": 3}, "text that is not empty"),
    ],
)
def test_further_cohorts_that_could_name_no_slice_are_refused(cohorts: Any, fault: str) -> None:
    body = {"id": "r", "cohort": "c", "state": "s", "questions": {"q": {"type": "noul"}}}
    assert parse_record({**body, "cohorts": {"language": "de"}}, "w").cohorts == {"language": "de"}
    with pytest.raises(RecordError) as caught:
        parse_record({**body, "cohorts": cohorts}, "w")
    assert fault in str(caught.value)
