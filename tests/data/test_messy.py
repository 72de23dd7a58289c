"""Messy tables, small and made up: each is read as it is meant, or refused with the fix."""

from __future__ import annotations

import datetime
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import openpyxl
import pandas as pd
import pytest

from clefq.errors import ClefqError, DefinitionError
from tests.data.conftest import Build

MOOD = ["low", "medium", "high"]
CHOICE = {"type": "choice", "criteria": ["Billing", "Tech"], "gold": "label"}
SCORE = {"type": "score", "criteria": list("12345"), "gold": "label"}
NOUL = {"type": "noul", "gold": "label"}


def definition(file: str, question: dict[str, Any], **options: Any) -> dict[str, Any]:
    given = {"file": file, "state": "text", "questions": {"q": question}, **options}
    return {"sources": [{"source": "user", "options": given}], "decontaminate": {"near": False}}


def table(labels: list[Any], mark: str = ",", header: bool = True) -> str:
    """One row a label, each with a text of its own."""
    lines = [f"text{mark}label"] if header else []
    lines += [f"Ticket number {i} says {i * 37}{mark}{label}" for i, label in enumerate(labels)]
    return "\n".join(lines) + "\n"


@pytest.fixture
def gold(build: Build, tmp_path: Path) -> Any:
    """Writes a file, builds it and gives the right answers of its records in file order."""

    def run(
        content: str | bytes, question: dict[str, Any], name: str = "t.csv", **options: Any
    ) -> list[str | None]:
        data = content.encode() if isinstance(content, str) else content
        (tmp_path / name).write_bytes(data)
        value = definition(name, question, **options)
        built = build(value, data_dir=None, tokenizer=None, allow_malformed=0.01).folder
        return [record.gold.get("q") for record in built.records()]

    return run


@pytest.fixture
def refusal(gold: Any) -> Any:
    """The whole error of a build that is refused."""

    def run(content: str | bytes, question: dict[str, Any], **options: Any) -> str:
        with pytest.raises(ClefqError) as caught:
            gold(content, question, **options)
        return str(caught.value)

    return run


def test_ratings_are_not_shifted(gold: Any, refusal: Any) -> None:
    ratings = list("12345") * 2
    assert gold(table(ratings), SCORE) == list("01234") * 2
    assert gold(table([f"{r}.0" for r in ratings]), SCORE) == list("01234") * 2
    numbers = {**SCORE, "criteria": MOOD}
    assert "`gold_as: index1` (as an index from 1): 1 is 'low'" in refusal(
        table(list("123")), numbers
    )
    assert gold(table(list("123")), {**numbers, "gold_as": "index1"}) == list("012")


def test_numbers_with_a_point_are_the_options(gold: Any) -> None:
    """What pandas writes for whole numbers once a cell of the column is empty."""
    question = {"type": "choice", "criteria": ["1", "2", "3"], "gold": "label"}
    assert gold(table(["3.0", "1.0", "2.0"]), question) == ["3", "1", "2"]


def test_yes_and_no_of_other_languages(gold: Any, refusal: Any) -> None:
    cells = ["Y", "N", "t", "f", "yes", "no", "1", "0"]
    assert gold(table(cells), NOUL) == ["true", "false"] * 4
    said = refusal(table([*cells, "ja", "nein"]), NOUL)
    assert "2 of 10 rows do not fit, more than 1% of them" in said
    assert "t.csv row 9: label is 'ja', no option of q (1 such rows)" in said
    assert "--allow-malformed 0.2." in said
    mapped = {**NOUL, "values": {"ja": "true", "nein": "false"}}
    assert gold(table([*cells, "ja", "nein"]), mapped) == ["true", "false"] * 5


def test_a_latin_1_file(gold: Any, refusal: Any) -> None:
    text = table(["Tech"] * 4).replace("says", "über").encode("latin-1")
    said = refusal(text, CHOICE)
    assert "none of 4 rows is usable: not UTF-8" in said
    assert "`encoding: cp1252`" in said
    assert "iconv -f CP1252 -t UTF-8 t.csv > utf8-t.csv" in said
    assert len(gold(text, CHOICE, encoding="latin-1")) == 4
    assert "UTF-8 beyond doubt" in refusal(text.decode("latin-1"), CHOICE, encoding="cp1252")
    assert "encoding 'klingon' is unknown" in refusal(text, CHOICE, encoding="klingon")
    header = text.replace(b"label", b"pr\xfcfung")
    assert "the first line of" in refusal(header, CHOICE)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le"])
def test_utf_16_is_named(gold: Any, refusal: Any, encoding: str) -> None:
    text = table(["Tech"] * 2).encode(encoding)
    assert "`encoding: utf-16`" in refusal(text, CHOICE)
    assert gold(text, CHOICE, encoding=encoding) == ["Tech"] * 2


