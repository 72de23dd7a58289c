"""Predictions files: what is refused, and that whole files come back as they were written."""

from __future__ import annotations

import contextlib
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clefq.errors import PredictionsError
from clefq.store.predictions import (
    ARROW_SCHEMA,
    METADATA_KEY,
    QUESTION_TYPES,
    read_meta,
    read_predictions,
    validate_frame,
    write_predictions,
)
from clefq.store.reading import faults_of
from tests.parity.factory import META

HALF = [float(np.log(0.5))] * 2


def row(**changes: Any) -> dict[str, Any]:
    return {
        "record_id": "r0",
        "cohort": "c",
        "question_id": "q0",
        "question_type": "choice",
        "option_ids": ["a", "b"],
        "logprobs": np.array(HALF),
        "gold": None,
        "input_tokens": 5,
        "truncated_tokens": 0,
        "error": None,
        **changes,
    }


def frame_of(*rows: dict[str, Any]) -> pd.DataFrame:
    return pd.DataFrame(list(rows), columns=ARROW_SCHEMA.names)


def faults_by_row(frame: pd.DataFrame, quantum: float | None) -> list[str]:
    """The rules of a row, one row at a time: what the column-wise check must repeat."""

    def fault(r: Any) -> tuple[str, str] | None:
        options = list(r.option_ids)
        if r.question_type not in QUESTION_TYPES:
            return "type", f"unknown question type {r.question_type!r}"
        if len(options) < 2 or len(set(options)) != len(options):
            return "options", "needs at least two distinct option ids"
        failed = isinstance(r.error, str)
        if failed != (r.logprobs is None):
            return "error", "needs either logprobs or an error, not both or neither"
        if failed:
            return None
        values = np.asarray(r.logprobs, dtype=np.float64)
        if len(values) != len(options):
            return "length", f"{values.size} logprobs for {len(options)} options"
        if np.isnan(values).any() or (values == np.inf).any():
            return "nan", "logprobs hold NaN or +inf; write the row with its error instead"
        total = float(np.exp(values).sum())
        slack = 1e-12 + (0 if quantum is None else len(options) * quantum / 2)
        return ("sum", f"probabilities sum to {total!r}") if abs(total - 1) > slack else None

    found, seen = [], set()
    for r in frame.itertuples(index=False):
        got = fault(r)
        if got is not None and got[0] not in seen:
            seen.add(got[0])
            found.append(f"{r.record_id}/{r.question_id}: {got[1]}")
    return found


LOGPROBS = st.one_of(
    st.none(),
    st.lists(
        st.sampled_from([0.0, HALF[0], float("nan"), np.inf, -np.inf]), min_size=0, max_size=3
    ).map(np.array),
)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["choice", "noul", "essay"]),
            st.lists(st.sampled_from(["a", "b", "c"]), max_size=3),
            LOGPROBS,
            st.sampled_from([None, "failed"]),
        ),
        min_size=1,
        max_size=6,
    ),
    st.sampled_from([None, 0.01]),
)
def test_columns_and_rows_find_the_same_faults(rows, quantum):
    frame = frame_of(
        *(
            row(record_id=f"r{i}", question_type=kind, option_ids=o, logprobs=p, error=e)
            for i, (kind, o, p, e) in enumerate(rows)
        )
    )
    assert validate_frame(frame, quantum) == faults_by_row(frame, quantum)


def test_sound_frames_have_no_faults():
    sound = frame_of(row(), row(question_id="q1", logprobs=None, error="non-finite logits"))
    assert validate_frame(sound) == []
    assert validate_frame(frame_of(row(logprobs=np.array([0.0, -np.inf])))) == []
    assert validate_frame(frame_of()) == []


def test_faults_name_the_first_row_of_each_kind():
    frame = frame_of(
        row(),
        row(),
        row(record_id="r2", logprobs=np.array([0.0, 0.0])),
        row(record_id="r3", logprobs=np.array([0.0, 0.0])),
        row(record_id="r4", option_ids=["a", "a"]),
    )
    assert validate_frame(frame) == [
        "r0/q0 appears more than once",
        "r2/q0: probabilities sum to 2.0",
        "r4/q0: needs at least two distinct option ids",
    ]
    assert validate_frame(frame.drop(columns=["gold", "error"])) == ["columns missing: gold, error"]


def test_what_is_no_list_is_one_fault():
    assert "something other than lists" in validate_frame(frame_of(row(option_ids=[1, 2])))[0]
    assert "something other than lists" in validate_frame(frame_of(row(logprobs=["x", "y"])))[0]
    nulls = frame_of(row(option_ids=["a", None]))
    assert validate_frame(nulls) == ["r0/q0: needs at least two distinct option ids"]


def test_a_quantum_allows_half_a_step_per_option():
    frame = frame_of(row(logprobs=np.log([0.5, 0.501])))
    assert validate_frame(frame) != []
    assert validate_frame(frame, 0.001) == []
    assert validate_frame(frame, 0.0001) != []


