"""The edge of parity: reads predictions and gates, asks git and the clock, writes the reports."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from clefq import __version__
from clefq.clef.formats import SCHEMES
from clefq.console import Console
from clefq.errors import ClefqError, PredictionsError
from clefq.parity.gates.choosing import Choice, choose, duels
from clefq.parity.gates.compare import CandidateReport, JudgeSpec, judge_candidate
from clefq.parity.gates.files import LoadedGates, load_gates
from clefq.parity.gates.looks import Look, looks_before
from clefq.parity.gates.preregistration import GitEvidence, find_superseded, git_evidence
from clefq.parity.gates.verdict import UNCHECKED
from clefq.parity.report.documents import JudgedFrom, Provenance
from clefq.parity.report.files import ReportSpec, write_reports
from clefq.parity.report.keeping import REPORT_FILE, Inputs, Others, other_reports
from clefq.parity.report.parity_json import read_parity
from clefq.parity.report.summary import Sizes
from clefq.parity.statistics.set_truth import differences, read_truth
from clefq.plain_files import sha256_file
from clefq.store.predictions import Predictions, PredictionsMeta, read_predictions

PACKAGES = ("numpy", "scipy", "pandas", "pyarrow")
RESAMPLES = 10_000
FROM_PREDICTIONS: JudgedFrom = "predictions"
FROM_BOUNDS: JudgedFrom = "stored bounds"


@dataclass(frozen=True, slots=True)
class SetJob:
    """One comparison on one set.

    Attributes:
        baseline: The baseline's predictions file.
        candidates: The candidates' predictions files, in table order.
        out: The report folder to write.
        replicates: Further predictions of the baseline, for the noise floor.
        sizes: Sizes and speeds of the models, by variant.
        inconclusive_fails: Whether inconclusive gates are failures in JUnit.
        set_path: The set's folder, against which every file is held, or None where it is not
            here.
        pick: Whether to recommend one of the candidates.
    """

    baseline: Path
    candidates: tuple[Path, ...]
    out: Path
    replicates: tuple[Path, ...] = ()
    sizes: Sizes = field(default_factory=Sizes)
    inconclusive_fails: bool = True
    set_path: Path | None = None
    pick: bool = False


def load_spec(gates: str) -> JudgeSpec:
    """Reads a gate file, what it supersedes, and what git says about it.

    Args:
        gates: Path, or the name of a bundled template.

    Raises:
        GateFileError: The file, or the one it supersedes, is missing or at fault.
    """
    loaded = load_gates(gates)
    return judge_spec(loaded, git_evidence(loaded.path), find_superseded(loaded))


def judge_spec(
    loaded: LoadedGates, evidence: GitEvidence, superseded: LoadedGates | None
) -> JudgeSpec:
    """How everything here is computed: the same resamples for every report."""
    return JudgeSpec(loaded, evidence, superseded, RESAMPLES, os.cpu_count() or 1)


def judge_set(job: SetJob, spec: JudgeSpec, console: Console) -> dict[str, Any]:
    """Judges all candidates of a set and writes the report folder.

    Reports of other candidates in the folder stay where their inputs are unchanged.

    Returns:
        The summary of the judged candidates, with the others by name: `kept`, and `removed` with
        the reason.

    Raises:
        PredictionsError: A file is unusable, or the files are of different sets.
    """
    baseline = read_predictions(job.baseline, columnar=True)
    replicates = [read_predictions(path, columnar=True) for path in job.replicates]
    candidates = [read_predictions(path, columnar=True) for path in job.candidates]
    _check_sets(baseline, [*replicates, *candidates])
    _check_replicates(baseline, replicates)
    _check_candidates(baseline, candidates)
    _check_schemes([baseline, *replicates, *candidates])
    truth = None if job.set_path is None else read_truth(job.set_path)
    expected = None if truth is None else truth.n_questions
    if truth is not None:  # once for all candidates
        spec = replace(spec, baseline_faults=tuple(differences(truth, baseline, "baseline")))
    spec = replace(spec, expected=expected, truth=truth, set_read=truth is not None)
    spec = replace(spec, before=_looks_before(job.out, spec.loaded, candidates))
    reports = []
    with console.progress("judge", len(candidates)) as advance:
        for candidate in candidates:
            report = judge_candidate(baseline, candidate, spec, replicates)
            folder = job.out / report.candidate.variant
            reports.append(_with_files(report, folder, (baseline, candidate), replicates))
            advance(1)
    others = _others(job, spec, baseline, [report.candidate.variant for report in reports])
    report_spec = ReportSpec(
        provenance(FROM_PREDICTIONS),
        job.sizes,
        job.inconclusive_fails,
        others.kept,
        _choice(candidates, reports, job, spec) if job.pick else None,
    )
    summary = write_reports(job.out, reports, report_spec)
    return {**summary, "kept": list(others.kept), "removed": dict(others.removed)}


def _choice(
    candidates: Sequence[Predictions],
    reports: Sequence[CandidateReport],
    job: SetJob,
    spec: JudgeSpec,
) -> Choice:
    """The recommendation among the candidates that are judged now."""
    words = {report.candidate.variant: report.verdict.word for report in reports}
    speeds = {name: float(speed["value"]) for name, speed in job.sizes.throughput.items()}
    return choose(words, duels(candidates, spec.loaded.seed), job.sizes.bytes, speeds)


def _others(job: SetJob, spec: JudgeSpec, baseline: Predictions, judged: Sequence[str]) -> Others:
    """What becomes of the reports of other candidates."""
    inputs = Inputs(
        eval_set=baseline.meta.eval_set_sha256,
        gates=spec.loaded.sha256,
        baseline=sha256_file(job.baseline),
        replicates=frozenset(map(sha256_file, job.replicates)),
        version=__version__,
    )
    return other_reports(job.out, judged, inputs)


def _looks_before(
    out: Path, loaded: LoadedGates, candidates: Sequence[Predictions]
) -> dict[str, tuple[Look, ...]]:
    """The looks that the reports which will be replaced tell of, by variant."""
    found = {}
    for candidate in candidates:
        path = out / candidate.meta.variant / REPORT_FILE
        if path.is_file():
            try:
                gates = (loaded.sha256, loaded.gates.supersedes)
                found[candidate.meta.variant] = looks_before(
                    read_parity(path), gates, candidate.meta
                )
            except ClefqError:  # no report of ours, or of another version
                continue
    return found


def provenance(judged_from: JudgedFrom) -> Provenance:
    """How and when a report is made: now, here, by this command line."""
    versions = {"python": platform.python_version()}
    versions |= {package: version(package) for package in PACKAGES}
    return Provenance(
        clefq_version=__version__,
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        judged_from=judged_from,
        versions=versions,
        command=" ".join(["clefq", *sys.argv[1:]]),
    )


def _check_sets(baseline: Predictions, others: Sequence[Predictions]) -> None:
    """All files before any figure: a comparison is refused whole, not half-way through."""
    wrong = [
        f"{other.path}: {other.meta.eval_set} {other.meta.eval_set_sha256[:12]}"
        for other in others
        if other.meta.eval_set_sha256 != baseline.meta.eval_set_sha256
    ]
    if wrong:
        raise PredictionsError(
            f"predictions of different sets cannot be compared; {baseline.path} is of "
            f"{baseline.meta.eval_set} {baseline.meta.eval_set_sha256[:12]}, but:",
            fix="predict every model on the same set.",
            faults=wrong,
        )


def _check_candidates(baseline: Predictions, candidates: Sequence[Predictions]) -> None:
    """The baseline's own file, under whatever name, agrees with itself and shows nothing."""
    for candidate in candidates:
        if _same_file(candidate, baseline):
            raise PredictionsError(
                f"{candidate.path} is the baseline's own file {baseline.path}.",
                fix="predict the candidate; another run of the baseline goes to --replicate.",
            )