def test_json_lines_in_another_encoding(gold: Any) -> None:
    rows = [{"text": f"Grüße {i}", "label": "Tech"} for i in range(3)]
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    text = lines.encode("cp1252")
    assert gold(text, CHOICE, name="t.jsonl", encoding="cp1252") == ["Tech"] * 3


@pytest.mark.parametrize(("mark", "word"), [(";", "semicolons"), ("\t", "tabs"), ("|", "bars")])
def test_other_delimiters_are_named(gold: Any, refusal: Any, mark: str, word: str) -> None:
    text = table(["Tech", "Billing"], mark)
    key = "\\t" if mark == "\t" else mark
    said = refusal(text, CHOICE)
    assert f"is separated by {word}, not by commas" in said
    assert f'`delimiter: "{key}"`' in said
    assert gold(text, CHOICE, delimiter=mark) == ["Tech", "Billing"]
    assert gold(f"sep={mark}\r\n{text}", CHOICE) == ["Tech", "Billing"]


def test_a_file_without_header(gold: Any, refusal: Any) -> None:
    text = table(["Tech", "Billing", "Tech"], header=False)
    said = refusal(text, CHOICE)
    assert "has no header: its first line is 'Ticket number 0 says 0', 'Tech'" in said
    assert "`header: [column_1, column_2]`" in said
    assert gold(text, CHOICE, header=["text", "label"]) == ["Tech", "Billing", "Tech"]
    whole = table(["Tech"])
    assert "has a header of its own" in refusal(whole, CHOICE, header=["text", "label"])
    both = table(["Tech", "Tech"], ";", header=False)
    assert "separated by semicolons" in refusal(both, CHOICE)


def test_a_column_twice(gold: Any, refusal: Any) -> None:
    text = "text,label,label,note,note\nOne,Tech,Billing,a,b\nTwo,Tech,Billing,a,b\n"
    assert "has 2 columns of the name 'label'" in refusal(text, CHOICE)
    assert (
        gold(text.replace("Tech,B", "x,B").replace("label,l", "old,l"), CHOICE) == ["Billing"] * 2
    )
    line = '{"text": "a", "label": "Tech", "label": "Billing"}\n'
    assert "label" in refusal(line, CHOICE, name="t.jsonl")


def test_quotes_and_line_ends(gold: Any, refusal: Any) -> None:
    text = '\ufeff"text","label"\r\n"a, ""b""\nand c","Tech"\r\nplain d,Billing\r"e e",Tech\n'
    assert gold(text, CHOICE) == ["Tech", "Billing", "Tech"]
    rows = "".join(f"plain {i},Tech\n" for i in range(40))
    said = refusal(f'text,label\n"never closed,Tech\n{rows}', CHOICE)
    assert "t.csv:2: a quotation mark opens a cell and is never closed" in said
    assert "swallow 40 lines" in said
    said = refusal(f'text,label\n"one, Tech\n{rows}"two" ,Tech\n', CHOICE)
    assert "none of 42 rows is usable: not CSV" in said  # every swallowed line is counted


def test_excel(gold: Any, refusal: Any, tmp_path: Path) -> None:
    def book(rows: list[list[Any]], sheets: int = 1) -> bytes:
        made = openpyxl.Workbook()
        for row in rows:
            made.active.append(row)
        for _ in range(sheets - 1):
            made.create_sheet()
        made.active.title = "Data"
        made.save(tmp_path / "made.xlsx")
        return (tmp_path / "made.xlsx").read_bytes()

    day = datetime.datetime(2024, 2, 1, 9, 30)
    rows = [["text", "label", "day"], ["One", 3, day], ["Two", 1.0, None], [None, None, None]]
    options = {"name": "t.xlsx", "state": ["text", "day"]}
    score = {**SCORE, "gold_as": "text"}
    assert gold(book(rows), score, **options) == ["2", "0"]
    assert "has the sheets 'Data', 'Sheet1'" in refusal(book(rows, 2), score, **options)
    assert gold(book(rows, 2), score, sheet="Data", **options) == ["2", "0"]
    dates = [["text", "label", "day"], ["One", datetime.datetime(2024, 1, 2), day]]
    assert "label is '2024-01-02T00:00:00', no option of q" in refusal(
        book(dates), score, **options
    )
    assert "has no header" in refusal(book(rows[1:]), score, **options)
    named = ["text", "label", "day"]
    assert gold(book(rows[1:]), score, header=named, **options) == ["2", "0"]


