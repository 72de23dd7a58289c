"""Predictions files: one Parquet row per question, with its provenance in the file metadata.

The baseline's file and each candidate's file are the only input of `parity`. Strict on both
sides: what is malformed is refused when it is written, not when it is judged.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from clefq.clef.formats import Arithmetic
from clefq.clef.records import cohorts_faults
from clefq.errors import InputError, PredictionsError
from clefq.store.atomic import atomic_file, can_name_folder, disk_error
from clefq.store.list_columns import ListColumn, list_column
from clefq.store.reading import (
    Rule,
    Stored,
    at_least,
    expected,
    faults_of,
    read_value,
    sha256_digits,
    to_plain,
)

SCHEMA_VERSION = 1
METADATA_KEY = b"clefq"
HOW_KEY = b"clefq_how"
_PARQUET = b"PAR1"  # how every Parquet file begins
QUESTION_TYPES = ("noul", "choice", "score")

ARROW_SCHEMA = pa.schema(
    [
        pa.field("record_id", pa.string(), nullable=False),
        pa.field("cohort", pa.string(), nullable=False),
        pa.field("question_id", pa.string(), nullable=False),
        pa.field("question_type", pa.string(), nullable=False),
        pa.field("option_ids", pa.list_(pa.string()), nullable=False),
        pa.field("logprobs", pa.list_(pa.float64())),
        pa.field("gold", pa.string()),
        pa.field("input_tokens", pa.int64(), nullable=False),
        pa.field("truncated_tokens", pa.int64(), nullable=False),
        pa.field("error", pa.string()),
    ]
)
# Only where the set has further cohorts: a JSON object of name to value, null for none.
COHORTS = pa.field("cohorts", pa.string())


def schema_for(columns: Iterable[str]) -> pa.Schema:
    """The schema of a file with these columns: `cohorts` is there only where a set has any."""
    return ARROW_SCHEMA.append(COHORTS) if COHORTS.name in columns else ARROW_SCHEMA


def read_cohorts(text: str | None) -> dict[str, str] | None:
    """The further cohorts of one row, sorted by name; None where the text is none.

    Raises:
        ValueError: It is no JSON object of name to value.
    """
    if text is None:
        return None
    value = json.loads(text)
    faults = cohorts_faults(value)
    if faults:
        raise ValueError(faults[0])
    return dict(sorted(value.items()))


def _can_name_report(variant: str) -> bool:
    # a server's own names may hold what a set's must not, such as a colon
    return variant not in ("", ".", "..") and not set(variant) & {"/", "\\"}


def _is_instant(text: str) -> bool:
    try:
        return datetime.fromisoformat(text).utcoffset() is not None
    except ValueError:
        return False


@dataclass(frozen=True, slots=True)
class PredictionsMeta(Stored):
    """Where a predictions file comes from, as executed, not as intended.

    Attributes:
        eval_set: Name of the set.
        eval_set_sha256: Hash of the set (see `clefq.store.sets`).
        model_id: Folder name or hub id of the model.
        model_revision: Hub commit, or None for a local folder.
        model_sha256: `clefq.clef.checkpoint.checkpoint_sha256` of the folder, or None (http).
        variant: Name in the run folder, for example `bf16`.
        scheme: A key of `clefq.clef.formats.SCHEMES`.
        engine: `transformers`, `vllm`, `http` or `import`.
        engine_version: Version of that engine's package.
        kernels: `real`, or `simulated` where an emulation stands in for the real kernels.
        arithmetic: The matrix arithmetic that ran, one of `ARITHMETICS`.
        dtype: Type of the activations, for example `bfloat16`.
        device: `cpu` or the accelerator's name.
        clefq_version: Version that wrote the file.
        created_at: RFC 3339, UTC.
        max_length: Token limit of a prompt.
        truncate_state: Whether over-long states were cut as the reference does.
        probability_quantum: Rounding step of the source's probabilities, or None for exact ones.
        schema_version: Version of this format.
        answers: `probabilities`, or `labels` where only the chosen options are known; these then
            have the log-probability 0 and all others minus infinity.
        api: In whose words a server was asked, None for other engines.
        prompts: How it was looked for prompts that a server cut without a word, which are then
            rows with `truncated_tokens`: `counted` with a tokenizer, `estimated` from the
            server's own counts, or None.
        redacted_from: Hash of the file that this one is a copy of without its names (`clefq bundle
            --redact`), or None.
        clipped: Where kernels are simulated: by module with a calibrated input scale (of those that
            read the same inputs the first), the share of the blocks of 16 inputs that exceed what
            the scale covers (answers taken over from other sets: the largest share of the runs);
            or None.
    """

    eval_set: Annotated[str, Rule(can_name_folder, "cannot be a folder's name")]
    eval_set_sha256: Annotated[str, sha256_digits()]
    model_id: str
    model_revision: str | None
    model_sha256: str | None
    variant: Annotated[str, Rule(_can_name_report, "cannot be a folder's name")]
    scheme: str
    engine: str
    engine_version: str
    kernels: Literal["real", "simulated"]
    arithmetic: Arithmetic
    dtype: str
    device: str
    clefq_version: str
    created_at: Annotated[str, Rule(_is_instant, "must be RFC 3339 with a time zone")]
    max_length: Annotated[int, at_least(1)]
    truncate_state: bool
    probability_quantum: (
        Annotated[float, Rule(lambda step: 0 < step < 1, "must be null, or above 0 and below 1")]
        | None
    )
    schema_version: Annotated[int, expected(SCHEMA_VERSION)] = SCHEMA_VERSION
    answers: Literal["probabilities", "labels"] = "probabilities"
    api: str | None = None
    prompts: Literal["counted", "estimated"] | None = None
    redacted_from: Annotated[str, sha256_digits()] | None = None
    clipped: dict[str, float] | None = None

    @property
    def labels(self) -> bool:
        """Whether only the chosen options are known."""
        return self.answers == "labels"

    def faults(self) -> Iterable[str]:
        """See `Stored.faults`."""
        if self.labels and self.probability_quantum is not None:
            yield "probability_quantum must be null where the answers are labels"


@dataclass(frozen=True, slots=True)
class Growth(Stored):
    """That a file's set contains older ones whole, whose answers were taken over unchanged.

    Attributes:
        known: Records whose answers were known.
        new: Records that were asked for this file.
        asked_at: When asking them began, RFC 3339.
    """

    known: int
    new: int
    asked_at: Annotated[str, Rule(_is_instant, "must be RFC 3339 with a time zone")]


@dataclass(frozen=True, slots=True)
class Predictions:
    """A predictions file in memory.

    Attributes:
        meta: Provenance.
        frame: One row per question, columns as in `ARROW_SCHEMA`, and `cohorts` where the set has
            further ones; `option_ids` and `logprobs` hold Python lists or numpy arrays (natural
            log; null logprobs where `error` is set), or every column Arrow's own values
            (`read_predictions(columnar=True)`).
        path: The file it was read from, or None.
        growth: What of its answers was known from older sets that its own contains, or None.
    """

    meta: PredictionsMeta
    frame: pd.DataFrame
    path: Path | None = None
    growth: Growth | None = None


def validate_frame(
    frame: pd.DataFrame, quantum: float | None = None, labels: bool = False
) -> list[str]:
    """Every kind of fault of a predictions frame, one line each with the first offending row.

    A row carries either logprobs that sum to one (to 1e-12, or to K·d/2 + 1e-12 for K options
    and a declared quantum d) or an error.

    Args:
        frame: One row per question.
        quantum: Rounding step of the probabilities, or None.
        labels: Whether every answer must be one option alone.
    """
    missing = [name for name in ARROW_SCHEMA.names if name not in frame.columns]
    if missing:
        return [f"columns missing: {', '.join(missing)}"]
    found: list[str] = []
    again = _doubled(frame)
    if again is not None:
        row = frame.iloc[again]
        found.append(f"{row.record_id}/{row.question_id} appears more than once")
    try:
        columns = _Columns(frame, quantum, labels)
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return [*found, "option_ids or logprobs hold something other than lists"]
    return found + columns.faults() + _cohorts_faults(frame)


def _cohorts_faults(frame: pd.DataFrame) -> list[str]:
    if COHORTS.name not in frame.columns:
        return []
    for text in frame[COHORTS.name].dropna().unique():
        try:
            read_cohorts(text)
        except (TypeError, ValueError) as error:
            row = frame[frame[COHORTS.name] == text].iloc[0]
            return [f"{row.record_id}/{row.question_id}: cohorts {text!r} is no object: {error}"]
    return []


def _doubled(frame: pd.DataFrame) -> int | None:
    """The first row whose question an earlier row has, or None."""
    record, question = (pd.factorize(frame[name]) for name in ("record_id", "question_id"))
    key = record[0] * (len(question[1]) + 1) + question[0]
    order = np.argsort(key, kind="stable")
    again = order[1:][np.diff(key[order]) == 0]
    return int(again.min()) if len(again) else None


class _Columns:
    """A frame's columns, checked kind by kind: a row's first fault hides its later ones."""

    def __init__(self, frame: pd.DataFrame, quantum: float | None, labels: bool) -> None:
        self.frame = frame
        self.labels = labels
        self.options = list_column(frame["option_ids"], pa.string())
        self.logprobs = list_column(frame["logprobs"], pa.float64())
        per_option = 0.0 if quantum is None else quantum / 2
        self.slack = self.options.counts * per_option + 1e-12

    def faults(self) -> list[str]:
        """One line per kind of fault, in the order of the first row that has it."""
        first: list[tuple[int, str]] = []
        clean = np.ones(len(self.frame), dtype=bool)
        for wrong, describe in self._checks():
            rows = np.flatnonzero(wrong & clean)
            if len(rows):
                at = int(rows[0])
                row = self.frame.iloc[at]
                first.append((at, f"{row.record_id}/{row.question_id}: {describe(at)}"))
            clean &= ~wrong
        return [text for _, text in sorted(first, key=lambda item: item[0])]

    def _checks(self) -> list[tuple[npt.NDArray[np.bool_], Callable[[int], str]]]:
        failed = self.frame["error"].notna().to_numpy(dtype=bool)
        known = self.frame["question_type"].isin(QUESTION_TYPES).to_numpy(dtype=bool)
        types = self.frame["question_type"]
        lengths = self.logprobs.counts
        values = self.logprobs.values
        bad = np.isnan(values) | np.isposinf(values)
        with np.errstate(over="ignore"):  # a damaged value; its sum is refused below
            total = self._by_row(self.logprobs, np.exp(np.where(bad, -np.inf, values)))
        return [
            (~known, lambda at: f"unknown question type {types.iloc[at]!r}"),
            (self._few_options(), lambda _: "needs at least two distinct option ids"),
            (
                failed != self.logprobs.null,
                lambda _: "needs either logprobs or an error, not both or neither",
            ),
            (
                ~failed & (lengths != self.options.counts),
                lambda at: f"{lengths[at]} logprobs for {self.options.counts[at]} options",
            ),
            (self._negative_tokens(), lambda _: "input_tokens or truncated_tokens is negative"),
            (
                self._by_row(self.logprobs, bad.astype(np.float64)) > 0,
                lambda _: "logprobs hold NaN or +inf; write the row with its error instead",
            ),
            (
                ~failed & (np.abs(total - 1.0) > self.slack),
                lambda at: f"probabilities sum to {float(total[at])!r}",
            ),
            (
                self._by_row(self.logprobs, (values > -np.inf).astype(np.float64)) > 1
                if self.labels
                else np.zeros(len(failed), dtype=bool),
                lambda _: "holds probabilities, where labels are declared",
            ),
        ]

    def _negative_tokens(self) -> npt.NDArray[np.bool_]:
        counts = (self.frame[name].to_numpy() for name in ("input_tokens", "truncated_tokens"))
        first, second = counts
        return np.asarray((first < 0) | (second < 0), dtype=bool)

    def _few_options(self) -> npt.NDArray[np.bool_]:
        codes, names = pd.factorize(self.options.values)
        counts = self.options.counts
        row = np.repeat(np.arange(len(counts)), counts)
        key = np.sort(row * (len(names) + 1) + codes)
        wrong = counts < 2
        wrong[row[codes < 0]] = True  # a null option id
        wrong[key[1:][key[1:] == key[:-1]] // (len(names) + 1)] = True
        return wrong

    @staticmethod
    def _by_row(column: ListColumn, values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        row = np.repeat(np.arange(len(column.counts)), column.counts)
        return np.bincount(row, values, minlength=len(column.counts)).astype(np.float64)


def write_predictions(
    path: Path, frame: pd.DataFrame, meta: PredictionsMeta, how: Mapping[str, Any] | None = None
) -> None:
    """Writes a predictions file atomically, refusing what would not read back.

    Args:
        path: The file; predictions on the same set are replaced, anything else is not.
        frame: One row per question.
        meta: Provenance.
        how: What else is to be known of its making (`read_how`), JSON values.

    Raises:
        PredictionsError: The frame or the metadata is malformed; lists every kind of fault.
        InputError: The path holds something else, or predictions on another set.
    """
    check_replaceable(path, meta.eval_set_sha256)
    faults = faults_of(meta) + validate_frame(frame, meta.probability_quantum, meta.labels)
    if faults:
        raise PredictionsError(f"{path} would be malformed: {faults[0]}.", faults=faults[1:])
    schema = schema_for(frame.columns)
    table = pa.Table.from_pandas(frame[schema.names], schema=schema, preserve_index=False)
    metadata = {METADATA_KEY: json.dumps(to_plain(meta), sort_keys=True).encode()}
    if how is not None:
        metadata[HOW_KEY] = json.dumps(dict(how), sort_keys=True).encode()
    table = table.replace_schema_metadata(metadata)
    with atomic_file(path) as partial:
        pq.write_table(table, partial, compression="zstd")


def check_replaceable(path: Path, eval_set_sha256: str) -> None:
    """Refuses to replace a user's other file, or predictions on another set.

    An empty file may be replaced. A damaged Parquet file may not: ours are renamed into place
    when they are whole.

    Args:
        path: The file that is to be written.
        eval_set_sha256: Hash of the set that it will be about.

    Raises:
        InputError: It holds something else, predictions on another set, or cannot be read.
    """
    if not path.is_file() or path.stat().st_size == 0:
        return
    try:
        with path.open("rb") as file:
            begin = file.read(len(_PARQUET))
        blob = None
        if begin == _PARQUET:
            blob = (_open(path).schema_arrow.metadata or {}).get(METADATA_KEY)
    except OSError as error:
        raise disk_error(error, path) from error
    except PredictionsError:
        blob = None
    if blob is None:
        raise InputError(
            f"{path} is there and is not a predictions file.",
            fix="remove it or choose another --out.",
        )
    known = _set_of(blob)
    if known[1] != eval_set_sha256:
        raise InputError(
            f"{path} holds predictions on another set, {known[0]} {known[1][:12]}; this one is "
            f"{eval_set_sha256[:12]}.",
            fix="move it away, or choose another --out; a set's name is its folder's.",
        )


def _set_of(blob: bytes) -> tuple[str, str]:
    """Name and hash of the set, of files of any version."""
    try:
        values = json.loads(blob)
        return str(values["eval_set"]), str(values["eval_set_sha256"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return "unknown", "unknown"


def read_how(path: Path) -> dict[str, Any]:
    """What `write_predictions` was told of a file's making; empty where it was told nothing.

    Raises:
        PredictionsError: Not a Parquet file.
    """
    blob = (_open(path).schema_arrow.metadata or {}).get(HOW_KEY)
    try:
        value = json.loads(blob or b"{}")
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def read_meta(path: Path) -> PredictionsMeta:
    """Reads the provenance alone.

    Raises:
        PredictionsError: Not a Parquet file, or not one of ours.
    """
    return _meta_of(path, _open(path).schema_arrow.metadata)


def read_predictions(path: Path, *, columnar: bool = False) -> Predictions:
    """Reads and checks a predictions file.

    Args:
        path: The file.
        columnar: Whether the frame keeps Arrow's columns: a tenth of the memory, but no lists and
            texts of Python's until they are asked for.

    Raises:
        PredictionsError: Missing, not Parquet, wrong columns, malformed rows or metadata.
    """
    file = _open(path)
    meta = _meta_of(path, file.schema_arrow.metadata)
    table = _table_of(path, file)
    frame = table.to_pandas(types_mapper=pd.ArrowDtype if columnar else None)
    faults = validate_frame(frame, meta.probability_quantum, meta.labels)
    if faults:
        raise PredictionsError(f"{path} is malformed: {faults[0]}.", faults=faults[1:])
    return Predictions(meta, frame, path, _growth(read_how(path), frame))


def _growth(how: Mapping[str, Any], frame: pd.DataFrame) -> Growth | None:
    """None where nothing was known, an older set is not contained whole, or a run was resumed."""
    reused, asked_at = how.get("reused"), how.get("asked_at")
    if not reused or not isinstance(asked_at, str) or not _is_instant(asked_at):
        return None
    if not all(source.get("whole") is True for source in reused):
        return None
    known = sum(int(source["records"]) for source in reused)
    return Growth(known, int(frame.record_id.nunique()) - known, asked_at)


# how far a sum of float32 probabilities may be from one
_FLOAT32_SUM = 1e-5


def _table_of(path: Path, file: pq.ParquetFile) -> pa.Table:
    """The rows, in columns of exactly the names and types that are written."""
    names = file.schema_arrow.names
    schema = schema_for(names)
    if names != schema.names:
        raise PredictionsError(f"{path} has columns {', '.join(names)}.", fix=_IMPORT_FIX)
    try:
        table = file.read()
        table.validate(full=True)
        table = _widened(table, schema)
    except (pa.ArrowException, OSError) as error:
        raise PredictionsError(f"{path} is damaged.", fix=_AGAIN_FIX) from error
    faults = [
        f"column {field.name} is {found.type}, expected {field.type}"
        for field, found in zip(schema, table.schema, strict=True)
        if found.type != field.type
    ]
    faults += [
        f"column {field.name} holds nulls"
        for field, column in zip(schema, table.columns, strict=True)
        if not field.nullable and column.null_count
    ]
    if faults:
        raise PredictionsError(f"{path}: {faults[0]}.", fix=_IMPORT_FIX, faults=faults[1:])
    return table


def _widened(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The table with columns of a narrower or larger form of their type in that type.

    Other tools write int32, float32, large_string and large_list; no value changes, but that
    probabilities in float32, whose sum is one to seven digits only, are made to sum to one.
    """
    for index, field in enumerate(schema):
        found = table.schema.field(index).type
        if found != field.type and _kind(found) == _kind(field.type):
            column = table.column(index).cast(field.type)
            if field.name == "logprobs" and found.value_type.bit_width < 64:
                column = pa.chunked_array([_normalized(column.combine_chunks())])
            table = table.set_column(index, field, column)
    return table


