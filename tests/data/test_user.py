"""A user's own data: tables, records, access logs; personal fields."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from clefq.data.personal import PersonalFields
from clefq.errors import DefinitionError
from clefq.plain_files import compact_json
from tests.data.conftest import FIXTURES, Build

THINGS = (
    *("kettle", "ladder", "wagon", "lamp", "saddle"),
    *("anchor", "umbrella", "whistle", "thimble", "curtain"),
)
TICKETS = [
    {"no": f"t{i}", "subject": f"Case {i}", "body": f"The {w} is broken", "mail": f"a{i}@x.org",
     "customer": {"number": i, "name": "Ada"}, "team": ["north", "south"][i % 2],
     "queue": ["Billing", "Tech"][i % 2], "urgent": ["yes", "No", "1"][i % 3],
     "level": ["low", "high", "1"][i % 3]}
    for i, w in enumerate(THINGS)
]  # fmt: skip
QUESTIONS: dict[str, Any] = {
    "queue": {
        "type": "choice",
        "instructions": "Which queue?",
        "criteria": {"billing": "Invoices.", "tech": None},
        "gold": "queue",
        "values": {"Billing": "billing", "Tech": "tech"},
    },
    "urgent": {"type": "noul", "instructions": "Is it urgent?", "gold": "urgent"},
    "level": {"type": "score", "criteria": ["low", "high"], "gold": "level", "gold_as": "index0"},
}


def mapping(file: str, **changes: Any) -> dict[str, Any]:
    options = {
        "file": file,
        "state": ["subject", "body", "customer"],
        "questions": QUESTIONS,
        "id": "no",
        "cohort": "team",
        "licence": "internal",
        **changes,
    }
    return {"name": "tickets", "sources": [{"source": "user", "options": options}],
            "decontaminate": {"near": False}}  # fmt: skip


def write_jsonl(path: Path, rows: list[Any]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path.name


def test_json_lines(build: Build, tmp_path: Path) -> None:
    file = write_jsonl(tmp_path / "tickets.jsonl", TICKETS)
    built = build(mapping(file), data_dir=None)
    records = list(built.folder.records())
    assert [record.id for record in records] == [row["no"] for row in TICKETS]
    assert records[0].gold == {"queue": "billing", "urgent": "true", "level": "0"}
    assert records[1].gold == {"queue": "tech", "urgent": "false", "level": "1"}
    assert records[2].gold["level"] == "1"
    assert records[0].state["customer"] == {"number": 0, "name": "Ada"}
    [info] = built.folder.manifest.sources
    assert (info.origin, info.licence) == ("user", "internal")
    assert set(info.files) == {"tickets.jsonl"}
    assert built.folder.manifest.cohorts == {"north": 5, "south": 5}


def test_all_tables_give_the_same_records(build: Build, tmp_path: Path) -> None:
    flat = [{k: v for k, v in row.items() if k != "customer"} for row in TICKETS]
    write_jsonl(tmp_path / "t.jsonl", flat)
    header = list(flat[0])
    for name, mark in (("t.csv", ","), ("t.tsv", "\t")):
        rows = [header, *([str(row[key]) for key in header] for row in flat)]
        text = "".join(mark.join(row) + "\r\n" for row in rows)
        (tmp_path / name).write_bytes(b"\xef\xbb\xbf" + text.encode())
    pq.write_table(pa.Table.from_pylist(flat), tmp_path / "t.parquet")
    hashes = {
        build(mapping(name, state=["subject", "body"]), data_dir=None).folder.manifest.sha256
        for name in ("t.jsonl", "t.csv", "t.tsv", "t.parquet")
    }
    assert len(hashes) == 1


def test_rows_that_do_not_fit_are_listed(build: Build, tmp_path: Path) -> None:
    bad: list[Any] = [dict(row) for row in TICKETS]
    bad[1]["queue"] = "Sales"
    bad[2]["urgent"] = "perhaps"
    bad[3]["level"] = "5"
    del bad[4]["queue"]
    bad[5]["no"] = "t0"
    bad[6]["team"] = " "
    del bad[7]["body"]
    bad.append(["not", "an", "object"])
    file = write_jsonl(tmp_path / "tickets.jsonl", bad)
    built = build(mapping(file), data_dir=None)
    path = built.folder.path / "malformed.jsonl"
    found = {row["row"]: row["reason"] for row in map(json.loads, path.read_text().splitlines())}
    assert found == {
        2: "queue is 'Sales', no option of queue",
        3: "urgent is 'perhaps', no option of urgent",
        4: "level is '5', no option of level",
        5: "queue is missing",
        6: "the id 't0' occurs twice",
        7: "team is empty",
        8: "no column 'body'",
        11: "not a JSON object",
    }
    assert built.folder.manifest.records == 3


@pytest.mark.parametrize("required", [True, False])
def test_a_column_that_no_row_has_stops_the_build(
    build: Build, tmp_path: Path, required: bool
) -> None:
    """With `required: false` every answer would be missing, and nothing would say so."""
    rows = [{"no": i, "body": f"Case {i}", **({"queue": "Tech"} if i else {})} for i in range(3)]
    file = write_jsonl(tmp_path / "tickets.jsonl", rows)
    question = {"type": "choice", "criteria": ["Tech", "Sales"], "required": required}
    value = mapping(file, state="body", cohort=None, questions={"q": {**question, "gold": "queue"}})
    assert build(value, data_dir=None).folder.manifest.records == (2 if required else 3)
    value = mapping(file, state="body", cohort=None, questions={"q": {**question, "gold": "que"}})
    with pytest.raises(DefinitionError) as caught:
        build(value, data_dir=None)
    path = tmp_path / "tickets.jsonl"
    assert caught.value.message == f"no column 'que' in {path}; it has no, body, queue."
    wide = write_jsonl(tmp_path / "wide.jsonl", [{f"c{i}": i for i in range(40)}])
    value = mapping(
        wide, id=None, cohort="team", state=["c0", "b"], questions={"q": {"type": "noul"}}
    )
    with pytest.raises(DefinitionError, match=r"no column 'team', 'b' in .*c29 and 10 more\."):
        build(value, data_dir=None)


def test_optional_answers_and_open_choices(build: Build, tmp_path: Path) -> None:
    rows = [dict(row) for row in TICKETS]
    rows[0]["queue"] = None
    questions = {"queue": {"type": "choice", "gold": "queue", "required": False}}
    file = write_jsonl(tmp_path / "tickets.jsonl", rows)
    records = list(build(mapping(file, questions=questions), data_dir=None).folder.records())
    assert records[0].gold == {}
    assert records[1].gold == {"queue": "Tech"}
    assert {record.questions[0].option_ids for record in records} == {("Billing", "Tech")}


def test_numbered_rows_and_a_single_column(build: Build, tmp_path: Path) -> None:
    file = write_jsonl(tmp_path / "tickets.jsonl", TICKETS)
    made = build(mapping(file, id=None, cohort=None, state="customer"), data_dir=None).folder
    record = next(made.records())
    assert (record.id, record.cohort) == ("row-000001", "user")
    assert record.state == {"name": "Ada", "number": 0}


def test_images_of_rows(build: Build, tmp_path: Path) -> None:
    (tmp_path / "pics").mkdir()
    (tmp_path / "pics/a.png").write_bytes((FIXTURES / "captioned_images/photo0.png").read_bytes())
    rows = [{**TICKETS[0], "photo": "pics/a.png"}, {**TICKETS[1], "photo": ["pics/gone.png"]},
            {**TICKETS[2], "photo": None}]  # fmt: skip
    file = write_jsonl(tmp_path / "tickets.jsonl", rows)
    built = build(mapping(file, images="photo"), data_dir=None, tokenizer=None).folder
    first, second = built.records()
    assert second.images == ()
    [name] = first.images
    assert built.media_path(name).read_bytes()[:4] == b"\x89PNG"
    assert built.manifest.sources[0].rows_malformed == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"file": "gone.csv"}, "no file"),
        ({"file": "x.ods"}, "is none of .csv"),
        ({"file": "x.xlsx"}, "is not a whole Excel file"),
        ({"file": "x.parquet"}, "is not a whole Parquet file"),
        ({"questions": {}}, "questions is empty"),
        ({"questions": {"q": {"type": "score"}}}, "must list the levels"),
        ({"questions": {"q": {"type": "choice"}}}, "needs criteria"),
        ({"drop": ["mail"], "hash": ["mail"]}, "both dropped and hashed"),
        ({"hash": ["mail"]}, "needs a secret key"),
    ],
)
def test_wrong_mappings(
    build: Build, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    (tmp_path / "x.ods").write_bytes(b"x")
    (tmp_path / "x.xlsx").write_bytes(b"x")
    (tmp_path / "x.parquet").write_bytes(b"x")
    file = write_jsonl(tmp_path / "tickets.jsonl", TICKETS)
    with pytest.raises(DefinitionError, match=message):
        build(mapping(**{"file": file, **changes}), data_dir=None)


def test_too_many_open_options(build: Build, tmp_path: Path) -> None:
    rows = [{**TICKETS[0], "no": f"t{i}", "queue": f"q{i}"} for i in range(256)]
    file = write_jsonl(tmp_path / "tickets.jsonl", rows)
    questions = {"queue": {"type": "choice", "gold": "queue"}}
    with pytest.raises(DefinitionError, match="more than 255 values"):
        build(mapping(file, questions=questions), data_dir=None)


def test_personal_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLEFQ_HASH_KEY", "secret")
    fields = PersonalFields(["mail"], ["number"])
    value = {"a": [{"mail": "x", "number": 7, "keep": 1}], "number": {"b": 2}}
    clean = fields.clean(value)
    assert clean["a"][0] == {"number": clean["a"][0]["number"], "keep": 1}
    assert clean["a"][0]["number"].startswith("hashed:")
    assert clean["a"][0]["number"] != clean["number"]
    assert fields.clean({"number": 7})["number"] == clean["a"][0]["number"]
    monkeypatch.setenv("CLEFQ_HASH_KEY", "other")
    assert PersonalFields([], ["number"]).clean({"number": 7}) != fields.clean({"number": 7})


def test_nothing_personal_reaches_the_set(
    build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLEFQ_HASH_KEY", "secret")
    file = write_jsonl(tmp_path / "tickets.jsonl", TICKETS)
    state = ["subject", "body", "mail", "customer"]
    value = mapping(file, state=state, drop=["mail", "name"], hash=["number"])
    folder = build(value, data_dir=None).folder.path
    for path in folder.rglob("*"):
        if path.is_file():
            assert b"@x.org" not in path.read_bytes()
            assert b"Ada" not in path.read_bytes()
    assert "hashed:" in (folder / "records.jsonl").read_text()


def test_an_id_and_a_cohort_can_be_hashed_too(
    build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same value under the same name gives the same hash, wherever it stands."""
    monkeypatch.setenv("CLEFQ_HASH_KEY", "secret")
    file = write_jsonl(tmp_path / "tickets.jsonl", TICKETS)
    value = mapping(file, id="no", cohort="queue", state=["subject", "no"], hash=["no", "queue"])
    folder = build(value, data_dir=None).folder
    for record in folder.records():
        assert record.id.startswith("hashed:")
        assert record.state["no"] == record.id
        assert record.cohort.startswith("hashed:")
    assert "t1" not in (folder.path / "records.jsonl").read_text()
    alone = mapping(file, id="no", state="subject", hash=["subject"])
    for record in build(alone, data_dir=None).folder.records():
        assert record.state.startswith("hashed:")