def test_parquet_of_pandas(build: Build, tmp_path: Path) -> None:
    day = datetime.date(2024, 2, 1)
    frame = pd.DataFrame(
        {"text": ["a", "b", "c"], "label": [1.0, None, 2.0], "day": [day, day, None],
         "price": [Decimal("1.50"), None, Decimal("2")]}
    )  # fmt: skip
    frame.to_parquet(tmp_path / "t.parquet")
    question = {"type": "choice", "criteria": ["1", "2"], "gold": "label", "required": False}
    value = definition("t.parquet", question, state=["text", "day", "price"])
    records = list(build(value, data_dir=None, tokenizer=None).folder.records())
    assert [record.gold.get("q") for record in records] == ["1", None, "2"]
    assert records[0].state == {"text": "a", "day": "2024-02-01", "price": "1.50"}
    assert records[1].state == {"text": "b", "day": "2024-02-01", "price": None}


def test_boolean_columns(gold: Any, refusal: Any) -> None:
    rows = [{"text": f"t{i}", "label": i % 2 == 0} for i in range(4)]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    assert gold(lines, NOUL, name="t.jsonl") == ["true", "false"] * 2
    yes_no = {"type": "choice", "criteria": {"Yes": None, "No": None}, "gold": "label"}
    assert "for 'Yes': `values: {'true': 'Yes'}`" in refusal(lines, yes_no, name="t.jsonl")
    mapped = {**yes_no, "values": {"true": "Yes", "false": "No"}}
    assert gold(lines, mapped, name="t.jsonl") == ["Yes", "No"] * 2
    assert "put yes, no, on and off in quotes" in refusal(
        lines, {**yes_no, "criteria": [True, False]}
    )


@pytest.mark.parametrize("label", [["Tech"], {"name": "Tech"}, ["Tech", "Billing"]])
def test_several_labels_a_row(refusal: Any, label: Any) -> None:
    rows = [{"text": "a", "label": "Tech"}, {"text": "b", "label": label}]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    said = refusal(lines, CHOICE, name="t.jsonl")
    assert "row 2: label holds a" in said
    assert "ask one true/false question a label" in said


def test_variants_do_not_become_options(gold: Any, refusal: Any) -> None:
    cells = ["Billing", "billing", "Tech", "Tech\u00a0", "N/A", "-", "NULL"]
    question = {"type": "choice", "gold": "label"}
    said = refusal(table(cells), question)
    for part in ("'Billing' (1), 'billing' (1) look like one option", "'N/A' (1) looks like no",
                 "'-' (1) looks like no answer", "'NULL' (1) looks like no answer"):  # fmt: skip
        assert part in said
    mapped = {**question, "values": {"billing": "Billing"}, "missing": ["N/A", "-", "NULL"]}
    assert gold(table(cells), {**mapped, "required": False}) == [
        "Billing", "Billing", "Tech", "Tech", None, None, None,
    ]  # fmt: skip
    assert "label is 'N/A', which means no answer" in refusal(table(cells), mapped)


def test_empty_cells_are_named(refusal: Any) -> None:
    said = refusal("text,label\n,Tech\n \u00a0,Tech\nWords,Tech\nMore,\n", CHOICE)
    assert "3 of 4 rows do not fit" in said
    assert "t.csv row 1: text: empty text (2 such rows)" in said
    assert "t.csv row 4: label is empty (1 such rows)" in said


@pytest.mark.parametrize(
    ("question", "said"),
    [
        ({**CHOICE, "criteria": ["a", "b", "a"]}, "criteria names 'a' twice"),
        ({**CHOICE, "criteria": [" a", "b"]}, "with space around it"),
        ({**CHOICE, "values": {"x": "Sales"}}, "values maps 'x' to 'Sales', which is none of"),
        ({**SCORE, "values": {"x": "9"}}, "values maps 'x' to '9'"),
        ({**NOUL, "values": {"x": "perhaps"}}, "values maps 'x' to 'perhaps'"),
        ({**CHOICE, "values": {"x": "Tech"}, "missing": ["x"]}, "x both in values and in missing"),
        ({**NOUL, "gold_as": "index0"}, "gold_as belongs to a score"),
    ],
)
def test_mappings_that_cannot_be_meant(refusal: Any, question: dict[str, Any], said: str) -> None:
    assert said in refusal(table(["Tech"]), question)


def test_form_keys_that_a_file_cannot_have(build: Build, tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text('{"text": "a", "label": "Tech"}\n')
    for key, value in (("delimiter", ";"), ("header", ["a"]), ("sheet", "s")):
        with pytest.raises(DefinitionError, match=f"{key} belongs to"):
            build(definition("t.jsonl", CHOICE, **{key: value}), data_dir=None)
    (tmp_path / "t.csv").write_text(table(["Tech"]))
    with pytest.raises(DefinitionError, match="must be one character"):
        build(definition("t.csv", CHOICE, delimiter="; "), data_dir=None)


def test_one_bad_row_of_two_hundred_is_listed(build: Build, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(table(["Tech"] * 199 + ["Sales"]))
    value = definition("t.csv", CHOICE)
    built = build(value, data_dir=None, tokenizer=None, allow_malformed=0.01)
    assert built.folder.manifest.records == 199
    assert built.folder.manifest.sources[0].rows_malformed == 1
