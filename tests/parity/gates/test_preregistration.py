"""Evidence from git that the gates came before the results, and its honest absence."""

import os
import subprocess
from pathlib import Path

import pytest

from clefq.errors import GateFileError
from clefq.parity.gates.files import LoadedGates, freeze_text, load_gates
from clefq.parity.gates.preregistration import (
    Commit,
    GitEvidence,
    assess,
    find_superseded,
    git_evidence,
)
from clefq.parity.gates.schema import BoundBaseline, BoundSet
from clefq.plain_files import sha256_file
from clefq.store.predictions import Growth
from tests.parity.synthetic import meta

COMMITTED = "2026-01-01T00:00:00+00:00"
BEFORE, AFTER = "2025-12-31T23:59:59+00:00", "2026-01-01T01:00:01+01:00"


def git(folder: Path, *arguments: str, date: str = COMMITTED) -> str:
    environment = {
        **os.environ,
        "GIT_AUTHOR_DATE": date,
        "GIT_COMMITTER_DATE": date,
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_SYSTEM": os.devnull,
    }
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.invalid")
    command = ["git", "-C", str(folder), *identity, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return done.stdout.strip()


def bound_text(note: str = "") -> str:
    template = load_gates("release").text + note
    return freeze_text(template, BoundSet("s", "a" * 64), BoundBaseline("m", None, "b" * 64))


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with one committed, bound gate file."""
    folder = tmp_path / "repo"
    (folder / "gates").mkdir(parents=True)
    git(folder.parent, "init", "-q", "-b", "main", str(folder))
    (folder / "gates" / "g.yaml").write_text(bound_text(), "utf-8")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "gates")
    return folder


def status(path: Path, predicted: str) -> tuple[str, str]:
    found = assess(load_gates(str(path)), git_evidence(path), meta("fp8", created_at=predicted))
    return found.status, found.sentence


def test_committed_before_the_predictions(repository: Path) -> None:
    path = repository / "gates" / "g.yaml"
    found = assess(load_gates(str(path)), git_evidence(path), meta("fp8", created_at=AFTER))
    assert found.status == "preregistered"
    assert found.commit == git(repository, "rev-parse", "HEAD")
    assert "self-declared" in found.sentence
    # a later commit of something else does not move the gate file's commit
    (repository / "other").write_text("x")
    git(repository, "add", ".")
    git(repository, "commit", "-q", "-m", "other", date="2027-01-01T00:00:00+00:00")
    assert status(path, AFTER)[0] == "preregistered"


def test_imported_answers_may_be_older_than_their_file(repository: Path) -> None:
    path = repository / "gates" / "g.yaml"
    for created, found in ((AFTER, "unproven"), (BEFORE, "after_results")):
        imported = meta("fp8", engine="import", created_at=created)
        assert assess(load_gates(str(path)), git_evidence(path), imported).status == found


def test_committed_after_the_predictions(repository: Path) -> None:
    assert status(repository / "gates" / "g.yaml", BEFORE)[0] == "after_results"
    # the same instant is not before
    assert status(repository / "gates" / "g.yaml", COMMITTED)[0] == "after_results"


@pytest.mark.parametrize(
    ("asked_at", "new", "status"),
    [(AFTER, 20, "grown"), (BEFORE, 20, "after_results"), (AFTER, 0, "after_results")],
)
def test_gates_for_a_grown_set_need_only_precede_the_new_answers(
    repository: Path, asked_at: str, new: int, status: str
) -> None:
    path = repository / "gates" / "g.yaml"
    candidate = meta("fp8", created_at=BEFORE)
    growth = Growth(known=80, new=new, asked_at=asked_at)
    found = assess(load_gates(str(path)), git_evidence(path), candidate, growth)
    assert found.status == status
    assert ("20 records" in found.sentence and "80" in found.sentence) == (status == "grown")


def test_modified_or_uncommitted_is_unproven(repository: Path) -> None:
    path = repository / "gates" / "g.yaml"
    path.write_text(bound_text("# loosened\n"), "utf-8")
    assert "modified" in status(path, AFTER)[1]
    fresh = repository / "gates" / "new.yaml"
    fresh.write_text(bound_text(), "utf-8")
    assert status(fresh, AFTER) == (
        "unproven",
        "Unproven whether the gates came first: the gate file is not committed.",
    )
    # an edit that was committed later counts from its own commit
    git(repository, "add", "gates/g.yaml")
    git(repository, "commit", "-q", "-m", "loosen", date="2026-02-01T00:00:00+00:00")
    assert status(path, AFTER)[0] == "after_results"


def test_no_git_and_shallow_clone_are_unproven(repository: Path, tmp_path: Path) -> None:
    alone = tmp_path / "g.yaml"
    alone.write_text(bound_text(), "utf-8")
    assert "not in a git repository" in status(alone, AFTER)[1]
    (repository / "other").write_text("x")
    git(repository, "add", ".")
    git(repository, "commit", "-q", "-m", "other")
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "-q", "--depth", "1", f"file://{repository}", str(clone))
    assert "shallow" in status(clone / "gates" / "g.yaml", AFTER)[1]


def test_git_missing_is_unproven(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert status(repository / "gates" / "g.yaml", AFTER)[0] == "unproven"


def test_templates_are_never_preregistered() -> None:
    proof = GitEvidence(Commit("c" * 40, COMMITTED), None)
    assert (
        assess(load_gates("release"), proof, meta("fp8", created_at=AFTER)).status
        == "not_preregistered"
    )


def superseding(path: Path, old: str) -> LoadedGates:
    path.write_text(bound_text() + f"supersedes: {old}\n", "utf-8")
    return load_gates(str(path))


def test_superseded_file_is_found_beside_it_or_in_history(repository: Path) -> None:
    folder = repository / "gates"
    old = sha256_file(folder / "g.yaml")
    beside = find_superseded(superseding(folder / "h.yaml", old))
    assert beside is not None and beside.sha256 == old and beside.path.name == "g.yaml"
    (folder / "h.yaml").unlink()
    replaced = superseding(folder / "g.yaml", old)  # the old text is in the history only
    historic = find_superseded(replaced)
    assert historic is not None and historic.sha256 == old
    assert historic.text == bound_text()


def test_superseded_file_that_cannot_be_found_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(GateFileError, match="supersedes"):
        find_superseded(superseding(tmp_path / "g.yaml", "c" * 64))
    assert find_superseded(load_gates("release")) is None


def test_of_a_link_the_file_that_is_read_counts(repository: Path, tmp_path: Path) -> None:
    loose = repository / "gates" / "loose.yaml"
    loose.write_text(bound_text("# loosened\n"), "utf-8")
    link = tmp_path / "g.yaml"  # named as the committed file beside its target
    link.symlink_to(loose)
    assert status(link, AFTER) == (
        "unproven",
        "Unproven whether the gates came first: the gate file is not committed.",
    )
    link.unlink()
    link.symlink_to(repository / "gates" / "g.yaml")
    assert status(link, AFTER)[0] == "preregistered"
