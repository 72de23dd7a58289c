"""Did the gates come before the results? Evidence from git, honest where there is none.

The commit that last set the gate file's bytes is compared with the time at which the candidate's
predictions say they were made. Both times are self-declared: this is a record, not a proof
against forgery, and every report says so.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from clefq.errors import GateFileError
from clefq.parity.gates.files import LoadedGates
from clefq.parity.gates.schema import parse_gates
from clefq.plain_files import sha256_bytes
from clefq.store.predictions import Growth, PredictionsMeta
from clefq.store.reading import Stored

PREREGISTERED = "preregistered"
AFTER_RESULTS = "after_results"
UNPROVEN = "unproven"
GROWN = "grown"
TEMPLATE = "not_preregistered"
IMPORTED = "import"  # the engine that `clefq import` names


@dataclass(frozen=True, slots=True)
class Commit:
    """The commit that holds the gate file's bytes.

    Attributes:
        sha: Full hash.
        time: Committer time, RFC 3339.
    """

    sha: str
    time: str


@dataclass(frozen=True, slots=True)
class GitEvidence:
    """What git says about a gate file.

    Attributes:
        commit: The commit that holds it, or None.
        doubt: Why the order cannot be shown, or None.
    """

    commit: Commit | None
    doubt: str | None


@dataclass(frozen=True, slots=True)
class Preregistration(Stored):
    """Whether the gates predate the candidate's results.

    Attributes:
        status: `preregistered`, `grown`, `after_results`, `unproven` or `not_preregistered`.
        sentence: The same in words.
        commit: Commit that holds the gate file, or None.
        committed_at: Its time, or None.
        predicted_at: When the candidate's predictions say they were made; the oldest of them.
        growth: What of the answers was known from older sets that this one contains, or None.
    """

    status: str
    sentence: str
    commit: str | None
    committed_at: str | None
    predicted_at: str
    growth: Growth | None = None

    def to_json(self) -> dict[str, Any]:
        """The JSON object of `parity.json`."""
        return asdict(self)


def assess(
    loaded: LoadedGates,
    evidence: GitEvidence,
    candidate: PredictionsMeta,
    growth: Growth | None = None,
) -> Preregistration:
    """Compares the gate file's commit with the predictions' time; pure.

    Args:
        loaded: The gate file.
        evidence: What git says about it (`git_evidence`).
        candidate: Provenance of the candidate's predictions. Imported ones say when they were
            imported; their answers may be older.
        growth: Whether the set grew, and what was known of it. A gate file for a set that
            contains the old one whole could not be committed before the old answers.
    """
    predicted_at = candidate.created_at
    commit = evidence.commit
    sha, time = (commit.sha, commit.time) if commit else (None, None)
    if not loaded.gates.bound:
        sentence = "Not pre-registered: the gate file is a template, bound to no set and baseline."
        return Preregistration(TEMPLATE, sentence, None, None, predicted_at)
    if evidence.doubt is not None or commit is None:
        sentence = f"Unproven whether the gates came first: {evidence.doubt}."
        return Preregistration(UNPROVEN, sentence, sha, time, predicted_at)
    if datetime.fromisoformat(commit.time) < datetime.fromisoformat(predicted_at):
        if candidate.engine == IMPORTED:
            sentence = (
                "Unproven whether the gates came first: the candidate's answers were imported, "
                "and may be older than their file."
            )
            return Preregistration(UNPROVEN, sentence, sha, time, predicted_at)
        sentence = "The gates were committed before the candidate was run (self-declared times)."
        return Preregistration(PREREGISTERED, sentence, sha, time, predicted_at)
    if growth is not None and growth.new > 0 and _before(time, growth.asked_at):
        sentence = (
            f"The set grew by {growth.new:,} records: the gates were committed before those were "
            "asked (self-declared times), and the answers to the other "
            f"{growth.known:,} were known."
        )
        return Preregistration(GROWN, sentence, sha, time, predicted_at, growth)
    sentence = "The gates were committed after the candidate was run."
    return Preregistration(AFTER_RESULTS, sentence, sha, time, predicted_at)


def _before(time: str | None, other: str) -> bool:
    return time is not None and datetime.fromisoformat(time) < datetime.fromisoformat(other)


def git_evidence(path: Path) -> GitEvidence:
    """Asks git for the commit that holds exactly this file; never raises for want of git."""
    path = path.resolve()  # of a link, the file that was read
    folder = path.parent
    if _git(folder, "rev-parse", "--is-inside-work-tree") != "true":
        return GitEvidence(None, "the gate file is not in a git repository")
    if _git(folder, "rev-parse", "--is-shallow-repository") != "false":
        return GitEvidence(None, "the repository is a shallow clone")
    committed = _git(folder, "rev-parse", f"HEAD:./{path.name}")
    if committed is None:
        return GitEvidence(None, "the gate file is not committed")
    # --no-filters would miss a clean filter's line ends; the path picks the right filters.
    if _git(folder, "hash-object", "--path", f"./{path.name}", path.name) != committed:
        return GitEvidence(None, "the gate file was modified after its commit")
    line = _git(folder, "log", "-1", "--format=%H %cI", "--", path.name)
    if not line:
        return GitEvidence(None, "git knows no commit of the gate file")
    sha, time = line.split(" ", 1)
    return GitEvidence(Commit(sha, time), None)


def find_superseded(loaded: LoadedGates) -> LoadedGates | None:
    """The gate file that `supersedes` names: beside the new one, or in its git history.

    Raises:
        GateFileError: No file of that hash can be found.
    """
    wanted = loaded.gates.supersedes
    if wanted is None:
        return None
    for path, data in _older_versions(loaded.path):
        if sha256_bytes(data) == wanted:
            gates = parse_gates(data, str(path))
            return LoadedGates(gates, data.decode("utf-8"), wanted, path)
    raise GateFileError(
        f"{loaded.path}: no gate file of hash {wanted[:12]}, which it supersedes, was found.",
        fix="keep the replaced file beside it, or in the git history of its folder.",
    )


def _older_versions(path: Path) -> Iterator[tuple[Path, bytes]]:
    folder = path.resolve().parent
    for other in sorted((*folder.glob("*.yaml"), *folder.glob("*.yml"))):
        yield other, other.read_bytes()
    history = _git(folder, "log", "--format=commit %H", "--name-only", "--relative", "--", ".")
    sha = ""
    for line in (history or "").splitlines():
        if line.startswith("commit "):
            sha = line.split(" ", 1)[1]
        elif line.endswith((".yaml", ".yml")) and "/" not in line:
            data = _git_bytes(folder, "show", f"{sha}:./{line}")
            if data is not None:
                yield folder / line, data


def _git(folder: Path, *arguments: str) -> str | None:
    data = _git_bytes(folder, *arguments)
    return None if data is None else data.decode("utf-8", "replace").strip()


def _git_bytes(folder: Path, *arguments: str) -> bytes | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, check=False, timeout=30
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
