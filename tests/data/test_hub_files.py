"""Original files fetched from the hub at a commit: the same records as from a local folder."""

from __future__ import annotations

import fnmatch
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from clefq.data.definition import load_definition
from clefq.data.hub_files import HubChoice, choose, fetch, find_place
from clefq.data.sources import SOURCES
from clefq.errors import DefinitionError
from clefq.plain_files import sha256_file
from tests.data.conftest import FIXTURES, Build

huggingface_hub = pytest.importorskip("huggingface_hub")

COMMIT = "0123456789abcdef0123456789abcdef01234567"
Asked = list[tuple[str, str]]


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], Asked]:
    """Makes a folder the one repository of the hub; what is asked for is noted."""
    asked: Asked = []

    def serve(files: Path) -> Asked:
        def snapshot_download(path: str, **options: Any) -> str:
            assert options["repo_type"] == "dataset"
            asked.append((path, options["revision"]))
            target = tmp_path / "cache" / options["revision"]
            for file in sorted(p for p in files.rglob("*") if p.is_file()):
                name = file.relative_to(files).as_posix()
                wanted = options["allow_patterns"]
                if wanted is None or any(fnmatch.fnmatch(name, pattern) for pattern in wanted):
                    (target / name).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(file, target / name)
            target.mkdir(parents=True, exist_ok=True)
            return str(target)

        monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
        return asked

    return serve


def bfcl_v3(folder: Path) -> Path:
    """The fixtures under the names that the hub's repository has."""
    shutil.copytree(FIXTURES / "bfcl", folder)
    for file in sorted(folder.rglob("BFCL_v4_*")):
        file.rename(
            file.with_name(file.name.replace("v4", "v3").replace("simple_python", "simple"))
        )
    return folder


def flickr_tar(folder: Path) -> Path:
    """The split file beside a tar of the photos, in a folder of its own inside."""
    folder.mkdir()
    shutil.copy(FIXTURES / "flickr30k" / "dataset_flickr30k.json", folder)
    with tarfile.open(folder / "flickr30k-images.tar", "w") as tar:
        tar.add(FIXTURES / "flickr30k" / "flickr30k-images", "somewhere/else")
    return folder


SPLITS = {
    "bfcl": ("simple_python", "live_relevance"),
    "captioned_images": ("all",),
    "contractnli": ("train", "test"),
    "documents": ("all",),
    "emobank": ("train", "dev"),
    "finentity": ("all",),
    "flickr30k": ("train", "test"),
}


@pytest.mark.parametrize("source", SPLITS)
def test_fetched_and_local_files_give_the_same_set(
    source: str, build: Build, hub: Callable[[Path], Asked], tmp_path: Path
) -> None:
    places = {"bfcl": bfcl_v3, "flickr30k": flickr_tar}
    asked = hub(places[source](tmp_path / "repository") if source in places else FIXTURES / source)
    pinned = SOURCES[source].hub_files.revision
    uses = [{"source": source, "split": split} for split in SPLITS[source]]
    off = {"within": False}
    local = build({"sources": uses, "decontaminate": off}).folder
    if pinned is None:
        uses = [{**use, "hub": {"id": "some/one", "revision": COMMIT}} for use in uses]
    fetched = build({"sources": uses, "decontaminate": off}, data_dir=None).folder
    assert sha256_file(local.path / "records.jsonl") == sha256_file(fetched.path / "records.jsonl")
    assert local.manifest.sha256 == fetched.manifest.sha256
    expected = SOURCES[source].hub_files.path if pinned else "some/one"
    assert set(asked) == {(expected, pinned or COMMIT)}
    for info in fetched.manifest.sources:
        assert (info.origin, info.revision) == ("hub", pinned or COMMIT)
        assert info.files
    assert not list(fetched.path.parent.glob(".*"))


def test_what_was_unpacked_of_another_commit_is_not_used(
    hub: Callable[[Path], Asked], tmp_path: Path
) -> None:
    """A stopped build leaves its working folder; the definition may name another commit then."""
    found = []
    for number in range(2):
        repository = tmp_path / f"repository-{number}"
        (repository / "photos").mkdir(parents=True)
        (repository / "photos" / "a.jpg").write_text(f"photo {number}")
        (repository / "dataset_flickr30k.json").write_text("{}")
        with tarfile.open(repository / "flickr30k-images.tar", "w") as tar:
            tar.add(repository / "photos", "photos")
        hub(repository)
        source = choose(SOURCES["flickr30k"], HubChoice("some/one", f"{number}" * 40))
        folder = fetch(source, ["test"], tmp_path / "work")
        found.append((folder / source.hub_files.unpacked / "a.jpg").read_text())
    assert found == ["photo 0", "photo 1"]


def test_two_images_of_one_name_are_refused(hub: Callable[[Path], Asked], tmp_path: Path) -> None:
    repository = flickr_tar(tmp_path / "repository")
    with tarfile.open(repository / "flickr30k-images.tar", "a") as tar:
        tar.add(FIXTURES / "flickr30k" / "flickr30k-images", "another/place")
    hub(repository)
    source = choose(SOURCES["flickr30k"], HubChoice("some/one", COMMIT))
    with pytest.raises(DefinitionError, match="two images called"):
        fetch(source, ["test"], tmp_path / "work")


