"""From a model and a set to a predictions file: resumable, and nothing dropped.

Every question of the set gets a row: its log-probabilities, or its error. What has been computed
is journalled group by group; the same command continues after Ctrl-C or SIGKILL, and the file is
then the same as that of an undisturbed run, but for `created_at`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from clefq import __version__
from clefq.engines.base import (
    Engine,
    EngineInfo,
    EngineName,
    EngineSpec,
    RecordResult,
    Simulating,
)
from clefq.engines.http_apis import APIS
from clefq.engines.http_engine import HttpEngine, HttpOptions
from clefq.engines.journal import Counts, Journal, check_free
from clefq.engines.known import Known, how_of, is_finished, known_answers
from clefq.engines.select import open_engine, runs_here
from clefq.engines.shards import Shard, parse_shard
from clefq.errors import ClefqError, InputError
from clefq.names.models import ModelRef
from clefq.plain_files import compact_json, sha256_bytes
from clefq.store.atomic import check_writable
from clefq.store.predictions import (
    PredictionsMeta,
    check_replaceable,
    read_meta,
    read_predictions,
    write_predictions,
)

if TYPE_CHECKING:
    import pandas as pd

    from clefq.clef.records import Record
    from clefq.console import Console
    from clefq.engines.http_prompts import Checked
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
        again: Ask every question, whatever is finished or known from another set.
        shard: Part of the set to run, `I/N`, or None for all (vllm only).
        http: How to ask a server (http only).
    """

    model: ModelRef
    set_path: Path
    out: Path
    engine: EngineName
    spec: EngineSpec = field(default_factory=EngineSpec)
    url: str | None = None
    again: bool = False
    shard: str | None = None
    http: HttpOptions = field(default_factory=HttpOptions)


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
        reused: Records whose answers are those of another set of the run folder.
        finished: Whether the file was there already and nothing was done.
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
    reused: int = 0
    finished: bool = False

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
    check_writable(job.out)
    check_free(job.out)
    # a cluster's engines run in the environments of its nodes
    if not (runs_here(job.engine) or job.spec.ray is not None):
        from clefq.engines.worker import run_elsewhere

        return run_elsewhere(job, console)
    from clefq.store.sets import open_set

    folder = open_set(job.set_path)
    check_replaceable(job.out, folder.manifest.sha256)
    facts, how = _facts(job), _how(job)
    # what a server runs only itself can say
    done = (
        None
        if job.engine == "http"
        else _finished(job, folder, how, {"model_sha256": facts.sha256}, console)
    )
    if done is not None:
        return done
    records: Sequence[Record] = list(folder.records())
    engine = _open(job, console)
    try:
        if isinstance(engine, HttpEngine):
            done = _finished(job, folder, how, engine.stated, console)
            if done is not None:
                return done
            _note_change(job, engine.stated, console)
        if job.shard is not None:
            records = _part(records, engine, folder.path, parse_shard(job.shard))
        if job.engine == "http":  # what the server says of its model
            facts = ModelFacts(engine.info.model_sha256, engine.info.scheme or "unknown")
        meta = provenance(job.model, folder, engine.info, job.spec, facts)
        return _predict(job, folder, records, (engine, meta, how), console)
    finally:
        engine.close()


def _finished(
    job: PredictJob,
    folder: SetFolder,
    how: Mapping[str, Any],
    runs: Mapping[str, Any],
    console: Console,
) -> PredictSummary | None:
    """What a file that is there already says, where predicting anew would give the same.

    Args:
        job: The run.
        folder: The set.
        how: As `how_of`.
        runs: Fields of the metadata that say what would run.
        console: For the note.
    """
    if job.again:
        return None
    wanted = {
        "eval_set_sha256": folder.manifest.sha256,
        "variant": job.model.variant,
        "engine": job.engine,
        "max_length": job.spec.max_length,
        "truncate_state": job.spec.truncate_state,
        **runs,
    }
    if job.engine == "http":
        wanted["model_id"] = job.model.model_id
    if not is_finished(job.out, wanted, how, anywhere=job.spec.ray is not None):
        return None
    found = read_predictions(job.out)
    frame = found.frame.astype(object)
    rows = frame.where(frame.notna(), None).to_dict("records")
    if all(row["error"] is not None for row in rows):
        return None  # its cause may be mended
    console.note(f"{job.out} is finished: same set, model, engine and options; nothing to do")
    return replace(_summary(job, found.meta, rows, _Effort()), finished=True)


def _note_change(job: PredictJob, stated: Mapping[str, Any], console: Console) -> None:
    """Says why a server's answers, which may be paid for, are asked for again."""
    if job.again or not job.out.is_file():
        return
    old = asdict(read_meta(job.out))
    for name, value in stated.items():
        if old[name] != value:
            console.note(f"the server now says {name} {value}; {job.out} has {old[name]}")


