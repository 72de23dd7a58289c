"""What a CI job is asked, and what came of it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from clefq import __version__
from clefq.engines.base import EngineName
from clefq.errors import ExitCode
from clefq.parity.gates.judging import FAIL
from clefq.parity.gates.verdict import EXIT_CODES

Audit = Literal["source", "alone", "off"]
AUDITS: tuple[Audit, ...] = ("source", "alone", "off")
SCHEMA = "clefq.ci/1"


@dataclass(frozen=True, slots=True)
class CandidateSpec:
    """How to make the candidate from the baseline.

    Attributes:
        scheme: A bundled scheme, or None with a recipe file.
        file: A recipe file, or None.
        calibration: Calibration set folder, where the scheme needs one.
        rounding: How the scheme's four-bit weights are rounded; None is its own.
    """

    scheme: str | None
    file: Path | None = None
    calibration: Path | None = None
    rounding: str | None = None


@dataclass(frozen=True, slots=True)
class GateJob:
    """What the job is asked to judge.

    Attributes:
        baseline: Checkpoint folder, hub id or predictions file.
        candidate: The same, or how to make it from the baseline.
        name: Name of the candidate in the report, or None for its own.
        sets: Eval set folders; may be empty where both sides are predictions files.
        gates: Gate file, or the name of a bundled template.
        engine: Engine for both sides, or None for the fastest here.
        max_length: Token limit of a prompt.
        audit: Against the BF16 source, without it, or not at all.
        out: Run folder of the job.
        cache: Folder that keeps the baseline's predictions between jobs.
        salt: What else the answers depend on; part of the cache's keys.
        inconclusive_fails: Whether an inconclusive verdict is a failure.
    """

    baseline: str
    candidate: str | CandidateSpec
    name: str | None
    sets: tuple[Path, ...]
    gates: str
    engine: EngineName | None
    max_length: int
    audit: Audit
    out: Path
    cache: Path
    salt: str = ""
    inconclusive_fails: bool = True


@dataclass(frozen=True, slots=True)
class Step:
    """One step that was done.

    Attributes:
        name: `quantize`, `audit`, `predict` or `judge`.
        text: What came of it, one line.
        seconds: Wall time.
        breaches: What an audit found, one line each.
    """

    name: str
    text: str
    seconds: float
    breaches: tuple[str, ...] = ()


@dataclass(slots=True)
class JobResult:
    """What came of the job.

    Attributes:
        verdict: The worst of all sets, or `fail` after a breached audit.
        steps: What was done, in order.
        reports: Report folder and `summary.json` value of every set.
    """

    verdict: str = FAIL
    steps: list[Step] = field(default_factory=list)
    reports: list[tuple[Path, dict[str, Any]]] = field(default_factory=list)

    @contextmanager
    def step(self, name: str) -> Iterator[list[str]]:
        """Times a step; the block appends its text, and after it its breaches."""
        started = time.monotonic()
        lines: list[str] = []
        yield lines
        seconds = round(time.monotonic() - started, 1)
        self.steps.append(Step(name, lines[0], seconds, tuple(lines[1:])))

    def exit_code(self, *, inconclusive_fails: bool) -> ExitCode:
        """The job's exit code."""
        code = EXIT_CODES[self.verdict]
        if code is ExitCode.INCONCLUSIVE and not inconclusive_fails:
            return ExitCode.PASS
        return code

    def to_json(self, *, inconclusive_fails: bool) -> dict[str, Any]:
        """The JSON object of `ci.json`."""
        return {
            "schema": SCHEMA,
            "clefq_version": __version__,
            "verdict": self.verdict,
            "exit_code": int(self.exit_code(inconclusive_fails=inconclusive_fails)),
            "steps": [asdict(step) for step in self.steps],
            "sets": [{**body, "report_folder": str(path)} for path, body in self.reports],
        }
