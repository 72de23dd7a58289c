"""One reading of a gold column, or an error that names the readings and the key that chooses."""

from __future__ import annotations

from typing import Any

import pytest

from clefq.data.labels import Column, Reading, cell_text, read_column, spelling, whole_number
from clefq.data.readers import RowError

FIVE = tuple("12345")
MOOD = ("low", "medium", "high")


def read(cells: Any, **column: Any) -> tuple[Reading, list[str]]:
    faults: list[str] = []
    given = Column(question="q", name="c", **{"type": "score", **column})
    counts = cells if isinstance(cells, dict) else dict.fromkeys(cells, 1)
    return read_column(given, counts, faults), faults


@pytest.mark.parametrize(
    ("cells", "column", "answers"),
    [
        # a level's exact text wins
        ("12345", {"options": FIVE}, dict(zip("12345", "01234", strict=True))),
        (["1.0", "5.0", "3.0"], {"options": FIVE}, {"1.0": "0", "5.0": "4", "3.0": "2"}),
        (MOOD, {"options": MOOD}, {"low": "0", "medium": "1", "high": "2"}),
        ("012", {"options": tuple("012")}, {"0": "0", "1": "1", "2": "2"}),
        ("12", {"options": tuple("012")}, {"1": "1", "2": "2"}),
        ("321", {"options": tuple("321")}, {"3": "0", "2": "1", "1": "2"}),
        # from 0, beyond doubt
        ("012", {"options": MOOD}, {"0": "0", "1": "1", "2": "2"}),
        (["low", "0", "1"], {"options": MOOD}, {"low": "0", "0": "0", "1": "1"}),
        # the definition chooses
        ("123", {"options": MOOD, "gold_as": "index1"}, {"1": "0", "2": "1", "3": "2"}),
        ("12", {"options": MOOD, "gold_as": "index0"}, {"1": "1", "2": "2"}),
        ("12", {"options": FIVE, "gold_as": "text"}, {"1": "0", "2": "1"}),
        ("12", {"options": FIVE, "gold_as": "index0"}, {"1": "1", "2": "2"}),
        (["low", "1"], {"options": MOOD, "gold_as": "index1"}, {"low": "0", "1": "0"}),
        ("ab", {"options": MOOD, "values": {"a": "high", "b": "low"}}, {"a": "2", "b": "0"}),
        # a choice
        ("12", {"type": "choice", "options": FIVE, "named": True}, {"1": "1", "2": "2"}),
        (["3.0"], {"type": "choice", "options": tuple("123")}, {"3.0": "3"}),
        (["3.0"], {"type": "choice", "options": ("3", "3.0")}, {"3.0": "3.0"}),
        ("01", {"type": "choice", "options": ("b", "a"), "gold_as": "index0"},
         {"0": "b", "1": "a"}),
        ("12", {"type": "choice", "options": ("b", "a"), "gold_as": "index1"},
         {"1": "b", "2": "a"}),
        # true and false
        (["Y", "f", "no", "1.0"], {"type": "noul"},
         {"Y": "true", "f": "false", "no": "false", "1.0": "true"}),
        (["ja", "nein"], {"type": "noul", "values": {"ja": "yes", "nein": "false"}},
         {"ja": "true", "nein": "false"}),
        (["1", "2"], {"type": "noul", "values": {"1": "true", "2": "false"}},
         {"1": "true", "2": "false"}),
    ],
)  # fmt: skip
def test_one_reading(cells: Any, column: dict[str, Any], answers: dict[str, str]) -> None:
    reading, faults = read(cells, **column)
    assert faults == []
    assert reading.answers == answers


@pytest.mark.parametrize(
    ("cells", "column", "said"),
    [
        ("123", {"options": MOOD},
         "q: the column c holds 1, 2, 3, which can be read in 2 ways; choose one: "
         "`gold_as: index0` (as an index from 0): 1 is 'medium', 2 is 'high', 3 is nothing; "
         "`gold_as: index1` (as an index from 1): 1 is 'low', 2 is 'medium', 3 is 'high'"),
        ("12", {"options": MOOD}, "`gold_as: index1`"),
        ("0123", {"options": MOOD}, "`gold_as: index1`"),
        (["low", "1"], {"options": MOOD}, "`gold_as: index1`"),
        (["1.0", "3.0"], {"options": MOOD}, "`gold_as: index1`"),
        ("12", {"options": FIVE}, "`gold_as: text` (as the option's text): 1 is '1', 2 is '2'; "
         "`gold_as: index0`"),
        ("01234", {"options": FIVE}, "0 is nothing"),
        ("12", {"type": "choice", "options": FIVE}, "`gold_as: text`"),
        ("012", {"type": "choice", "options": ("2", "0x", "1")}, "`gold_as: index0`"),
        ("01", {"type": "choice", "options": ("b", "a")}, "`gold_as: index0`"),
        ("12", {"type": "noul"}, "say which is true, as in `values: {'1': 'true', '2': 'false'}`"),
        (["1", "-1"], {"type": "noul"}, "holds the numbers -1, 1"),
    ],
)  # fmt: skip
def test_two_readings(cells: Any, column: dict[str, Any], said: str) -> None:
    _, faults = read(cells, **column)
    assert len(faults) == 1
    assert said in faults[0]


