"""The journal survives what can happen to a file that is being written."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clefq.engines.base import RecordResult
from clefq.engines.journal import Journal, check_free, journal_path
from clefq.errors import InputError


def result(name: str, values: list[float] | None = None) -> RecordResult:
    logprobs = {"q": np.array(values if values is not None else [-0.1, -2.5])}
    return RecordResult(name, {"q": ("a", "b"), "e": ("x", "y")}, logprobs, {"e": "bad"}, 7, 2)


def test_results_come_back_bit_for_bit(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "p.parquet"
    values = [0.1 + 0.2, -np.inf, 5e-324, -1 / 3]
    with Journal(out, "key") as journal:
        journal.append([result("r1", values), result("ü 🙂")])
        journal.append([])
    with Journal(out, "key") as again:
        assert set(again.results) == {"r1", "ü 🙂"}
        back = again.results["r1"]
        assert np.array_equal(back.logprobs["q"], np.array(values))
        assert back.option_ids == {"q": ("a", "b"), "e": ("x", "y")}
        assert (back.errors, back.input_tokens, back.truncated_tokens) == ({"e": "bad"}, 7, 2)
        again.remove()
    assert not journal_path(out).exists()


def test_another_key_discards(tmp_path: Path) -> None:
    out = tmp_path / "p.parquet"
    with Journal(out, "one") as journal:
        journal.append([result("r1")])
        assert not journal.discarded
    with Journal(out, "two") as journal:
        assert journal.discarded
        assert not journal.results
        journal.append([result("r2")])
    with Journal(out, "two") as journal:
        assert set(journal.results) == {"r2"}


@given(cut=st.integers(0, 400))
@settings(deadline=None, max_examples=60)
def test_any_cut_loses_only_the_unfinished_group(
    tmp_path_factory: pytest.TempPathFactory, cut: int
) -> None:
    out = tmp_path_factory.mktemp("cut") / "p.parquet"
    with Journal(out, "key") as journal:
        journal.append([result("r1")])
        journal.append([result("r2"), result("r3")])
    data = journal_path(out).read_bytes()
    kept = data[: max(0, len(data) - cut)]
    journal_path(out).write_bytes(kept)
    whole = kept.count(b"\n") - 1
    with Journal(out, "key") as journal:
        expected = [set(), {"r1"}, {"r1", "r2", "r3"}][max(0, whole)]
        assert set(journal.results) == expected
        assert not journal.discarded
        journal.append([result("r9")])
    with Journal(out, "key") as journal:
        assert set(journal.results) == expected | {"r9"}


def test_garbage_is_discarded(tmp_path: Path) -> None:
    out = tmp_path / "p.parquet"
    journal_path(out).write_bytes(b"\x00\x01 not a journal\n" + json.dumps([]).encode())
    with Journal(out, "key") as journal:
        assert not journal.results


def test_two_runs_do_not_share_a_file(tmp_path: Path) -> None:
    out = tmp_path / "p.parquet"
    with (
        Journal(out, "key"),
        pytest.raises(InputError, match=r"another `clefq predict` is writing p\.parquet"),
        Journal(out, "key"),
    ):
        pass
    with Journal(out, "key"):
        pass


def test_a_file_in_the_making_shows_before_anything_is_loaded(tmp_path: Path) -> None:
    out = tmp_path / "p.parquet"
    check_free(out)
    with (
        Journal(out, "key"),
        pytest.raises(InputError, match=r"another `clefq predict` is writing p\.parquet"),
    ):
        check_free(out)
    check_free(out)
    with Journal(out, "key"):
        pass


def test_a_full_disk_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with Journal(tmp_path / "p.parquet", "key") as journal:
        monkeypatch.setattr("clefq.engines.journal.os.fsync", full)
        with pytest.raises(InputError, match="no space left"):
            journal.append([result("r1")])
        assert not journal.results


def test_what_is_resumed_began_with_the_first_run(tmp_path: Path) -> None:
    out = tmp_path / "p.parquet"
    for started, found in (("first", "first"), ("second", "first")):
        with Journal(out, "key", started) as journal:
            assert journal.started == found
    with Journal(out, "other", "third") as journal:
        assert journal.started == "third"
