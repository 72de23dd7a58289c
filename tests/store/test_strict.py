"""Strict reading of plain values into dataclasses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

from clefq.store.strict import read_strict, to_plain


@dataclass(frozen=True)
class Inner:
    count: int
    share: float = 0.5


@dataclass(frozen=True)
class Outer:
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
    value = read_strict(Outer, WHOLE, faults)
    assert faults == []
    assert value is not None
    assert value.items == (Inner(2),)
    assert value.either == ("p", "q")
    assert to_plain(value) == WHOLE


def test_whole_numbers_are_numbers() -> None:
    faults: list[str] = []
    assert read_strict(Inner, {"count": 1, "share": 1}, faults) == Inner(1, 1.0)


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
        ({"either": 3}, "either has the wrong type: 3"),
        ({"extra": 1}, "extra is unknown; known here: name, kind"),
    ],
)
def test_faults(change: dict[str, Any], fault: str) -> None:
    faults: list[str] = []
    assert read_strict(Outer, {**WHOLE, **change}, faults) is None
    assert len(faults) == 1
    assert faults[0].startswith(fault)


def test_all_faults_at_once() -> None:
    faults: list[str] = []
    assert read_strict(Outer, {"kind": 1, "flag": "x", "inner": {"z": 1}}, faults, "file") is None
    assert {fault.split(" ")[0] for fault in faults} == {
        "file.kind",
        "file.flag",
        "file.name",
        "file.inner.z",
        "file.inner.count",
    }