@pytest.mark.parametrize(
    ("cells", "said"),
    [
        ({"Billing": 9, "billing": 2}, "'Billing' (9), 'billing' (2) look like one option: "
         "`values: {'billing': 'Billing'}`"),
        ({"out of scope": 3, "out\u00a0of scope": 1},
         "`values: {\"out\\u00a0of scope\": 'out of scope'}`"),
        ({"a_b": 2, "a b": 1}, "look like one option"),
        ({"3": 2, "3.0": 1}, "look like one option"),
        ({"yes": 5, "Y": 1}, "look like one option"),
        ({"a": 1, "N/A": 1}, "'N/A' (1) looks like no answer: `missing: ['N/A']`"),
        ({"a": 1, "-": 1}, "looks like no answer"),
        ({"a": 1, "NULL": 1}, "looks like no answer"),
        ({"a": 1, "['a', 'b']": 1}, "looks like several labels"),
        ({"a": 1, "b": 1, "a;b": 1}, "'a;b' (1) looks like several labels"),
        ({str(i): 1 for i in range(256)}, "more than 255 values"),
    ],
)  # fmt: skip
def test_open_choices_are_not_made_of_variants(cells: dict[str, int], said: str) -> None:
    _, faults = read(cells, type="choice")
    assert len(faults) == 1
    assert said in faults[0]


@pytest.mark.parametrize(
    ("cells", "column", "options"),
    [
        (["US", "us"], {"values": {"US": "US", "us": "us"}}, ("US", "us")),
        (["none", "a"], {"values": {"none": "none"}}, ("a", "none")),
        (["Billing", "billing", "x"], {"values": {"billing": "Billing"}}, ("Billing", "x")),
        (["a", "b", "N/A", "-"], {"missing": frozenset({"N/A", "-"})}, ("a", "b")),
        (["1", "2", "99.0"], {"missing": frozenset({"99"})}, ("1", "2")),
        (["007", "7"], {}, ("007", "7")),
    ],
)
def test_what_the_definition_maps_is_taken(
    cells: list[str], column: dict[str, Any], options: tuple[str, ...]
) -> None:
    reading, faults = read(cells, type="choice", **column)
    assert faults == []
    assert reading.options == options


@pytest.mark.parametrize(
    ("cell", "column", "hint"),
    [
        ("Billing", {"type": "choice", "options": ("billing", "x")},
         "for 'billing': `values: {'Billing': 'billing'}`"),
        ("yes", {"type": "choice", "options": ("Y", "N")}, "for 'Y': `values: {'yes': 'Y'}`"),
        ("N/A", {"type": "choice", "options": ("a", "b")},
         "if it means no answer: `missing: ['N/A']`"),
        ("a|b", {"type": "choice", "options": ("a", "b")}, "it looks like several labels"),
        ("Low", {"options": MOOD}, "for 'low'"),
        ("2.5", {"options": MOOD}, ""),
        ("perhaps", {"type": "noul"}, ""),
    ],
)  # fmt: skip
def test_cells_that_fit_nothing(cell: str, column: dict[str, Any], hint: str) -> None:
    reading, faults = read([cell], **column)
    assert (faults, reading.answers) == ([], {})
    assert hint in reading.hints.get(cell, "")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, None), (float("nan"), None), ("  ", None), ("\u00a0\u200b", None), (True, "true"),
        (3.0, "3"), (2.5, "2.5"), (" a\u00a0", "a"), ("\ufeffa", "a"), (0, "0"), (False, "false"),
    ],
)  # fmt: skip
def test_text_of_a_cell(value: Any, text: str | None) -> None:
    assert cell_text(value) == text


@pytest.mark.parametrize("value", [["a"], {"a": 1}, ()])
def test_a_cell_with_several_values(value: Any) -> None:
    with pytest.raises(RowError, match="where one value belongs"):
        cell_text(value)


def test_spelling_and_numbers() -> None:
    assert spelling("Ｏut\u00a0of_Scope\u200b") == spelling("out of scope")
    assert spelling("3.0") == spelling("3") != spelling("03")
    texts = ("3", "-1", "+2", "3.0", "007", "3.5", "1e3", "")
    assert [whole_number(text) for text in texts] == [3, -1, 2, 3, None, None, None, None]
