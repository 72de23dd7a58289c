"""Files and folders are whole or absent."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clefq.errors import InputError
from clefq.plain_files import compact_json, read_json, sha256_bytes, sha256_file
from clefq.store.atomic import (
    atomic_file,
    atomic_folder,
    check_writable,
    partial_path,
    sole_writer,
    write_json,
)


def test_file_appears_only_when_whole(tmp_path: Path) -> None:
    target = tmp_path / "a" / "x.txt"
    with atomic_file(target) as partial:
        partial.write_text("half")
        assert not target.exists()
    assert target.read_text() == "half"
    assert not partial_path(target).exists()


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_failure_keeps_the_old_file_and_leaves_no_partial(
    tmp_path: Path, error: type[BaseException]
) -> None:
    target = tmp_path / "x.txt"
    target.write_text("old")
    with pytest.raises(error), atomic_file(target) as partial:
        partial.write_text("new")
        raise error
    assert target.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["x.txt"]


def test_asking_whether_a_file_can_be_written_disturbs_no_one_who_writes_it(tmp_path: Path) -> None:
    target = tmp_path / "x.txt"
    check_writable(target)
    assert list(tmp_path.iterdir()) == []
    with atomic_file(target) as partial:
        partial.write_text("new")
        check_writable(target)
    assert target.read_text() == "new"


def test_full_disk_is_one_line(tmp_path: Path) -> None:
    with (
        pytest.raises(InputError, match="no space left while writing") as raised,
        atomic_file(tmp_path / "x") as partial,
    ):
        partial.write_text("half")
        raise OSError(errno.ENOSPC, "No space left on device")
    assert raised.value.fix is not None
    assert list(tmp_path.iterdir()) == []


def test_folder_appears_only_when_whole(tmp_path: Path) -> None:
    target = tmp_path / "out"
    with pytest.raises(RuntimeError), atomic_folder(target) as partial:
        (partial / "x").write_text("half")
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []
    with atomic_folder(target) as partial:
        (partial / "x").write_text("whole")
    assert (target / "x").read_text() == "whole"


def test_folder_can_be_resumed(tmp_path: Path) -> None:
    target = tmp_path / "out"
    with pytest.raises(RuntimeError), atomic_folder(target, keep_partial=True) as partial:
        (partial / "first").write_text("1")
        raise RuntimeError
    assert not target.exists()
    with atomic_folder(target, keep_partial=True) as partial:
        assert (partial / "first").read_text() == "1"
    assert (target / "first").exists()


def test_existing_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "x").write_text("")
    with pytest.raises(InputError, match="exists already"), atomic_folder(tmp_path / "out"):
        pass


def test_json_is_strict(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        write_json(tmp_path / "x.json", {"a": float("nan")})
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(InputError, match=r"bad\.json is not valid JSON"):
        read_json(tmp_path / "bad.json")
    with pytest.raises(InputError, match="cannot read"):
        read_json(tmp_path / "absent.json")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(JSON)
def test_compact_json_round_trips(value: object) -> None:
    text = compact_json(value)
    assert json.loads(text) == value
    assert "\n" not in text


def test_hashes_agree(tmp_path: Path) -> None:
    data = bytes(range(256)) * 9000
    (tmp_path / "x").write_bytes(data)
    assert sha256_file(tmp_path / "x") == sha256_bytes(data)


def test_a_file_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"cannot read .*gone"):
        sha256_file(tmp_path / "gone")


@pytest.mark.parametrize("data", [b"", b"{", b"[" * 100_000, b"[1,]"])
def test_what_is_no_json_is_refused_with_its_path(tmp_path, data):
    path = tmp_path / "config.json"
    path.write_bytes(data)
    with pytest.raises(InputError, match=r"config\.json is not valid JSON"):
        read_json(path)


def test_what_is_no_text_is_refused_with_its_path(tmp_path):
    path = tmp_path / "config.json"
    path.write_bytes(b'{"a": "\xff"}')
    with pytest.raises(InputError, match=r"config\.json is not UTF-8 text"):
        read_json(path)


HOLD = """
import sys
from pathlib import Path
from clefq.store.atomic import sole_writer
with sole_writer(Path(sys.argv[1])):
    print("locked", flush=True)
    sys.stdin.read()
"""


def hold(path: Path) -> subprocess.Popen[str]:
    """A process that is writing `path`."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "locked\n"
    return process


def test_one_writer_at_a_time_and_a_killed_one_loses_its_lock(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "out"
    process = hold(out)
    with pytest.raises(InputError, match="another clefq is writing") as caught, sole_writer(out):
        pytest.fail("two writers")
    assert caught.value.fix == "wait for it, or choose another --out."
    process.kill()
    process.communicate()
    assert (tmp_path / "deep" / ".out.lock").exists()
    with sole_writer(out), pytest.raises(InputError), sole_writer(out):
        pytest.fail("two writers")
    assert list(tmp_path.iterdir()) == [tmp_path / "deep"]
    assert list((tmp_path / "deep").iterdir()) == []


def test_a_lock_leaves_no_folders_of_its_own(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no"), sole_writer(tmp_path / "a" / "b" / "out"):
        raise ValueError("no")
    assert list(tmp_path.iterdir()) == []
    with sole_writer(tmp_path / "a" / "out"):
        (tmp_path / "a" / "out").write_text("")
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["out"]


@pytest.mark.parametrize("code", [errno.EACCES, errno.EROFS])
def test_an_unwritable_place_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(InputError) as caught, sole_writer(tmp_path / "out"):
        pytest.fail("no lock")
    assert str(caught.value) == f"cannot write {tmp_path / 'out'}. Fix: choose a writable --out."


def test_a_place_that_is_a_folder_or_below_a_file_is_named_as_given(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    for target in (tmp_path / "folder", tmp_path / "file" / "x.json"):
        with pytest.raises(InputError) as caught:
            write_json(target, {})
        assert ".partial" not in str(caught.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]