def test_a_hundred_thousand_rows_take_no_row_loop():
    n = 100_000
    frame = pd.DataFrame(
        {
            "record_id": [f"r{i}" for i in range(n)],
            "cohort": "c",
            "question_id": "q",
            "question_type": "choice",
            "option_ids": [["a", "b"]] * n,
            "logprobs": [np.array(HALF)] * n,
            "gold": None,
            "input_tokens": 1,
            "truncated_tokens": 0,
            "error": None,
        }
    )
    import time

    begin = time.process_time()
    assert validate_frame(frame) == []
    assert time.process_time() - begin < 1.5  # row by row it took about 3


def test_round_trip(tmp_path):
    path = tmp_path / "p.parquet"
    frame = frame_of(
        row(gold="a"),
        row(record_id="r1", logprobs=np.array([0.0, -np.inf])),
        row(record_id="ü", question_id="q1", logprobs=None, error="non-finite logits"),
    )
    write_predictions(path, frame, META)
    got = read_predictions(path)
    assert got.meta == META == read_meta(path)
    assert got.path == path
    assert list(got.frame.record_id) == ["r0", "r1", "ü"]
    assert got.frame.logprobs[2] is None
    assert list(got.frame.logprobs[1]) == [0.0, -np.inf]
    assert [list(o) for o in got.frame.option_ids] == [["a", "b"]] * 3
    assert not list(tmp_path.glob(".*"))


def test_malformed_frames_are_not_written(tmp_path):
    path = tmp_path / "p.parquet"
    bad = frame_of(row(logprobs=np.array([0.0, 0.0])))
    with pytest.raises(PredictionsError, match="probabilities sum to") as caught:
        write_predictions(path, bad, replace(META, eval_set_sha256="short", kernels="maybe"))
    assert any("64 hex" in fault for fault in (caught.value.message, *caught.value.faults))
    assert not path.exists()


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"schema_version": 9}, "schema_version"),
        ({"arithmetic": "w8a4"}, "arithmetic"),
        ({"probability_quantum": 2.0}, "probability_quantum"),
        ({"created_at": "2026-01-01T00:00:00"}, "time zone"),
        ({"created_at": "yesterday"}, "RFC 3339"),
        ({"kernels": "fake"}, "kernels"),
        ({"eval_set": "../elsewhere"}, "folder"),
        ({"eval_set_sha256": "z" * 64}, "hex"),
        ({"max_length": -1}, "max_length"),
        ({"variant": "../up"}, "variant"),
        ({"variant": "/tmp/x"}, "variant"),
        ({"variant": ""}, "variant"),
    ],
)
def test_metadata_faults(changes, word):
    assert any(word in fault for fault in faults_of(replace(META, **changes)))


def test_foreign_files_are_refused_with_a_fix(tmp_path):
    path = tmp_path / "p.parquet"
    with pytest.raises(PredictionsError, match="no predictions file"):
        read_predictions(path)
    path.write_bytes(b"not parquet")
    with pytest.raises(PredictionsError, match="not a whole Parquet") as caught:
        read_predictions(path)
    # where it lies, `clefq predict` would refuse to write
    assert str(caught.value.fix).startswith("remove it and")
    pq.write_table(pa.table({"a": [1]}), path)
    with pytest.raises(PredictionsError, match="no clefq metadata"):
        read_predictions(path)
    for blob, word in (
        (b"{", "not JSON"),
        (b"[]", "a mapping"),
        (b'{"x": 1}', "metadata.x is unknown"),
    ):
        pq.write_table(pa.table({"a": [1]}).replace_schema_metadata({METADATA_KEY: blob}), path)
        with pytest.raises(PredictionsError, match=word):
            read_meta(path)
    blob = json.dumps(asdict(META)).encode()
    pq.write_table(pa.table({"a": [1]}).replace_schema_metadata({METADATA_KEY: blob}), path)
    with pytest.raises(PredictionsError, match="has columns a"):
        read_predictions(path)
    blob = json.dumps(asdict(replace(META, kernels="fake"))).encode()  # type: ignore[arg-type]
    pq.write_table(pa.table({"a": [1]}).replace_schema_metadata({METADATA_KEY: blob}), path)
    with pytest.raises(PredictionsError, match="kernels"):
        read_meta(path)


def test_malformed_rows_of_a_file_are_refused(tmp_path):
    path = tmp_path / "p.parquet"
    table = pa.Table.from_pandas(
        frame_of(row(logprobs=np.array([0.0, 0.0]))), schema=ARROW_SCHEMA, preserve_index=False
    )
    blob = json.dumps(asdict(META)).encode()
    pq.write_table(table.replace_schema_metadata({METADATA_KEY: blob}), path)
    with pytest.raises(PredictionsError, match="malformed: r0/q0: probabilities sum"):
        read_predictions(path)