@pytest.mark.parametrize("field", ["id", "cohort", "state"])
def test_what_a_record_stands_on_cannot_be_dropped(
    build: Build, tmp_path: Path, field: str
) -> None:
    file = write_jsonl(tmp_path / "tickets.jsonl", TICKETS)
    with pytest.raises(DefinitionError, match=f"drop names subject, the {field}"):
        build(mapping(**{"file": file, field: "subject", "drop": ["subject"]}), data_dir=None)


def test_a_misspelt_personal_field_stops_the_build(build: Build, tmp_path: Path) -> None:
    """Nothing would have been dropped, and nobody would have noticed."""
    tickets = write_jsonl(tmp_path / "tickets.jsonl", TICKETS)
    with pytest.raises(DefinitionError, match="no row has a field e-mail, which drop or hash"):
        build(mapping(tickets, drop=["mail", "e-mail"]), data_dir=None)
    log = write_jsonl(tmp_path / "access.jsonl", [{"request": request(1)}])
    records = write_jsonl(
        tmp_path / "records.jsonl",
        [{"id": "r", "cohort": "c", "state": {"mail": 1}, "questions": {"q": {"type": "noul"}}}],
    )
    for source, file in (("access_log", log), ("records", records)):
        options = {"file": file, "drop": ["Mail"]}
        value = {"sources": [{"source": source, "options": options}]}
        with pytest.raises(DefinitionError, match="no row has a field Mail"):
            build(value, data_dir=None)
        options["drop"] = ["mail"]
        build(value, data_dir=None)


