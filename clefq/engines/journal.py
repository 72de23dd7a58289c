"""The partial journal of a prediction run: what is done survives SIGKILL.

`.NAME.parquet.journal`, beside the file it becomes: a header line with the run's key and its
start, then one line of JSON per group of results, flushed to disk before the next group is
computed. Where an engine counts what it clips, the line has the counts until then. A line that a
crash cut short is dropped. Numbers survive exactly (shortest round-trip decimals).
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np

from clefq.engines.base import RecordResult
from clefq.errors import InputError
from clefq.store.atomic import disk_error

# By module, blocks of inputs that were clipped, and of how many.
Counts = Mapping[str, tuple[int, int]]


def journal_path(out: Path) -> Path:
    """Where the journal of a predictions file lies."""
    return out.parent / f".{out.name}.journal"


def check_free(out: Path) -> None:
    """Asks whether another run writes `out`, before a model is loaded for it.

    Raises:
        InputError: One does, or the journal cannot be opened.
    """
    path = journal_path(out)
    try:
        with path.open("rb") as file:
            _lock(file, path)
    except FileNotFoundError:
        return
    except OSError as error:
        raise disk_error(error, path) from error


def _lock(file: BinaryIO, path: Path) -> None:
    """Until the file is closed."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise InputError(
            f"another `clefq predict` is writing {path.name[1:-8]}.",
            fix="wait for it, or give another --out.",
        ) from error


class Journal:
    """An append-only list of result groups; a context manager that holds the file's lock.

    Args:
        out: The predictions file that the run will write.
        key: Hash of everything that decides the results; a journal with another key is discarded.
        started: When this run began; kept with the first results.

    Attributes:
        results: Record id to result, of an earlier run with the same key.
        started: When the first of the runs with this key began: the results may be as old.
        clipped: As `Simulating.clipped`, of all the results.
        discarded: Whether a journal of another run was thrown away.
    """

    def __init__(self, out: Path, key: str, started: str = "") -> None:
        self.path = journal_path(out)
        self.started = started
        self.results: dict[str, RecordResult] = {}
        self.clipped: Counts = {}
        self.discarded = False
        self._key = key
        self._file: BinaryIO | None = None

    def __enter__(self) -> Journal:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("a+b")
            _lock(self._file, self.path)
            self._recover(self._file)
        except OSError as error:
            self._close()
            raise disk_error(error, self.path) from error
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._close()

    def append(self, results: Sequence[RecordResult], clipped: Counts | None = None) -> None:
        """Writes a group and waits until the disk has it.

        Args:
            results: The group.
            clipped: What `clipped` is with it; None where it stays as it was.

        Raises:
            InputError: The disk is full.
        """
        assert self._file is not None
        group: Any = [result_to_json(result) for result in results]
        if clipped:
            group = {"results": group, "clipped": clipped}
        try:
            self._write(self._file, group)
        except OSError as error:
            raise disk_error(error, self.path) from error
        self.results.update((result.record_id, result) for result in results)
        self.clipped = clipped or self.clipped

    def remove(self) -> None:
        """Deletes the journal once the predictions file stands."""
        self.path.unlink(missing_ok=True)

    def _recover(self, file: BinaryIO) -> None:
        file.seek(0)
        good_end = 0
        for number, line in enumerate(file):
            value = _parse(line)
            own = number > 0 or (isinstance(value, dict) and value.get("key") == self._key)
            if value is None or not own:
                # An unfinished last line of our own run is no other run's journal.
                self.discarded = number == 0 and value is not None
                break
            if number == 0:
                self.started = value.get("started", self.started)
            else:
                if isinstance(value, dict):
                    self.clipped = {
                        name: (beyond, blocks)
                        for name, (beyond, blocks) in value["clipped"].items()
                    }
                    value = value["results"]
                results = [result_from_json(item) for item in value]
                self.results.update((result.record_id, result) for result in results)
            good_end += len(line)
        file.truncate(good_end)
        file.seek(good_end)
        if good_end == 0:
            self._write(file, {"key": self._key, "started": self.started})

    def _write(self, file: BinaryIO, value: Any) -> None:
        file.write(json.dumps(value, allow_nan=False, ensure_ascii=False).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def _parse(line: bytes) -> Any:
    """The line's value; None where it is cut short."""
    if not line.endswith(b"\n"):
        return None
    try:
        return json.loads(line)
    except ValueError:
        return None


def result_to_json(result: RecordResult) -> dict[str, Any]:
    """A result as JSON; numbers survive exactly."""
    return {
        "record_id": result.record_id,
        "option_ids": {key: list(ids) for key, ids in result.option_ids.items()},
        # Probability zero is null: JSON has no -Infinity.
        "logprobs": {
            key: [None if value == -np.inf else value for value in values.tolist()]
            for key, values in result.logprobs.items()
        },
        "errors": dict(result.errors),
        "input_tokens": result.input_tokens,
        "truncated_tokens": result.truncated_tokens,
    }


def result_from_json(value: dict[str, Any]) -> RecordResult:
    """The result that `result_to_json` wrote."""
    return RecordResult(
        record_id=value["record_id"],
        option_ids={key: tuple(ids) for key, ids in value["option_ids"].items()},
        logprobs={
            key: np.array([-np.inf if v is None else v for v in values], dtype=np.float64)
            for key, values in value["logprobs"].items()
        },
        errors=value["errors"],
        input_tokens=value["input_tokens"],
        truncated_tokens=value["truncated_tokens"],
    )