def _part(
    records: Sequence[Record], engine: Engine, media_root: Path, shard: Shard
) -> Sequence[Record]:
    """A shard's records, in the order of the set."""
    windows = engine.windows(records, media_root) if hasattr(engine, "windows") else None
    if windows is None:
        raise InputError("--shard goes with the vllm engine.", fix="add --engine vllm.")
    mine = {record.id for window in shard.choose(windows) for record in window}
    if not mine:
        raise InputError(
            f"shard {shard.index}/{shard.of} is empty: the set has {len(windows)} windows.",
            fix=f"use at most {len(windows)} shards.",
        )
    return [record for record in records if record.id in mine]


def _open(job: PredictJob, console: Console) -> Engine:
    if job.engine == "http":
        http = HttpEngine(job.url or "", job.model.model_id, job.spec, job.http)
        for warning in http.warnings:
            console.note(f"warning: {warning}")
        return http
    console.note(f"loading {job.model.folder} with {job.engine}")
    return open_engine(job.engine, job.model.folder, job.spec, console)


def _predict(
    job: PredictJob,
    folder: SetFolder,
    records: Sequence[Record],
    opened: tuple[Engine, PredictionsMeta, Mapping[str, Any]],
    console: Console,
) -> PredictSummary:
    engine, meta, how = opened
    known = Known() if job.again else known_answers(job.out, folder, meta, how)
    started = min(filter(None, (meta.created_at, known.created_at)))
    with Journal(job.out, _key(job, meta, how), started) as journal:
        if journal.discarded:
            console.note("an interrupted run with other inputs or options was discarded")
        resumed = len(journal.results)
        if resumed:
            console.note(f"resuming: {resumed} of {len(records)} records are done")
        _take_over(known, journal, console)
        # a run that goes on does not know when its own answers were first asked
        asked_at = None if resumed else meta.created_at
        # answers of an interrupted run, and those of an older set, are as old as they are: gates
        # frozen since came after them
        meta = replace(meta, created_at=min(journal.started, started))
        if isinstance(engine, HttpEngine):
            _announce(engine, job, [r for r in records if r.id not in journal.results], console)
        effort = _run(engine, records, folder.path, journal, console)
        results = [journal.results[record.id] for record in records]
        if job.engine == "http":
            from clefq.engines.http_answers import settle

            # A server's rounding, and where it cuts, are known only once all answers are in.
            results, quantum = settle(results)
            cuts_at = APIS[meta.api].limits.cuts_at if meta.api in APIS else None
            results, checked = _mark_cut(job, records, results, cuts_at, console)
            meta = replace(meta, probability_quantum=quantum, prompts=checked)
        rows = _all_rows(records, results)
        meta = replace(meta, clipped=_clipped(journal.clipped, known.clipped))
        write_predictions(
            job.out,
            _frame(rows),
            meta,
            {**how, "reused": list(known.sources), "asked_at": asked_at},
        )
        journal.remove()
    return _summary(job, meta, rows, replace(effort, resumed=resumed, reused=len(known.results)))


def _take_over(known: Known, journal: Journal, console: Console) -> None:
    new = [result for id, result in known.results.items() if id not in journal.results]
    if new:
        journal.append(new)
    for source in known.sources:
        console.note(
            f"{source['records']} unchanged records keep their answers on {source['eval_set']}, "
            f"of {source['created_at']} (--again asks all anew)"
        )


def _announce(
    engine: HttpEngine, job: PredictJob, todo: Sequence[Record], console: Console
) -> None:
    """What a run will ask for, before it does."""
    refused = engine.refused(todo, job.set_path)
    text = f"{len(todo) - refused:,} requests to {engine.address} ({engine.api.name})"
    if refused:
        text += f"; {refused:,} records are beyond what it takes and are not asked"
    text += "; failed ones are repeated up to 5 times" if todo else ""
    if job.http.budget is not None:
        text += f", {job.http.budget:,} requests in all at most"
    console.note(text)


def _mark_cut(
    job: PredictJob,
    records: Sequence[Record],
    results: Sequence[RecordResult],
    cuts_at: int | None,
    console: Console,
) -> tuple[list[RecordResult], Checked]:
    """The results with what a server cut without a word."""
    from clefq.engines.http_prompts import count_prompts, mark_cut

    folder = job.http.count_with
    counted = None if folder is None else count_prompts(records, folder)
    marked, checked = mark_cut(records, results, counted, cuts_at)
    cut = sum(result.truncated_tokens > 0 for result in marked)
    if cut:
        console.note(
            f"warning: the server read only the beginning of {cut:,} of {len(records):,} states "
            f"({checked}); their rows say so, and a gate file can make them invalid"
        )
    return marked, checked


@dataclass(frozen=True, slots=True)
class _Effort:
    """What a run cost: seconds and tokens of what was computed, records that were not."""

    seconds: float = 0.0
    tokens: int = 0
    resumed: int = 0
    reused: int = 0