PNG = (FIXTURES / "captioned_images/photo0.png").read_bytes()


def request(number: int, **extra: Any) -> dict[str, Any]:
    questions = {
        "go": {"type": "noul"},
        "kind": {"type": "choice", "criteria": {"b": None, "a": "A"}},
    }
    return {"model": "clef", "state": {"n": number, "mail": "x"}, "questions": questions, **extra}


def answers(noul: float, a: float, b: float) -> dict[str, Any]:
    kind = {"type": "choice", "choice": "b", "probabilities": {"a": a, "b": b}}
    return {"answers": {"go": {"type": "noul", "noul": noul}, "kind": kind}}


def test_access_log(build: Build, tmp_path: Path) -> None:
    image = "data:image/png;base64," + base64.b64encode(PNG).decode()
    rows = [
        {"id": "one", "request": request(1), "response": answers(0.4, 0.1, 0.9)},
        {"request_id": "two", "request": request(2, images=[image]), "response": answers(1, 1, 0)},
        {"request": request(3), "response": {"answers": {}}},
        {"request": request(4, images=["http://x/y.png"]), "response": answers(1, 1, 0)},
        {"request": request(5, images=["!!"]), "response": answers(1, 1, 0)},
        {"request": {"state": 1}},
        {"request": request(7, videos=["x"])},
        {"time": "now"},
        {"request": request(9)},
        {"request": {**request(10), "questions": {"q": {"type": "guess"}}},
         "response": {"answers": {"q": {"probabilities": {}}}}},
    ]  # fmt: skip
    options = {"file": write_jsonl(tmp_path / "access.jsonl", rows), "gold": "answers",
               "drop": ["mail"], "cohort": "production"}  # fmt: skip
    value = {"sources": [{"source": "access_log", "options": options}],
             "decontaminate": {"near": False}}  # fmt: skip
    built = build(value, data_dir=None, tokenizer=None).folder
    one, two = built.records()
    assert (one.id, one.cohort, one.state) == ("one", "production", {"n": 1})
    assert one.gold == {"go": "false", "kind": "b"}
    assert two.gold == {"go": "true", "kind": "a"}
    assert built.media_path(two.images[0]).read_bytes() == PNG
    reasons = [
        json.loads(line) for line in (built.path / "malformed.jsonl").read_text().splitlines()
    ]
    assert [(row["row"], row["reason"][:22]) for row in reasons] == [
        (3, "the answer to 'go' can"),
        (4, "an image that the log "),
        (5, "an image that is not b"),
        (6, "no questions: not a Sy"),
        (7, "a request with a video"),
        (8, "no state: not a System"),
        (9, "no answers in the resp"),
        (10, "the answer to 'q' cann"),
    ]


