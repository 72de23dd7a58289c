"""From a model and a set to a predictions file: resumable, and nothing dropped.

Every question of the set gets a row: its log-probabilities, or its error. What has been computed
is journalled group by group; the same command continues after Ctrl-C or SIGKILL, and the file is
then the same as that of an undisturbed run, but for `created_at`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from clefq import __version__
from clefq.clef.images import PROCESSOR_FILES
from clefq.engines.base import Engine, EngineInfo, EngineName, EngineSpec, RecordResult
from clefq.engines.journal import Journal, check_free
from clefq.engines.select import open_engine, runs_here
from clefq.errors import ClefqError, InputError
from clefq.names.models import ModelRef
from clefq.store.atomic import check_writable, compact_json, sha256_bytes, sha256_file
from clefq.store.predictions import PredictionsMeta, holds_something_else, write_predictions

if TYPE_CHECKING:
    import pandas as pd

    from clefq.clef.records import Record
    from clefq.console import Console
    from clefq.store.sets import SetFolder


@dataclass(frozen=True, slots=True)
class PredictJob:
    """One run.

    Attributes:
        model: The model; for http its folder is unused.
        set_path: Folder of the set.
        out: The predictions file to write.
        engine: Which engine.
        spec: How to run it.
        url: Base URL of a SystemOne server (http only).
    """

    model: ModelRef
    set_path: Path
    out: Path
    engine: EngineName
    spec: EngineSpec = field(default_factory=EngineSpec)
    url: str | None = None


@dataclass(frozen=True, slots=True)
class PredictSummary:
    """What a run did.

    Attributes:
        out: The predictions file.
        records: Records in the set.
        questions: Rows in the file.
        errors: Rows with an error.
        first_error: The most frequent error, or None.
        gold: Rows with a gold label.
        correct: Rows whose most probable option is the gold one (the first among equals).
        tokens: Input tokens of the records computed now, without those resumed.
        seconds: Time spent in the engine, loading excluded.
        resumed: Records taken over from an interrupted run.
        truncated: Records whose state was cut.
        kernels: As in the file's metadata.
        arithmetic: As in the file's metadata.
        device: As in the file's metadata.
    """

    out: str
    records: int
    questions: int
    errors: int
    first_error: str | None
    gold: int
    correct: int
    tokens: int
    seconds: float
    resumed: int
    truncated: int
    kernels: str
    arithmetic: str
    device: str

    @property
    def accuracy(self) -> float | None:
        """Fraction of gold-labelled rows that are right (an error is wrong), or None."""
        return self.correct / self.gold if self.gold else None

    @property
    def tokens_per_second(self) -> float | None:
        """Input tokens a second, or None when nothing was computed."""
        return self.tokens / self.seconds if self.tokens and self.seconds > 0 else None


def predict_set(job: PredictJob, console: Console) -> PredictSummary:
    """Predicts a set and writes the file; hands over to the serving environment where needed.

    Raises:
        InputError: The file cannot be written, or holds something else.
        ClefqError: Bad model, set or options, or an engine that cannot go on.
    """
    _check_out(job.out)
    if not runs_here(job.engine):
        from clefq.engines.worker import run_elsewhere

        return run_elsewhere(job, console)
    from clefq.store.sets import open_set

    folder = open_set(job.set_path)
    records = list(folder.records())
    engine = _open(job, console)
    try:
        return _predict(job, folder, records, engine, console)
    finally:
        engine.close()


def _check_out(path: Path) -> None:
    """Older predictions are replaced; a user's other file, or one in the making, is not."""
    check_writable(path)
    check_free(path)
    if path.is_file() and holds_something_else(path):
        raise InputError(
            f"{path} is there and is not a predictions file.",
            fix="remove it or choose another --out.",
        )


def _open(job: PredictJob, console: Console) -> Engine:
    if job.engine == "http":
        from clefq.engines.http_engine import HttpEngine

        http = HttpEngine(job.url or "", job.model.model_id, job.spec)
        for warning in http.warnings:
            console.note(f"warning: {warning}")
        return http
    console.note(f"loading {job.model.folder} with {job.engine}")
    return open_engine(job.engine, job.model.folder, job.spec, console)


def _predict(
    job: PredictJob,
    folder: SetFolder,
    records: Sequence[Record],
    engine: Engine,
    console: Console,
) -> PredictSummary:
    meta = _meta(job, folder, engine.info)
    with Journal(job.out, _key(job, meta), meta.created_at) as journal:
        # answers of an interrupted run are as old as it: gates frozen since came after them
        meta = replace(meta, created_at=journal.started)
        if journal.discarded:
            console.note("an interrupted run with other inputs or options was discarded")
        resumed = len(journal.results)
        if resumed:
            console.note(f"resuming: {resumed} of {len(records)} records are done")
        seconds, tokens = _run(engine, records, folder.path, journal, console)
        results = [journal.results[record.id] for record in records]
        if job.engine == "http":
            from clefq.engines.http_answers import settle

            # A server's rounding is known only once all answers are in.
            results, quantum = settle(results)
            meta = replace(meta, probability_quantum=quantum)
        rows = [
            row
            for record, result in zip(records, results, strict=True)
            for row in _rows(record, result)
        ]
        write_predictions(job.out, _frame(rows), meta)
        journal.remove()
    return _summary(job, meta, results, rows, (seconds, tokens, resumed))


