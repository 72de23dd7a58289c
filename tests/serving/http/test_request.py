"""What a body may hold: every fault names its field, and nothing is converted."""

from __future__ import annotations

import json
from typing import Any

import pytest

from clefq.serving.http.errors import ApiError
from clefq.serving.http.request import Ask, parse_ask
from clefq.serving.http.settings import Dialect, Limits

NOUL = {"type": "noul", "instructions": "Is it?"}


def parse(value: Any, dialect: Dialect = "release", limits: Limits | None = None) -> Ask:
    raw = value if isinstance(value, bytes) else json.dumps(value).encode()
    return parse_ask(raw, dialect, limits or Limits())


def refusal(value: Any, dialect: Dialect = "release", limits: Limits | None = None) -> ApiError:
    with pytest.raises(ApiError) as caught:
        parse(value, dialect, limits)
    return caught.value


def faults(value: Any, dialect: Dialect = "release", limits: Limits | None = None) -> list[Any]:
    error = refusal(value, dialect, limits)
    assert error.kind.type == "invalid_request"
    return [fault.path for fault in error.faults]


def body(**changes: Any) -> dict[str, Any]:
    return {"model": "clef", "state": "s", "questions": {"q": NOUL}, **changes}


def test_values_are_kept_as_they_were_written() -> None:
    raw = b'{"state":{"b":1.0,"a":1,"c":1e2,"d":123456789012345678901234567890},' \
          b'"questions":{"z":{"type":"choice","criteria":{"y":1.50,"x":null}},' \
          b'"a":{"type":"score","criteria":[1,2.0,"x"]}},"seed":7}'  # fmt: skip
    ask = parse(raw)
    assert ask.model is None
    assert list(ask.record.state) == ["b", "a", "c", "d"]
    assert [type(value) for value in ask.record.state.values()] == [float, int, float, int]
    assert [question.id for question in ask.record.questions] == ["z", "a"]
    assert list(ask.record.questions[0].criteria) == ["y", "x"]
    assert ask.record.questions[1].criteria == [1, 2.0, "x"]


@pytest.mark.parametrize("state", ["", "x", {}, [], None, 0, False, 1.5])
def test_any_json_value_is_a_state(state: Any) -> None:
    assert parse(body(state=state)).record.state == state


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "not valid JSON"),
        (b"{", "line 1, column 2"),
        (b'{"state": NaN}', "NaN is not JSON"),
        (b'{"state": -Infinity}', "Infinity is not JSON"),
        (b'{"state": 1, "state": 2}', "'state' appears twice"),
        (b'{"state": {"a": {"b": 1, "b": 2}}}', "'b' appears twice"),
        (b'{"state": "\xff"}', "not UTF-8 at byte 11"),
        (b'\xef\xbb\xbf{"state": 1}', "not valid JSON"),
        (b'{"state": 1} x', "Extra data"),
        (b'{"state": "a\nb"}', "Invalid control character"),
        (b'{"state": ' + b"9" * 5000 + b"}", "not valid JSON"),
        (b'{"state": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested too deeply"),
        (json.dumps("x" * 10).encode("utf-16"), "not UTF-8"),
    ],
)
def test_what_is_not_json(raw: bytes, message: str) -> None:
    error = refusal(raw)
    assert error.kind.type == "invalid_json"
    assert message in error.faults[0].message
    assert (error.status("release"), error.status("typesafe")) == (400, 422)


@pytest.mark.parametrize("value", [[], "x", 1, None, True])
def test_a_body_is_an_object(value: Any) -> None:
    assert faults(value) == [()]


@pytest.mark.parametrize(
    ("changes", "paths"),
    [
        ({"model": 3}, [("model",)]),
        ({"model": ""}, [("model",)]),
        ({"model": None}, [("model",)]),
        ({"questions": {}}, [("questions",)]),
        ({"questions": []}, [("questions",)]),
        ({"questions": None}, [("questions",)]),
        ({"questions": {"": NOUL}}, [("questions", "")]),
        ({"questions": {"q": None}}, [("questions", "q")]),
        ({"questions": {"q": {}}}, [("questions", "q", "type")]),
        ({"questions": {"q": {"type": ["noul"]}}}, [("questions", "q", "type")]),
        ({"questions": {"q": {**NOUL, "criterion": 1}}}, [("questions", "q")]),
        ({"questions": {"q": {"type": "choice"}}}, [("questions", "q", "criteria")]),
        (
            {"questions": {"q": {"type": "score", "criteria": {"0": "a", "1": "b"}}}},
            [("questions", "q", "criteria")],
        ),
        (
            {"questions": {"a": {"type": "x"}, "b": {"type": "choice", "criteria": {"o": 1}}}},
            [("questions", "a", "type"), ("questions", "b", "criteria")],
        ),
        ({"images": "x"}, [("images",)]),
        ({"images": {}}, [("images",)]),
        ({"images": ["a", 1, ""]}, [("images", 1), ("images", 2)]),
        ({"images": ["a"] * 5}, [("images",)]),
        ({"videos": "x"}, None),
        ({"videos": 0}, [("videos",)]),
        ({"state": [1e999]}, [("state", 0)]),
    ],
)
def test_faults_name_their_field(changes: dict[str, Any], paths: list[Any] | None) -> None:
    if paths is None:
        assert refusal(body(**changes)).faults[0].path == ("videos",)
        return
    value = body(**changes)
    raw = json.dumps(value).replace("Infinity", "1e999").encode()
    assert faults(raw) == paths


