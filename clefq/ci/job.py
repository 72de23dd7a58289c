"""The steps of one CI job: quantize or take a checkpoint, audit, predict, judge.

Every step is the same code that the command of its name runs. What was made before from the same
inputs is taken over: the same call resumes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from clefq.ci.cache import (
    EngineIdentity,
    copy_whole,
    find_runtime,
    is_current,
    job_key,
    prediction_key,
)
from clefq.ci.quantizing import make_candidate
from clefq.ci.spec import CandidateSpec, GateJob, JobResult
from clefq.errors import InputError
from clefq.names.models import ComparedModel, check_apart, check_name, identify
from clefq.names.run_folder import BASELINE, RunFolder
from clefq.parity.gates.judging import FAIL
from clefq.parity.gates.verdict import worst
from clefq.store.predictions import read_meta
from clefq.store.sets import SetFolder, open_set

if TYPE_CHECKING:
    from clefq.console import Console
    from clefq.parity.comparison import SetJob
    from clefq.parity.gates.compare import JudgeSpec
    from clefq.quantize.audit.report import AuditReport


def cache_key(job: GateJob) -> str | None:
    """One key over the baseline's predictions on all sets.

    None where the baseline is a predictions file: there is nothing to cache.

    Raises:
        ClefqError: The baseline, a set or the engine is unusable.
    """
    baseline = identify(job.baseline, BASELINE)
    if baseline.predictions is not None:
        return None
    runtime = _runtime(job)
    keys = [prediction_key(baseline, folder.sha256(), runtime) for folder in _open_sets(job)]
    return job_key(keys)


def run_job(job: GateJob, console: Console) -> JobResult:
    """Runs all steps; after a breached audit nothing is predicted.

    Raises:
        ClefqError: An input is unusable, or the quantized checkpoint would be wrong.
    """
    return Running(job, console).run()


def _open_sets(job: GateJob) -> list[SetFolder]:
    sets = [open_set(path) for path in job.sets]
    for folder in sets:
        if folder.manifest.role != "eval":
            raise InputError(
                f"{folder.path} is a calibration set.", fix="give an eval set as --eval."
            )
    names = [folder.name for folder in sets]
    if len(set(names)) < len(names):
        raise InputError(f"two eval sets have one name: {', '.join(names)}.", fix="rename one.")
    return sets


def _runtime(job: GateJob) -> EngineIdentity:
    from clefq.engines.select import fastest_engine

    return find_runtime(job.engine or fastest_engine(), job.max_length, job.salt)


def _no_set() -> InputError:
    return InputError("no eval set is given.", fix="add --eval SET.")


@dataclass
class Running:
    """One run: the job, and what came of it so far.

    Attributes:
        job: What is asked.
        console: Notes and progress.
    """

    job: GateJob
    console: Console

    def __post_init__(self) -> None:
        self.result = JobResult()
        self.folder = RunFolder(self.job.out)

    @cached_property
    def runtime(self) -> EngineIdentity:
        """What runs the models; asked for only where something is predicted."""
        return _runtime(self.job)

    def run(self) -> JobResult:
        """Runs all steps."""
        from clefq.parity.comparison import load_spec

        spec = load_spec(self.job.gates)  # a fault in it shows before an hour of work
        sets = _open_sets(self.job)
        baseline = identify(self.job.baseline, BASELINE)
        _check_files(baseline, sets)
        if not sets and baseline.predictions is None:
            raise _no_set()  # before anything is quantized or audited
        candidate = self._candidate(baseline)
        _check_files(candidate, sets)
        if not sets and candidate.predictions is None:
            raise _no_set()
        check_apart((baseline, candidate))
        if not self._audit(baseline, candidate):
            return self.result
        for folder in sets or (None,):
            files = [self.predictions(side, folder) for side in (baseline, candidate)]
            job = self._comparison(folder, files, (baseline, candidate))
            self._judge(job, spec)
        self.result.verdict = worst([body["verdict"] for _, body in self.result.reports])
        return self.result

    def _candidate(self, baseline: ComparedModel) -> ComparedModel:
        how = self.job.candidate
        if not isinstance(how, CandidateSpec):
            return identify(how, self.job.name)
        if baseline.predictions is not None:
            raise InputError(
                f"{baseline.given} holds predictions: there is nothing to quantize.",
                fix="give the BF16 checkpoint as --baseline, or a checkpoint as --candidate.",
            )
        name = self.job.name or how.scheme or (how.file.stem if how.file else "candidate")
        out = self.folder.model(name)
        # what would fail afterwards fails before an hour of work
        check_name(name, baseline)
        self.runtime  # noqa: B018
        with self.result.step("quantize") as lines:
            text, kept = make_candidate(how, baseline, out, self.console)
            lines.append(f"{text} (made before)" if kept else text)
        return identify(str(out), name)

    def _audit(self, baseline: ComparedModel, candidate: ComparedModel) -> bool:
        """Whether the candidate may be judged; what is quantized here was audited already."""
        if self.job.audit == "off" or isinstance(self.job.candidate, CandidateSpec):
            return True
        with self.result.step("audit") as lines:
            if candidate.predictions is not None:
                lines.append("none: the candidate is a predictions file")
                return True
            against = self.job.audit == "source" and baseline.predictions is None
            report = self._audited(candidate, baseline if against else None)
            lines += _audit_lines(report, against)
        self.result.verdict = FAIL
        return report.passed

    def _audited(self, candidate: ComparedModel, source: ComparedModel | None) -> AuditReport:
        from clefq.quantize.audit import audit_checkpoint

        self.console.note(f"auditing {candidate.given}")
        folder = None if source is None else source.locate().folder
        return audit_checkpoint(candidate.locate().folder, folder)

    def predictions(self, side: ComparedModel, folder: SetFolder | None) -> Path:
        """A model's predictions on a set: given, made before, from the cache, or made now.

        Args:
            side: The model.
            folder: The set; None where only predictions files are judged.

        Raises:
            InputError: There is no set, or the given file is of another one.
            ClefqError: The model, the set or the engine is unusable.
        """
        if side.predictions is not None:
            if (
                folder is not None
                and read_meta(side.predictions).eval_set_sha256 != folder.sha256()
            ):
                raise InputError(
                    f"{side.given} was made on another set than {folder.path}.",
                    fix="predict again on this set (`clefq predict`), or give the right --eval.",
                )
            return side.predictions
        if folder is None:
            raise _no_set()
        path = self.folder.predictions(folder.name, side.variant)
        with self.result.step("predict") as lines:
            how = self._predict(side, folder, path)
            lines.append(f"{side.variant} on {folder.name}: {how}")
        return path

    def _predict(self, side: ComparedModel, folder: SetFolder, path: Path) -> str:
        sha = folder.sha256()
        current = is_current(path, side, sha, self.runtime)
        # the file does not say with which image settings it was made
        if current and path.stat().st_mtime >= side.images_since:
            return "made before"
        key = prediction_key(side, sha, self.runtime)
        kept = self.job.cache / f"{key}.parquet" if side.variant == BASELINE else None
        if kept is not None and is_current(kept, side, sha, self.runtime):
            copy_whole(kept, path)
            return f"from the cache, {key[:12]}"
        text = self._predict_now(side, folder, path)
        if kept is not None:
            copy_whole(path, kept)
        return text

    def _predict_now(self, side: ComparedModel, folder: SetFolder, path: Path) -> str:
        from clefq.engines.base import EngineSpec
        from clefq.engines.predict import PredictJob, predict_set

        self.console.note(f"{side.variant} on {folder.name}: predicting")
        spec = EngineSpec(max_length=self.job.max_length)
        job = PredictJob(side.locate(), folder.path, path, self.runtime.engine, spec)
        done = predict_set(job, self.console)
        text = f"{done.questions:,} questions, {done.arithmetic}, {done.kernels} kernels"
        return f"{text}, {done.errors:,} errors" if done.errors else text

    def _comparison(
        self, folder: SetFolder | None, files: Sequence[Path], sides: Sequence[ComparedModel]
    ) -> SetJob:
        from clefq.parity.comparison import SetJob
        from clefq.parity.report.summary import sizes_of

        baseline, candidate = files
        here = {side.variant: Path(side.given).expanduser() for side in sides if side.sha256}
        name = folder.name if folder is not None else read_meta(baseline).eval_set
        return SetJob(
            baseline=baseline,
            candidates=(candidate,),
            out=self.folder.report(name),
            sizes=sizes_of(here),
            inconclusive_fails=self.job.inconclusive_fails,
            set_path=None if folder is None else folder.path,
        )

    def _judge(self, job: SetJob, spec: JudgeSpec) -> None:
        from clefq.parity.comparison import judge_set

        with self.result.step("judge") as lines:
            body = judge_set(job, spec, self.console)
            gates = body["gate_file"]["name"]
            lines.append(f"{body['eval_set']['name']}: {body['verdict']} by the gates {gates}")
        self.result.reports.append((job.out, body))


def _check_files(side: ComparedModel, sets: list[SetFolder]) -> None:
    """A predictions file is of one set."""
    if side.predictions is not None and len(sets) > 1:
        raise InputError(
            f"{side.given} is of one set, and {len(sets)} are given.",
            fix="give one --eval, or checkpoints.",
        )


def _audit_lines(report: AuditReport, against: bool) -> list[str]:
    checks = sum(report.counts.values())
    where = "against its source" if against else "without its source"
    if report.passed:
        return [f"{report.word}: {checks:,} checks {where}"]
    count = len(report.breaches)
    text = f"{count:,} breach(es) in {checks:,} checks {where}: nothing was predicted"
    return [text, *(f"{b.check}: {b.subject}: {b.message}" for b in report.breaches)]