def _run(
    engine: Engine,
    records: Sequence[Record],
    media_root: Path,
    journal: Journal,
    console: Console,
) -> tuple[float, int]:
    """Computes what the journal lacks; gives seconds and tokens."""
    todo = [record for record in records if record.id not in journal.results]
    tokens = 0
    started = time.perf_counter()
    with console.progress("predict", len(records)) as advance:
        advance(len(records) - len(todo))
        for group in engine.predict(todo, media_root) if todo else ():
            journal.append(group)
            tokens += sum(result.input_tokens for result in group)
            advance(len(group))
    seconds = time.perf_counter() - started
    lost = [record.id for record in records if record.id not in journal.results]
    if lost:
        raise ClefqError(
            f"the engine returned nothing for {len(lost)} records, first {lost[0]!r}.",
            fix="run it again; what was computed is kept.",
        )
    return seconds, tokens


def _meta(job: PredictJob, folder: SetFolder, info: EngineInfo) -> PredictionsMeta:
    digest = info.model_sha256
    scheme = info.scheme or "unknown"
    if job.engine != "http":
        from clefq.clef.checkpoint import checkpoint_sha256, open_checkpoint, scheme_of

        digest = checkpoint_sha256(job.model.folder)
        scheme = scheme_of(open_checkpoint(job.model.folder))
    return provenance(job.model, folder, info, job.spec, ModelFacts(digest, scheme))


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What a checkpoint's files say.

    Attributes:
        sha256: `checkpoint_sha256`, or None where the files are not here.
        scheme: `scheme_of`, or `unknown`.
    """

    sha256: str | None
    scheme: str


def provenance(
    model: ModelRef, folder: SetFolder, info: EngineInfo, spec: EngineSpec, facts: ModelFacts
) -> PredictionsMeta:
    """What a predictions file says of its making.

    Args:
        model: As it was asked for.
        folder: The set.
        info: What ran.
        spec: How.
        facts: Of the checkpoint.
    """
    return PredictionsMeta(
        eval_set=folder.name,
        eval_set_sha256=folder.sha256(),
        model_id=model.model_id,
        model_revision=model.revision,
        model_sha256=facts.sha256,
        variant=model.variant,
        scheme=facts.scheme,
        engine=info.engine,
        engine_version=info.engine_version,
        kernels=info.kernels,
        arithmetic=info.arithmetic,
        dtype=info.dtype,
        device=info.device,
        clefq_version=__version__,
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        max_length=spec.max_length,
        truncate_state=spec.truncate_state,
        probability_quantum=info.probability_quantum,
    )


def _key(job: PredictJob, meta: PredictionsMeta) -> str:
    """Hash of everything that decides the results; not the time, and not the file's name."""
    values = asdict(meta)
    del values["created_at"]
    spec = asdict(job.spec)
    # a window's results are the same whichever copy runs it
    del spec["copies"]
    values |= {"spec": spec, "url": job.url, "images": _image_settings(job)}
    return sha256_bytes(compact_json(values).encode())


def _image_settings(job: PredictJob) -> dict[str, str]:
    """Hashes of what decides the pixels; `model_sha256` covers all else of the checkpoint."""
    if job.engine == "http":
        return {}
    files = [job.model.folder / name for name in PROCESSOR_FILES]
    return {file.name: sha256_file(file) for file in files if file.is_file()}


def _rows(record: Record, result: RecordResult) -> list[dict[str, Any]]:
    rows = []
    for question in record.questions:
        logprobs = result.logprobs.get(question.id)
        error = result.errors.get(question.id)
        if logprobs is None and error is None:
            error = "the engine did not answer this question"
        rows.append(
            {
                "record_id": record.id,
                "cohort": record.cohort,
                "question_id": question.id,
                "question_type": question.type,
                "option_ids": list(question.option_ids),
                "logprobs": None if error is not None or logprobs is None else logprobs.tolist(),
                "gold": record.gold.get(question.id),
                "input_tokens": result.input_tokens,
                "truncated_tokens": result.truncated_tokens,
                "error": error,
            }
        )
    return rows


def predictions_frame(records: Sequence[Record], results: Sequence[RecordResult]) -> pd.DataFrame:
    """The rows of a predictions file.

    Args:
        records: The records.
        results: One result per record, in the same order.
    """
    return _frame([row for pair in zip(records, results, strict=True) for row in _rows(*pair)])


def _frame(rows: list[dict[str, Any]]) -> pd.DataFrame:
    import pandas as pd

    frame = pd.DataFrame(rows)
    for column in ("gold", "error", "logprobs"):
        frame[column] = pd.Series([row[column] for row in rows], dtype=object)
    return frame


def _summary(
    job: PredictJob,
    meta: PredictionsMeta,
    results: Sequence[RecordResult],
    rows: Sequence[dict[str, Any]],
    run: tuple[float, int, int],
) -> PredictSummary:
    seconds, tokens, resumed = run
    errors = [row["error"] for row in rows if row["error"] is not None]
    labelled = [row for row in rows if row["gold"] is not None]
    correct = sum(
        row["logprobs"] is not None
        and row["option_ids"][int(np.argmax(row["logprobs"]))] == row["gold"]
        for row in labelled
    )
    return PredictSummary(
        out=str(job.out),
        records=len(results),
        questions=len(rows),
        errors=len(errors),
        first_error=max(errors, key=errors.count) if errors else None,
        gold=len(labelled),
        correct=correct,
        tokens=tokens,
        seconds=seconds,
        resumed=resumed,
        truncated=sum(result.truncated_tokens > 0 for result in results),
        kernels=meta.kernels,
        arithmetic=meta.arithmetic,
        device=meta.device,
    )
