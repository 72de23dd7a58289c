"""Set folders: the hash, the manifest, and what is refused."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clefq.clef.records import Question, Record
from clefq.errors import InputError, RecordError
from clefq.store import sets
from clefq.store.reading import read_value, to_plain
from clefq.store.sets import (
    LENGTH_BANDS,
    Decontamination,
    SetDraft,
    SetManifest,
    SourceInfo,
    TokenCounter,
    TokenLengths,
    length_band,
    open_set,
    read_manifest,
    set_sha256,
    summarize_lengths,
    write_set,
)

QUESTION = Question("q", "choice", "Which?", {"b": None, "a": "é"})
SOURCE = SourceInfo("user", "", "user", None, {"t.csv": "0" * 64}, "internal", None, 3, 1, 0, 0, 2)


def record(name: str, **changes: Any) -> Record:
    values = {"id": name, "cohort": "c", "state": {"z": 1, "a": "ü"}, "questions": (QUESTION,)}
    return Record(**{**values, "gold": {"q": "a"}, **changes})


def draft(**changes: Any) -> SetDraft:
    values: dict[str, Any] = {"role": "eval", "name": "made", "definition": {"b": 1, "a": [2]}}
    return SetDraft(**{**values, "sources": (SOURCE,), **changes})


def test_writes_and_opens(tmp_path: Path) -> None:
    records = [record("r1"), record("r2", cohort="d")]
    written = write_set(tmp_path / "set", records, {}, draft())
    opened = open_set(tmp_path / "set")
    assert opened.manifest == written.manifest
    assert opened.name == "made"
    assert list(opened.records()) == records
    assert opened.manifest.cohorts == {"c": 1, "d": 1}
    assert opened.manifest.questions == {"choice": 2}
    assert opened.sha256() == opened.manifest.sha256
    assert opened.manifest.definition == {"b": 1, "a": [2]}
    assert opened.manifest.definition_sha256 == hashlib.sha256(b'{"a":[2],"b":1}').hexdigest()


def test_records_are_compact_sorted_utf8_with_line_feeds(tmp_path: Path) -> None:
    write_set(tmp_path / "set", [record("r1")], {}, draft())
    assert (tmp_path / "set/records.jsonl").read_bytes() == (
        '{"cohort":"c","gold":{"q":"a"},"id":"r1","questions":{"q":{"criteria":{"a":"é","b":null},'
        '"instructions":"Which?","type":"choice"}},"state":{"a":"ü","z":1}}\n'
    ).encode()


def test_hash_is_the_contract(tmp_path: Path) -> None:
    r"""Over the bytes of the records, then `path\0sha256hex\n` per image in path order."""
    names = ("images/b.png", "images/a/z.png", "images/Z.png")
    media = {}
    for number, name in enumerate(names):
        file = tmp_path / f"{number}.png"
        file.write_bytes(bytes([number]))
        media[name] = file
    write_set(tmp_path / "set", [record("r1", images=names)], media, draft())
    digest = hashlib.sha256((tmp_path / "set/records.jsonl").read_bytes())
    for name in sorted(names):
        inner = hashlib.sha256((tmp_path / "set" / name).read_bytes()).hexdigest()
        digest.update(f"{name}\0{inner}\n".encode())
    assert set_sha256(tmp_path / "set") == digest.hexdigest()
    assert open_set(tmp_path / "set").manifest.sha256 == digest.hexdigest()


@pytest.mark.parametrize("change", ["records", "image", "extra image", "manifest"])
def test_changed_sets_are_refused(change: str, tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"1")
    media = {"images/a.png": tmp_path / "a.png"}
    folder = tmp_path / "set"
    write_set(folder, [record("r1", images=("images/a.png",))], media, draft())
    if change == "records":
        path = folder / "records.jsonl"
        path.write_bytes(path.read_bytes().replace(b"Which?", b"What??"))
    elif change == "image":
        (folder / "images/a.png").write_bytes(b"2")
    elif change == "extra image":
        (folder / "images/b.png").write_bytes(b"2")
    else:
        value = json.loads((folder / "manifest.json").read_text())
        value["sha256"] = "0" * 64
        (folder / "manifest.json").write_text(json.dumps(value))
    with pytest.raises(InputError, match="changed after the set was built"):
        open_set(folder)


def test_attachments_do_not_count(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text("{}\n")
    plain = write_set(tmp_path / "one", [record("r1")], {}, draft())
    more = draft(attachments={"removed.jsonl": tmp_path / "x.jsonl"})
    attached = write_set(tmp_path / "two", [record("r1")], {}, more)
    assert plain.sha256() == attached.sha256()
    assert (tmp_path / "two/removed.jsonl").read_text() == "{}\n"


@pytest.mark.parametrize(
    ("records", "media", "message"),
    [
        ([], {}, "would hold no record"),
        ([record("r1"), record("r1")], {}, "two records have the id 'r1'"),
        ([record("r1", images=("images/a.png",))], {}, "named by a record but missing"),
        ([record("r1")], {"images/a.png": "a.png"}, "is named by none"),
        ([record("r1", images=("a.png",))], {"a.png": "a.png"}, "lie under images/"),
        ([record("r1", images=("images/../x",))], {"images/../x": "a.png"}, "lie under images/"),
        ([record("r1", images=("images/g.png",))], {"images/g.png": "gone.png"}, "no image"),
    ],
)
def test_what_cannot_be_written(
    records: list[Record], media: dict[str, str], message: str, tmp_path: Path
) -> None:
    (tmp_path / "a.png").write_bytes(b"1")
    files = {name: tmp_path / file for name, file in media.items()}
    with pytest.raises(InputError, match=message):
        write_set(tmp_path / "out/set", records, files, draft())
    assert list((tmp_path / "out").iterdir()) == []


def test_a_failure_midway_leaves_nothing(tmp_path: Path) -> None:
    def broken() -> Iterator[Record]:
        yield record("r1")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_set(tmp_path / "out/set", broken(), {}, draft())
    assert list((tmp_path / "out").iterdir()) == []


def test_existing_folders_are_kept(tmp_path: Path) -> None:
    write_set(tmp_path / "set", [record("r1")], {}, draft())
    with pytest.raises(InputError, match="exists already"):
        write_set(tmp_path / "set", [record("r2")], {}, draft())
    assert next(open_set(tmp_path / "set").records()).id == "r1"


def test_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(sets.os, "fsync", full)
    with pytest.raises(InputError, match="no space left"):
        write_set(tmp_path / "out/set", [record("r1")], {}, draft())
    assert list((tmp_path / "out").iterdir()) == []


def test_not_a_set(tmp_path: Path) -> None:
    for _ in range(2):
        with pytest.raises(InputError, match="is not a set folder"):
            open_set(tmp_path)
        (tmp_path / "records.jsonl").write_text("{}\n")
    with pytest.raises(InputError, match="is not a set folder"):
        set_sha256(tmp_path / "gone")


def test_malformed_records_name_their_line(tmp_path: Path) -> None:
    folder = tmp_path / "set"
    write_set(folder, [record("r1")], {}, draft())
    path = folder / "records.jsonl"
    path.write_bytes(path.read_bytes() + b'{"id": 7}\n')
    value = json.loads((folder / "manifest.json").read_text())
    value["sha256"] = set_sha256(folder)
    (folder / "manifest.json").write_text(json.dumps(value))
    with pytest.raises(RecordError, match=r"records\.jsonl:2"):
        list(open_set(folder).records())


def test_manifests_are_strict(tmp_path: Path) -> None:
    folder = tmp_path / "set"
    write_set(folder, [record("r1")], {}, draft())
    value = json.loads((folder / "manifest.json").read_text())
    value["colour"] = "red"
    value["role"] = "training"
    value["sources"][0]["rows_read"] = "3"
    del value["records"]
    (folder / "manifest.json").write_text(json.dumps(value))
    with pytest.raises(InputError) as caught:
        read_manifest(folder / "manifest.json")
    text = "\n".join([caught.value.message, *caught.value.faults])
    for part in (
        "colour is unknown",
        "role is 'training', expected one of calibration, eval",
        "sources.0.rows_read must be a whole number, found '3'",
        "records is missing",
    ):
        assert part in text


def test_another_schema_version_is_refused(tmp_path: Path) -> None:
    write_set(tmp_path / "set", [record("r1")], {}, draft())
    path = tmp_path / "set/manifest.json"
    path.write_text(path.read_text().replace('"schema_version": 1', '"schema_version": 2'))
    with pytest.raises(InputError, match="schema_version must be 1, found 2"):
        open_set(tmp_path / "set")


counts = st.dictionaries(st.text(max_size=8), st.integers(0, 10**9), max_size=4)
manifests = st.builds(
    SetManifest,
    role=st.sampled_from(["calibration", "eval"]),
    name=st.text("abc-é", min_size=1, max_size=8),
    definition=st.none() | counts,
    definition_sha256=st.text(max_size=8),
    sources=st.tuples(st.just(SOURCE)),
    records=st.integers(0, 10**9),
    questions=counts,
    cohorts=counts,
    sha256=st.text(max_size=8),
    token_lengths=st.none()
    | st.builds(TokenLengths, st.text(), st.text(), counts, *[st.integers()] * 5),
    decontamination=st.none()
    | st.builds(
        Decontamination,
        st.dictionaries(st.text(), st.text()),
        st.integers(),
        st.floats(0, 1),
        counts,
    ),
    clefq_version=st.text(max_size=8),
)


@given(manifests)
def test_manifests_round_trip(manifest: SetManifest) -> None:
    faults: list[str] = []
    assert read_value(SetManifest, json.loads(json.dumps(to_plain(manifest))), faults) == manifest
    assert faults == []


def test_length_bands() -> None:
    edges = {0: "<2K", 2047: "<2K", 2048: "2-8K", 8191: "2-8K", 8192: "8-32K", 32768: "32-128K"}
    assert {tokens: length_band(tokens) for tokens in edges} == edges
    assert length_band(131071) == "32-128K"
    assert length_band(131072) == ">=128K"
    assert length_band(10**9) == ">=128K"
    assert len(LENGTH_BANDS) == 5


@given(st.dictionaries(st.integers(1, 200_000), st.integers(1, 5), min_size=1, max_size=30))
def test_lengths_are_those_of_the_list(lengths: dict[int, int]) -> None:
    counter = TokenCounter("t", "h", lambda _: 0)
    found = summarize_lengths(counter, lengths)
    everything = sorted(tokens for tokens, count in lengths.items() for _ in range(count))
    assert (found.shortest, found.longest) == (everything[0], everything[-1])
    assert found.median == everything[(len(everything) - 1) // 2]
    assert found.p95 == everything[-(-95 * len(everything) // 100) - 1]
    assert found.total == sum(everything)
    assert sum(found.bands.values()) == len(everything)


def test_no_lengths_is_an_error() -> None:
    with pytest.raises(InputError, match="no record to measure"):
        summarize_lengths(TokenCounter("t", "h", lambda _: 0), {})


def test_counted_while_writing(tmp_path: Path) -> None:
    counter = TokenCounter("t", "h", lambda record: 3000 if record.id == "r2" else 10)
    records = [record("r1"), record("r2"), record("r3")]
    lengths = write_set(
        tmp_path / "set", records, {}, draft(counter=counter)
    ).manifest.token_lengths
    assert lengths is not None
    assert lengths.bands["2-8K"] == 1
    assert lengths.total == 3020
    assert lengths.median == 10