def test_every_source_of_files_is_tested_here() -> None:
    public = {n for n, s in SOURCES.items() if s.origin == "public" and s.hub is None}
    assert set(SPLITS) == public - {"labelled_images"}  # as captioned_images
    for source in SOURCES.values():
        revision = source.hub_files.revision
        assert revision is None or (len(revision) == 40 and source.hub_files.path is not None)


@pytest.mark.parametrize(
    ("source", "written"),
    [
        ("emobank", "write `hub: {id: OWNER/NAME, revision: COMMIT}` under the source, for a data "
         "set of the hub that holds emobank.csv"),
        ("contractnli", "for a data set of the hub that holds "),
        ("finentity", "write `hub: {id: yixuantt/FinEntity, revision: COMMIT}` under the source"),
    ],
)  # fmt: skip
def test_without_a_known_commit_the_message_says_what_to_write(source: str, written: str) -> None:
    kind = SOURCES[source]
    with pytest.raises(DefinitionError, match="not on the hub at a commit") as caught:
        find_place(kind, kind.options(), None)
    assert caught.value.fix is not None
    assert written in caught.value.fix
    assert f"give the folder that holds {source}/ with --data-dir" in caught.value.fix


def test_which_place_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """--data-dir, then the definition's own data set, then the environment, then what is known."""
    kind, chosen = SOURCES["bfcl"], HubChoice("some/one", COMMIT)
    options = kind.options()
    (tmp_path / "bfcl").mkdir()
    assert find_place(kind, options, tmp_path, chosen).folder == tmp_path / "bfcl"
    monkeypatch.setenv("CLEFQ_DATA_DIR", str(tmp_path))
    place = find_place(kind, options, None, chosen)
    assert (place.folder, place.revision, place.source.hub_files.path) == (None, COMMIT, "some/one")
    assert find_place(kind, options, None).folder == tmp_path / "bfcl"
    monkeypatch.delenv("CLEFQ_DATA_DIR")
    assert find_place(kind, options, None).revision == kind.hub_files.revision


def test_a_table_may_come_from_another_data_set() -> None:
    kind = SOURCES["boolq"]
    place = find_place(kind, kind.options(), None, HubChoice("mirror/boolq", COMMIT))
    hub, own = place.source.hub, kind.hub
    assert hub is not None and own is not None
    assert (hub.path, hub.revision) == ("mirror/boolq", COMMIT)
    assert (hub.config, hub.splits) == (own.config, own.splits)
    assert place.folder is None and place.revision is None


def test_a_definition_s_data_set_is_checked(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(
        """
name: x
role: eval
sources:
  - {source: emobank, split: test, hub: {id: emobank, revision: main}}
  - {source: game_agent, split: eval, hub: {id: a/b, revision: COMMIT}}
  - {source: emobank, split: test, hub: {id: a/b}}
""".replace("COMMIT", COMMIT)
    )
    with pytest.raises(DefinitionError) as caught:
        load_definition(path, "eval")
    text = "; ".join([caught.value.message, *caught.value.faults])
    assert "sources.2.hub.revision is missing" in text
    path.write_text(path.read_text().replace("{id: a/b}", f"{{id: a/b, revision: {COMMIT}}}"))
    with pytest.raises(DefinitionError) as caught:
        load_definition(path, "eval")
    text = "; ".join([caught.value.message, *caught.value.faults])
    assert "sources.0.hub.id must be of the form owner/name, found 'emobank'" in text
    assert "sources.0.hub.revision must be a commit of 40 hex digits, found 'main'" in text
    assert "sources.1.hub: game_agent is not on the hub" in text


def test_the_hub_out_of_reach_is_one_line(
    build: Build, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def unreachable(*_: Any, **__: Any) -> str:
        raise ConnectionError("no route\nto the hub")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", unreachable)
    value = {"sources": [{"source": "bfcl", "split": "multiple"}]}
    with pytest.raises(DefinitionError) as caught:
        build(value, data_dir=None)
    assert "cannot read gorilla-llm/Berkeley-Function-Calling-Leaderboard@61fc0608" in str(
        caught.value
    )
    assert "\n" not in caught.value.message


def test_a_repository_without_the_files(
    build: Build, hub: Callable[[Path], Asked], tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    hub(tmp_path / "empty")
    use = {"source": "emobank", "split": "test", "hub": {"id": "a/b", "revision": COMMIT}}
    with pytest.raises(DefinitionError, match=r"lacks emobank\.csv, the test split of EmoBank"):
        build({"sources": [use]}, data_dir=None)
    with pytest.raises(DefinitionError, match=r"holds no flickr30k-images\.tar"):
        build({"sources": [{"source": "flickr30k", "split": "test"}]}, data_dir=None)


def test_a_broken_archive_is_one_line(
    build: Build, hub: Callable[[Path], Asked], tmp_path: Path
) -> None:
    repository = flickr_tar(tmp_path / "repository")
    archive = repository / "flickr30k-images.tar"
    hub(repository)
    archive.write_bytes(archive.read_bytes()[:700])
    with pytest.raises(DefinitionError, match="is no whole tar file"):
        build({"sources": [{"source": "flickr30k", "split": "test"}]}, data_dir=None)