def test_missing_fields_are_named_together() -> None:
    assert faults({"model": "clef"}) == [("state",), ("questions",)]


def test_lone_surrogates_are_named_wherever_they_are() -> None:
    raw = b'{"state":"\\ud800","questions":{"q\\udfff":{"type":"noul"}}}'
    assert set(faults(raw)) == {("state",), ("questions",)}


def test_depth_has_a_limit_that_recursion_does_not_reach() -> None:
    deep: Any = 0
    for _ in range(250):
        deep = [deep]
    error = refusal(body(state=deep))
    assert "nested deeper" in error.faults[0].message


def test_a_long_key_above_many_values_costs_no_memory() -> None:
    # the path of every value written out would take 20 GB
    raw = b'{"state":{"' + b"k" * 1_000_000 + b'":[' + b"1e999," * 20_000 + b"1]}}"
    error = refusal(raw)
    assert len(error.faults) == 20_000
    assert len(json.dumps(error.body("release"))) < 12_000
    assert len(json.dumps(error.body("typesafe"))) < 12_000


@pytest.mark.parametrize("name", ["videos", "media_kwargs"])
def test_fields_that_would_change_answers_are_refused(name: str) -> None:
    error = refusal(body(**{name: {"a": 1} if name != "videos" else ["x"]}))
    assert error.kind.type == "unsupported"
    assert error.status("release") == error.status("typesafe") == 400
    assert error.faults[0].path == (name,)
    for empty in (None, [] if name == "videos" else {}):
        parse(body(**{name: empty}))
    for wrong in (False, 0, "", {} if name == "videos" else []):
        refusal(body(**{name: wrong}))


def options(count: int) -> dict[str, Any]:
    return {"type": "choice", "criteria": {f"o{i}": None for i in range(count)}}


def levels(count: int) -> dict[str, Any]:
    return {"type": "score", "criteria": [f"l{i}" for i in range(count)]}


@pytest.mark.parametrize(
    ("allowed", "refused", "path"),
    [
        (
            {f"q{i}": NOUL for i in range(64)},
            {f"q{i}": NOUL for i in range(65)},
            ("questions",),
        ),
        ({"q": options(255)}, {"q": options(256)}, ("questions", "q", "criteria")),
        ({"q": options(2)}, {"q": options(1)}, ("questions", "q", "criteria")),
        ({"q": levels(10)}, {"q": levels(11)}, ("questions", "q", "criteria")),
        ({"q": levels(2)}, {"q": levels(1)}, ("questions", "q", "criteria")),
        ({"q" * 512: NOUL}, {"q" * 513: NOUL}, ("questions", "q" * 513)),
        (
            {"q": {"type": "choice", "criteria": {"o" * 512: 1, "p": 2}}},
            {"q": {"type": "choice", "criteria": {"o" * 513: 1, "p": 2}}},
            ("questions", "q", "criteria"),
        ),
    ],
)
def test_limits_of_the_hosted_api(allowed: Any, refused: Any, path: Any) -> None:
    parse(body(questions=allowed))
    assert faults(body(questions=refused)) == [path]


def test_limits_can_be_set() -> None:
    limits = Limits(max_questions=1, max_options=3, max_levels=3, max_images=0, max_id_chars=4)
    two = {"a": NOUL, "b": NOUL}
    assert faults(body(questions=two), limits=limits) == [("questions",)]
    four = {"q": options(4)}
    assert faults(body(questions=four), limits=limits) == [("questions", "q", "criteria")]
    assert faults(body(questions={"q": levels(4)}), limits=limits)
    assert faults(body(questions={"abcde": NOUL}), limits=limits)
    assert faults(body(images=["aaaa"]), limits=limits) == [("images",)]


def test_text_and_values_have_limits_of_their_own() -> None:
    limits = Limits(max_text_bytes=1000, max_values=50)
    error = refusal(body(state="x" * 1000), limits=limits)
    assert error.kind.status == 413
    parse(body(images=["A" * 5000]), limits=limits)
    error = refusal(body(state=list(range(50))), limits=limits)
    assert error.kind.status == 413
    parse(body(state=list(range(40))), limits=limits)


def test_the_typesafe_dialect_holds_texts_to_the_hosted_types() -> None:
    assert faults(body(state=None), "typesafe") == [("state",)]
    assert faults(body(state=3), "typesafe") == [("state",)]
    questions = {
        "a": {"type": "noul", "instructions": 3, "criteria": {"true": False}},
        "b": {"type": "choice", "criteria": {"x": None, "y": 0}},
        "c": {"type": "score", "criteria": ["low", None]},
    }
    assert faults(body(questions=questions), "typesafe") == [
        ("questions", "a", "instructions"),
        ("questions", "a", "criteria", "true"),
        ("questions", "b", "criteria", "y"),
        ("questions", "c", "criteria", 1),
    ]
    assert parse(body(questions=questions)).record.questions[2].criteria == ["low", None]


def test_a_huge_integer_is_refused_in_our_words() -> None:
    error = refusal(b'{"state": ' + b"9" * 5000 + b"}")
    assert error.faults[0].message == "not valid JSON: an integer has too many digits"