@pytest.mark.parametrize(
    "changes",
    [{"probability_quantum": "x"}, {"variant": 7}, {"device": None}, {"schema_version": True}],
)
def test_metadata_of_another_type_is_refused(tmp_path, changes):
    path = tmp_path / "p.parquet"
    save(path, ARROW_SCHEMA.empty_table(), json.dumps({**asdict(META), **changes}).encode())
    with pytest.raises(PredictionsError, match=next(iter(changes))):
        read_meta(path)


@pytest.mark.parametrize("blob", [b"\xff{", b"[" * 100_000])
def test_metadata_that_is_no_json_is_refused(tmp_path, blob):
    path = tmp_path / "p.parquet"
    save(path, ARROW_SCHEMA.empty_table(), blob)
    with pytest.raises(PredictionsError, match="not JSON"):
        read_meta(path)


@pytest.mark.parametrize(
    ("column", "values", "word"),
    [
        ("record_id", pa.array([7]), "record_id is int64, expected string"),
        ("record_id", pa.array([None], pa.string()), "record_id holds nulls"),
        ("input_tokens", pa.array(["5"]), "input_tokens is string"),
        ("input_tokens", pa.array([None], pa.int64()), "input_tokens holds nulls"),
        ("truncated_tokens", pa.array([-5]), "negative"),
        ("option_ids", pa.array(["ab"]), "option_ids is string"),
    ],
)
def test_columns_of_another_type_are_refused(tmp_path, column, values, word):
    path = tmp_path / "p.parquet"
    table = pa.Table.from_pandas(frame_of(row()), schema=ARROW_SCHEMA, preserve_index=False)
    table = table.set_column(ARROW_SCHEMA.get_field_index(column), column, values)
    save(path, table, json.dumps(asdict(META)).encode())
    with pytest.raises(PredictionsError, match=word):
        read_predictions(path)


def test_a_damaged_file_is_refused_wherever_the_damage_is(tmp_path):
    path = tmp_path / "p.parquet"
    rows = [row(record_id=f"r{i}", cohort=f"c{i % 7}") for i in range(300)]
    write_predictions(path, frame_of(*rows), META)
    whole = path.read_bytes()
    for at in range(4, len(whole) - 8, 97):
        damaged = bytearray(whole)
        damaged[at : at + 4] = bytes(255 - byte for byte in damaged[at : at + 4])
        path.write_bytes(damaged)
        with contextlib.suppress(PredictionsError):
            read_predictions(path)


def save(path: Path, table: pa.Table, blob: bytes) -> None:
    pq.write_table(table.replace_schema_metadata({METADATA_KEY: blob}), path)


@pytest.mark.parametrize("name", ["input_tokens", "record_id", "option_ids", "logprobs"])
def test_other_forms_of_a_type_are_read(tmp_path, name):
    """Other tools write int32, large_string, large_list and float32."""
    write_predictions(tmp_path / "a.parquet", frame_of(row()), META)
    table = pq.read_table(tmp_path / "a.parquet")
    other = {
        "input_tokens": pa.int32(),
        "record_id": pa.large_string(),
        "option_ids": pa.large_list(pa.large_string()),
        "logprobs": pa.list_(pa.float32()),
    }[name]
    at = table.schema.names.index(name)
    changed = table.set_column(at, pa.field(name, other), table.column(at).cast(other))
    blob = table.schema.metadata[b"clefq"]
    save(tmp_path / "b.parquet", changed, blob)
    got = read_predictions(tmp_path / "b.parquet").frame
    want = read_predictions(tmp_path / "a.parquet").frame
    for first, second in zip(got[name], want[name], strict=True):
        if name == "logprobs":
            assert first == pytest.approx(second)
            assert np.exp(first).sum() == pytest.approx(1, abs=1e-12)
        else:
            assert np.array_equal(first, second)


def test_a_csv_is_told_to_be_imported(tmp_path):
    (tmp_path / "a.csv").write_text("id,answer\n1,yes\n", "utf-8")
    with pytest.raises(PredictionsError) as caught:
        read_predictions(tmp_path / "a.csv")
    assert "clefq import" in str(caught.value)


def test_further_cohorts_are_a_last_column_only_where_there_are_any(tmp_path: Path) -> None:
    path = tmp_path / "p.parquet"
    plain = frame_of(row(), row(record_id="other"))
    write_predictions(path, plain, META)
    assert pq.read_schema(path).names == ARROW_SCHEMA.names
    write_predictions(path, plain.assign(cohorts=['{"language":"de"}', None]), META)
    assert pq.read_schema(path).names == [*ARROW_SCHEMA.names, "cohorts"]
    cohorts = read_predictions(path).frame.cohorts
    assert cohorts[0] == '{"language":"de"}' and pd.isna(cohorts[1])
    with pytest.raises(PredictionsError, match="cohorts"):
        write_predictions(path, plain.assign(cohorts=['["de"]', None]), META)