def _run(
    engine: Engine,
    records: Sequence[Record],
    media_root: Path,
    journal: Journal,
    console: Console,
) -> _Effort:
    """Computes what the journal lacks."""
    todo = [record for record in records if record.id not in journal.results]
    tokens, before = 0, journal.clipped
    started = time.perf_counter()
    with console.progress("predict", len(records)) as advance:
        advance(len(records) - len(todo))
        for group in engine.predict(todo, media_root) if todo else ():
            counts = engine.clipped() if isinstance(engine, Simulating) else {}
            journal.append(group, _sums(before, counts))
            tokens += sum(result.input_tokens for result in group)
            advance(len(group))
    seconds = time.perf_counter() - started
    lost = [record.id for record in records if record.id not in journal.results]
    if lost:
        raise ClefqError(
            f"the engine returned nothing for {len(lost)} records, first {lost[0]!r}.",
            fix="run it again; what was computed is kept.",
        )
    return _Effort(seconds, tokens)


def _sums(one: Counts, other: Counts) -> Counts:
    """Counts of two runs together."""
    none = (0, 0)
    return {
        name: (
            one.get(name, none)[0] + other.get(name, none)[0],
            one.get(name, none)[1] + other.get(name, none)[1],
        )
        for name in (*one, *(name for name in other if name not in one))
    }


def _clipped(counts: Counts, known: Mapping[str, float]) -> dict[str, float] | None:
    """The shares of a run, or where answers of other sets had larger ones, those."""
    shares = {name: beyond / blocks for name, (beyond, blocks) in counts.items()}
    names = (*shares, *(name for name in known if name not in shares))
    return {name: max(shares.get(name, 0.0), known.get(name, 0.0)) for name in names} or None


def _facts(job: PredictJob) -> ModelFacts:
    if job.engine == "http":
        return ModelFacts(None, "unknown")
    from clefq.clef.checkpoint import checkpoint_sha256, open_checkpoint, scheme_of

    folder = job.model.folder
    return ModelFacts(checkpoint_sha256(folder), scheme_of(open_checkpoint(folder)))


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
        api=info.api,
    )


def _how(job: PredictJob) -> dict[str, Any]:
    """What decides the results beside the metadata; `model_sha256` covers all but the images."""
    if job.engine == "http":
        # neither how many at once nor how fast changes an answer
        spec = asdict(replace(job.spec, concurrency=None))
        return {"spec": spec, "images": {}, "url": job.url, "shard": None}
    shard = None if job.shard is None else asdict(parse_shard(job.shard))
    return {**how_of(job.model.folder, job.spec), "shard": shard}


def _key(job: PredictJob, meta: PredictionsMeta, how: Mapping[str, Any]) -> str:
    """Hash of everything that decides the results; not the time, and not the file's name."""
    values = asdict(meta)
    del values["created_at"]
    return sha256_bytes(compact_json({**values, "url": None, **how}).encode())


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
                "cohorts": compact_json(dict(record.cohorts)) if record.cohorts else None,
            }
        )
    return rows


def predictions_frame(records: Sequence[Record], results: Sequence[RecordResult]) -> pd.DataFrame:
    """The rows of a predictions file.

    Args:
        records: The records.
        results: One result per record, in the same order.
    """
    return _frame(_all_rows(records, results))


def _all_rows(records: Sequence[Record], results: Sequence[RecordResult]) -> list[dict[str, Any]]:
    return [row for pair in zip(records, results, strict=True) for row in _rows(*pair)]


def _frame(rows: list[dict[str, Any]]) -> pd.DataFrame:
    import pandas as pd

    frame = pd.DataFrame(rows)
    for column in ("gold", "error", "logprobs", "cohorts"):
        frame[column] = pd.Series([row[column] for row in rows], dtype=object)
    return frame if frame["cohorts"].notna().any() else frame.drop(columns="cohorts")


def _summary(
    job: PredictJob,
    meta: PredictionsMeta,
    rows: Sequence[Mapping[Any, Any]],
    effort: _Effort,
) -> PredictSummary:
    errors = [row["error"] for row in rows if row["error"] is not None]
    labelled = [row for row in rows if row["gold"] is not None]
    correct = sum(
        row["logprobs"] is not None
        and row["option_ids"][int(np.argmax(row["logprobs"]))] == row["gold"]
        for row in labelled
    )
    return PredictSummary(
        out=str(job.out),
        records=len({row["record_id"] for row in rows}),
        questions=len(rows),
        errors=len(errors),
        first_error=max(errors, key=errors.count) if errors else None,
        gold=len(labelled),
        correct=correct,
        tokens=effort.tokens,
        seconds=effort.seconds,
        resumed=effort.resumed,
        truncated=len({row["record_id"] for row in rows if row["truncated_tokens"] > 0}),
        kernels=meta.kernels,
        arithmetic=meta.arithmetic,
        device=meta.device,
        reused=effort.reused,
    )
