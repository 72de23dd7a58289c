"""Strict reading of plain values into dataclasses."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest

from clefq.errors import InputError, RecordError
from clefq.store.reading import (
    Stored,
    at_least,
    expected,
    json_schema,
    read_stored,
    read_value,
    sha256_digits,
    to_plain,
)


@dataclass(frozen=True)
class Inner(Stored):
    count: int
    share: float = 0.5


@dataclass(frozen=True)
class Outer(Stored):
    name: str
    kind: Literal["a", "b"] = "a"
    inner: Inner | None = None
    items: tuple[Inner, ...] = ()
    names: Mapping[str, int] = field(default_factory=dict)
    flag: bool = False
    either: str | tuple[str, ...] = ""
    free: Any = None


WHOLE = {
    "name": "n",
    "kind": "b",
    "inner": {"count": 1, "share": 2.0},
    "items": [{"count": 2, "share": 0.5}],
    "names": {"x": 3},
    "flag": True,
    "either": ["p", "q"],
    "free": {"y": [None]},
}


def test_round_trip() -> None:
    faults: list[str] = []
    value = read_value(Outer, WHOLE, faults)
    assert faults == []
    assert value is not None
    assert value.items == (Inner(2),)
    assert value.either == ("p", "q")
    assert to_plain(value) == WHOLE


def test_whole_numbers_are_numbers() -> None:
    faults: list[str] = []
    assert read_value(Inner, {"count": 1, "share": 1}, faults) == Inner(1, 1.0)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"name": 1}, "name must be text, found 1"),
        ({"kind": "c"}, "kind is 'c', expected one of a, b"),
        ({"kind": ["a"]}, "kind is ['a'], expected one of a, b"),
        ({"inner": []}, "inner must be a mapping, found a list"),
        ({"inner": {"count": True}}, "inner.count must be a whole number, found True"),
        ({"inner": {"count": 1.0}}, "inner.count must be a whole number, found 1.0"),
        ({"inner": {"count": None}}, "inner.count must be a whole number, found nothing"),
        ({"items": "x"}, "items must be a list, found 'x'"),
        ({"items": [{"count": 1}, {}]}, "items.1.count is missing"),
        ({"names": {"x": "y"}}, "names.x must be a whole number, found 'y'"),
        ({"names": {1: 2}}, "names has the key 1, which is not text; quote it"),
        ({"flag": 1}, "flag must be true or false, found 1"),
        ({"either": 3}, "either must be text or a list, found 3"),
        ({"extra": 1}, "extra is unknown; known here: name, kind"),
    ],
)
def test_faults(change: dict[str, Any], fault: str) -> None:
    faults: list[str] = []
    assert read_value(Outer, {**WHOLE, **change}, faults) is None
    assert len(faults) == 1
    assert faults[0].startswith(fault)


def test_all_faults_at_once() -> None:
    faults: list[str] = []
    assert read_value(Outer, {"kind": 1, "flag": "x", "inner": {"z": 1}}, faults, "file") is None
    assert {fault.split(" ")[0] for fault in faults} == {
        "file.kind",
        "file.flag",
        "file.name",
        "file.inner.z",
        "file.inner.count",
    }


@dataclass(frozen=True)
class Span(Stored):
    start: Annotated[int, at_least(0)]
    end: int

    def faults(self) -> Iterator[str]:
        if self.end < self.start:
            yield f"end {self.end} lies before start {self.start}"


@dataclass(frozen=True)
class Spans(Stored):
    spans: Mapping[str, Span] = field(default_factory=dict)
    sha256: Annotated[str, sha256_digits()] | None = None
    version: Annotated[int, expected(1)] = 1


def test_rules_and_faults_between_keys_come_together() -> None:
    faults: list[str] = []
    spans = {"a": {"start": -1, "end": 3}, "b": {"start": 5, "end": 3}}
    assert read_value(Spans, {"spans": spans, "sha256": "x", "version": 2}, faults) is None
    assert faults == [
        "spans.a.start must be at least 0, found -1",
        "sha256 must be 64 hex digits, found 'x'",
        "version must be 1, found 2",
        "spans.b.end 3 lies before start 5",
    ]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_numbers_are_finite(value: float) -> None:
    faults: list[str] = []
    assert read_value(Inner, {"count": 1, "share": value}, faults) is None
    assert faults == [f"share must be a finite number, found {value!r}"]


@dataclass(frozen=True)
class Arms(Stored):
    one: Inner | str | tuple[Inner, ...] | None = None


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        ({"count": "x"}, "one.count must be a whole number, found 'x'"),
        ([{"count": 1}, {}], "one.1.count is missing"),
        (3, "one must be a mapping or text or a list, found 3"),
    ],
)
def test_of_a_union_the_arm_that_was_meant_is_named(value: Any, fault: str) -> None:
    faults: list[str] = []
    assert read_value(Arms, {"one": value}, faults) is None
    assert faults == [fault]


def test_files_are_read_with_their_path(tmp_path: Path) -> None:
    path = tmp_path / "spans.json"
    path.write_text('{"spans": {"a": {"start": 1}}, "more": 1}', encoding="utf-8")
    with pytest.raises(RecordError) as caught:
        read_stored(Spans, path, error=RecordError, fix="write it again.")
    assert caught.value.message == f"{path}: spans.a.end is missing."
    assert caught.value.faults == ("more is unknown; known here: spans, sha256, version",)
    assert caught.value.fix == "write it again."


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, '{"spans": "\\ud800"}'])
def test_what_is_no_json_is_one_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "spans.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=r"spans\.json: it is not valid JSON: ") as caught:
        read_stored(Spans, path)
    assert caught.value.faults == ()


def test_what_yaml_can_say_and_json_cannot_is_a_fault() -> None:
    faults: list[str] = []
    assert read_value(Outer, {"name": "n", "free": {1, 2}}, faults) is None
    (fault,) = faults
    assert fault.startswith("the file holds what JSON cannot: ")


def test_the_schema_is_made_of_the_type_hints() -> None:
    schema = json_schema(Spans)
    span = schema["$defs"]["Span"]
    assert span["required"] == ["start", "end"]
    assert span["additionalProperties"] is False
    assert span["properties"]["start"]["minimum"] == 0
    assert schema["properties"]["version"]["const"] == 1


def test_importing_it_is_cheap() -> None:
    code = "import sys, clefq.store.reading; sys.exit('pydantic' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