def _normalized(lists: pa.ListArray) -> pa.ListArray:
    """Log-probabilities whose exponentials sum to one where they did so to about 1e-6."""
    rows = []
    for row in lists.to_pylist():
        if row is None or any(value is None for value in row):
            rows.append(row)
            continue
        values = np.array(row, dtype=np.float64)
        total = float(np.exp(values).sum())
        near = total > 0 and abs(total - 1) <= _FLOAT32_SUM
        rows.append((values - np.log(total)).tolist() if near else row)
    return pa.array(rows, type=lists.type)


def _kind(found: pa.DataType) -> str:
    if pa.types.is_list(found) or pa.types.is_large_list(found):
        return f"list of {_kind(found.value_type)}"
    if pa.types.is_string(found) or pa.types.is_large_string(found):
        return "text"
    if pa.types.is_dictionary(found):
        return _kind(found.value_type)
    if pa.types.is_integer(found):
        return "integer"
    return "number" if pa.types.is_floating(found) else str(found)


# removed first: what is no Parquet file any more (an LFS pointer) is not replaced
_AGAIN_FIX = "remove it and make it again with `clefq predict`."
_IMPORT_FIX = "make it with `clefq predict`, or with `clefq import` from another tool's answers."


def _open(path: Path) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(path)
    except FileNotFoundError as error:
        raise PredictionsError(
            f"no predictions file {path}.", fix="make it with `clefq predict`."
        ) from error
    except (pa.ArrowInvalid, OSError) as error:
        tables = (".csv", ".tsv", ".json", ".jsonl", ".ndjson")
        fix = _IMPORT_FIX if path.suffix.lower() in tables else _AGAIN_FIX
        raise PredictionsError(f"{path} is not a whole Parquet file.", fix=fix) from error


def _meta_of(path: Path, metadata: dict[bytes, bytes] | None) -> PredictionsMeta:
    blob = (metadata or {}).get(METADATA_KEY)
    if blob is None:
        raise PredictionsError(
            f"{path} carries no clefq metadata.", fix="make it with `clefq predict`."
        )
    try:
        values = json.loads(blob)
    except (ValueError, RecursionError) as error:
        raise PredictionsError(f"{path}: metadata is not JSON.", fix=_AGAIN_FIX) from error
    faults: list[str] = []
    meta = read_value(PredictionsMeta, values, faults, "metadata")
    if meta is None:
        raise PredictionsError(f"{path}: {faults[0]}.", fix=_AGAIN_FIX, faults=faults[1:])
    return meta