def _check_schemes(files: Sequence[Predictions]) -> None:
    """A scheme that nobody knows means no arithmetic, and would switch that check off."""
    wrong = [
        f"{file.path}: scheme {file.meta.scheme!r}"
        for file in files
        if file.meta.scheme not in SCHEMES and file.meta.scheme not in UNCHECKED
    ]
    if wrong:
        raise PredictionsError(
            "the scheme of these predictions is none that clefq knows:",
            fix=f"import them with --scheme, one of {', '.join((*UNCHECKED, *SCHEMES))}.",
            faults=wrong,
        )


def _differ(one: PredictionsMeta, other: PredictionsMeta, *names: str) -> bool:
    """Whether any of these is known on both sides and not the same."""
    pairs = [(getattr(one, name), getattr(other, name)) for name in names]
    return any(None not in pair and pair[0] != pair[1] for pair in pairs)


def _otherwise_run(one: PredictionsMeta, other: PredictionsMeta) -> list[str]:
    """In what a replicate differs that no other batch size, engine or restart changes."""
    names = ["arithmetic", "max_length", "truncate_state"]
    if "unknown" not in (one.scheme, other.scheme):
        names.append("scheme")
    return [
        f"{name} is {getattr(other, name)}, the baseline's is {getattr(one, name)}"
        for name in names
        if getattr(one, name) != getattr(other, name)
    ]


def _same_file(one: Predictions, other: Predictions) -> bool:
    if one.path is None or other.path is None:
        return False
    return sha256_file(one.path) == sha256_file(other.path)


def _check_replicates(baseline: Predictions, replicates: Sequence[Predictions]) -> None:
    """A replicate is another run of the very same model, not the same file again."""
    for replicate in replicates:
        one, other = baseline.meta, replicate.meta
        if _differ(one, other, "model_sha256", "model_revision"):
            raise PredictionsError(
                f"{replicate.path} is of another model than the baseline {baseline.path}.",
                fix="give another run of the baseline as --replicate.",
            )
        wrong = _otherwise_run(one, other)
        if wrong:
            raise PredictionsError(
                f"{replicate.path} was run otherwise than the baseline {baseline.path}: its noise "
                "would excuse the candidate's.",
                fix="run the baseline again with the same limits and arithmetic.",
                faults=wrong,
            )
        if _same_file(replicate, baseline):
            raise PredictionsError(
                f"{replicate.path} is the baseline's own file, not another run of it.",
                fix="run the baseline again with another batch size or engine.",
            )


def _with_files(
    report: CandidateReport,
    folder: Path,
    sides: tuple[Predictions, Predictions],
    replicates: Sequence[Predictions],
) -> CandidateReport:
    """The report with the place and hash of every file behind it.

    Paths are relative to the folder of `parity.json`, so that a run folder can move.
    """

    def entry(predictions: Predictions) -> dict[str, str] | None:
        if predictions.path is None:
            return None
        path = os.path.relpath(predictions.path.resolve(), folder.resolve())
        return {"path": Path(path).as_posix(), "sha256": sha256_file(predictions.path)}

    files: dict[str, Any] = dict(zip(("baseline", "candidate"), map(entry, sides), strict=True))
    files["replicates"] = [entry(replicate) for replicate in replicates]
    return replace(report, files=files)