def test_access_log_without_answers(build: Build, tmp_path: Path) -> None:
    rows = [request(i) for i in range(4)] + [request(1)]
    options = {"file": write_jsonl(tmp_path / "access.jsonl", rows)}
    value = {"sources": [{"source": "access_log", "options": options}]}
    built = build(value, data_dir=None)
    assert [record.gold for record in built.folder.records()] == [{}] * 4
    assert [row.kind for row in built.removed] == ["exact"]
    assert next(built.folder.records()).id.startswith("request-0000")


def test_records(build: Build, tmp_path: Path) -> None:
    first = build({"sources": [{"source": "flickr30k", "split": "test"}]}, tokenizer=None).folder
    options = {"file": "records.jsonl"}
    value = {"sources": [{"source": "records", "options": options}]}
    again = build(value, base=first.path, data_dir=None, tokenizer=None).folder
    assert again.manifest.sha256 == first.manifest.sha256
    broken = [json.loads(line) for line in (first.path / "records.jsonl").read_text().splitlines()]
    del broken[0]["state"]
    (tmp_path / "records.jsonl").write_text("".join(compact_json(row) + "\n" for row in broken))
    with pytest.raises(DefinitionError, match=r"^records: none of 4 rows is usable"):
        build(value, data_dir=None, tokenizer=None)


def test_further_cohorts_are_kept_with_each_record(build: Build, tmp_path: Path) -> None:
    rows = [{**row, "lang": ["de", "", "fr"][i % 3], "vip": i % 2} for i, row in enumerate(TICKETS)]
    file = write_jsonl(tmp_path / "tickets.jsonl", rows)
    records = list(build(mapping(file, cohorts=["lang", "vip"]), data_dir=None).folder.records())
    assert [dict(record.cohorts) for record in records[:3]] == [
        {"lang": "de", "vip": "0"},
        {"vip": "1"},
        {"lang": "fr", "vip": "0"},
    ]
    with pytest.raises(DefinitionError, match="no column 'language'"):
        build(mapping(file, cohorts=["language"]), data_dir=None)
