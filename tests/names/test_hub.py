from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import httpx
import huggingface_hub
import pytest
from huggingface_hub import errors

from clefq.errors import CheckpointError, InputError
from clefq.names.hub import resolve_model, split_model

REQUEST = httpx.Request("GET", "https://hub.invalid/x")
RESPONSE = httpx.Response(404, request=REQUEST)


def test_a_folder_is_taken_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert resolve_model(str(tmp_path)) == tmp_path
    (tmp_path / "org" / "name").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert resolve_model("org/name") == Path("org/name")


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("Cloudflare/clef-flash", ("Cloudflare/clef-flash", None)),
        ("a/b.c_d@v1.0", ("a/b.c_d", "v1.0")),
        ("a/b@refs/pr/1", ("a/b", "refs/pr/1")),
    ],
)
def test_hub_ids_split_into_repository_and_revision(model: str, expected: Any) -> None:
    assert split_model(model) == expected


@pytest.mark.parametrize("model", ["./gone", "/gone/away", "gone", "a/b/c", "a/b c", "a/b@", "~/x"])
def test_what_is_neither_is_refused(model: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        resolve_model(model)
    assert model in caught.value.message
    assert caught.value.fix


def test_revision_reaches_the_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[Any] = []

    def download(repo: str, *, revision: str | None) -> str:
        asked.append((repo, revision))
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert resolve_model("org/name@abc") == tmp_path
    assert resolve_model("org/name@refs/pr/1") == tmp_path
    assert asked == [("org/name", "abc"), ("org/name", "refs/pr/1")]


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (errors.GatedRepoError("x", response=RESPONSE), "is gated"),
        (errors.RevisionNotFoundError("x", response=RESPONSE), "has no revision v9"),
        (errors.RepositoryNotFoundError("x", response=RESPONSE), "has no model org/name"),
        (errors.LocalEntryNotFoundError("x"), "hub cannot be reached"),
        (errors.HfHubHTTPError("x", response=RESPONSE), "hub cannot be reached"),
        (httpx.ConnectError("x"), "hub cannot be reached"),
    ],
)
def test_hub_errors_become_one_line(
    monkeypatch: pytest.MonkeyPatch, error: Exception, words: str
) -> None:
    def download(repo: str, *, revision: str | None) -> str:
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    with pytest.raises(CheckpointError, match=words) as caught:
        resolve_model("org/name@v9")
    assert caught.value.fix


def test_a_full_disk_is_not_called_a_lost_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    def download(repo: str, *, revision: str | None) -> str:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    with pytest.raises(InputError, match="no space left"):
        resolve_model("org/name")


def test_offline_mode_gives_the_clear_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(CheckpointError, match="not in the local cache"):
        resolve_model("org/name")
